"""Modular personalised federated learning.

Clients with different data, devices and model shapes train together; each ends up with a model of its own,
fitted together from blocks that are shared with exactly the right others; only blocks that changed travel.
"""

from intarsia import models
from intarsia._version import __version__
from intarsia.blocks import Address, Block, Cut, Fold, Merge, Nova, SliceMean, Sums
from intarsia.core import IntarsiaError, IntarsiaWarning, JudgedWarning, chance, part
from intarsia.data import ClientInfo, Population, from_dict
from intarsia.experiment import (
    Run,
    RunClient,
    SeedRuns,
    Settings,
    compare,
    load,
    open_run,
    pretrain,
    preview,
    resume,
    run,
)
from intarsia.federation import Observer, RoundReport, RunStopped
from intarsia.methods import Exchange, Method, Server, Sharing
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
    "Training",
    "Trial",
    "Tuning",
    "TuningObserver",
    "__version__",
    "chance",
    "compare",
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
