"""Ours: our pFedClub+ beside all that its teachers must beat, and what its server costs."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.experiment import Run
from intarsia.papers.pfedclub.runs import (
    CLUB,
    CONTROLS,
    IID,
    ITSELF,
    MIXUP,
    NON_IID,
    OURS,
    REASSEMBLED,
    Case,
    ClubScale,
    cases,
    one_each,
    scales,
    settings,
)
from intarsia.papers.study import Place, Reading, StudyRun, mean_accuracy, study

RATIO = ": server's seconds for each of its clients'"
FEW = 5
"""Clients of a row that does not say how many it has."""
SETS_OF = {"small": ("CIFAR-10",), "medium": ("CIFAR-10", "SVHN"), "paper": ("CIFAR-10", "SVHN")}


@study(
    "pfedclub-plus",
    "pFedClub+ (ours): accuracy beside its controls (zoo III)",
    "method",
    scales(
        zoos=("III",),
        splits=(IID, NON_IID),
        sets=SETS_OF,
        methods=(*CONTROLS, MIXUP, ITSELF, CLUB, OURS),
        clients={"small": FEW, "medium": FEW},
        share={"small": 0.12, "medium": 0.12},
        samples={"small": 100, "medium": 400},
        test={"small": 0.2, "medium": 0.5, "paper": 0.2},
        epochs={"small": 1, "medium": 4},
        batch={"small": 16, "medium": 16},
        every={"medium": 8},
        rounds={"medium": 8},
        pixels={"small": 16, "medium": 16},
    ),
    beside=lambda row: row.endswith(RATIO),
)
def plus(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Ours: is what teachers know more than public samples, their labels, or a little smoothing? And what it costs."""
    one_each(scale, "pfedclub-plus", "zoos")
    for case in cases(scale):
        yield StudyRun(case.name, settings(scale, case), _read(case, scale.clients))


def _read(case: Case, clients: int) -> Reading:
    row = f"{case.dataset} {case.split}" + (f", {clients} clients" if clients != FEW else "")

    def read(run: Run) -> dict[Place, float]:
        values = {(row, case.column): mean_accuracy(run)}
        if case.method in (*REASSEMBLED, OURS):
            values[row + RATIO, case.column] = server_share(run)
        return values

    return read


def server_share(run: Run) -> float:
    """Return the seconds of the server's own work over those of its clients' training, all rounds added up."""
    server, clients = (sum(row.get(stage, 0.0) for row in run.seconds) for stage in ("server", "train"))
    return float(server / clients)
