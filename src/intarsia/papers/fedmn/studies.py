"""FedMN: its test bed (Table I) and accuracies (Table II); beside it, traffic (Figure 2), and ours: conflicts.

Wang et al. 2022, "Personalized federated learning via heterogeneous modular networks".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.methods.fedmn import ENCODER
from intarsia.methods.fedmn.fedmn import BEFORE
from intarsia.models import MODELS, Spec
from intarsia.papers.fedmn.published import (
    AS_DEEP,
    BY_WRITER,
    CLIENTS,
    KEPT,
    LONGER,
    METHODS,
    MIXED_LONGER,
    OF_PICTURES,
    ON_A_POOL,
    OPEN,
    OTHER_CLIENTS,
    PLUS,
    PUBLISHED_CLIENTS,
    PUBLISHED_SAMPLES,
    SAMPLES,
    SELECTABLE,
    SETS,
    TABLE2,
    TRAINED_AGAIN,
)
from intarsia.papers.study import (
    Count,
    Place,
    Reading,
    Scale,
    StudyRun,
    mean_accuracy,
    placed,
    rhythm,
    stage_accuracy,
    study,
)

DESCENT = {"momentum": 0.9, "weight_decay": 5e-4}
"""What FedEM's test bed trains with."""
PLAIN = {"pFedMe": {"momentum": 0.0}, KEPT: {"momentum": 0.0}}
"""Who descends without momentum: pFedMe's own rule has none, and its few steps on a batch begin anew with the next; nor
has FedEM's test bed any."""
SENT_MB = ", MB sent"
TUNED = {"Local": 0.02, "FedProx": 0.02, "FedAvg+": 0.02}
"""Learning rates that `intarsia tune` chose at scale `medium`, where they are not the 0.05 of the others."""


@part
class BedScale(Scale):
    """A scale of the test bed; `clients` count where `published` is false."""

    sets: tuple[str, ...]
    methods: tuple[str, ...]
    fraction: Annotated[float, Field(ge=0, le=1)]
    """Share of the data where writers do not divide it, of pictures three times as much (0: as published)."""
    channels: tuple[Count, Count]
    """Of the encoders' two convolutions, for handwriting and, where `published` is false, for pictures too."""
    hidden: Count
    features: Count
    published: bool
    """Whether pictures are encoded by MobileNetV2, and clients are as many as in the paper."""
    lr: Annotated[float, Field(gt=0)]
    batch: Count
    rates: dict[str, Annotated[float, Field(gt=0)]]
    """Learning rates by method, as `intarsia tune` found them; others train with `lr`."""
    pretraining: Annotated[int, Field(ge=0)]
    """Rounds of FedAvg for FedMN's encoders, before the others; whoever has a pool trains as long."""
    init: Literal["torch", "he"]
    """First weights of the pool."""
    lam: Annotated[float, Field(gt=0)]
    """pFedMe's lambda."""
    base: str = ""
    """A file of weights that encoders of pictures start from, and those of routers (empty: random ones)."""
    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of MobileNetV2's channels, where pictures are encoded by it: weights of width 0.35 can be had."""


_HERE = ("MNIST", "FEMNIST digits", "CIFAR10", "Chars74K")
_LITTLE: dict[str, Any] = {"methods": tuple(METHODS), "channels": (8, 16), "published": False, "lr": 0.05}
_SMALL: dict[str, Any] = {
    "clients": 12,
    "rounds": 8,
    "seeds": 1,
    "every": 8,
    "sets": ("MNIST",),
    "fraction": 0.06,
}
_MEDIUM: dict[str, Any] = {
    "clients": 20,
    "rounds": 20,
    "seeds": 3,
    "every": 20,
    "sets": _HERE,
    "fraction": 0.1,
}
_PAPER: dict[str, Any] = {
    "clients": 80,
    "rounds": 150,
    "seeds": 3,
    "every": 10,
    "sets": tuple(SETS),
    "fraction": 0,
}
_LARGE = {**_LITTLE, **_PAPER, "channels": (32, 64), "published": True, "hidden": 2048, "features": 512}
BED_SCALES = {
    "small": BedScale(
        **_LITTLE, **_SMALL, hidden=64, features=64, batch=16, rates={}, pretraining=2, init="he", lam=15.0
    ),
    "medium": BedScale(
        **_LITTLE,
        **_MEDIUM,
        hidden=128,
        features=128,
        batch=16,
        rates=TUNED,
        pretraining=4,
        init="he",
        lam=5.0,
    ),
    "paper": BedScale(**_LARGE, batch=128, rates={}, pretraining=20, init="torch", lam=15.0),
}


def _population(scale: BedScale, dataset: str) -> dict[str, Any]:
    most = (PUBLISHED_CLIENTS | OTHER_CLIENTS)[dataset]
    own = {"clients": most if scale.published else min(scale.clients, most), "test": 0.2, **SETS[dataset]}
    if own.get("name") == "roles":
        return own
    own = {"name": "images", "split": "own", **own}
    if scale.fraction and own["dataset"] not in BY_WRITER:
        own["fraction"] = min(1.0, scale.fraction * (3 if dataset in OF_PICTURES else 1))
    if scale.published and dataset in OF_PICTURES:
        own["standardise"] = False
    return own


