"""Adapters against full training: Table I, the payload, Figures 3 to 5; and, ours, accuracy against bytes.

Elvebakken, Iosifidis, Esterle 2023, "Adaptive parameterization of deep learning models for federated learning".
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from intarsia.experiment import Run
from intarsia.papers.adapters.published import (
    CODECS,
    COLUMNS,
    DEVICE,
    KINDS,
    METHODS,
    PARTITIONS,
    SETS,
    SILO,
    TABLE,
    WITH,
    WITHOUT,
)
from intarsia.papers.adapters.scales import BOTH, FULL, MOBILE, RESNET, SCALES, AdapterScale
from intarsia.papers.study import Place, Reading, Scale, Study, Trial, pooled


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
            FULL,
            4,
            0.01,
            BOTH,
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
            BOTH,
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
