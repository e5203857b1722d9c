"""Whether the machine here has the arithmetic that settings ask for, and what a run records of it."""

from __future__ import annotations

import torch

from intarsia.clients import resolve_device
from intarsia.core import SettingsError, warn
from intarsia.experiment.settings import Settings
from intarsia.runs import RunFolder, note_arithmetic
from intarsia.training import Precision, instructions, kind_of_machine

SLOW = "emulate it, slowly: --allow-slow (engine.allow_slow = true; a Flower site: allow_slow = true in its file)"


def check_arithmetic(settings: Settings) -> None:
    """Refuse arithmetic that the machine here would have to emulate, unless that is wanted."""
    device, slow = resolve_device(settings.engine.device), settings.engine.allow_slow
    asked = {
        "training.precision": settings.training.precision,
        "evaluation.precision": settings.evaluation.precision,
    }
    for setting, precision in asked.items():
        check_precision(precision, device, setting, "" if slow else SLOW)


def check_precision(precision: Precision, device: torch.device, where: str, cure: str) -> None:
    """Refuse a precision that a device has no instructions for; `cure` is the way on (none: it is allowed)."""
    if cure and precision != "fp32" and not instructions(device):
        raise SettingsError(
            f'{where}: "{precision}" needs a processor with AVX512-BF16 or AMX, or a CUDA device, and {device} here '
            f'is none: set it to "fp32", run it elsewhere, or {cure}'
        )


def note_machine(folder: RunFolder, settings: Settings) -> None:
    """Record by what kind of machine a run is played from here on; where it was another before, say so."""
    device = resolve_device(settings.engine.device)
    here = kind_of_machine(device, settings.training.precision, settings.evaluation.precision)
    with folder.writing():
        before = note_arithmetic(folder.path, here)
    if before:
        warn(
            f"{folder.path} was played on another kind of machine ({before}; this one: {here}): it goes on, but its "
            "last bits are not those that it would have had there; go on there if they matter"
        )
