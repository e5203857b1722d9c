"""Adapters against full training: Table I, the payload, Figures 3 to 5; and, ours, accuracy against bytes.

Elvebakken, Iosifidis, Esterle 2023, "Adaptive parameterization of deep learning models for federated learning".
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.papers.study import Count, Place, Reading, Scale, Study, Trial, pooled

SETS = {"SVHN": "svhn", "Cifar10": "cifar10", "FashionMNIST": "fashion_mnist"}
PARTITIONS: dict[str, dict[str, Any]] = {
    "Dir(0.5)": {"name": "dirichlet", "beta": 0.5},
    "#M = 1": {"name": "labels", "per_client": 1},
    "#M = 2": {"name": "labels", "per_client": 2},
    "#M = 3": {"name": "labels", "per_client": 3},
    "Gau(0.1)": {"name": "noise", "sigma": 0.1},
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg"},
    "FedProx": {"method": "fedprox", "objective": {"name": "proximal", "mu": 0.01}},
    "FedNova": {"method": "fednova"},
}
WITHOUT, WITH, ZERO = "w/o adapter", "w/ adapter", "w/ adapter, zero init"
KINDS: dict[str, dict[str, Any]] = {
    WITHOUT: {"adapters": {"name": "none"}},
    WITH: {"adapters": {"name": "parallel"}},
    ZERO: {"adapters": {"name": "parallel", "init": "zero"}},
}
"""What is trained; the last is not in the paper: adapters that start as if they were not there."""
CODECS: dict[str, dict[str, Any]] = {
    "int8": {"codec": {"name": "int8", "down": True}},
    "fp16": {"codec": {"name": "fp16", "down": True}},
    "top 10 %": {"codec": {"name": "topk", "share": 0.1, "down": True}},
}
SILO, DEVICE = "Cross-Silo", "Cross-Device"
COLUMNS = tuple(f"{method} {kind}" for method in METHODS for kind in (WITHOUT, WITH))

_PUBLISHED: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    SILO: {
        "SVHN": (
            (96.00, 95.03, 96.15, 95.27, 96.07, 95.19),
            (19.57, 19.14, 19.66, 19.33, 8.81, 9.00),
            (81.93, 77.22, 82.16, 76.23, 79.72, 74.41),
            (88.17, 85.00, 88.59, 85.69, 86.88, 84.47),
            (97.15, 96.38, 97.19, 96.41, 97.10, 96.39),
        ),
        "Cifar10": (
            (95.08, 95.02, 95.74, 94.93, 94.95, 94.92),
            (16.42, 12.29, 16.65, 11.41, 17.23, 12.13),
            (75.66, 64.30, 75.53, 64.31, 74.43, 61.72),
            (87.32, 79.37, 87.29, 78.49, 85.03, 76.28),
            (94.68, 93.41, 94.90, 93.15, 94.59, 93.30),
        ),
        "FashionMNIST": (
            (93.99, 92.82, 94.22, 93.14, 94.19, 93.12),
            (20.82, 16.47, 18.59, 17.92, 16.97, 17.03),
            (56.90, 55.40, 56.39, 55.62, 55.37, 52.83),
            (72.50, 70.90, 70.97, 67.94, 73.43, 67.31),
            (94.90, 93.52, 94.90, 93.56, 94.82, 93.52),
        ),
    },
    DEVICE: {
        "SVHN": (
            (95.64, 93.48, 95.62, 93.88, 77.86, 94.10),
            (14.70, 14.57, 14.49, 14.18, 11.19, 10.84),
            (89.59, 84.97, 89.99, 86.28, 49.81, 61.00),
            (94.16, 89.56, 94.05, 89.64, 92.60, 90.25),
            (96.78, 95.48, 95.58, 95.38, 96.81, 95.45),
        ),
        "Cifar10": (
            (94.78, 92.86, 95.38, 92.91, 95.00, 92.63),
            (12.75, 10.41, 12.77, 10.66, 10.52, 9.97),
            (89.64, 71.14, 89.76, 71.50, 63.23, 58.99),
            (93.63, 80.92, 93.55, 80.74, 62.48, 82.61),
            (94.45, 90.50, 94.42, 90.41, 94.32, 90.25),
        ),
        "FashionMNIST": (
            (93.40, 92.19, 93.43, 92.22, 93.44, 92.13),
            (16.93, 11.32, 21.01, 10.52, 11.29, 11.16),
            (79.09, 72.85, 77.76, 76.76, 61.79, 47.76),
        ),
    },
}
TABLE: dict[Place, float] = {
    (f"{setting} {dataset} {partition}", column): value
    for setting, sets in _PUBLISHED.items()
    for dataset, rows in sets.items()
    for partition, row in zip(PARTITIONS, rows, strict=False)
    for column, value in zip(COLUMNS, row, strict=True)
}
"""Table I; its last two rows (cross-device FashionMNIST, #M = 3 and Gau) are not legible in our copy."""


@part
class AdapterScale(Scale):
    """A scale of the experiments with adapters; `clients` are those of the cross-silo setting."""

    settings: tuple[str, ...]
    sets: tuple[str, ...]
    partitions: tuple[str, ...]
    methods: tuple[str, ...]
    network: Literal["resnet", "mobilenet_v2"]
    """`resnet` as published (ResNet26 if `channels` and `blocks` are); or MobileNetV2 of width 0.35, for which an
    ImageNet-trained base can be had."""
    size: Count
    """Height and width of the images."""
    channels: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Channels of the network's stages (64-128-256: ResNet26; the stem has half of the first)."""
    blocks: Count
    fraction: Annotated[float, Field(gt=0, le=1)]
    """Share of the data."""
    kinds: tuple[str, ...]
    """With and without adapters; `w/ adapter, zero init` is ours."""
    base: str
    """A safetensors file with the pre-trained base (empty: a random one, which is no base to speak of)."""
    published: bool
    """Whether SVHN is divided into training and test data as published, and clients of a round are drawn with
    replacement, as in the paper; else SVHN's samples are divided anew, and nobody is drawn twice."""


_SOME = ("Dir(0.5)", "#M = 2", "Gau(0.1)")
_FULL = (64, 128, 256)
RESNET: Literal["resnet"] = "resnet"
MOBILE: Literal["mobilenet_v2"] = "mobilenet_v2"
_BOTH = (WITHOUT, WITH)
SCALES = {
    "small": AdapterScale(
        10,
        15,
        1,
        5,
        (SILO,),
        ("Cifar10",),
        _SOME,
        ("FedAvg",),
        RESNET,
        32,
        (16, 32, 64),
        2,
        0.5,
        _BOTH,
        "",
        False,
    ),
    "medium": AdapterScale(
        10,
        10,
        3,
        5,
        (SILO,),
        ("Cifar10",),
        _SOME,
        ("FedAvg",),
        RESNET,
        32,
        (32, 64, 128),
        4,
        0.5,
        tuple(KINDS),
        "",
        False,
    ),
    "imagenet": AdapterScale(
        10,
        10,
        3,
        5,
        (SILO,),
        ("Cifar10",),
        _SOME,
        ("FedAvg",),
        MOBILE,
        96,
        _FULL,
        4,
        0.2,
        tuple(KINDS),
        "",
        False,
    ),
    "paper": AdapterScale(
        10,
        50,
        5,
        5,
        (SILO, DEVICE),
        tuple(SETS),
        tuple(PARTITIONS),
        tuple(METHODS),
        RESNET,
        72,
        _FULL,
        4,
        1.0,
        _BOTH,
        "",
        True,
    ),
}


def _settings(
    scale: AdapterScale, setting: str, dataset: str, partition: str, method: str, kind: str
) -> dict[str, Any]:
    many = setting == DEVICE
    lr = 0.01 if partition.startswith("#M") else 0.1
    return {
        **METHODS[method],
        **KINDS[kind],
        "rounds": scale.rounds,
        "weights": scale.base,
        "population": {
            "name": "images",
            "dataset": SETS[dataset],
            "clients": 10 * scale.clients if many else scale.clients,
            "partition": PARTITIONS[partition],
            "split": "own" if dataset == "SVHN" and not scale.published else "published",
            "fraction": scale.fraction,
            "size": scale.size,
            "channels": 3,
            "standardise": scale.network == RESNET,
        },
        "model": _network(scale),
        "training": {
            "lr": lr,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 64,
            "epochs": 5 if many else 1,
            "schedule": {"name": "step", "milestones": [max(1, round(0.6 * scale.rounds))], "gamma": 0.1},
        },
        "sampling": _sampling(scale, many),
        "evaluation": {"every": scale.every},
        "checkpoints": {"every": max(1, scale.rounds // 10), "keep": 1},
    }


def _sampling(scale: AdapterScale, many: bool) -> dict[str, Any]:
    """Return who takes part: everyone, or a fifth of many."""
    if not many:
        return {"fraction": 1.0}
    return {"fraction": 0.2, "replacement": True} if scale.published else {"fraction": 0.2}


class OnABase(Study):
    """A study whose figures depend on the base that adapters stand beside."""

    def remark(self, scale: Any) -> str:
        """Return what every figure of ours started from."""
        return f"base {Path(scale.base).name}" if scale.base else "random base"


def _network(scale: AdapterScale) -> dict[str, Any]:
    if scale.network == MOBILE:
        return {"name": MOBILE, "width": 0.35}
    stem = max(1, scale.channels[0] // 2)
    return {"name": RESNET, "stem": stem, "channels": list(scale.channels), "blocks": scale.blocks}


class Table1(OnABase):
    """Table I; a client's own model is the common one, and all test samples together are the test set."""

    name = "adapters-table1"
    title = "Adapters, Table I: ResNet26 with and without adapters"
    columns = "method"
    paper: ClassVar[Mapping[Place, float]] = TABLE
    scales: ClassVar[Mapping[str, Scale]] = SCALES

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every cell of the table that the scale asks for."""
        return list(self._trials(scale))

    def _trials(self, scale: AdapterScale) -> Iterator[Trial]:
        for setting, dataset, partition in _rows(scale):
            for method in scale.methods:
                for kind in scale.kinds:
                    row, column = f"{setting} {dataset} {partition}", f"{method} {kind}"
                    settings = _settings(scale, setting, dataset, partition, method, kind)
                    yield Trial(_plain(f"{row} {column}"), settings, self._read(row, column))

    def _read(self, row: str, column: str) -> Reading:
        return lambda run: {(row, column): list(pooled(run).values())[-1]}


class Figure4(Table1):
    """Figure 4: accuracy by round, cross-silo, Dir(0.5)."""

    name = "adapters-fig4"
    title = "Adapters, Figure 4: accuracy by round, cross-silo, Dir(0.5)"
    columns = "round"
    picture = "lines"
    only: ClassVar[tuple[str, str]] = (SILO, "Dir(0.5)")
    paper: ClassVar[Mapping[Place, float]] = {
        (f"{dataset} {column}", "50"): TABLE[f"{SILO} {dataset} Dir(0.5)", column]
        for dataset in SETS
        for column in COLUMNS
    }

    def _trials(self, scale: AdapterScale) -> Iterator[Trial]:
        for trial in super()._trials(scale):
            if trial.name.startswith(_plain(self.only[0])) and _plain(self.only[1]) in trial.name:
                yield trial

    def _read(self, row: str, column: str) -> Reading:
        label = f"{row.split()[1]} {column}"
        return lambda run: {(label, str(round)): value for round, value in pooled(run).items()}


class Figure5(Table1):
    """Figure 5: FedProx on CIFAR-10 by round, cross-device, #M = 1, 2, 3."""

    name = "adapters-fig5"
    title = "Adapters, Figure 5: FedProx on CIFAR-10 by round, cross-device, labels of a client"
    columns = "round"
    picture = "lines"
    paper: ClassVar[Mapping[Place, float]] = {
        (f"{partition} {kind}", "50"): TABLE[f"{DEVICE} Cifar10 {partition}", f"FedProx {kind}"]
        for partition in ("#M = 1", "#M = 2", "#M = 3")
        for kind in (WITHOUT, WITH)
    }

    def _trials(self, scale: AdapterScale) -> Iterator[Trial]:
        for partition in ("#M = 1", "#M = 2", "#M = 3"):
            for kind in (WITHOUT, WITH):
                settings = _settings(scale, DEVICE, "Cifar10", partition, "FedProx", kind)
                name = _plain(f"{DEVICE} Cifar10 {partition} FedProx {kind}")
                yield Trial(name, settings, self._read(partition, kind))

    def _read(self, row: str, column: str) -> Reading:
        return lambda run: {(f"{row} {column}", str(r)): value for r, value in pooled(run).items()}


class Bytes(OnABase):
    """Accuracy against what has travelled, up and down: full training, adapters, adapters under codecs."""

    name = "adapters-bytes"
    title = "Adapters and codecs: accuracy against bytes, CIFAR-10, cross-silo, Dir(0.5)"
    columns = "MiB sent to and from all clients"
    picture = "lines"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = SCALES

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return one run a way of sending."""
        return list(self._trials(scale))

    def _trials(self, scale: AdapterScale) -> Iterator[Trial]:
        common = (scale, SILO, "Cifar10", "Dir(0.5)", "FedAvg")
        for kind in scale.kinds:
            for codec, settings in {"": {}, **(CODECS if kind == scale.kinds[-1] else {})}.items():
                row = f"{kind}, {codec}" if codec else kind
                name = _plain(f"{SILO} Cifar10 Dir(0.5) FedAvg {row}")
                yield Trial(name, {**_settings(*common, kind), **settings}, self._read(row))

    def _read(self, row: str) -> Reading:
        def read(run: Run) -> Mapping[Place, float]:
            sent: dict[int, int] = defaultdict(int)
            for line in run.traffic:
                if line["purpose"] == "train":
                    sent[line["round"]] += line["bytes"]
            return {
                (row, f"{sum(n for r, n in sent.items() if r <= round) / 2**20:.1f}"): value
                for round, value in pooled(run).items()
            }

        return read


class Payload(Study):
    """What travels, to the byte: a saved state, as the paper measures it, and the tensors on our wire."""

    name = "adapters-payload"
    title = "Adapters: what travels (MiB)"
    columns = "measured as"
    values = "MiB"
    paper: ClassVar[Mapping[Place, float]] = {
        ("finetuning, what travels", "saved state"): 22.2,
        ("adapters, whole model", "saved state"): 24.7,
        ("adapters, what travels", "saved state"): 2.58,
    }
    scales: ClassVar[Mapping[str, Scale]] = {
        name: AdapterScale(
            10,
            1,
            1,
            1,
            (SILO,),
            ("Cifar10",),
            ("Gau(0.1)",),
            ("FedAvg",),
            RESNET,
            32,
            _FULL,
            4,
            0.01,
            _BOTH,
            "",
            False,
        )
        for name in ("small", "paper")
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return one round with and one without adapters."""
        common = (scale, SILO, "Cifar10", "Gau(0.1)", "FedAvg")
        return [
            Trial("Payload without adapters", _settings(*common, WITHOUT), self._read("finetuning")),
            Trial("Payload with adapters", _settings(*common, WITH), self._read("adapters")),
        ]

    def _read(self, kind: str) -> Reading:
        def read(run: Run) -> Mapping[Place, float]:
            model = run.client(run.clients[0]).model()
            frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
            state = model.state_dict()
            travels = {name: tensor for name, tensor in state.items() if name not in frozen}
            values = {(f"{kind}, what travels", "saved state"): _saved(travels)}
            if frozen:
                values[f"{kind}, whole model", "saved state"] = _saved(state)
            up = [
                r
                for r in run.traffic
                if r["client"] == run.clients[0] and r["direction"] == "up" and r["block"]
            ]
            sent = sum(r["bytes"] for r in up if r["purpose"] == "train")
            return {**values, (f"{kind}, what travels", "tensors on the wire"): sent / 2**20}

        return read


class Figure3(Study):
    """Figure 3: who holds what under Dir(0.5)."""

    name = "adapters-fig3"
    title = "Adapters, Figure 3: CIFAR-10 across 10 clients, Dir(0.5)"
    columns = "client"
    values = "samples"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {
        name: AdapterScale(
            10,
            1,
            1,
            1,
            (SILO,),
            ("Cifar10",),
            ("Dir(0.5)",),
            ("FedAvg",),
            RESNET,
            8,
            (1,),
            1,
            1.0,
            _BOTH,
            "",
            False,
        )
        for name in ("small", "paper")
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return one run of the smallest model: only its population is looked at."""
        settings = _settings(scale, SILO, "Cifar10", "Dir(0.5)", "FedAvg", WITHOUT)
        return [Trial("Distribution", {**settings, "model": "logistic"}, _holdings)]


def _holdings(run: Run) -> dict[Place, float]:
    labels = run.population["labels"]
    return {
        (label, str(number)): float(about["labels"]["train"][i])
        for i, label in enumerate(labels)
        for number, about in enumerate(run.population["clients"].values())
    }


def _rows(scale: AdapterScale) -> Iterator[tuple[str, str, str]]:
    return ((s, d, p) for s in scale.settings for d in scale.sets for p in scale.partitions)


def _saved(state: Mapping[str, torch.Tensor]) -> float:
    file = io.BytesIO()
    torch.save(dict(state), file)
    return len(file.getvalue()) / 2**20


def _plain(name: str) -> str:
    """Return a name that can be a folder's."""
    for odd, plain in (
        ("w/o", "without"),
        ("w/", "with"),
        (",", ""),
        ("%", ""),
        ("#M = ", "M"),
        ("(", ""),
        (")", ""),
    ):
        name = name.replace(odd, plain)
    return name


STUDIES: Sequence[Study] = (Table1(), Payload(), Figure3(), Figure4(), Figure5(), Bytes())
