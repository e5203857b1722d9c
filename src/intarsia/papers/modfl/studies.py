"""Liang et al. 2022, "Modular Federated Learning" (ModFL): Tables I and II, Figures 5 to 7."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.judging.agreement import adjusted_rand
from intarsia.papers.modfl.controls import RandomCohorts
from intarsia.papers.study import (
    Count,
    Place,
    Reading,
    Readings,
    Scale,
    StudyRun,
    last_accuracy,
    placed,
    pooled,
    rhythm,
    study,
)

IMAGES = ("cifar", "stl")
IMAGE_LABELS = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "ship", "truck")
MOTION_LABELS = ("walking", "upstairs", "downstairs", "sitting", "standing")
MOTION_NAMES = {"hapt": "hapt", "realworld": "rwhar", "wisdm": "wisdm"}
"""Our names of data sets and the paper's; others stand in and keep their own name."""
EACH_ROUND = "Found each round"
CONTROLS = ("Found cohorts", EACH_ROUND, "Random cohorts", "Local")
"""`Found each round` is Algorithm 1's own way (line 12); `Found cohorts` are looked for once."""
KINDS = ("FedX", "ModFL", *CONTROLS)
MATCH = "Found cohorts, adjusted Rand index"
MATCH_EACH = f"{EACH_ROUND}, adjusted Rand index"
DISTINCT = "ModFL, distinct models"
ROUNDS_TO_FIND = 3
"""Cohorts are found after the first round; what is read is how they match those given, not the accuracy."""

Size = Annotated[int, Field(ge=16)]
PerLabel = tuple[Count, Count]


@part
class ImageScale(Scale):
    """A scale of the image experiments."""

    devices: ClassVar[Sequence[str]] = IMAGES
    classes: ClassVar[int] = len(IMAGE_LABELS)

    size: Size
    """Height and width of STL's images."""
    cifar: PerLabel
    """Samples of a label for training and testing, among all clients."""
    stl: PerLabel
    groups: tuple[Count, ...] = (3, 6, 9)
    """Labels of a cohort: P, one column each."""
    kinds: tuple[str, ...] = KINDS
    """Which rows are run, of those that the study has."""

    def settings(self, clients: int, window: int) -> dict[str, Any]:
        """Return the settings of a run, all but the method."""
        shared = {
            "name": "images",
            "clients": clients // len(IMAGES),
            "labels": list(IMAGE_LABELS),
            "partition": {"name": "windows", "labels_per_group": window},
            "split": "drawn",
        }
        cifar = {"dataset": "cifar10", "device": "cifar", "per_label": list(self.cifar), "size": 0}
        stl = {"dataset": "stl10", "device": "stl", "per_label": list(self.stl), "size": self.size}
        return {
            "population": {"name": "joint", "members": {"cifar": shared | cifar, "stl": shared | stl}},
            "model": {"name": "modular_cnn", "channels": [32, 64, 128], "pooling": "average"},
            "models": {"stl": {"name": "modular_cnn", "channels": [16, 32, 64, 128], "pooling": "max"}},
            **_common(self, batch_size=16),
        }


@part
class MotionScale(Scale):
    """A scale of the experiments on human activities."""

    sets: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[Count, ...]
    """Labels of a cohort: P, one column each."""
    samples: PerLabel
    """Samples of a label for training and testing, among all clients of a data set."""
    split_by: Literal["time", "subject"]
    kinds: tuple[str, ...] = KINDS
    """Which rows are run, of those that the study has."""

    @property
    def devices(self) -> Sequence[str]:
        """The data sets by the paper's names."""
        return [MOTION_NAMES.get(dataset, dataset) for dataset in self.sets]

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return len(self.labels)

    def settings(self, clients: int, window: int) -> dict[str, Any]:
        """Return the settings of a run, all but the method."""
        names = self.devices
        members = {
            name: {
                "name": "motion",
                "dataset": dataset,
                "device": name,
                "clients": clients // len(self.sets),
                "labels": list(self.labels),
                "partition": {"name": "windows", "labels_per_group": window},
                "per_label": list(self.samples),
                "split_by": self.split_by,
                "channels": 3 if name.startswith("wisdm") else 6,
            }
            for name, dataset in zip(names, self.sets, strict=True)
        }
        first, *others = ({"name": "modular_lstm", **MOTION_MODELS[name]} for name in names)
        return {
            "population": {"name": "joint", "members": members},
            "model": first,
            "models": dict(zip(names[1:], others, strict=True)),
            **_common(self, batch_size=8),
        }


