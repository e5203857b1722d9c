"""FedMN's Figure 2: accuracy against what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.papers.fedmn.published import (
    ACCURACY,
    SENT,
    WITHOUT_ROUTER,
)
from intarsia.papers.study import Count, Place, Reading, Scale, Study, Trial


def read_accuracy(run: Run) -> float:
    """Return the mean accuracy of a run, in per cent."""
    return 100 * float(run.summary["accuracy"]["mean"])


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
_TRIP = {
    "small": TripScale(20, 20, 1, 20, "mnist", 0.1072, 256, 0.05, 10, 0.5, (3, 8)),
    "medium": TripScale(20, 20, 3, 20, "mnist", 0.1072, 256, 0.05, 10, 0.5, (3, 8, 9, 10)),
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
        "rounds": scale.rounds,
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
        "evaluation": {"every": scale.every},
        "checkpoints": {"every": scale.rounds, "keep": 1},
    }


class Figure2(Study):
    """Figure 2: accuracy after 20 rounds against the parameters sent up and down; the router counts."""

    name = "fedmn-fig2"
    title = "FedMN, Figure 2: accuracy against parameters sent in 20 rounds"
    columns = "measured"
    picture = "points"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = _TRIP

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return FedAvg in all depths, and FedMN in all shapes with as many blocks."""
        return list(self._trials(scale))

    def _trials(self, scale: TripScale) -> Iterator[Trial]:
        partition = {"name": "dirichlet", "beta": 0.4}
        for layers in scale.layers:
            name = f"FedAvg {layers} layers"
            yield Trial(
                name, trip_settings(scale, "fedavg", plain_mlp(scale, layers), partition), _sent(name)
            )
        for shape in (shape for layers in scale.layers for shape in SHAPES.get(layers, ())):
            name = f"FedMN {'x'.join(map(str, shape))}"
            yield Trial(
                name, trip_settings(scale, "fedmn", pool_of_mlps(scale, shape), partition), _sent(name)
            )


def _sent(row: str) -> Reading:
    def read(run: Run) -> Mapping[Place, float]:
        lines = [line for line in run.traffic if line["purpose"] == "train"]
        router = sum(line["bytes"] for line in lines if line["block"] == "router")
        total = sum(line["bytes"] for line in lines)
        return {
            (row, SENT): total / 4e6,
            (row, ACCURACY): read_accuracy(run),
            (row, WITHOUT_ROUTER): (total - router) / 4e6,
        }

    return read
