"""What runs have to show, as rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from intarsia.experiment import flat
from intarsia.experiment.run_record import RunRecord
from intarsia.federation import accuracy_of
from intarsia.judging.comparing import Played, grouped
from intarsia.methods import METHODS, OWN, SHARINGS
from intarsia.models import base_in_words
from intarsia.report.curves import Curve, curves_of
from intarsia.report.reading import Reading
from intarsia.report.sections import SECTIONS, Section

LONGEST_LABEL = 48
"""From how many letters on, settings that tell runs apart are not named in their labels."""


@dataclass(frozen=True)
class RunView:
    """One run, read once: its name in tables and pictures, its summary and its curves."""

    run: Reading
    """All that its folder says."""
    label: str
    experiment: str
    """What it is called together with the runs that differ from it in their seed alone."""
    note: str
    summary: dict[str, Any]
    rounds: list[int]
    """The rounds after which clients' own models were evaluated."""
    accuracy: list[float]
    """Mean accuracy over clients after each of these rounds."""
    curves: list[Curve]
    """By task: accuracy, or the loss where there is none, after each of these rounds."""
    sent_by: list[float]
    """Training bytes, both ways, up to each of these rounds."""
    seconds: list[float]
    """The time up to each of these rounds."""
    virtual: list[float]
    """The virtual seconds of the fleet up to each of these rounds; none without a fleet's clock."""
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

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.summary["method"])

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.run.finished


def view(run: RunRecord) -> RunView:
    """Read a run for a report; one that goes on or was stopped as far as it has come."""
    read = Reading(run._folder)
    metrics = [r for r in read.metrics if r["split"] == "test" and r["stage"] == OWN]
    by_round: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in metrics:
        by_round[row["round"]].append(row)
    rounds = sorted(by_round)
    last = by_round[rounds[-1]] if rounds else []
    title = _title(read)
    return RunView(
        run=read,
        label=title,
        experiment=title,
        note=_note(read),
        summary=read.summary,
        rounds=rounds,
        accuracy=[accuracy_of(by_round[r], r, "test").get("mean", float("nan")) for r in rounds],
        curves=curves_of(by_round, read.population),
        sent_by=_up_to(rounds, _trained(read)),
        seconds=_up_to(rounds, {row["round"]: row.get("total", 0.0) for row in read.seconds}),
        virtual=_virtual(rounds, read),
        clients={row["client"]: row["accuracy"] for row in last if row["accuracy"] is not None},
        population=read.population,
        sections=[section for kind in SECTIONS if (section := kind.read(read)) is not None],
    )


def views_of(runs: Sequence[RunRecord]) -> list[RunView]:
    """Read runs for one report; each is named by what tells it apart: settings, the seed, or the folder."""
    views = [view(run) for run in runs]
    experiments = _experiments(views)
    several = Counter(experiments)
    labels = [
        f"{name}, seed {v.summary['seed']}" if several[name] > 1 else name
        for v, name in zip(views, experiments, strict=True)
    ]
    if len(set(labels)) < len(labels):
        labels = experiments = [f"{v.label}, {v.run.path}" for v in views]
    return [
        replace(v, label=label, experiment=name)
        for v, label, name in zip(views, labels, experiments, strict=True)
    ]


def _experiments(views: Sequence[RunView]) -> list[str]:
    """Return what runs are called together with those that differ from them in their seed alone."""
    played = [Played(str(v.run.path), v.label, settings_of(v.run), v.summary, {}) for v in views]
    named = {id(own): group.label for group in grouped(played) for own in group.runs}
    words = [named[id(own)] for own in played]
    first = {word: v for v, word in reversed(list(zip(views, words, strict=True)))}
    short = {
        word: word if len(word) <= LONGEST_LABEL else f"{own.label}, {own.run.path.name}"
        for word, own in first.items()
    }
    return [short[w] for w in words] if len(set(short.values())) == len(short) else words


def settings_of(run: Reading) -> dict[str, Any]:
    """Return the settings of a run by dotted name."""
    return dict(flat(run.settings.model_dump(mode="json")))


def _title(run: Reading) -> str:
    name = run.summary["method"]
    return METHODS[name].title if name in METHODS else str(name)


def _note(run: Reading) -> str:
    settings = run.settings
    divided = settings.sharing.get("by", "")
    sharing = SHARINGS.get(settings.sharing.get("name", ""))
    parts = [f"per {divided}"] if divided and (sharing is None or sharing.has_everyone) else []
    for part in ("objective", "merge"):
        usual = METHODS.get(run.summary["method"])
        chosen = getattr(settings, part).get("name", "")
        if usual is not None and chosen and getattr(usual(), part).name != chosen:
            parts.append(f"{part} {chosen}")
    base = base_in_words(run.summary.get("base", {}))
    return ", ".join([*parts, *([base] if base else [])])


def _trained(run: Reading) -> Counter[int]:
    """Return the training bytes of each round."""
    sent: Counter[int] = Counter()
    for row in run.traffic:
        if row["purpose"] == "train":
            sent[row["round"]] += row["bytes"]
    return sent


def _virtual(rounds: Sequence[int], run: Reading) -> list[float]:
    """Return what a fleet's clock said at the end of each of some rounds."""
    ends = {row["round"]: float(row["answered"]) for row in run.clock if not row["client"]}
    last = max([*rounds, *ends], default=0)
    until = list(accumulate((ends.get(r, 0.0) for r in range(1, last + 1)), max, initial=0.0))
    return [until[r] for r in rounds] if ends else []


def _up_to(rounds: Sequence[int], each: Mapping[int, float]) -> list[float]:
    """Return the sums of what belongs to rounds, up to each of some of them."""
    last = max([*rounds, *each], default=0)
    sums = list(accumulate((each.get(r, 0.0) for r in range(1, last + 1)), initial=0.0))
    return [sums[r] for r in rounds]
