"""Liang et al. 2022, "Modular Federated Learning" (ModFL): Tables I and II, Figures 5 to 7."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.methods.modfl.cohorts import adjusted_rand
from intarsia.papers.modfl.controls import RandomCohorts
from intarsia.papers.study import Count, Place, Reading, Scale, Study, Trial, pooled

IMAGES = ("cifar", "stl")
IMAGE_LABELS = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "ship", "truck")
MOTION_LABELS = ("walking", "upstairs", "downstairs", "sitting", "standing")
MOTION_NAMES = {"hapt": "hapt", "realworld": "rwhar", "wisdm": "wisdm"}
"""Our names of data sets and the paper's; others stand in and keep their own name."""
CONTROLS = ("Found cohorts", "Random cohorts", "Local")
MATCH = "Found cohorts, adjusted Rand index"
DISTINCT = "ModFL, distinct models"
ROUNDS_TO_FIND = 3
"""Cohorts are found after the first round; what is read is how they match those given, not the accuracy."""

Size = Annotated[int, Field(ge=16)]
PerLabel = tuple[Count, Count]


@part
class ImageScale(Scale):
    """A scale of the image experiments."""

    size: Size
    """Height and width of STL's images."""
    cifar: PerLabel
    """Samples of a label for training and testing, among all clients."""
    stl: PerLabel


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


def _method(kind: str, groups: int, seed: int) -> dict[str, Any]:
    """Return the settings of a method under the name that tables give it."""
    random = {"name": RandomCohorts.name, "number": groups, "lot": seed}
    methods: dict[str, dict[str, Any]] = {
        "FedPer": {"method": "fedper", "sharing": {"head": "operation1", "by": "device"}},
        "FedAvg": {"method": "fedavg", "sharing": {"by": "device"}},
        "ModFL": {"method": "modfl"},
        "Local": {"method": "local"},
        "Random cohorts": {"method": "modfl", "sharing": random},
        "Found cohorts": {"method": "modfl", "sharing": {"cohorts": "found", "number": groups}},
    }
    return methods[kind]


def _image_settings(scale: ImageScale, clients: int, window: int) -> dict[str, Any]:
    def member(dataset: str, device: str, per_label: PerLabel, size: int) -> dict[str, Any]:
        return {
            "name": "images",
            "dataset": dataset,
            "device": device,
            "clients": clients // len(IMAGES),
            "labels": list(IMAGE_LABELS),
            "partition": {"name": "windows", "labels_per_group": window},
            "split": "drawn",
            "per_label": list(per_label),
            "size": size,
        }

    members = {
        "cifar": member("cifar10", "cifar", scale.cifar, 0),
        "stl": member("stl10", "stl", scale.stl, scale.size),
    }
    return {
        "population": {"name": "joint", "members": members},
        "model": {"name": "modular_cnn", "channels": [32, 64, 128], "pooling": "average"},
        "models": {"stl": {"name": "modular_cnn", "channels": [16, 32, 64, 128], "pooling": "max"}},
        **_common(scale, batch_size=16),
    }


def _motion_settings(scale: MotionScale, clients: int, window: int) -> dict[str, Any]:
    models = {
        "hapt": {"units": 16, "features": [16]},
        "rwhar": {"units": 24, "features": [32, 16]},
        "motionsense": {"units": 24, "features": [32, 16]},
        "wisdm": {"units": 8, "features": [16]},
        "wisdm2019": {"units": 8, "features": [16]},
    }
    names = [_motion_name(dataset) for dataset in scale.sets]
    members = {
        name: {
            "name": "motion",
            "dataset": dataset,
            "device": name,
            "clients": clients // len(scale.sets),
            "labels": list(scale.labels),
            "partition": {"name": "windows", "labels_per_group": window},
            "per_label": list(scale.samples),
            "split_by": scale.split_by,
            "channels": 3 if name.startswith("wisdm") else 6,
        }
        for name, dataset in zip(names, scale.sets, strict=True)
    }
    return {
        "population": {"name": "joint", "members": members},
        "model": {"name": "modular_lstm", **models[names[0]]},
        "models": {name: {"name": "modular_lstm", **models[name]} for name in names[1:]},
        **_common(scale, batch_size=8),
    }


