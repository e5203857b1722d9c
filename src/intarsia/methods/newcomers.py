"""Newcomers: clients that never train, and are judged apart, as they come and after an epoch of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from intarsia.blocks import Values
from intarsia.data import ClientInfo
from intarsia.methods.base import EVALUATE, OWN, Exchange, Method
from intarsia.training import LocalClient

NEWCOMER = "newcomer"
"""The value that tells a client, in an evaluation, that it never trains."""
NEW, TUNED = "new", "tuned"
"""The stages of a newcomer's model: as it comes, and after one epoch on its own data."""


def told_apart(exchange: Exchange, newcomers: Collection[str]) -> Exchange:
    """Return an exchange of an evaluation that tells newcomers what they are."""
    if exchange.step != EVALUATE or not newcomers:
        return exchange

    def values(client: ClientInfo) -> Values:
        usual = exchange.values(client) if exchange.values else {}
        return {**usual, NEWCOMER: True} if client.name in newcomers else usual

    return replace(exchange, values=values)


def scored_stages(values: Values) -> tuple[str, ...]:
    """Return the stages that a client scores at least, if it was told these values."""
    return (NEW, TUNED) if NEWCOMER in values else (OWN,)


def own_stages(method: Method, client: LocalClient) -> Iterator[str]:
    """Make the client's own model; yield the stages to evaluate."""
    if NEWCOMER not in client.values:
        yield from method.own_model(client)
        return
    yield from tuned_stages(method, client, epochs=1)


def tuned_stages(method: Method, client: LocalClient, epochs: int) -> Iterator[str]:
    """Make the model of a client that never trained, then tune it (0 epochs: not) on its own data; yield the stages."""
    for stage in method.own_model(client):
        if stage == OWN:
            yield NEW
    if epochs:
        client.train(method.objective, epochs=epochs, purpose=NEWCOMER)
        yield TUNED
