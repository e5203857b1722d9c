"""pFedClub's figures: sizes of teachers (Figures 1, 3, 6), seconds (Figures 4, 5).

Figures 1, 3 and 6 are about seven clients, one for each model of zoo I, all of them in every round. Bars and curves
bear no figures in the paper; those that the text names stand beside ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

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
    cases,
    one_each,
    scales,
    settings,
)
from intarsia.papers.study import Count, Place, Reading, StudyRun, mean_accuracy, study

Notes = list[dict[str, Any]]
OWN_SIZE, TEACHERS = "own model", "teachers, mean"
ACCURACY, LARGEST, ITSELF = "accuracy, %", "largest phi", "taught by its own model, %"
ROUNDS = {"small": 3, "medium": 10, "paper": 100}
SEVEN = scales(
    clients=7,
    active=7,
    rounds=ROUNDS,
    every=ROUNDS | {"paper": 5},
    sets=("SVHN",),
    splits=(NON_IID,),
    zoos=("I",),
    public=(UNLABELLED,),
    methods=(LOCAL, *REASSEMBLED),
    width={"small": 0.5, "medium": 0.5, "paper": 1.0},
    samples={"small": 60, "medium": 200},
    share={"small": 0.1, "medium": 0.1},
)
"""One client for each model of zoo I, all of them in every round."""
SEVEN_SINGLE = ("sets", "splits", "zoos", "public")
"""What the figures about seven clients show one at a time."""


def _runs(
    scale: ClubScale, read: Callable[[Case], Reading], methods: tuple[str, ...] = ()
) -> Iterator[StudyRun]:
    """Return one run a method, set and split; what is read from it is up to the figure."""
    for case in cases(scale):
        if not methods or case.method in methods:
            yield StudyRun(case.name, settings(scale, case), read(case))


@study(
    "pfedclub-fig1",
    "pFedClub, Figure 1: sizes of models and of their teachers (SVHN, seven models)",
    "client's model",
    SEVEN,
    values="parameters, millions",
)
def figure1(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Figure 1: how much larger than clients' models the teachers are that pFedHR gives them."""
    one_each(scale, "pfedclub-fig1", *SEVEN_SINGLE)
    first = next((method for method in scale.methods if method in REASSEMBLED), "")
    return _runs(scale, lambda case: _sizes(case.method, case.method == first), REASSEMBLED)


def _sizes(method: str, with_own: bool) -> Reading:
    def read(run: Run) -> dict[Place, float]:
        values: dict[Place, float] = {}
        for model, notes in teachers_by_model(run).items():
            if with_own:
                values[OWN_SIZE, model] = notes[0]["own_parameters"] / 1e6
            values[f"{method}, {TEACHERS}", model] = fmean(n["parameters"] for n in notes) / 1e6
        return values

    return read


@study(
    "pfedclub-fig3",
    "pFedClub, Figure 3: accuracy and control of size (SVHN, seven models)",
    "client's model",
    SEVEN,
    values="phi: by what share teachers are larger, mean over rounds",
    paper={
        **{(f"{method}, all", ACCURACY): value for method, value in FIG3.items()},
        **{(method, "cnn1"): value for method, value in FIG3_PHI.items()},
    },
    beside=frozenset(f"{method}, all" for method in (LOCAL, *REASSEMBLED)).__contains__,
)
def figure3(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Figure 3: accuracy, and phi (eq. 6) of each client; also how often a client was taught by its own model."""
    one_each(scale, "pfedclub-fig3", *SEVEN_SINGLE)
    return _runs(scale, lambda case: _control(case.method))


def _control(method: str) -> Reading:
    row = f"{method}, all"

    def read(run: Run) -> dict[Place, float]:
        values = {(row, ACCURACY): mean_accuracy(run)}
        notes = teachers(run)
        if notes:
            values[row, LARGEST] = max(growth(note) for note in notes)
            values[row, ITSELF] = 100 * fmean(note["itself"] for note in notes)
        of_models = teachers_by_model(run)
        return values | {(method, m): fmean(map(growth, own)) for m, own in of_models.items()}

    return read


@study(
    "pfedclub-fig6",
    "pFedClub, Figure 6: size of teachers by round (SVHN, seven models)",
    "round",
    SEVEN,
    values="by what share the teacher is larger than the model",
    picture="lines",
)
def figure6(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Figure 6: by what share each client's teacher is larger than its model, round by round."""
    one_each(scale, "pfedclub-fig6", *SEVEN_SINGLE)
    return _runs(scale, lambda case: _growth_by_round(case.method), REASSEMBLED)


def _growth_by_round(method: str) -> Reading:
    return lambda run: {
        (f"{method} {model}", str(note["round"])): growth(note)
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


@study(
    "pfedclub-fig4",
    "pFedClub, Figure 4: the server's seconds by round (SVHN, zoo III)",
    "round",
    scales(sets=("SVHN",), splits=(NON_IID,), zoos=("III",), public=(LABELLED,), methods=(HR, CLUB)),
    values="seconds of the server",
    picture="lines",
)
def figure4(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Figure 4: seconds of the server's own work, round by round, on the machine that runs it."""
    one_each(scale, "pfedclub-fig4", "sets", "splits", "zoos")
    return _runs(scale, lambda case: _server_seconds(case.column))


def _server_seconds(row: str) -> Reading:
    return lambda run: {(row, str(r["round"])): float(r.get("server", 0.0)) for r in run.seconds}


@part
class TimeScale(ClubScale):
    """A scale of the figure about time: which accuracies are waited for."""

    targets: tuple[Count, ...]
    """Mean accuracies, in per cent."""


_TIMED = scales(
    sets={"small": ("CIFAR-10",), "medium": ("SVHN", "CIFAR-10"), "paper": ("SVHN", "CIFAR-10")},
    splits=(NON_IID,),
    zoos=("III",),
    public=(LABELLED,),
    methods=(LOCAL, HR, CLUB),
)


@study(
    "pfedclub-fig5",
    "pFedClub, Figure 5: seconds to an accuracy (zoo III, two labels a client)",
    "accuracy",
    {name: TimeScale(**vars(usual), targets=(40, 50, 60)) for name, usual in _TIMED.items()},
    values="seconds",
)
def figure5(scale: TimeScale, seed: int) -> Iterator[StudyRun]:
    """Figure 5: seconds until clients reach a mean accuracy; evaluating and saving do not count.

    An accuracy is reached at the first evaluation that finds it (`every`); one that no run reached has no figure.
    """
    one_each(scale, "pfedclub-fig5", "splits", "zoos")
    return _runs(scale, lambda case: _waited(f"{case.dataset} {case.column}", scale.targets))


def _waited(row: str, targets: tuple[int, ...]) -> Reading:
    def read(run: Run) -> dict[Place, float]:
        reached = {target: seconds_to(run, target) for target in targets}
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