def _encoder(scale: BedScale, dataset: str) -> dict[str, Any]:
    if scale.published and dataset in OF_PICTURES:
        return {"name": "mobilenet_v2", **({"width": scale.width} if scale.width < 1 else {}), "stride": 1}
    if dataset == "Shakespeare":
        return {"name": "char_transformer"}
    return {"name": "cnn", "channels": list(scale.channels), "hidden": scale.hidden, "same": False}


def _pool(scale: BedScale, dataset: str, width: int = 0) -> dict[str, Any]:
    """Return a pool of so many blocks a layer (0: as many as in the paper)."""
    layers = [width or (2 if dataset in OF_PICTURES else 3)] * 3
    sizes = {"features": scale.features, "hidden": max(1, scale.features // 2)}
    encoder = _encoder(scale, dataset)
    return {"name": "module_pool", "layers": layers, "encoder": encoder, "init": scale.init, **sizes}


def _method(scale: BedScale, dataset: str, method: str) -> dict[str, Any]:
    """Return method and model; FedEM has as many components as FedMN has encoders."""
    chosen = dict(METHODS[method])
    if chosen["name"] == "fedem":
        chosen["components"] = 2 if dataset in OF_PICTURES else 3
    if chosen["name"] == "fedmn":
        chosen["pretraining"] = scale.pretraining
    if method == PLUS:
        chosen["whole"] = scale.pretraining
    if chosen["name"] == "pfedme":
        chosen["lam"] = scale.lam
    pool = _pool(scale, dataset, 1 if method == AS_DEEP else 0)
    model = pool if method in ON_A_POOL else _encoder(scale, dataset)
    base = {"weights": scale.base} if scale.base and dataset in OF_PICTURES else {}
    return {"method": chosen, "model": model, **base}


def _rounds(scale: BedScale, method: str) -> dict[str, Any]:
    """Return the rhythm; pre-training is extra, and all methods on a pool have the same number of rounds."""
    extra = scale.pretraining if method in (*ON_A_POOL, LONGER, MIXED_LONGER) else 0
    return rhythm(replace(scale, rounds=scale.rounds + extra, every=scale.every + extra))


@study(
    "fedmn-table1",
    "FedMN, Table I: the test bed",
    "of the test bed",
    BED_SCALES,
    values="number",
    beside=frozenset(SETS).__contains__,
    paper={
        **{(name, CLIENTS): float(n) for name, n in PUBLISHED_CLIENTS.items()},
        **{(name, SAMPLES): float(n) for name, n in PUBLISHED_SAMPLES.items()},
    },
)
def table1(scale: BedScale, seed: int) -> Iterator[StudyRun]:
    """Table I: data sets and architectures; one round of the smallest model, only the population is looked at."""
    for dataset in scale.sets:
        model = _encoder(scale, dataset) if dataset == "Shakespeare" else "logistic"
        settings = {
            "rounds": 1,
            "method": "fedavg",
            "model": model,
            "population": _population(scale, dataset),
        }
        yield StudyRun(f"{dataset} test bed", settings, _read_bed(scale, dataset))


def _read_bed(scale: BedScale, dataset: str) -> Reading:
    def read(run: Run) -> Mapping[Place, float]:
        clients = run.population["clients"].values()
        held = sum(sum(about["samples"].values()) for about in clients)
        info = run.client(run.clients[0]).info
        share = _selectable(_pool(scale, dataset), info.shape, len(run.population["labels"]))
        return {
            (dataset, CLIENTS): float(len(clients)),
            (dataset, SAMPLES): float(held),
            (dataset, SELECTABLE): share,
        }

    return read


def _selectable(pool: Mapping[str, Any], shape: tuple[int, ...], labels: int) -> float:
    """Return which share of the pool's parameters a client can leave out, in per cent."""
    options = {key: value for key, value in pool.items() if key != "name"}
    model = Spec(MODELS["module_pool"](**options), shape, labels).build(0)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    return 100 * sum(n for name, n in sizes.items() if not name.startswith(ENCODER)) / sum(sizes.values())


@study(
    "fedmn-table2",
    "FedMN, Table II: average test accuracy across clients",
    "method",
    BED_SCALES,
    beside=lambda row: row.endswith(SENT_MB),
    paper=placed(TABLE2, list(METHODS)[:8]),
)
def table2(scale: BedScale, seed: int) -> Iterator[StudyRun]:
    """Table II: accuracy, the mean over clients. Ours, behind FedMN: an open start, local models, FedMN+, controls."""
    for dataset, method in product(scale.sets, scale.methods):
        rate = {"lr": scale.rates.get(method, scale.lr), "batch_size": scale.batch}
        settings = {
            **_rounds(scale, method),
            "population": _population(scale, dataset),
            **_method(scale, dataset, method),
            "training": {**rate, **(DESCENT | PLAIN.get(method, {}))},
        }
        yield StudyRun(f"{dataset} {method}", settings, _read_mean(dataset, method))


def _read_mean(dataset: str, method: str) -> Reading:
    """Read the mean accuracy, and what was sent up and down for it; an open start has it before and after tuning."""

    def read(run: Run) -> Mapping[Place, float]:
        sent = run.summary["bytes"]
        values = {
            (dataset, method): mean_accuracy(run),
            (dataset + SENT_MB, method): (sent["up"] + sent["down"]) / 1e6,
        }
        if method == OPEN:
            values[dataset, TRAINED_AGAIN] = values[dataset, method]
            values[dataset, method] = stage_accuracy(run, BEFORE)
        return values

    return read
