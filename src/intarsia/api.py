"""What users of Intarsia import: `from intarsia import run` takes it from here."""

from __future__ import annotations

import intarsia.models as models
from intarsia._version import __version__
from intarsia.blocks import Address, Block, Cut, Fold, Merge, Sums
from intarsia.core import IntarsiaError, IntarsiaWarning, chance, part
from intarsia.data import ClientInfo, Population, from_dict
from intarsia.experiment import Run, RunClient, Settings, load, open_run, pretrain, preview, resume, run
from intarsia.federation import Observer, RoundReport, RunStopped
from intarsia.methods import Exchange, Method, Server, Sharing
from intarsia.methods.fednova import Nova
from intarsia.methods.heterofl import SliceMean
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
    "LocalClient",
    "Merge",
    "Method",
    "Nova",
    "Objective",
    "Observer",
    "Population",
    "Proximal",
    "RoundReport",
    "Run",
    "RunClient",
    "RunStopped",
    "Server",
    "Settings",
    "Sharing",
    "Situation",
    "SliceMean",
    "Sums",
    "Training",
    "Trial",
    "Tuning",
    "TuningObserver",
    "__version__",
    "chance",
    "from_dict",
    "load",
    "models",
    "open_run",
    "part",
    "pretrain",
    "preview",
    "resume",
    "run",
    "tune",
]
