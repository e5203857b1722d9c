"""From typed settings to a federation, and from a run folder to its clients' models."""

from intarsia.experiment.build import Experiment
from intarsia.experiment.earlier import Earlier
from intarsia.experiment.given import OWN, Data, Given, Models, asked
from intarsia.experiment.opened import Run, RunClient
from intarsia.experiment.populations import population_of
from intarsia.experiment.pretraining import Augment, Epoch, pretrain
from intarsia.experiment.preview import preview
from intarsia.experiment.run import fresh_folder, open_run, path_of, resume, run, start
from intarsia.experiment.settings import (
    EngineSettings,
    Settings,
    Source,
    anchored,
    check,
    load,
    parse_value,
    recipes,
    with_values,
)

__all__ = [
    "OWN",
    "Augment",
    "Data",
    "Earlier",
    "EngineSettings",
    "Epoch",
    "Experiment",
    "Given",
    "Models",
    "Run",
    "RunClient",
    "Settings",
    "Source",
    "anchored",
    "asked",
    "check",
    "fresh_folder",
    "load",
    "open_run",
    "parse_value",
    "path_of",
    "population_of",
    "pretrain",
    "preview",
    "recipes",
    "resume",
    "run",
    "start",
    "with_values",
]
