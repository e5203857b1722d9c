"""Who the attackers of a run are, and what their data is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from intarsia.core import chance
from intarsia.data import Client, ClientInfo, Population

SPREAD, LOT, COHORT = "spread", "lot", "cohort"
"""How attackers are chosen: as many of every kind of client as can be; by lot; all of one cohort."""


def attackers_of(clients: Sequence[ClientInfo], share: float, seed: int, place: str) -> list[str]:
    """Return the names of the attackers: this share of the clients, the same ones for a seed."""
    order = chance.numpy_generator(seed, "attackers").permutation(len(clients))
    drawn = [clients[i] for i in order]
    if place == SPREAD:
        drawn = _spread(drawn)
    elif place == COHORT:
        first = drawn[0].cohort
        drawn.sort(key=lambda info: info.cohort != first)
    return sorted(info.name for info in drawn[: round(share * len(clients))])


def _spread(drawn: Sequence[ClientInfo]) -> list[ClientInfo]:
    """Return clients in such an order that any number of first ones is spread evenly over cohorts and devices."""
    cohorts: dict[str, dict[str, list[ClientInfo]]] = defaultdict(lambda: defaultdict(list))
    for info in drawn:
        cohorts[info.cohort][info.device].append(info)
    devices = sorted({info.device for info in drawn})
    found: list[ClientInfo] = []
    turn = 0
    while len(found) < len(drawn):
        for number, cohort in enumerate(sorted(cohorts)):
            wanted = [devices[(number + turn + i) % len(devices)] for i in range(len(devices))]
            own = next((cohorts[cohort][d] for d in wanted if cohorts[cohort][d]), [])
            found += [own.pop(0)] if own else []
        turn += 1
    return found


def with_turned_labels(population: Population, names: Collection[str]) -> Population:
    """Return a population in which these clients train with labels turned round: the first becomes the last."""
    clients = {n: _turned(c, population) if n in names else c for n, c in population.clients.items()}
    return replace(population, clients=clients)


def _turned(client: Client, population: Population) -> Client:
    goal = population.goals[client.info.task]
    own = client.data["train"]
    turned = goal.outputs - 1 - own.y if goal.problem == "classification" else -own.y
    data = {**client.data, "train": replace(own, y=turned.to(own.y.dtype).contiguous())}
    return replace(client, data=data)
