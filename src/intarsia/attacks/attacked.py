"""A run with hostile clients in it, and what the honest ones have of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from intarsia.attacks.attackers import COHORT, SPREAD, attackers_of, with_turned_labels
from intarsia.attacks.engine import AttackedEngine
from intarsia.attacks.rules import Attack
from intarsia.core import SettingsError
from intarsia.data.recorded import record_of
from intarsia.engines import Engine
from intarsia.experiment import Settings, check_arithmetic
from intarsia.experiment.build import Experiment
from intarsia.federation import RunStopped
from intarsia.federation.summary import is_row_of
from intarsia.methods import OWN
from intarsia.runs import RunFolder


@dataclass(frozen=True)
class _Attacked(Experiment):
    """An experiment whose engine has attackers in it."""

    attack: Attack | None = None
    attackers: tuple[str, ...] = ()

    def engine(self, folder: RunFolder) -> Engine:
        """Start the engine that the settings name, and put attackers into it."""
        inner = super().engine(folder)
        if self.attack is None:
            return inner
        return AttackedEngine(inner, self.setup, self.attack, self.attackers)


def play(settings: Settings, attack: Attack | None, share: float, place: str = SPREAD) -> dict[str, Any]:
    """Run a federation with this share of attackers; return what the honest clients' own models score.

    Without an attack, the same clients are left out of the score, so that figures are about the same ones.
    """
    if settings.codec.get("name", "none") != "none":
        raise SettingsError("attack: updates are altered as full values: leave `codec` out")
    check_arithmetic(settings)
    experiment = Experiment.build(settings).check()
    setup = experiment.setup
    where = COHORT if attack is not None and attack.one_cohort else place
    hostile = tuple(attackers_of(setup.population.infos, share, settings.seed, where))
    if attack is not None and attack.flips_labels:
        setup = replace(setup, population=with_turned_labels(setup.population, hostile))
    attacked = _Attacked(experiment.settings, setup, attack, hostile).with_shared_data()
    with tempfile.TemporaryDirectory(prefix="intarsia-attack-") as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment.settings.to_toml())
        try:
            folder.write_population({**record_of(setup.population), "splits": setup.population.split_hashes})
            return _scored(folder, settings.rounds, hostile, _whole(attacked, folder))
        finally:
            folder.close()


def _whole(experiment: Experiment, folder: RunFolder) -> bool:
    """Play a run; return whether it came to its end, or stopped since nothing could be merged any more."""
    try:
        experiment.play(folder, None, None)
    except RunStopped:
        return False
    return True


def _scored(folder: RunFolder, rounds: int, hostile: tuple[str, ...], whole: bool) -> dict[str, Any]:
    """Return what honest clients score after the last round: nothing, if it was never reached."""
    last = [row for row in folder.rows("metrics") if is_row_of(row, rounds, "test", OWN)]
    events = folder.rows("events")
    honest = [row["correct"] / row["n"] for row in last if row["client"] not in hostile]
    return {
        "honest": fmean(honest) if whole else 0.0,
        "whole": whole,
        "attackers": len(hostile),
        "refused": sum(event["kind"] == "refused" for event in events),
        "left_out": sorted({event["client"] for event in events if event["kind"] == "left out"}),
    }
