"""pFedClub's figures: sizes of teachers (Figures 1, 3, 6), seconds (Figures 4, 5).

Figures 1, 3 and 6 are about seven clients, one for each model of zoo I, all of them in every round. Bars and curves
bear no figures in the paper; those that the text names stand beside ours.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.methods import OWN
from intarsia.papers.pfedclub.published import FIG3, FIG3_PHI
from intarsia.papers.pfedclub.runs import (
    CLUB,
    HR,
    LABELLED,
    LOCAL,
    NON_IID,
    REASSEMBLED,
    UNLABELLED,
    Case,
    ClubScale,
    accuracy,
    one_each,
    settings,
    usual_scale,
)
from intarsia.papers.study import Count, Place, Reading, Scale, Study, Trial

Notes = list[dict[str, Any]]
OWN_SIZE, TEACHERS = "own model", "teachers, mean"
ACCURACY, LARGEST, ITSELF = "accuracy, %", "largest phi", "taught by its own model, %"


def _seven(name: str) -> ClubScale:
    """Return a scale with one client for each model of zoo I, all of them in every round."""
    rounds = {"small": 3, "medium": 10, "paper": 100}[name]
    return usual_scale(
        name,
        clients=7,
        active=7,
        rounds=rounds,
        every=rounds if name != "paper" else 5,
        sets=("SVHN",),
        splits=(NON_IID,),
        zoos=("I",),
        public=(UNLABELLED,),
        methods=(LOCAL, *REASSEMBLED),
        width=1.0 if name == "paper" else 0.5,
        **({} if name == "paper" else {"samples": 60 if name == "small" else 200, "share": 0.1}),
    )


class _Figure(Study):
    """One run a method, set and split; what is read from it is up to the figure."""

    single: ClassVar[tuple[str, ...]] = ("sets", "splits", "zoos", "public")
    """Of what the figure shows one at a time."""

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every method on every set and split."""
        one_each(scale, self.name, *self.single)
        return [
            Trial(case.name, settings(scale, case), self._read(scale, case)) for case in self._cases(scale)
        ]

    def _cases(self, scale: ClubScale) -> Iterator[Case]:
        for zoo, dataset, split, method in product(scale.zoos, scale.sets, scale.splits, scale.methods):
            kinds = scale.public if method in REASSEMBLED else ("",)
            yield from (Case(dataset, split, method, zoo, public) for public in kinds)

    @abstractmethod
    def _read(self, scale: ClubScale, case: Case) -> Reading:
        """Return what a run of this case is read for."""


class Figure1(_Figure):
    """Figure 1: how much larger than clients' models the teachers are that pFedHR gives them."""

    name = "pfedclub-fig1"
    title = "pFedClub, Figure 1: sizes of models and of their teachers (SVHN, seven models)"
    columns = "client's model"
    values = "parameters, millions"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {name: _seven(name) for name in ("small", "medium", "paper")}

    def _cases(self, scale: ClubScale) -> Iterator[Case]:
        return (case for case in super()._cases(scale) if case.method in REASSEMBLED)

    def _read(self, scale: ClubScale, case: Case) -> Reading:
        def read(run: Run) -> dict[Place, float]:
            values: dict[Place, float] = {}
            for model, notes in teachers_by_model(run).items():
                if case.method == next(m for m in scale.methods if m in REASSEMBLED):
                    values[OWN_SIZE, model] = notes[0]["own_parameters"] / 1e6
                values[f"{case.method}, {TEACHERS}", model] = fmean(n["parameters"] for n in notes) / 1e6
            return values

        return read


class Figure3(_Figure):
    """Figure 3: accuracy, and phi (eq. 6) of each client; also how often a client was taught by its own model."""

    name = "pfedclub-fig3"
    title = "pFedClub, Figure 3: accuracy and control of size (SVHN, seven models)"
    columns = "client's model"
    values = "phi: by what share teachers are larger, mean over rounds"
    paper: ClassVar[Mapping[Place, float]] = {
        **{(f"{method}, all", ACCURACY): value for method, value in FIG3.items()},
        **{(method, "cnn1"): value for method, value in FIG3_PHI.items()},
    }
    scales: ClassVar[Mapping[str, Scale]] = Figure1.scales
    beside = frozenset(f"{method}, all" for method in (LOCAL, *REASSEMBLED))

    def _read(self, scale: ClubScale, case: Case) -> Reading:
        row = f"{case.method}, all"

        def read(run: Run) -> dict[Place, float]:
            values = {(row, ACCURACY): accuracy(run)}
            notes = teachers(run)
            if notes:
                values[row, LARGEST] = max(growth(note) for note in notes)
                values[row, ITSELF] = 100 * fmean(note["itself"] for note in notes)
            of_models = teachers_by_model(run)
            return values | {(case.method, m): fmean(map(growth, own)) for m, own in of_models.items()}

        return read


