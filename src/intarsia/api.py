"""What users of Intarsia import: `from intarsia import run` takes it from here."""

from __future__ import annotations

import intarsia.models as models
from intarsia._version import __version__
from intarsia.blocks import Address, Block, Cut, Fold, Merge, Sums
from intarsia.core import IntarsiaError, IntarsiaWarning, JudgedWarning, chance, part
from intarsia.data import ClientInfo, Population, from_dict, from_function
from intarsia.experiment import (
    Run,
    RunClient,
    SeedRuns,
    Settings,
    compare,
    load,
    open_run,
    plug_in,
    pretrain,
    preview,
    resume,
    run,
)
from intarsia.federation import Observer, RoundReport, RunStopped
from intarsia.methods import Exchange, Method, Server, Sharing
from intarsia.methods.fednova import Nova
from intarsia.methods.heterofl import SliceMean
from intarsia.report.live import PageFile, watching, write_page
from intarsia.trackers import Tracker
from intarsia.training import Batch, LocalClient, Objective, Proximal, Situation, Training
from intarsia.tuning import Trial, Tuning, TuningObserver, tune

__all__ = [
    "Address",
    "Batch",
    "Block",
    "ClientInfo",
    "Cut",
    "Exchange",
    "Fold",
    "IntarsiaError",
    "IntarsiaWarning",
    "JudgedWarning",
    "LocalClient",
    "Merge",
    "Method",
    "Nova",
    "Objective",
    "Observer",
    "PageFile",
    "Population",
    "Proximal",
    "RoundReport",
    "Run",
    "RunClient",
    "RunStopped",
    "SeedRuns",
    "Server",
    "Settings",
    "Sharing",
    "Situation",
    "SliceMean",
    "Sums",
    "Tracker",
    "Training",
    "Trial",
    "Tuning",
    "TuningObserver",
    "__version__",
    "chance",
    "compare",
    "from_dict",
    "from_function",
    "load",
    "models",
    "open_run",
    "part",
    "plug_in",
    "pretrain",
    "preview",
    "resume",
    "run",
    "tune",
    "watching",
    "write_page",
]