MOTION_MODELS = {
    "hapt": {"units": 16, "features": [16]},
    "rwhar": {"units": 24, "features": [32, 16]},
    "motionsense": {"units": 24, "features": [32, 16]},
    "wisdm": {"units": 8, "features": [16]},
    "wisdm2019": {"units": 8, "features": [16]},
}
IMAGE_SCALES = {
    "small": ImageScale(36, 25, 1, 5, 32, (244, 324), (150, 300)),
    "medium": ImageScale(36, 50, 3, 10, 32, (244, 324), (150, 300)),
    "large": ImageScale(72, 100, 3, 10, 32, (487, 324), (300, 300)),
    "paper": ImageScale(72, 200, 1, 10, 96, (975, 325), (975, 325)),
}
_TWO_SETS = ("hapt", "motionsense")
_THREE_SETS = ("hapt", "motionsense", "wisdm2019")
_FOUR_LABELS = ("walking", "stairs", "sitting", "standing")
MOTION_SCALES = {
    "small": MotionScale(20, 60, 1, 10, _TWO_SETS, MOTION_LABELS, (2, 4, 5), (100, 100), "time"),
    "medium": MotionScale(20, 100, 3, 20, _TWO_SETS, MOTION_LABELS, (2, 4, 5), (100, 100), "time"),
    "three": MotionScale(60, 300, 3, 30, _THREE_SETS, _FOUR_LABELS, (2, 3, 4), (200, 50), "time"),
    "paper": MotionScale(60, 2000, 1, 20, tuple(MOTION_NAMES), MOTION_LABELS, (2, 4, 5), (200, 50), "time"),
}
"""`three` has WISDM's newer set, which knows one kind of stairs, so that only four labels are shared."""


def _common(scale: Scale, batch_size: int) -> dict[str, Any]:
    training = {"optimizer": "adam", "lr": 0.001, "batch_size": batch_size, "epochs": 1}
    return {**rhythm(scale, checkpoints=10), "training": training}


def _method(kind: str, groups: int, seed: int) -> dict[str, Any]:
    """Return the settings of a method under the name that tables give it."""
    random = {"name": RandomCohorts.name, "number": groups, "lot": seed}
    found = {"cohorts": "found", "number": groups}
    methods: dict[str, dict[str, Any]] = {
        "FedPer": {"method": "fedper", "sharing": {"head": "operation1", "by": "device"}},
        "FedAvg": {"method": "fedavg", "sharing": {"by": "device"}},
        "ModFL": {"method": "modfl"},
        "Local": {"method": "local"},
        "Random cohorts": {"method": "modfl", "sharing": random},
        "Found cohorts": {"method": "modfl", "sharing": found},
        EACH_ROUND: {"method": "modfl", "sharing": {**found, "every": 1, "settle": False}},
    }
    return methods[kind]


def _final(kind: str, devices: Sequence[str], column: str) -> Reading:
    """Read the accuracy after the last round; of cohorts that were found, how well they match."""

    def read(run: Run) -> Mapping[Place, float]:
        if kind == "Found cohorts":
            return {(MATCH, column): match(run)}
        values = {(f"{kind} {device}", column): last_accuracy(run, device) for device in devices}
        if kind == EACH_ROUND:
            values[MATCH_EACH, column] = match(run)
        if kind == "ModFL":
            values[DISTINCT, column] = distinct_models(run)
        return values

    return read


def _curve(label: str, devices: Sequence[str]) -> Reading:
    """Read the accuracy after every round evaluated."""

    def read(run: Run) -> Mapping[Place, float]:
        return {
            (label.format(device), str(round)): value
            for device in devices
            for round, value in pooled(run, device).items()
        }

    return read


def match(run: Run) -> float:
    """Return the adjusted Rand index of the cohorts that were found with those that were given."""
    clients = run.population["clients"]
    found = dict.fromkeys(clients, "")
    for move in run.groups:
        found[move["client"]] = move["group"]
    given = [about["cohort"] for about in clients.values()]
    return adjusted_rand(given, list(found.values()))


def distinct_models(run: Run) -> int:
    """Return how many different models the clients ended up with, by their weights."""

    def weights(client: str) -> str:
        digest = hashlib.sha256()
        for name, tensor in run.client(client).model().state_dict().items():
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    return len({weights(client) for client in run.clients})


BESIDE = frozenset({MATCH, MATCH_EACH, DISTINCT}).__contains__
Cases = Callable[[Any, int], Iterator[StudyRun]]


def _cases(controls: Sequence[str], read: Callable[[str, int, Any], Reading]) -> Cases:
    """Return FedX and ModFL for every P, and the controls; what is read of each depends on method, P and scale."""

    def play(scale: Any, seed: int) -> Iterator[StudyRun]:
        chosen = set(scale.kinds)
        kinds = [(kind, window) for window in scale.groups for kind in ("FedX", "ModFL") if kind in chosen]
        kinds += [
            (control, window)
            for control in controls
            for window in scale.groups
            if control in chosen and (control == "Local" or window < scale.classes)
        ]
        for named, window in kinds:
            kind = named if named != "FedX" else "FedAvg" if window == scale.classes else "FedPer"
            settings = scale.settings(scale.clients, window)
            settings |= _method(kind, scale.classes, seed if kind == "Random cohorts" else 0)
            if kind == "Found cohorts":
                settings["rounds"] = ROUNDS_TO_FIND
            yield StudyRun(f"{kind} P={window}", settings, read(kind, window, scale))

    return play


