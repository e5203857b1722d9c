"""FedMN+: every client begins with the whole pool, and drops what its own data do not need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks import Expected, Number, NumberList, Values
from intarsia.core import part
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import OWN, Exchange, Round, Sharing, report
from intarsia.methods.fedmn.assembling import GATES, Assembling, PoolOfModules, global_loss, pool_at
from intarsia.methods.fedmn.links import Layers, Place, active_blocks, link_ends
from intarsia.methods.fedmn.module_pool import ModulePool, pool_of
from intarsia.methods.server import Server
from intarsia.training import LocalClient
from intarsia.training.losses import Loss

CHOOSE, KEPT, DECIDED = "choose", "kept", "decided"
Blocks = Collection[Place]


@part
class FedMNPlus(Assembling):
    """A pool of modules for all; each client keeps those that its own data need: a variant of FedMN of ours.

    The pool is FedMN's (Wang et al. 2022), the choice is not: there is no router. In the first `whole` rounds everybody
    trains all blocks. Then a client looks at the whole pool with its own training data and takes away one block after
    the other, encoders too: while it is above its budget of bytes, the one that costs least loss a byte; below it, the
    one without which its loss is smallest, as long as that is no larger than before. Every layer keeps one block. Links
    between kept blocks are open. It decides anew every so many rounds; only what it kept travels in the others.
    Deviations: this is no published method. Of FedMN's it leaves out the router, the gates' chance and temperature, and
    the encoders' pre-training; encoders can be left out like other blocks.
    """

    name: ClassVar[str] = "fedmn+"
    title: ClassVar[str] = "FedMN+ (ours)"
    gives_away: ClassVar[str | None] = "which blocks every client's network uses"
    drops_encoders: ClassVar[bool] = True

    sharing: Sharing = Field(default_factory=PoolOfModules)
    budget: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Which share of the pool's weights a client keeps at most; one block of each layer it keeps always."""
    whole: Annotated[int, Field(ge=0)] = 2
    """So many rounds train all blocks before anybody decides."""
    every: Annotated[int, Field(ge=1)] = 5
    """After so many rounds a client decides anew."""

    def round(self, server: Server) -> Round:
        """Play one round; clients whose turn it is decide first."""
        yield from self._decide(server, self._due(server))
        replies = yield Exchange(
            fetch=lambda client: self.needed(server, client.name), values=self.gates_for(server)
        )
        server.note("global loss", value=global_loss(replies))

    def evaluation(self, server: Server) -> Round:
        """Let those who never decided do so; then evaluate what each one's gates assemble.

        What is decided here is for evaluations alone: in training it is decided anew, or results and bytes would depend
        on how often a run is evaluated.
        """
        if server.round > self.whole:
            due = set(server.clients).difference(server.state.get(GATES, {}))
            yield from self._decide(server, due, to_train=False)
        _note(server)
        yield self.own(server)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Choose blocks, or train those that were chosen."""
        if step == CHOOSE:
            pool = pool_of(client.model, self.name)
            return {KEPT: self._choose(pool, client) if client.values[CHOOSE] else [1.0] * len(pool.gates)}
        self.set_gates(client)
        return report(client.train(self.objective))

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: one gate a link, or what it says of its training."""
        if step != CHOOSE:
            return of_training(asked)
        return Expected({KEPT: NumberList(len(pool_of(asked.model, self.name).gates), Number(0, 1))})

    def _due(self, server: Server) -> set[str]:
        """Return the clients that decide in this round, if they take part in it."""
        if server.round <= self.whole:
            return set()
        last = server.state.get(DECIDED, {})
        return {name for name in server.clients if server.round - last.get(name, -self.every) >= self.every}

    def _decide(self, server: Server, due: Collection[str], to_train: bool = True) -> Round:
        """Let clients that are due look at the whole pool, and keep in mind what they choose."""
        if not due:
            return
        replies = yield Exchange(
            CHOOSE,
            fetch=lambda client: server.model_of(client.name).blocks if client.name in due else (),
            train=lambda client: (),
            values=lambda client: {CHOOSE: client.name in due},
        )
        gates, decided = server.state.setdefault(GATES, {}), server.state.setdefault(DECIDED, {})
        for name in sorted(due & replies.keys()):
            kept = [float(gate > 0.5) for gate in replies[name].values[KEPT]]
            if not pool_at(server, name).active_names(kept):
                continue  # a client that keeps nothing has no network: it is not heard
            gates[name] = kept
            if to_train:
                decided[name] = server.round

    def _choose(self, pool: ModulePool, client: LocalClient) -> list[float]:
        """Return the gates of the links between the blocks that the client keeps."""
        sizes = {place: pool.size_of(place) for place in pool.places}
        loss = _loss_on(pool, client)
        return gates_between(pool.layers, keep(pool.layers, sizes, self.budget * sum(sizes.values()), loss))


def keep(
    layers: Layers, sizes: Mapping[Place, int], budget: float, loss: Callable[[Blocks], float]
) -> frozenset[Place]:
    """Return the blocks that are left when one after the other is taken away from a pool.

    Above the budget it is the one that costs least loss for its size; else the one without which the loss is smallest,
    if it is no larger than with it.
    """
    kept = frozenset(sizes)
    now = loss(kept)
    while candidates := _spare(layers, kept):
        without = {place: loss(kept - {place}) for place in candidates}
        if sum(sizes[place] for place in kept) > budget:
            place = min(without, key=lambda place: ((without[place] - now) / sizes[place], place))
        else:
            place = min(without, key=lambda place: (without[place], place))
            if without[place] > now:
                break
        kept, now = kept - {place}, without[place]
    return kept


def _spare(layers: Layers, kept: Blocks) -> list[Place]:
    """Return the blocks that are not the last of their layer."""
    left = [sum(layer == place[0] for place in kept) for layer in range(len(layers))]
    return sorted(place for place in kept if left[place[0]] > 1)


def gates_between(layers: Layers, kept: Blocks) -> list[float]:
    """Return gates that are open on every link between kept blocks, and from kept heads to the output."""
    ends = {*kept, (len(layers), 0)}
    return [float(start in ends and end in ends) for start, end in link_ends(layers)]


@torch.no_grad()
def _loss_on(pool: ModulePool, client: LocalClient) -> Callable[[Blocks], float]:
    """Return what gives the mean loss on the client's training data with some blocks of the pool.

    Encoders look at the data once: what they give does not depend on what stands behind them.
    """
    pool.eval()
    seen = [(pool.encoded(x), y) for x, y in client.in_order("train")]
    return lambda kept: _mean_loss(pool, seen, client.loss, kept)


@torch.no_grad()
def _mean_loss(
    pool: ModulePool, seen: list[tuple[dict[int, Tensor], Tensor]], loss: Loss, kept: Blocks
) -> float:
    gates = torch.tensor(gates_between(pool.layers, kept), device=pool.gates.device)
    active = active_blocks(pool.layers, gates)
    total = 0.0
    for encoded, y in seen:
        used = {number: features for number, features in encoded.items() if (0, number) in active}
        total += float(loss(pool.behind(used, gates, active), y)) * len(y)
    return total / sum(len(y) for _, y in seen)


def _note(server: Server) -> None:
    """Record every client's network."""
    for name, gates in server.state.get(GATES, {}).items():
        blocks = pool_at(server, name).active_names(gates)
        server.note("decision", stage=OWN, client=name, gates=gates, blocks=blocks, fallback=False)