def _common(scale: Scale, batch_size: int) -> dict[str, Any]:
    return {
        "rounds": scale.rounds,
        "training": {"optimizer": "adam", "lr": 0.001, "batch_size": batch_size, "epochs": 1},
        "evaluation": {"every": scale.every},
        "checkpoints": {"every": max(1, scale.rounds // 10), "keep": 1},
    }


def _motion_name(dataset: str) -> str:
    return MOTION_NAMES.get(dataset, dataset)


def _final(kind: str, devices: Sequence[str], column: str) -> Reading:
    """Read the accuracy after the last round; of cohorts that were found, how well they match."""

    def read(run: Run) -> Mapping[Place, float]:
        if kind == "Found cohorts":
            return {(MATCH, column): match(run)}
        values = {(f"{kind} {device}", column): list(pooled(run, device).values())[-1] for device in devices}
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


class _Table(Study):
    """Rows are methods and data sets, columns the labels of a cohort, P."""

    columns = "labels of a cohort (P)"
    beside = frozenset({MATCH, DISTINCT})
    controls: ClassVar[Sequence[str]] = CONTROLS

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return FedX and ModFL for every P, and the controls."""
        return list(self._trials(scale, seed))

    def _trials(self, scale: Any, seed: int) -> Iterator[Trial]:
        windows, labels = self._windows(scale), self._labels(scale)
        for window in windows:
            yield self._trial(scale, seed, "FedAvg" if window == labels else "FedPer", window)
            yield self._trial(scale, seed, "ModFL", window)
        for control in self.controls:
            for window in windows:
                if control == "Local" or window < labels:
                    yield self._trial(scale, seed, control, window)

    def _trial(self, scale: Any, seed: int, kind: str, window: int) -> Trial:
        row = "FedX" if kind in ("FedAvg", "FedPer") else kind
        settings = self._settings(scale, scale.clients, window)
        settings |= _method(kind, self._labels(scale), seed if kind == "Random cohorts" else 0)
        if kind == "Found cohorts":
            settings["rounds"] = ROUNDS_TO_FIND
        return Trial(f"{kind} P={window}", settings, _final(row, self._devices(scale), str(window)))

    def _devices(self, scale: Any) -> Sequence[str]:
        return IMAGES

    def _labels(self, scale: Any) -> int:
        return len(IMAGE_LABELS)

    def _windows(self, scale: Any) -> Sequence[int]:
        return (3, 6, 9)

    def _settings(self, scale: Any, clients: int, window: int) -> dict[str, Any]:
        return _image_settings(scale, clients, window)


class _Motion(_Table):
    """The same on human activities."""

    scales = MOTION_SCALES

    def _devices(self, scale: Any) -> Sequence[str]:
        return [_motion_name(dataset) for dataset in scale.sets]

    def _labels(self, scale: Any) -> int:
        return len(scale.labels)

    def _windows(self, scale: Any) -> Sequence[int]:
        return tuple(scale.groups)

    def _settings(self, scale: Any, clients: int, window: int) -> dict[str, Any]:
        return _motion_settings(scale, clients, window)


class Table1(_Table):
    """Table I."""

    name = "modfl-table1"
    title = "ModFL, Table I: CIFAR-10 and STL-10 against FedPer (P = 3, 6) and FedAvg (P = 9)"
    scales = IMAGE_SCALES
    paper: ClassVar[Mapping[Place, float]] = {
        ("FedX cifar", "3"): 71.23,
        ("FedX cifar", "6"): 49.75,
        ("FedX cifar", "9"): 57.92,
        ("ModFL cifar", "3"): 78.29,
        ("ModFL cifar", "6"): 62.82,
        ("ModFL cifar", "9"): 59.36,
        ("FedX stl", "3"): 72.09,
        ("FedX stl", "6"): 54.17,
        ("FedX stl", "9"): 62.59,
        ("ModFL stl", "3"): 78.46,
        ("ModFL stl", "6"): 66.35,
        ("ModFL stl", "9"): 63.07,
        (DISTINCT, "3"): 18,
        (DISTINCT, "6"): 18,
    }


class Table2(_Motion):
    """Table II."""

    name = "modfl-table2"
    title = "ModFL, Table II: human activities against FedPer (P = 2, 4) and FedAvg (P = 5)"
    controls = ("Local",)
    paper: ClassVar[Mapping[Place, float]] = {
        ("FedX hapt", "2"): 97.08,
        ("FedX hapt", "4"): 88.75,
        ("FedX hapt", "5"): 91.00,
        ("ModFL hapt", "2"): 97.08,
        ("ModFL hapt", "4"): 87.92,
        ("ModFL hapt", "5"): 90.00,
        ("FedX rwhar", "2"): 97.08,
        ("FedX rwhar", "4"): 86.25,
        ("FedX rwhar", "5"): 85.00,
        ("ModFL rwhar", "2"): 96.25,
        ("ModFL rwhar", "4"): 84.17,
        ("ModFL rwhar", "5"): 90.50,
        ("FedX wisdm", "2"): 94.17,
        ("FedX wisdm", "4"): 75.83,
        ("FedX wisdm", "5"): 83.50,
        ("ModFL wisdm", "2"): 92.08,
        ("ModFL wisdm", "4"): 82.08,
        ("ModFL wisdm", "5"): 87.50,
    }


class Figure5(_Table):
    """Figure 5; the paper prints no figures but those of Table I for 72 clients."""

    name = "modfl-fig5"
    title = "ModFL, Figure 5: accuracy against the number of clients, P = 6"
    columns = "clients (N)"
    picture = "lines"
    scales = IMAGE_SCALES
    paper: ClassVar[Mapping[Place, float]] = {
        ("FedPer cifar", "72"): 49.75,
        ("ModFL cifar", "72"): 62.82,
        ("FedPer stl", "72"): 54.17,
        ("ModFL stl", "72"): 66.35,
    }

    def _trials(self, scale: Any, seed: int) -> Iterator[Trial]:
        for clients in range(18, scale.clients + 1, 18):
            for kind in ("FedPer", "ModFL", "Local"):
                settings = {**self._settings(scale, clients, 6), **_method(kind, 9, 0)}
                yield Trial(f"{kind} P=6 N={clients}", settings, _final(kind, IMAGES, str(clients)))

    def order(self, readings: Mapping[Place, Sequence[float]]) -> list[Place]:
        """Return all places, rows together, columns by number of clients."""
        rows = [f"{kind} {device}" for device in IMAGES for kind in ("FedPer", "ModFL", "Local")]
        places = {*self.paper, *(place for place in readings if place[0] in rows)}
        return sorted(places, key=lambda place: (rows.index(place[0]), int(place[1])))


class _Curves(_Table):
    """Accuracy by round; the last round is the table's figure."""

    columns = "round"
    picture = "lines"
    controls = ("Local",)
    table: ClassVar[type[_Table]]

    def _trials(self, scale: Any, seed: int) -> Iterator[Trial]:
        for trial in super()._trials(scale, seed):
            kind, window = trial.name.split(" P=")
            label = f"{kind} {{}} P={window}"
            yield Trial(trial.name, trial.settings, _curve(label, self._devices(scale)))

    @classmethod
    def _published(cls, table: Mapping[Place, float], rounds: int, iid: str) -> dict[Place, float]:
        """Return the table's figures as those of the last round."""
        return {
            (f"{_kind(row, window == iid)} P={window}", str(rounds)): value
            for (row, window), value in table.items()
            if row not in cls.beside
        }


def _kind(row: str, even: bool) -> str:
    return row.replace("FedX", "FedAvg" if even else "FedPer")


class Figure6(_Curves):
    """Figure 6."""

    name = "modfl-fig6"
    title = "ModFL, Figure 6: accuracy by round on CIFAR-10 and STL-10"
    scales = IMAGE_SCALES
    paper: ClassVar[Mapping[Place, float]] = _Curves._published(Table1.paper, 200, "9")


class Figure7(_Curves, _Motion):
    """Figure 7."""

    name = "modfl-fig7"
    title = "ModFL, Figure 7: accuracy by round on human activities"
    scales = MOTION_SCALES
    paper: ClassVar[Mapping[Place, float]] = _Curves._published(Table2.paper, 2000, "5")


STUDIES: tuple[Study, ...] = (Table1(), Table2(), Figure5(), Figure6(), Figure7())
