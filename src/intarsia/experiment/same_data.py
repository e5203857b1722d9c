"""The data of a run once more: if it is not the same, whose is not, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.core import DataError
from intarsia.data import Population
from intarsia.experiment.build import Experiment
from intarsia.experiment.given import Given, check_against_run
from intarsia.experiment.populations import SplitDiffers
from intarsia.experiment.settings import Settings
from intarsia.runs import RunFolder

SHOWN = 3
"""How many clients a text names."""


def build_again(settings: Settings, given: Given, folder: RunFolder) -> Experiment:
    """Build the experiment of a run folder; of data that is not the run's, say whose differs."""
    check_against_run(given, settings)
    try:
        return Experiment.build(settings, given)
    except SplitDiffers as error:
        found = _differences(folder.population(), error.population)
        if not found:
            raise
        more = [f"and {len(found) - SHOWN} more clients"] if len(found) > SHOWN else []
        raise DataError("\n  ".join([f"{error}. What differs:", *found[:SHOWN], *more])) from None


def _differences(recorded: Mapping[str, Any], population: Population) -> list[str]:
    """Return a sentence for every client whose share is not what was recorded."""
    before, now = recorded.get("clients", {}), population.clients
    hashes, known = population.split_hashes, recorded.get("splits", {})
    gone = [f"client '{name}' is not there any more" for name in before if name not in now]
    come = [f"client '{name}' was not there" for name in now if name not in before]
    other = [
        f"client '{name}' has {_change(before[name], dict(client.info.samples))}"
        for name, client in now.items()
        if name in before and (known.get(name, hashes.get(name)) != hashes.get(name))
    ]
    return [*gone, *come, *other]


def _change(before: Mapping[str, Any], samples: Mapping[str, int]) -> str:
    was = dict(before.get("samples", {}))
    counts = [f"{now} {split} samples, had {was.get(split, 0)}" for split, now in samples.items()]
    told = [text for text, split in zip(counts, samples, strict=True) if samples[split] != was.get(split, 0)]
    return ", ".join(told) or "as many samples as before, but other rows, inputs, labels or attributes"