def _read_last(kind: str, window: int, scale: Any) -> Reading:
    return _final("FedX" if kind in ("FedAvg", "FedPer") else kind, scale.devices, str(window))


def _read_rounds(kind: str, window: int, scale: Any) -> Reading:
    return _curve(f"{kind} {{}} P={window}", scale.devices)


def _as_curves(table: Mapping[Place, float], rounds: int, iid: str) -> dict[Place, float]:
    """Return a table's figures as those of the last round."""
    return {
        (f"{row.replace('FedX', 'FedAvg' if window == iid else 'FedPer')} P={window}", str(rounds)): value
        for (row, window), value in table.items()
        if not BESIDE(row)
    }


TABLE1_ROWS = {
    "FedX cifar": (71.23, 49.75, 57.92),
    "ModFL cifar": (78.29, 62.82, 59.36),
    "FedX stl": (72.09, 54.17, 62.59),
    "ModFL stl": (78.46, 66.35, 63.07),
    DISTINCT: (18, 18),
}
TABLE2_ROWS = {
    "FedX hapt": (97.08, 88.75, 91.00),
    "ModFL hapt": (97.08, 87.92, 90.00),
    "FedX rwhar": (97.08, 86.25, 85.00),
    "ModFL rwhar": (96.25, 84.17, 90.50),
    "FedX wisdm": (94.17, 75.83, 83.50),
    "ModFL wisdm": (92.08, 82.08, 87.50),
}
FIGURE5_KINDS = {"FedPer": "FedX", "ModFL": "ModFL"}
FIGURE5_ROWS = [f"{kind} {device}" for device in IMAGES for kind in ("FedPer", "ModFL", "Local")]

table1 = study(
    "modfl-table1",
    "ModFL, Table I: CIFAR-10 and STL-10 against FedPer (P = 3, 6) and FedAvg (P = 9)",
    "labels of a cohort (P)",
    IMAGE_SCALES,
    paper=placed(TABLE1_ROWS, "369"),
    beside=BESIDE,
)(_cases(CONTROLS, _read_last))
table2 = study(
    "modfl-table2",
    "ModFL, Table II: human activities against FedPer (P = 2, 4) and FedAvg (P = 5)",
    "labels of a cohort (P)",
    MOTION_SCALES,
    paper=placed(TABLE2_ROWS, "245"),
    beside=BESIDE,
)(_cases(("Random cohorts", "Local"), _read_last))


def _by_clients(paper: Mapping[Place, float], readings: Readings) -> list[Place]:
    """Return all places, rows together, columns by number of clients."""
    places = {*paper, *(place for place in readings if place[0] in FIGURE5_ROWS)}
    return sorted(places, key=lambda place: (FIGURE5_ROWS.index(place[0]), int(place[1])))


@study(
    "modfl-fig5",
    "ModFL, Figure 5: accuracy against the number of clients, P = 6",
    "clients (N)",
    IMAGE_SCALES,
    picture="lines",
    paper={
        (f"{k} {d}", "72"): table1.paper[f"{x} {d}", "6"] for d in IMAGES for k, x in FIGURE5_KINDS.items()
    },
    beside=BESIDE,
    arranged=_by_clients,
)
def figure5(scale: ImageScale, seed: int) -> Iterator[StudyRun]:
    """Figure 5; the paper prints no figures but those of Table I for 72 clients."""
    for clients in range(18, scale.clients + 1, 18):
        for kind in ("FedPer", "ModFL", "Local"):
            settings = {**scale.settings(clients, 6), **_method(kind, 9, 0)}
            yield StudyRun(f"{kind} P=6 N={clients}", settings, _final(kind, IMAGES, str(clients)))


figure6 = study(
    "modfl-fig6",
    "ModFL, Figure 6: accuracy by round on CIFAR-10 and STL-10",
    "round",
    IMAGE_SCALES,
    picture="lines",
    paper=_as_curves(table1.paper, 200, "9"),
    beside=BESIDE,
)(_cases(("Local",), _read_rounds))
figure7 = study(
    "modfl-fig7",
    "ModFL, Figure 7: accuracy by round on human activities",
    "round",
    MOTION_SCALES,
    picture="lines",
    paper=_as_curves(table2.paper, 2000, "5"),
    beside=BESIDE,
)(_cases(("Local",), _read_rounds))
