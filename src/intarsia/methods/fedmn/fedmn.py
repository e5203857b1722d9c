"""Every client assembles its own network from a pool of modules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import Address, Block, Cut, Expected, Number, NumberList, Update, Values
from intarsia.blocks.expected import MODERATE
from intarsia.core import chance, part
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import OWN, Exchange, Replies, Round, Sharing, report
from intarsia.methods.fedmn.assembling import GATES, ROUTER, Assembling, PoolOfModules, global_loss, pool_at
from intarsia.methods.fedmn.decision import Decision, draw_links, standards
from intarsia.methods.fedmn.links import count_links
from intarsia.methods.fedmn.module_pool import pool_of
from intarsia.methods.fedmn.router import Form, Router, nearer
from intarsia.methods.server import Server, taken
from intarsia.training import LocalClient, Training

LOGITS, BEFORE = "logits", "before"
OPEN = 2.0
"""The logit that links begin with where they begin open."""
ROUTE = Exchange("route", fetch=lambda client: {ROUTER}, train=lambda client: ())
"""Every client scores the links of its pool."""
Positive = Annotated[float, Field(gt=0)]


@part
class PoolAndRouter(PoolOfModules):
    """Every module of the pool a block of its own, and the router, with everyone; a client's gates at home."""

    name: ClassVar[str] = "fedmn"
    needs: ClassVar[frozenset[str]] = frozenset({ROUTER, GATES})

    def cut(self, model: nn.Module) -> Cut:
        """Cut between the modules."""
        patterns = dict(super().cut(model).patterns)
        gates = patterns.pop(GATES)
        return Cut({**patterns, ROUTER: (f"{ROUTER}.*",), GATES: gates})


