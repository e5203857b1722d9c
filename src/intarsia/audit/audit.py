"""An audit of a run: what its blocks, and what is sent beside them, give away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from intarsia._version import __version__
from intarsia.audit.inversion import STEPS
from intarsia.audit.inverting import SINGLE, SUM, inversions
from intarsia.audit.labels import labels
from intarsia.audit.membership import membership
from intarsia.audit.played import Played, experiment_of, played
from intarsia.audit.sent import private_in, sent_in
from intarsia.audit.shadows import Shadows
from intarsia.core import SettingsError, one_thread, suggest, write_atomically
from intarsia.experiment import Experiment, Run

ATTACKS = ("membership", "labels", "inversion")
AUDIT = "audit.json"
FORMAT = 1
View = Literal["auto", "single", "sum"]


@dataclass(frozen=True)
class Asked:
    """What is to be tried, and how hard."""

    attacks: Sequence[str] = ATTACKS
    view: View = "auto"
    """What the server sees: every update, or sums alone (auto: as the run's settings say)."""
    shadows: int = 16
    """How many shadow runs (0: membership by loss alone)."""
    work: Path | None = None
    """Where it is kept what shadow runs told (None: beside the run)."""
    batches: tuple[int, ...] = (1, 4)
    steps: int = STEPS
    """How many steps a search for samples takes."""

    def __post_init__(self) -> None:
        for attack in self.attacks:
            if attack not in ATTACKS:
                raise SettingsError(f"attacks: there is no '{attack}'{suggest(attack, ATTACKS)}")
        if self.view not in ("auto", SINGLE, SUM):
            raise SettingsError(f"view: auto, single or sum, not '{self.view}'")
        for name, value, least in (("shadows", self.shadows, 0), ("steps", self.steps, 1)):
            if value < least:
                raise SettingsError(f"{name}: at least {least}, not {value}")
        if self.shadows == 1:
            raise SettingsError(
                "shadows: one run says nothing of how much they differ: ask for more, or none"
            )
        if not self.batches or min(self.batches) < 1:
            raise SettingsError("batches: sizes of at least 1")


def audit(run: Run, asked: Asked | None = None) -> dict[str, Any]:
    """Try attacks on a run that has ended; return what they got, and write it to `audit.json` in the run's folder.

    Parts of the run are played anew, elsewhere: nothing else in its folder changes.
    """
    asked = asked or Asked()
    if not run.summary.get("finished", True):
        raise SettingsError(f"{run.path} has not ended: intarsia resume {run.path}, then audit it")
    with one_thread():
        record = _audited(run, experiment_of(run), asked)
    write_atomically(run.path / AUDIT, (json.dumps(record, indent=1) + "\n").encode())
    return record


def _audited(run: Run, experiment: Experiment, asked: Asked) -> dict[str, Any]:
    view = view_of(experiment) if asked.view == "auto" else asked.view
    single = view == SINGLE
    with played(experiment) as again:
        record: dict[str, Any] = {
            "format": FORMAT,
            "intarsia": __version__,
            "run": experiment.settings.name,
            "method": experiment.setup.method.name,
            "round": run.state().round,
            "seed": experiment.settings.seed,
            "view": view,
            "replayed": _same_blocks(run, again),
            "sent": [sent.to_json() for sent in sent_in(again.ear, experiment.setup)],
            "own_blocks_in_messages": private_in(again.ear),
        }
        ended = Played(Run(run._folder, experiment), again.ear)
        if "membership" in asked.attacks:
            record["shadows"] = asked.shadows
            record["membership"] = _membership(ended, experiment, single, asked)
        if "labels" in asked.attacks:
            with played(experiment, 1) as first:
                record["labels"] = labels(first, ended, experiment.setup.population, single)
    if "inversion" in asked.attacks:
        record["inversion"] = inversions(experiment, asked.batches, single, asked.steps)
    return record


def view_of(experiment: Experiment) -> str:
    """Return what the server of these settings sees: with secure sums no single update."""
    return SUM if experiment.settings.secure_sums.on else SINGLE


def _membership(ended: Played, experiment: Experiment, single: bool, asked: Asked) -> list[dict[str, Any]]:
    path = ended.run.path
    work = asked.work or path.with_name(f"{path.name}.shadows")
    shadows = Shadows(experiment, work, single) if asked.shadows else None
    return membership(ended, experiment.setup.population, single, shadows, asked.shadows)


def _same_blocks(run: Run, again: Played) -> str:
    """Say whether playing the run anew gave the same blocks, to the last bit."""
    before, after = ({str(a): p.get(a).version for a in p} for p in (run.state().pool, again.state.pool))
    return "to the last bit" if before == after else "with other chance"
