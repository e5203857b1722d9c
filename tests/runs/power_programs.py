"""Small programs that are watched while they write."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

import intarsia
from intarsia.blocks import Address, Block, ClientPlan, Task
from intarsia.clients import state_version
from intarsia.flower.site.site_store import SiteStore, token
from intarsia.runs import tables

SETTINGS = {
    "name": "cut",
    "rounds": 5,
    "method": "fedper",
    "sharing": {"by": "device"},
    "sampling": {"fraction": 0.5},
    "population": {"name": "digits", "clients": 6, "cohorts": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"lr": 0.1, "batch_size": 64},
    "engine": {"name": "local", "workers": 1, "device": "cpu"},
}
ACKS = "acks"
"""In the watched folder, beside the run's or the site's: what the outside was told to be saved."""
CLIENTS, EXCHANGES = 8, 5


def tell(folder: Path, number: int) -> None:
    """Note, for whoever watches, what must not be lost from now on."""
    with (folder / ACKS).open("ab") as file:
        file.write(f"{number}\n".encode())


def run(folder: Path) -> None:
    """A run whose clients keep blocks of their own."""

    class Telling(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if name != "evaluate" and round > 1:
                tell(folder, round - 2)  # written beside round `round - 1`, and waited for at its end

    tables.WORTH_PACKING = 1  # in this process: the run is to pack what it ends with
    intarsia.run(SETTINGS, out=folder / "run", observer=Telling())
    tell(folder, SETTINGS["rounds"])


def state_of(exchange: int, client: int):
    """Return a client's own block after an exchange."""
    return Block({"w": torch.full((200,), float(1000 * exchange + client))})


def task_of(exchange: int, client: int, before: str):
    """Return a task that builds on a state; the block that it brings."""
    base, head = Address("base", "all"), Address("head", "me")
    block = Block({"b": torch.full((100,), float(exchange))})
    plan = ClientPlan({"base": base, "head": head}, frozenset({"base", "head"}), frozenset({"base"}))
    name = f"client-{client}"
    task = Task("cutrun", exchange, "train", "train", name, before, plan=plan, versions={base: block.version})
    return task, block


@functools.cache
def site_states() -> dict[tuple[int, int], tuple[str, str]]:
    """Return by exchange and client: the name of the state that it leads to, and the version of its block."""
    versions = {(e, c): state_of(e, c).version for e in range(EXCHANGES) for c in range(CLIENTS)}
    return {key: (state_version(token({"private": {"head": v}})), v) for key, v in versions.items()}


def site(folder: Path) -> None:
    """What a site's agent writes of its clients, exchange by exchange."""
    store = SiteStore(folder / "site" / "runs" / "cutrun")
    before = dict.fromkeys(range(CLIENTS), "")
    for exchange in range(EXCHANGES):
        for client in range(CLIENTS):
            task, block = task_of(exchange, client, before[client])
            state = {"private": {"head": store.blocks.put(state_of(exchange, client))}}
            store.hold(task, {block.version: block})
            store.remember(task, state, [])
            before[client] = site_states()[exchange, client][0]
        store.save()
        tell(folder, exchange)
