"""What runs have to show, as rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from intarsia.experiment import Run
from intarsia.federation import accuracy_of
from intarsia.methods import METHODS, SHARINGS
from intarsia.models import base_in_words
from intarsia.report.sections import SECTIONS, Section


@dataclass(frozen=True)
class RunView:
    """One run, read once: its name in tables and pictures, its summary and its curves."""

    label: str
    note: str
    summary: dict[str, Any]
    rounds: list[int]
    accuracy: list[float]
    """Mean accuracy over clients after each evaluated round."""
    megabytes: list[float]
    """Training bytes, both ways, up to each evaluated round."""
    clients: dict[str, float]
    """Accuracy of each client's own model after the last round."""
    population: dict[str, Any]
    """Who holds what."""
    sections: list[Section]
    """What its method has to show beside all this."""

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Clients, accuracy and loss of each task; empty where all clients have the same."""
        tasks: dict[str, dict[str, Any]] = self.summary.get("tasks", {})
        return tasks

    @property
    def sent(self) -> int:
        """Training bytes of the run, both ways."""
        return int(self.summary["bytes"]["up"] + self.summary["bytes"]["down"])


def view(run: Run) -> RunView:
    """Read a run for a report."""
    metrics = [r for r in run.metrics if r["split"] == "test" and r["stage"] == "own"]
    by_round: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in metrics:
        by_round[row["round"]].append(row)
    rounds = sorted(by_round)
    last = by_round[rounds[-1]] if rounds else []
    means = [accuracy_of(by_round[r], r, "test").get("mean", float("nan")) for r in rounds]
    return RunView(
        _label(run),
        _note(run),
        run.summary,
        rounds,
        means,
        _megabytes(run, rounds),
        {row["client"]: row["accuracy"] for row in last if row["accuracy"] is not None},
        run.population,
        [section for kind in SECTIONS if (section := kind.read(run)) is not None],
    )


def views_of(runs: Sequence[Run]) -> list[RunView]:
    """Read runs for one report: labels that two of them share get the seed, or the folder."""
    views = [view(run) for run in runs]
    labels = [v.label for v in views]
    seeds = [f"{v.label}, seed {v.summary['seed']}" for v in views]
    folders = [f"{v.label}, {r.path}" for v, r in zip(views, runs, strict=True)]
    names = next((own for own in (labels, seeds) if len(set(own)) == len(own)), folders)
    return [replace(v, label=name) for v, name in zip(views, names, strict=True)]


def _label(run: Run) -> str:
    name = run.summary["method"]
    return METHODS[name].title if name in METHODS else str(name)


def _note(run: Run) -> str:
    settings = run.settings
    divided = settings.sharing.get("by", "")
    sharing = SHARINGS.get(settings.sharing["name"])
    parts = [f"per {divided}"] if divided and (sharing is None or sharing.has_everyone) else []
    for part in ("objective", "merge"):
        usual = METHODS.get(run.summary["method"])
        if usual is not None and getattr(usual(), part).name != getattr(settings, part)["name"]:
            parts.append(f"{part} {getattr(settings, part)['name']}")
    base = base_in_words(run.summary.get("base", {}))
    return ", ".join([*parts, *([base] if base else [])])


def _megabytes(run: Run, rounds: Sequence[int]) -> list[float]:
    sent: dict[int, int] = defaultdict(int)
    for row in run.traffic:
        if row["purpose"] == "train":
            sent[row["round"]] += row["bytes"]
    return [sum(size for r, size in sent.items() if r <= limit) / 1e6 for limit in rounds]
