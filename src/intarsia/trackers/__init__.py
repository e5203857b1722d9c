"""A run's figures in TensorBoard, MLflow or Weights & Biases: observers, whose packages are imported when they begin.

The room stands above `federation`, whose observers these are, and below `experiment`, whose `run` is given their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from intarsia.core import SettingsError, suggest
from intarsia.trackers.tracker import RECORD, Begun, Result, Tracker

NAMES = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WeightsAndBiases"}
"""The trackers that there are: a file of this room each, and the class in it."""


def trackers_of(names: Iterable[str]) -> list[Tracker]:
    """Return the trackers of these names; one that is not there, or whose package is not, is an error."""
    if isinstance(names, str):
        raise SettingsError(f'track: give a list of names, as ["{names}"]')
    asked = list(dict.fromkeys(names))
    unknown = [name for name in asked if name not in NAMES]
    if unknown:
        there = f" (there are: {', '.join(NAMES)})"
        raise SettingsError(f"track: there is no tracker '{unknown[0]}'{suggest(unknown[0], NAMES)}{there}")
    return [getattr(import_module(f"intarsia.trackers.{name}"), NAMES[name])() for name in asked]


__all__ = ["NAMES", "RECORD", "Begun", "Result", "Tracker", "trackers_of"]
