"""Adapters against full training: Table I, the payload, Figures 3 to 5; and, ours, accuracy against bytes.

Elvebakken, Iosifidis, Esterle 2023, "Adaptive parameterization of deep learning models for federated learning".
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

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
from intarsia.papers.adapters.scales import MOBILE, RESNET, SCALES, AdapterScale, looked_at
from intarsia.papers.study import Place, Reading, StudyRun, last_accuracy, pooled, rhythm, study


def _settings(
    scale: AdapterScale, setting: str, dataset: str, partition: str, method: str, kind: str
) -> dict[str, Any]:
    many = setting == DEVICE
    return {
        **METHODS[method],
        "sharing": {"norms": scale.norms},
        "adapters": _adapters(scale, kind),
        **rhythm(scale, checkpoints=10),
        "weights": scale.base,
        "population": {
            "name": "images",
            "dataset": SETS[dataset],
            "clients": 10 * scale.clients if many else scale.clients,
            "partition": _partition(scale, partition),
            "split": "own" if dataset == "SVHN" and not scale.published else "published",
            "fraction": scale.fraction,
            "size": scale.size,
            "channels": 3,
            "standardise": scale.network == RESNET,
        },
        "model": _network(scale),
        "training": {
            "lr": scale.rates.get(kind, 0.01 if partition.startswith("#M") else 0.1),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 64,
            "epochs": 5 if many else 1,
            "statistics": scale.statistics,
            "schedule": {"name": "step", "milestones": [max(1, round(0.6 * scale.rounds))], "gamma": 0.1},
        },
        "sampling": _sampling(scale, many),
    }


def _adapters(scale: AdapterScale, kind: str) -> dict[str, Any]:
    return {**KINDS[kind], **({"rank": scale.rank} if scale.rank and kind != WITHOUT else {})}


def _partition(scale: AdapterScale, partition: str) -> dict[str, Any]:
    """Return how data are dealt; of noise, how often it is drawn."""
    chosen = PARTITIONS[partition]
    return {**chosen, "redrawn": True} if scale.redrawn and chosen["name"] == "noise" else chosen


def _sampling(scale: AdapterScale, many: bool) -> dict[str, Any]:
    """Return who takes part: everyone, or a fifth of many."""
    if not many:
        return {"fraction": 1.0}
    return {"fraction": 0.2, "replacement": True} if scale.published else {"fraction": 0.2}


def _network(scale: AdapterScale) -> dict[str, Any]:
    if scale.network == MOBILE:
        return {"name": MOBILE, "width": 0.35}
    stem = max(1, scale.channels[0] // 2)
    return {"name": RESNET, "stem": stem, "channels": list(scale.channels), "blocks": scale.blocks}


def _remark(scale: AdapterScale) -> str:
    """Return what every figure of ours started from: adapters stand beside a base."""
    return f"base {Path(scale.base).name}" if scale.base else "random base"


def _cell(scale: AdapterScale, *case: str, read: Reading) -> StudyRun:
    """Return the run of one cell: setting, data set, partition, method, with or without adapters."""
    return StudyRun(_plain(" ".join(case)), _settings(scale, *case), read)


def _last(place: Place) -> Reading:
    return lambda run: {place: last_accuracy(run)}


def _by_round(row: str) -> Reading:
    return lambda run: {(row, str(round)): value for round, value in pooled(run).items()}


@study(
    "adapters-table1",
    "Adapters, Table I: ResNet26 with and without adapters",
    "method",
    SCALES,
    paper=TABLE,
    remark=_remark,
)
def table1(scale: AdapterScale, seed: int) -> Iterator[StudyRun]:
    """Table I; a client's own model is the common one, and all test samples together are the test set."""
    for case in product(scale.settings, scale.sets, scale.partitions, scale.methods, scale.kinds):
        yield _cell(scale, *case, read=_last((" ".join(case[:3]), " ".join(case[3:]))))


@study(
    "adapters-fig4",
    "Adapters, Figure 4: accuracy by round, cross-silo, Dir(0.5)",
    "round",
    SCALES,
    picture="lines",
    paper={
        (f"{d} {column}", "50"): TABLE[f"{SILO} {d} Dir(0.5)", column] for d in SETS for column in COLUMNS
    },
    remark=_remark,
)
def figure4(scale: AdapterScale, seed: int) -> Iterator[StudyRun]:
    """Figure 4: accuracy by round, cross-silo, Dir(0.5); the runs are those of Table I."""
    shown = (set(scale.settings) & {SILO}, scale.sets, set(scale.partitions) & {"Dir(0.5)"})
    for setting, dataset, partition, method, kind in product(*shown, scale.methods, scale.kinds):
        case = (setting, dataset, partition, method, kind)
        yield _cell(scale, *case, read=_by_round(f"{dataset} {method} {kind}"))


