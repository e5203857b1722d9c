"""FedMN's Figure 2: accuracy against what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.papers.fedmn.published import ACCURACY, SENT, WITHOUT_ROUTER
from intarsia.papers.study import Count, Place, Reading, Scale, StudyRun, mean_accuracy, rhythm, study


@part
class TripScale(Scale):
    """A scale of the experiments with MLPs of 256 units."""

    dataset: str
    fraction: Annotated[float, Field(gt=0, le=1)]
    units: Count
    lr: Annotated[float, Field(gt=0)]
    batch: Count
    dropout: Annotated[float, Field(ge=0, lt=1)]
    layers: tuple[Count, ...]
    """Depths of FedAvg's networks; 3 is the control that is as deep as one path through FedMN's pool."""


SHAPES = {
    8: ((1, 4, 3), (1, 3, 4), (1, 2, 5), (1, 5, 2)),
    9: ((1, 4, 4), (1, 3, 5), (1, 5, 3), (1, 2, 6)),
    10: ((1, 4, 5), (1, 5, 4), (1, 3, 6), (1, 6, 3)),
}
"""FedMN's architectures by their number of blocks: those of 8 are published, the others ours."""
MNIST: dict[str, Any] = {
    "dataset": "mnist",
    "fraction": 0.1072,
    "units": 256,
    "lr": 0.05,
    "batch": 10,
    "dropout": 0.5,
}
"""What all scales on MNIST have."""
_SMALL = {"clients": 20, "rounds": 20, "every": 20, **MNIST}
SCALES = {
    "small": TripScale(seeds=1, layers=(3, 8), **_SMALL),
    "medium": TripScale(seeds=3, layers=(3, 8, 9, 10), **_SMALL),
    "paper": TripScale(80, 20, 3, 20, "cifar10", 1.0, 256, 0.05, 128, 0.5, (3, 8, 9, 10)),
}


def plain_mlp(scale: TripScale, layers: int) -> dict[str, Any]:
    """Return FedAvg's network of so many layers."""
    return {"name": "mlp", "hidden": [scale.units] * (layers - 1)}


def pool_of_mlps(scale: TripScale, shape: Sequence[int]) -> dict[str, Any]:
    """Return a pool of this shape."""
    sizes = {"features": scale.units, "hidden": scale.units, "dropout": scale.dropout}
    return {"name": "module_pool", "layers": list(shape), **sizes}


def trip_settings(scale: TripScale, method: Any, model: dict[str, Any], partition: Any) -> dict[str, Any]:
    """Return the settings of one point of the figure."""
    return {
        **rhythm(scale),
        "method": method,
        "model": model,
        "population": {
            "name": "images",
            "dataset": scale.dataset,
            "clients": scale.clients,
            "partition": partition,
            "fraction": scale.fraction,
            "split": "own",
            "test": 0.2,
        },
        "training": {"lr": scale.lr, "batch_size": scale.batch},
    }


@study(
    "fedmn-fig2",
    "FedMN, Figure 2: accuracy against parameters sent in 20 rounds",
    "measured",
    SCALES,
    picture="points",
)
def figure2(scale: TripScale, seed: int) -> Iterator[StudyRun]:
    """Figure 2: accuracy after 20 rounds against the parameters sent up and down; the router counts.

    FedAvg runs in all depths, and FedMN in all shapes with as many blocks; clients alone have the least depth.
    """
    least = min(scale.layers)
    plain = {f"Local {least} layers": ("local", plain_mlp(scale, least))}
    plain |= {f"FedAvg {layers} layers": ("fedavg", plain_mlp(scale, layers)) for layers in scale.layers}
    shapes = [shape for layers in scale.layers for shape in SHAPES.get(layers, ())]
    pools = {f"FedMN {'x'.join(map(str, s))}": ("fedmn", pool_of_mlps(scale, s)) for s in shapes}
    for name, (method, model) in (plain | pools).items():
        settings = trip_settings(scale, method, model, {"name": "dirichlet", "beta": 0.4})
        yield StudyRun(name, settings, _sent(name))


def _sent(row: str) -> Reading:
    def read(run: Run) -> Mapping[Place, float]:
        lines = [line for line in run.traffic if line["purpose"] == "train"]
        router = sum(line["bytes"] for line in lines if line["block"] == "router")
        total = sum(line["bytes"] for line in lines)
        return {
            (row, SENT): total / 4e6,
            (row, ACCURACY): mean_accuracy(run),
            (row, WITHOUT_ROUTER): (total - router) / 4e6,
        }

    return read