@part
class FedMN(Assembling):
    """A pool of modules for all; a router decides which of them form a client's network.

    Wang et al. 2022, "Personalized federated learning via heterogeneous modular networks", Algorithm 1, eq. 4-11.
    Each round has two exchanges. `route`: a client passes its training data through the router and returns one
    score a link. The server draws binary concrete gates from the scores (eq. 5): the one draw of the client in
    this round. `train`: the client fetches its active blocks, the encoders and the router, trains, and returns
    them; every block becomes the mean over those who hold it.

    Deviations, where the paper is silent or cannot be meant: a block takes part only if it is reached from an encoder
    and reaches the output; without any complete path the likeliest one is switched on; means are over holders (the
    printed formula would shrink blocks); gates are hard, with the gradient of the soft ones; the
    router gets its gradient once a round, summed over the batches and clipped (`router_clip`), or one client whose
    loss is out of bounds would decide for everybody; own models use links with pi > 1/2. The router's encoder is
    evaluated, not trained, in its norms. Its step is plain gradient descent, without momentum or weight decay. All
    encoders are returned and count in the mean: one that no link of the client uses with the weights it came with.
    """

    name: ClassVar[str] = "fedmn"
    title: ClassVar[str] = "FedMN"
    gives_away: ClassVar[str | None] = "every client's scores of links, and which blocks its network uses"
    needs_loss: ClassVar[str] = "cross_entropy"  # the router embeds labels

    sharing: Sharing = Field(default_factory=PoolAndRouter)
    form: Form = "concat"
    """How the router joins the embeddings of an input and its label: side by side (`concat`, eq. 9), with a layer
    behind (`hidden`), or as their product (`tensor`), which sees which inputs go with which labels."""
    standardise: Literal["none", "population"] = "none"
    """`population`: over all clients of the exchange that share a router, every link's scores are centred, scaled
    and multiplied by `gain`; mean and deviation count as constants in the gradient."""
    gain: Positive = 2.0
    """What standardised scores are multiplied by."""
    gating: Literal["straight", "soft"] = "straight"
    """`straight`: links are used or not; `soft`: all are used, weighted, so that every block travels."""
    first_temperature: Positive = 1.0
    """The gates' temperature in the first round: the higher, the more is left to chance."""
    last_temperature: Positive = 0.1
    """The gates' temperature in the last round; in between it falls exponentially."""
    x_size: Annotated[int, Field(ge=1)] = 128
    """Size of the router's embedding of an input."""
    y_size: Annotated[int, Field(ge=1)] = 64
    """Size of the router's embedding of a label."""
    router_lr: Annotated[float, Field(ge=0)] = 0.0
    """The router's learning rate, in all rounds, without a schedule (0: the clients' of the round)."""
    router_clip: Annotated[float, Field(ge=0)] = 10.0
    """The norm that the router's gradient is clipped to (0: no limit): no client moves its router further than by this
    times the learning rate. The server damps one that does. With standardised scores 1000 is right."""
    start: Literal["even", "open"] = "even"
    """`even`: the router begins as torch draws it, and every link is as good as a coin that is tossed. `open`: its
    last layer's offsets begin at 2, and a link is used with a probability of 0.88."""
    output: Literal["pool", "local"] = "pool"
    """A client's own model: the pool's blocks on its links; or these after one more training on its own data, as
    Algorithm 1 ends with local models (stages `before` and `own`)."""
    pretraining: Annotated[int, Field(ge=0)] = 0
    """The first rounds train the pool with all links open (FedAvg); then only the encoders are kept."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Add a router to the pool."""
        pool = pool_of(model, f"method '{self.name}'")
        encoder, links = pool.new_encoder(self.x_size), count_links(pool.layers)
        router = Router(encoder, pool.outputs, links, self.form, self.x_size, self.y_size)
        if self.start == "open":
            nn.init.constant_(router.scores.bias, OPEN)
        pool.add_module(ROUTER, router)
        return pool

    def round(self, server: Server) -> Round:
        """Play one round (Algorithm 1, lines 5-16)."""
        if server.round <= self.pretraining:
            yield Exchange(fetch=lambda client: set(server.model_of(client.name).blocks) - {ROUTER, GATES})
            if server.round == self.pretraining:
                _restart(server)
            return
        routes = yield ROUTE
        decisions = self._decide(server, routes, draw=True)
        replies = yield Exchange(
            fetch=lambda client: {ROUTER, *self.needed(server, client.name, decisions[client.name].gates)},
            values=lambda client: asdict(decisions[client.name]),
        )
        _note(server, "train", decisions)
        server.note("global loss", value=global_loss(replies))

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Score the links; or train the assembled network, its gates and the router."""
        if step == "route":
            return {LOGITS: _router(client)(client.in_order("train")).tolist()}
        if GATES not in client.values:
            return report(client.train(self.objective))
        decision, pool = Decision(**client.values), pool_of(client.model, self.name)
        leaf = torch.tensor(decision.scores, device=pool.gates.device, requires_grad=True)
        pool.gating = lambda: decision.with_gradient(leaf, hard=self.gating == "straight")
        try:
            trained = client.train(self.objective)
        finally:
            pool.gating = None
        pool.gates.copy_(torch.tensor(decision.gates))
        if leaf.grad is not None:
            gradient = leaf.grad * leaf.grad.new_tensor(decision.slope)
            lr = self.router_lr or client.lr
            _router(client).descend(client.in_order("train"), gradient, lr, self.router_clip or math.inf)
        return report(trained)

    def passes(self, step: str, block: str, training: Training) -> tuple[float, float]:
        """Return one pass for the router, which gets its gradient once a round, and one for what that builds on."""
        return (1, 1) if block == ROUTER else super().passes(step, block, training)

    def rehearse(self, model: nn.Module, x: Tensor) -> None:
        """Pass inputs through the pool and through the router."""
        super().rehearse(model, x)
        model.get_submodule(ROUTER)([(x, torch.zeros(len(x), dtype=torch.long))])

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: one score a link, or what it says of its training."""
        if step != "route":
            return of_training(asked)
        links = count_links(pool_of(asked.model, self.name).layers)
        return Expected({LOGITS: NumberList(links, Number(-MODERATE, MODERATE))})

    def admit(self, update: Update, sent: Mapping[Address, Block], lr: float) -> Update:
        """Damp a router that went further than a clipped step leads: a client that does not clip, or a codec's rest."""
        most = (self.router_clip or math.inf) * (self.router_lr or lr)
        routers = [address for address in update.blocks if address.block == ROUTER and address in sent]
        damped = {address: nearer(update.blocks[address], sent[address], most) for address in routers}
        return replace(update, blocks={**update.blocks, **damped})

    def evaluation(self, server: Server) -> Round:
        """Route every client, then evaluate what it assembles without chance."""
        if server.round > self.pretraining:
            decisions = self._decide(server, (yield ROUTE), draw=False)
            server.state[GATES] = {name: decision.gates for name, decision in decisions.items()}
            _note(server, OWN, decisions)
        yield self.own(server)

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Set the gates; where local models are asked for, train once more with them."""
        self.set_gates(client)
        if self.output == "local":
            yield BEFORE
            client.train(self.objective, purpose="local model")
        yield OWN

    def temperature(self, round: int, rounds: int) -> float:
        """Return the temperature of a round: from the first to the last, exponentially."""
        done = (round - self.pretraining - 1) / max(1, rounds - self.pretraining - 1)
        return float(self.first_temperature * (self.last_temperature / self.first_temperature) ** done)

    def stretched(self, done: int, before: int, now: int) -> tuple[str, ...]:
        """The temperature falls from the first to the last round."""
        warm = range(self.pretraining + 1, done + 1)
        other = any(self.temperature(round, before) != self.temperature(round, now) for round in warm)
        return ("method.last_temperature",) if other else ()

    def _decide(self, server: Server, routes: Replies, draw: bool) -> dict[str, Decision]:
        """Return every client's decision: drawn by lot (eq. 5), or links with pi > 1/2."""
        raw = {name: np.asarray(update.values[LOGITS], float) for name, update in routes.items()}
        routers = {name: server.address(ROUTER, name) for name in raw}
        standard = standards(raw, routers, self.gain if self.standardise == "population" else None)
        temperature = self.temperature(server.round, server.rounds)
        decisions = {}
        for name, scores in raw.items():
            drawn = chance.numpy_generator(server.seed, GATES, server.round, name).random(len(scores))
            noise = drawn.clip(1e-6, 1 - 1e-6) if draw else np.full(len(scores), 0.5)
            links = draw_links(scores, standard[routers[name]], noise, temperature)
            decisions[name] = links if self.gating == "soft" else links.complete(pool_at(server, name).layers)
        return decisions


def _router(client: LocalClient) -> Router:
    router = client.model.get_submodule(ROUTER)
    assert isinstance(router, Router)
    return router.eval()


def _restart(server: Server) -> None:
    """Put all but encoders and routers back to where they began; frozen weights lie elsewhere."""
    pools = {client: pool_at(server, client) for client in server.clients}
    origins = {server.address(name, one): pool for one, pool in pools.items() for name in pool.selectable}
    for address, pool in origins.items():
        server.pool.restart(address, taken(pool, server.pool.get(address)))


def _note(server: Server, stage: str, decisions: Mapping[str, Decision]) -> None:
    for name, decision in decisions.items():
        server.note("decision", stage=stage, client=name, **decision.in_short(pool_at(server, name)))