class Figure6(_Figure):
    """Figure 6: by what share each client's teacher is larger than its model, round by round."""

    name = "pfedclub-fig6"
    title = "pFedClub, Figure 6: size of teachers by round (SVHN, seven models)"
    columns = "round"
    values = "by what share the teacher is larger than the model"
    picture = "lines"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = Figure1.scales

    def _cases(self, scale: ClubScale) -> Iterator[Case]:
        return (case for case in super()._cases(scale) if case.method in REASSEMBLED)

    def _read(self, scale: ClubScale, case: Case) -> Reading:
        return lambda run: {
            (f"{case.method} {model}", str(note["round"])): growth(note)
            for model, notes in teachers_by_model(run).items()
            for note in notes
        }


def teachers(run: Run) -> Notes:
    """Return what was noted of all teachers of a run."""
    return [note for note in run.notes if note["kind"] == "teacher"]


def teachers_by_model(run: Run) -> dict[str, Notes]:
    """Return the notes of all teachers, by the name of the client's model, in the order of zoo I."""
    clients, found = run.population["clients"], defaultdict(list)
    for note in teachers(run):
        found[clients[note["client"]].get("model", "")].append(note)
    return {model: found[model] for model in sorted(found)}


def growth(note: Mapping[str, Any]) -> float:
    """Return by what share one teacher is larger than its client's model."""
    own: int = note["own_parameters"]
    return float((note["parameters"] - own) / own)


class Figure4(_Figure):
    """Figure 4: seconds of the server's own work, round by round, on the machine that runs it."""

    name = "pfedclub-fig4"
    title = "pFedClub, Figure 4: the server's seconds by round (SVHN, zoo III)"
    columns = "round"
    single = ("sets", "splits", "zoos")
    values = "seconds of the server"
    picture = "lines"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {
        name: usual_scale(
            name, sets=("SVHN",), splits=(NON_IID,), zoos=("III",), public=(LABELLED,), methods=(HR, CLUB)
        )
        for name in ("small", "medium", "paper")
    }

    def _read(self, scale: ClubScale, case: Case) -> Reading:
        return lambda run: {
            (case.column, str(row["round"])): float(row.get("server", 0.0)) for row in run.seconds
        }


@part
class TimeScale(ClubScale):
    """A scale of the figure about time: which accuracies are waited for."""

    targets: tuple[Count, ...]
    """Mean accuracies, in per cent."""


def _timed(name: str) -> TimeScale:
    sets = ("CIFAR-10",) if name == "small" else ("SVHN", "CIFAR-10")
    usual = usual_scale(
        name,
        sets=sets,
        splits=(NON_IID,),
        zoos=("III",),
        public=(LABELLED,),
        methods=(LOCAL, HR, CLUB),
    )
    return TimeScale(**vars(usual), targets=(40, 50, 60))


class Figure5(_Figure):
    """Figure 5: seconds until clients reach a mean accuracy; evaluating and saving do not count.

    An accuracy is reached at the first evaluation that finds it (`every`); one that no run reached has no figure.
    """

    name = "pfedclub-fig5"
    title = "pFedClub, Figure 5: seconds to an accuracy (zoo III, two labels a client)"
    columns = "accuracy"
    single = ("splits", "zoos")
    values = "seconds"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {name: _timed(name) for name in ("small", "medium", "paper")}

    def _read(self, scale: Any, case: Case) -> Reading:
        def read(run: Run) -> dict[Place, float]:
            reached = {target: seconds_to(run, target) for target in scale.targets}
            row = f"{case.dataset} {case.column}"
            return {(row, f"{t} %"): seconds for t, seconds in reached.items() if seconds is not None}

        return read


def seconds_to(run: Run, target: float) -> float | None:
    """Return the seconds of training and of the server until the mean accuracy, in per cent, was found."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in run.metrics:
        if row["split"] == "test" and row["stage"] == OWN:
            found[row["round"]].append(row["accuracy"])
    reached = [round for round in sorted(found) if 100 * fmean(found[round]) >= target]
    if not reached:
        return None
    rows = [row for row in run.seconds if row["round"] <= reached[0]]
    return float(sum(row.get(stage, 0.0) for row in rows for stage in ("train", "merge", "server")))


STUDIES: Sequence[Study] = (Figure1(), Figure3(), Figure4(), Figure5(), Figure6())
