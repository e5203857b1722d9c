"""Controls of ours: cohorts that call or see things differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from intarsia.core import part
from intarsia.experiment import Run
from intarsia.judging.agreement import adjusted_rand
from intarsia.methods.fedmn.links import effective_links
from intarsia.methods.modfl.cohorts import group_decisions
from intarsia.papers.fedmn.figure2 import MNIST, TripScale, plain_mlp, pool_of_mlps, trip_settings
from intarsia.papers.fedmn.published import ALWAYS_ON, PLUS
from intarsia.papers.study import Place, Reading, StudyRun, mean_accuracy, study

POPULATIONS = {"permuted labels": "permuted_labels", "shifted inputs": "shifted_inputs"}
RIVALS: dict[str, Any] = {
    "Local": "local",
    "FedAvg": "fedavg",
    "FedAvg+": "fedavg+",
    "ClusteredFL": "clustered_fl",
    "FedEM, M = 2": {"name": "fedem", "components": 2},
    "FedEM, M = 3": {"name": "fedem", "components": 3},
    ALWAYS_ON: "fedavg",
    "FedMN": "fedmn",
    "FedMN, tensor": {"name": "fedmn", "form": "tensor"},
    "FedMN, paired router": {
        "name": "fedmn",
        "form": "tensor",
        "standardise": "population",
        "router_clip": 1000.0,
    },
    PLUS: "fedmn+",
    f"{ALWAYS_ON}, 2 encoders": "fedavg",
    f"{PLUS}, 2 encoders": "fedmn+",
}
POOLS = {name: (2, 4, 3) if name.endswith("2 encoders") else (1, 4, 3) for name in list(RIVALS)[6:]}
"""The layers of the pool, by method; the others have MLPs."""


@part
class CohortScale(TripScale):
    """A scale of the experiment with cohorts that conflict."""

    methods: tuple[str, ...]
    populations: tuple[str, ...]


SCALES = {
    name: CohortScale(
        clients=20,
        rounds=rounds,
        seeds=seeds,
        every=rounds,
        **MNIST,
        layers=(3,),
        methods=tuple(RIVALS),
        populations=tuple(POPULATIONS),
    )
    for name, rounds, seeds in (("small", 20, 1), ("medium", 40, 3))
}


@study(
    "fedmn-cohorts",
    "Cohorts that conflict: permuted labels, shifted inputs",
    "population",
    SCALES,
    beside=lambda row: row.endswith((", adjusted Rand", ", MB sent")),
)
def conflicts(scale: CohortScale, seed: int) -> Iterator[StudyRun]:
    """Two cohorts with conflicting labels, or with shifted inputs: ours, not in the paper.

    Baselines are MLPs as deep as one path through the pool: [1,4,3] or, where it is named, [2,4,3]. The adjusted Rand
    index compares the true cohorts with the clients' decisions, grouped by Hamming distance, or with clusters found.
    """
    for population, method in product(scale.populations, scale.methods):
        model = pool_of_mlps(scale, POOLS[method]) if method in POOLS else plain_mlp(scale, 3)
        settings = trip_settings(scale, RIVALS[method], model, POPULATIONS[population])
        yield StudyRun(f"{population} {method}", settings, _read(population, method))


def _read(population: str, method: str) -> Reading:
    def read(run: Run) -> Mapping[Place, float]:
        sent = run.summary["bytes"]
        values = {
            (method, population): mean_accuracy(run),
            (f"{method}, MB sent", population): (sent["up"] + sent["down"]) / 1e6,
        }
        index = _clusters_agree(run)
        return values if index is None else {**values, (f"{method}, adjusted Rand", population): index}

    return read


def _clusters_agree(run: Run) -> float | None:
    """Return how well found clusters, or decisions in groups, agree with the true cohorts."""
    cohorts = {name: about["cohort"] for name, about in run.population["clients"].items()}
    if run.groups:
        found = dict.fromkeys(cohorts, "") | {move["client"]: move["group"] for move in run.groups}
        return adjusted_rand(list(cohorts.values()), [found[name] for name in cohorts])
    own = [n for n in run.notes if n["kind"] == "decision" and n["stage"] == "own"]
    if not own:
        return None
    last = {n["client"]: n["gates"] for n in own if n["round"] == own[-1]["round"]}
    layers = run.experiment.settings.model["layers"]
    links = [effective_links(tuple(layers), last[name]) for name in cohorts]
    return adjusted_rand(list(cohorts.values()), group_decisions(links, len(set(cohorts.values()))))
