"""What methods on a pool of modules have in common: every client has gates, and they make its own network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from intarsia.blocks import ME, Cut, Values
from intarsia.core import part
from intarsia.data import ClientInfo
from intarsia.methods.base import EVALUATE, OWN, Exchange, Method, Replies, Sharing
from intarsia.methods.fedmn.links import ENCODER
from intarsia.methods.fedmn.module_pool import ModulePool, pool_of
from intarsia.methods.server import Server
from intarsia.training import LocalClient

ROUTER, GATES = "router", "gates"


@part
class PoolOfModules(Sharing):
    """Every module of the pool a block of its own, with everyone; a client's gates at home."""

    name: ClassVar[str] = "pool"
    needs: ClassVar[frozenset[str]] = frozenset({GATES})

    encoders_by: str = ""
    """Attribute that divides encoders (and FedMN's router) alone into groups (`device`: each generation has its own,
    whatever its inputs are, and the blocks behind them are everyone's)."""

    def cut(self, model: nn.Module) -> Cut:
        """Cut between the modules."""
        pool = pool_of(model, f"sharing '{self.name}'")
        modules = {name: (f"{name}.*",) for name in map(pool.block_name, pool.places)}
        return Cut({**modules, GATES: (GATES,)})

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client itself for its gates, everyone for all else."""
        if block == GATES:
            return ME
        if self.encoders_by and (block == ROUTER or block.startswith(ENCODER)):
            return client.attribute(self.encoders_by)
        return self.everyone(client)


class Assembling(Method):
    """A method on a pool of modules: the server knows every client's gates, and what its network needs of the pool."""

    drops_encoders: ClassVar[bool] = False
    """Whether encoders that no open link uses stay away; else all of them travel."""

    def own(self, server: Server) -> Exchange:
        """Return the exchange that gives clients the blocks and gates of their own models; at first, of all links."""
        return Exchange(
            EVALUATE, fetch=lambda client: self.needed(server, client.name), values=self.gates_for(server)
        )

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Set the gates."""
        self.set_gates(client)
        yield OWN

    def lend(self, state: dict[str, Any], client: str, to: str) -> Any:
        """Lend a client's gates."""
        gates = state.get(GATES, {})
        if client in gates:
            gates[to] = gates[client]
        return gates.get(client)

    def gates_for(self, server: Server) -> Any:
        """Return what tells a client its gates: nothing as long as it has none, and uses all links."""
        gates = server.state.get(GATES, {})

        def values(client: ClientInfo) -> Values:
            return {GATES: gates[client.name]} if client.name in gates else {}

        return values

    def set_gates(self, client: LocalClient) -> None:
        """Open the links that the client was told; all of them, if it was told none."""
        pool = pool_of(client.model, self.name)
        pool.gates.copy_(torch.tensor(client.values.get(GATES, [1.0] * len(pool.gates))))

    def needed(self, server: Server, client: str, gates: Sequence[float] | None = None) -> set[str]:
        """Return the blocks of a client's network, by these gates or its own: all blocks, as long as it has none."""
        pool, blocks = pool_at(server, client), set(server.model_of(client).blocks)
        gates = server.state.get(GATES, {}).get(client) if gates is None else gates
        if gates is None:
            return blocks
        idle = map(pool.block_name, pool.places) if self.drops_encoders else pool.selectable
        return blocks - {ROUTER} - set(idle).difference(pool.active_names(gates))


def pool_at(server: Server, client: str) -> ModulePool:
    """Return a client's pool as the server knows it."""
    return pool_of(server.model_of(client).module, "method 'fedmn'")


def global_loss(replies: Replies) -> float:
    """Return eq. 6 for the networks of this round: each client's loss while training, weighted by samples."""
    total = sum(update.values["loss"] * update.samples for update in replies.values())
    return float(total / sum(update.samples for update in replies.values()))