FEW_LABELS = ("#M = 1", "#M = 2", "#M = 3")


@study(
    "adapters-fig5",
    "Adapters, Figure 5: FedProx on CIFAR-10 by round, cross-device, labels of a client",
    "round",
    SCALES,
    picture="lines",
    paper={
        (f"{few} {kind}", "50"): TABLE[f"{DEVICE} Cifar10 {few}", f"FedProx {kind}"]
        for few in FEW_LABELS
        for kind in (WITHOUT, WITH)
    },
    remark=_remark,
)
def figure5(scale: AdapterScale, seed: int) -> Iterator[StudyRun]:
    """Figure 5: FedProx on CIFAR-10 by round, cross-device, #M = 1, 2, 3."""
    for few, kind in product(FEW_LABELS, (WITHOUT, WITH)):
        yield _cell(scale, DEVICE, "Cifar10", few, "FedProx", kind, read=_by_round(f"{few} {kind}"))


@study(
    "adapters-bytes",
    "Adapters and codecs: accuracy against bytes, CIFAR-10, cross-silo, Dir(0.5)",
    "MiB sent to and from all clients",
    SCALES,
    picture="lines",
    remark=_remark,
)
def against_bytes(scale: AdapterScale, seed: int) -> Iterator[StudyRun]:
    """Accuracy against what has travelled, up and down: full training, adapters, adapters under codecs."""
    case = (SILO, "Cifar10", "Dir(0.5)", "FedAvg")
    for kind in scale.kinds:
        for codec, own in {"": {}, **(CODECS if kind == scale.kinds[-1] else {})}.items():
            row = f"{kind}, {codec}" if codec else kind
            settings = {**_settings(scale, *case, kind), **own}
            yield StudyRun(_plain(f"{' '.join(case)} {row}"), settings, _by_bytes(row))


def _by_bytes(row: str) -> Reading:
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


@study(
    "adapters-payload",
    "Adapters: what travels (MiB)",
    "measured as",
    looked_at("Gau(0.1)", fraction=0.01),
    values="MiB",
    paper={
        ("finetuning, what travels", "saved state"): 22.2,
        ("adapters, whole model", "saved state"): 24.7,
        ("adapters, what travels", "saved state"): 2.58,
    },
)
def payload(scale: AdapterScale, seed: int) -> Iterator[StudyRun]:
    """What travels, to the byte: a saved state, as the paper measures it, and the tensors on our wire."""
    for words, kind, row in (("without", WITHOUT, "finetuning"), ("with", WITH, "adapters")):
        settings = _settings(scale, SILO, "Cifar10", "Gau(0.1)", "FedAvg", kind)
        yield StudyRun(f"Payload {words} adapters", settings, _travels(row))


def _travels(kind: str) -> Reading:
    def read(run: Run) -> Mapping[Place, float]:
        model = run.client(run.clients[0]).model()
        frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
        state = model.state_dict()
        travels = {name: tensor for name, tensor in state.items() if name not in frozen}
        values = {(f"{kind}, what travels", "saved state"): _saved(travels)}
        if frozen:
            values[f"{kind}, whole model", "saved state"] = _saved(state)
        own = {"client": run.clients[0], "direction": "up", "purpose": "train"}
        up = [r for r in run.traffic if r["block"] and own.items() <= r.items()]
        return {
            **values,
            (f"{kind}, what travels", "tensors on the wire"): sum(r["bytes"] for r in up) / 2**20,
        }

    return read


@study(
    "adapters-fig3",
    "Adapters, Figure 3: CIFAR-10 across 10 clients, Dir(0.5)",
    "client",
    looked_at("Dir(0.5)", size=8, channels=(1,), blocks=1, fraction=1.0),
    values="samples",
)
def figure3(scale: AdapterScale, seed: int) -> Iterator[StudyRun]:
    """Figure 3: who holds what under Dir(0.5); of one run of the smallest model only the population is looked at."""
    settings = _settings(scale, SILO, "Cifar10", "Dir(0.5)", "FedAvg", WITHOUT)
    yield StudyRun("Distribution", {**settings, "model": "logistic"}, _holdings)


def _holdings(run: Run) -> dict[Place, float]:
    labels = run.population["labels"]
    return {
        (label, str(number)): float(about["labels"]["train"][i])
        for i, label in enumerate(labels)
        for number, about in enumerate(run.population["clients"].values())
    }


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
