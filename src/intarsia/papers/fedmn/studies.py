"""FedMN: its test bed (Table I), accuracies (Table II), traffic (Figure 2); and, ours, cohorts that conflict.

Wang et al. 2022, "Personalized federated learning via heterogeneous modular networks".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.methods.fedmn import ENCODER
from intarsia.models import MODELS, Spec
from intarsia.papers.fedmn.conflicts import Conflicts
from intarsia.papers.fedmn.figure2 import Figure2, read_accuracy
from intarsia.papers.fedmn.published import (
    CLIENTS,
    METHODS,
    MIXED,
    OF_PICTURES,
    ON_A_POOL,
    OTHER_CLIENTS,
    PUBLISHED_CLIENTS,
    PUBLISHED_SAMPLES,
    SAMPLES,
    SELECTABLE,
    SETS,
    TABLE2,
)
from intarsia.papers.study import Count, Place, Reading, Scale, Study, Trial

DESCENT = {"momentum": 0.9, "weight_decay": 5e-4}
"""What FedEM's test bed trains with."""
PLAIN = {"pFedMe": {"momentum": 0.0}}
"""Who descends without momentum: pFedMe's own rule has none, and its few steps on a batch begin anew with the next."""
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
    """Rounds of FedAvg for FedMN's encoders, within the rounds."""
    init: Literal["torch", "he"]
    """First weights of the pool."""
    lam: Annotated[float, Field(gt=0)]
    """pFedMe's lambda."""


_HERE = ("MNIST", "FEMNIST digits", "CIFAR10", "Chars74K")
BED_SCALES = {
    "small": BedScale(
        12, 8, 1, 8, ("MNIST",), tuple(METHODS), 0.06, (8, 16), 64, 64, False, 0.05, 16, {}, 2, "he", 15.0
    ),
    "medium": BedScale(
        20, 20, 3, 20, _HERE, tuple(METHODS), 0.1, (8, 16), 128, 128, False, 0.05, 16, TUNED, 4, "he", 5.0
    ),
    "paper": BedScale(
        80,
        150,
        3,
        10,
        tuple(SETS),
        tuple(METHODS),
        0,
        (32, 64),
        2048,
        512,
        True,
        0.05,
        128,
        {},
        20,
        "torch",
        15.0,
    ),
}


def _population(scale: BedScale, dataset: str) -> dict[str, Any]:
    most = (PUBLISHED_CLIENTS | OTHER_CLIENTS)[dataset]
    own = {"clients": most if scale.published else min(scale.clients, most), "test": 0.2, **SETS[dataset]}
    if own.get("name") == "roles":
        return own
    own = {"name": "images", "split": "own", **own}
    if scale.fraction and own["partition"] != "natural":
        own["fraction"] = min(1.0, scale.fraction * (3 if dataset in OF_PICTURES else 1))
    if scale.published and dataset in OF_PICTURES:
        own["standardise"] = False
    return own


def _encoder(scale: BedScale, dataset: str) -> dict[str, Any]:
    if scale.published and dataset in OF_PICTURES:
        return {"name": "mobilenet_v2", "stride": 1}
    if dataset == "Shakespeare":
        return {"name": "char_transformer"}
    return {"name": "cnn", "channels": list(scale.channels), "hidden": scale.hidden, "same": False}


def _pool(scale: BedScale, dataset: str) -> dict[str, Any]:
    layers = [2, 2, 2] if dataset in OF_PICTURES else [3, 3, 3]
    sizes = {"features": scale.features, "hidden": max(1, scale.features // 2)}
    encoder = _encoder(scale, dataset)
    return {"name": "module_pool", "layers": layers, "encoder": encoder, "init": scale.init, **sizes}


def _method(scale: BedScale, dataset: str, method: str) -> dict[str, Any]:
    """Return method and model; FedEM has as many components as FedMN has encoders."""
    on_pool = method in ON_A_POOL
    chosen: dict[str, Any] = {"name": METHODS[method]}
    if method == MIXED:
        chosen["components"] = 2 if dataset in OF_PICTURES else 3
    if METHODS[method] in ("fedmn", "fedmn+"):
        chosen["pretraining"] = scale.pretraining
    if method == "pFedMe":
        chosen["lam"] = scale.lam
    model = _pool(scale, dataset) if on_pool else _encoder(scale, dataset)
    settings: dict[str, Any] = {"method": chosen, "model": model}
    return settings


class TestBed(Study):
    """Table I: data sets and architectures; nothing is trained, only the population is looked at."""

    name = "fedmn-table1"
    title = "FedMN, Table I: the test bed"
    columns = "of the test bed"
    values = "number"
    beside = frozenset({*SETS})
    paper: ClassVar[Mapping[Place, float]] = {
        **{(name, CLIENTS): float(n) for name, n in PUBLISHED_CLIENTS.items()},
        **{(name, SAMPLES): float(n) for name, n in PUBLISHED_SAMPLES.items()},
    }
    scales: ClassVar[Mapping[str, Scale]] = BED_SCALES

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return one round of the smallest model a data set."""
        return [self._trial(scale, dataset) for dataset in scale.sets]

    def _trial(self, scale: BedScale, dataset: str) -> Trial:
        population = _population(scale, dataset)
        model = _encoder(scale, dataset) if dataset == "Shakespeare" else "logistic"
        settings = {"rounds": 1, "method": "fedavg", "model": model, "population": population}
        return Trial(f"{dataset} test bed", settings, self._read(scale, dataset))

    def _read(self, scale: BedScale, dataset: str) -> Reading:
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


class Table2(Study):
    """Table II: accuracy, the mean over clients; FedMN+ and the always-on control are ours."""

    name = "fedmn-table2"
    title = "FedMN, Table II: average test accuracy across clients"
    columns = "method"
    paper: ClassVar[Mapping[Place, float]] = {
        (dataset, method): value
        for dataset, row in TABLE2.items()
        for method, value in zip(METHODS, row, strict=False)
    }
    scales: ClassVar[Mapping[str, Scale]] = BED_SCALES

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every method on every data set."""
        return [self._trial(scale, dataset, method) for dataset in scale.sets for method in scale.methods]

    def _trial(self, scale: BedScale, dataset: str, method: str) -> Trial:
        settings = {
            "rounds": scale.rounds,
            "population": _population(scale, dataset),
            **_method(scale, dataset, method),
            "training": {
                "lr": scale.rates.get(method, scale.lr),
                "batch_size": scale.batch,
                **(DESCENT | PLAIN.get(method, {})),
            },
            "evaluation": {"every": scale.every},
            "checkpoints": {"every": scale.rounds, "keep": 1},
        }
        return Trial(f"{dataset} {method}", settings, lambda run: {(dataset, method): read_accuracy(run)})


STUDIES: Sequence[Study] = (TestBed(), Table2(), Figure2(), Conflicts())
