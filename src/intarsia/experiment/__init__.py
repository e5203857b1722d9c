"""From typed settings to a federation, and from a run folder to its clients' models."""

from intarsia.core.text import flat
from intarsia.experiment.arithmetic import check_arithmetic
from intarsia.experiment.build import Experiment
from intarsia.experiment.comparison import compare, comparison, runs_in
from intarsia.experiment.earlier import Earlier
from intarsia.experiment.given import GIVEN, Data, Given, Models, asked
from intarsia.experiment.opened import Run, RunClient
from intarsia.experiment.plugged import (
    ENVIRONMENT,
    plug_in,
    plug_in_files,
    plug_in_named,
    plugins_of,
    with_plugins,
    without_plugins,
)
from intarsia.experiment.populations import population_of
from intarsia.experiment.pretraining import Augment, Epoch, pretrain
from intarsia.experiment.preview import preview
from intarsia.experiment.run import fresh_folder, open_run, path_of, resume, run, start
from intarsia.experiment.seeds import SeedRuns, chosen_seeds, run_seeds, unlike_settings
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
    "ENVIRONMENT",
    "GIVEN",
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
    "SeedRuns",
    "Settings",
    "Source",
    "anchored",
    "asked",
    "check",
    "check_arithmetic",
    "chosen_seeds",
    "compare",
    "comparison",
    "flat",
    "fresh_folder",
    "load",
    "open_run",
    "parse_value",
    "path_of",
    "plug_in",
    "plug_in_files",
    "plug_in_named",
    "plugins_of",
    "population_of",
    "pretrain",
    "preview",
    "recipes",
    "resume",
    "run",
    "run_seeds",
    "runs_in",
    "start",
    "unlike_settings",
    "with_plugins",
    "with_values",
    "without_plugins",
]
