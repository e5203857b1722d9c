"""Every client assembles its own network from a pool of modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import ME, Address, Block, Cut, Expected, Number, NumberList, Update, Values
from intarsia.blocks.expected import MODERATE
from intarsia.core import SettingsError, chance, part
from intarsia.data import ClientInfo
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import EVALUATE, OWN, Exchange, Method, Replies, Round, Sharing, report
from intarsia.methods.fedmn.links import (
    ENCODER,
    active_blocks,
    binary_concrete,
    complete,
    count_links,
    straight_through,
)
from intarsia.methods.fedmn.module_pool import ModulePool, pool_of
from intarsia.methods.fedmn.router import Form, Router
from intarsia.methods.server import Server
from intarsia.methods.serving import taken
from intarsia.training import LocalClient

ROUTER, GATES, LOGITS = "router", "gates", "logits"
ROUNDING = 1e-3
"""By which share a norm may be above its limit before it counts as above."""
Numbers = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]


@part
class PoolAndRouter(Sharing):
    """Every module of the pool a block of its own, and the router, with everyone; a client's gates at home."""

    name: ClassVar[str] = "fedmn"
    needs: ClassVar[frozenset[str]] = frozenset({ROUTER, GATES})

    encoders_by: str = ""
    """Attribute that divides encoders and router alone into groups (`device`: each generation has its own, whatever
    its inputs are, and the blocks behind them are everyone's)."""

    def cut(self, model: nn.Module) -> Cut:
        """Cut between the modules."""
        pool = pool_of(model, "method 'fedmn'")
        modules = {name: (f"{name}.*",) for name in map(pool.block_name, pool.places)}
        return Cut(modules | {ROUTER: (f"{ROUTER}.*",), GATES: (GATES,)})

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client itself for its gates, everyone for all else."""
        if block == GATES:
            return ME
        if self.encoders_by and (block == ROUTER or block.startswith(ENCODER)):
            return client.attribute(self.encoders_by)
        return self.everyone(client)


@dataclass(frozen=True)
class Decision:
    """Which links a client uses in a round, and how that depends on its router's scores: plain values."""

    scores: list[float]
    """The logits of the probabilities pi."""
    slope: list[float]
    """How fast they grow with what the router gave."""
    noise: list[float]
    temperature: float
    gates: list[float]
    fallback: bool
    """Whether no path was complete, so that the likeliest was switched on."""


@part
class FedMN(Method):
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

    sharing: Sharing = Field(default_factory=PoolAndRouter)
    form: Form = "concat"
    """How the router joins inputs and labels."""
    standardise: Literal["none", "population"] = "none"
    """`population`: over all clients of the exchange that share a router, every link's scores are centred, scaled
    and multiplied by `gain`; mean and deviation count as constants in the gradient."""
    gain: Positive = 2.0
    gating: Literal["straight", "soft"] = "straight"
    """`straight`: links are used or not; `soft`: all are used, weighted, so that every block travels."""
    first_temperature: Positive = 1.0
    last_temperature: Positive = 0.1
    x_size: Annotated[int, Field(ge=1)] = 128
    """Size of the router's embedding of an input."""
    y_size: Annotated[int, Field(ge=1)] = 64
    """Size of the router's embedding of a label."""
    router_lr: Annotated[float, Field(ge=0)] = 0.0
    """The router's learning rate, in all rounds (0: the clients' of the round)."""
    router_clip: Annotated[float, Field(ge=0)] = 10.0
    """The norm that the router's gradient is clipped to (0: no limit): no client moves its router further than by this
    times the learning rate. The server damps one that does."""
    pretraining: Annotated[int, Field(ge=0)] = 0
    """The first rounds train the pool with all links open (FedAvg); then only the encoders are kept."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Add a router to the pool."""
        pool = pool_of(model, f"method '{self.name}'")
        encoder, links = pool.new_encoder(self.x_size), count_links(pool.layers)
        pool.add_module(ROUTER, Router(encoder, pool.outputs, links, self.form, self.x_size, self.y_size))
        return pool

    def round(self, server: Server) -> Round:
        """Play one round (Algorithm 1, lines 5-16)."""
        if server.round <= self.pretraining:
            yield from self._pretrain(server)
            return
        routes = yield Exchange("route", fetch=lambda client: {ROUTER}, train=lambda client: ())
        decisions = self._decide(server, routes)
        replies = yield Exchange(
            fetch=lambda client: _needed(server, client.name, decisions[client.name].gates),
            values=lambda client: asdict(decisions[client.name]),
        )
        _note(server, "train", decisions)
        server.note("global loss", value=_global_loss(replies))

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Score the links; or train the assembled network, its gates and the router."""
        if step == "route":
            return {LOGITS: [float(s) for s in _logits(client)]}
        if GATES not in client.values:
            return report(client.train(self.objective))
        decision = Decision(**client.values)
        pool = pool_of(client.model, self.name)
        leaf = torch.tensor(decision.scores, device=pool.gates.device, requires_grad=True)
        pool.gating = self._gating(leaf, decision)
        try:
            trained = client.train(self.objective)
        finally:
            pool.gating = None
        pool.gates.copy_(torch.tensor(decision.gates))
        if leaf.grad is not None:
            self._teach(client, leaf.grad * leaf.grad.new_tensor(decision.slope))
        return report(trained)

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: one score a link, or what it says of its training."""
        if step != "route":
            return of_training(asked)
        links = count_links(pool_of(asked.model, self.name).layers)
        return Expected({LOGITS: NumberList(links, Number(-MODERATE, MODERATE))})

    def admit(self, update: Update, sent: Mapping[Address, Block], lr: float) -> Update:
        """Damp a router that went further than a clipped step leads: a client that does not clip, or a codec's rest."""
        if not self.router_clip:
            return update
        most = self.router_clip * (self.router_lr or lr)
        routers = [address for address in update.blocks if address.block == ROUTER and address in sent]
        nearer = {address: _nearer(update.blocks[address], sent[address], most) for address in routers}
        return replace(update, blocks={**update.blocks, **nearer})

    def evaluation(self, server: Server) -> Round:
        """Route every client, then evaluate what it assembles without chance."""
        if server.round > self.pretraining:
            routes = yield Exchange("route", fetch=lambda client: {ROUTER}, train=lambda client: ())
            server.state[OWN] = {
                name: asdict(decision) for name, decision in self._decide(server, routes, draw=False).items()
            }
            _note(server, OWN, {name: Decision(**d) for name, d in server.state[OWN].items()})
        yield self.own(server)

    def own(self, server: Server) -> Exchange:
        """Return the exchange that gives clients the blocks and gates of their own models."""
        own = server.state.get(OWN, {})
        return Exchange(
            EVALUATE,
            fetch=lambda client: (
                _needed(server, client.name, own[client.name][GATES]) - {ROUTER}
                if client.name in own
                else server.model_of(client.name).blocks
            ),
            values=lambda client: {GATES: own[client.name][GATES]} if client.name in own else {},
        )

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Set the gates."""
        pool = pool_of(client.model, self.name)
        pool.gates.copy_(torch.tensor(client.values.get(GATES, [1.0] * len(pool.gates))))
        yield OWN

    def temperature(self, round: int, rounds: int) -> float:
        """Return the temperature of a round: from the first to the last, exponentially."""
        done = (round - self.pretraining - 1) / max(1, rounds - self.pretraining - 1)
        return float(self.first_temperature * (self.last_temperature / self.first_temperature) ** done)

    def _pretrain(self, server: Server) -> Round:
        yield Exchange(fetch=lambda client: set(server.model_of(client.name).blocks) - {ROUTER, GATES})
        if server.round == self.pretraining:
            _restart(server)

    def _decide(self, server: Server, routes: Replies, draw: bool = True) -> dict[str, Decision]:
        """Return every client's decision: drawn by lot, or links with pi > 1/2."""
        raw = {name: np.asarray(update.values[LOGITS], float) for name, update in routes.items()}
        if len({len(scores) for scores in raw.values()}) > 1:
            raise SettingsError(f"method '{self.name}': all clients need a pool with the same model.layers")
        standards = self._standards(server, raw)
        temperature = self.temperature(server.round, server.rounds)
        decisions = {}
        for name, scores in raw.items():
            centre, slope = standards[server.address(ROUTER, name)]
            pool = pool_of(server.model_of(name).module, self.name)
            noise = _noise(server, name, len(scores)) if draw else np.full(len(scores), 0.5)
            decisions[name] = self._decision(pool, (scores - centre) * slope, slope, noise, temperature)
        return decisions

    def _decision(
        self, pool: ModulePool, scores: Numbers, slope: Numbers, noise: Numbers, temperature: float
    ) -> Decision:
        logits = torch.from_numpy(scores)
        soft = binary_concrete(logits, torch.from_numpy(noise), temperature)
        gates, fallback = (soft, False)
        if self.gating == "straight":
            gates, fallback = complete(pool.layers, (soft > 0.5).double(), logits)
        return Decision(
            scores.tolist(), slope.tolist(), noise.tolist(), temperature, gates.tolist(), fallback
        )

    def _standards(
        self, server: Server, raw: Mapping[str, Numbers]
    ) -> dict[Address, tuple[Numbers, Numbers]]:
        """Return every router's standard: scores of different routers cannot be compared."""
        scores: dict[Address, list[Numbers]] = {}
        for name, own in raw.items():
            scores.setdefault(server.address(ROUTER, name), []).append(own)
        return {router: self._standard(np.stack(each)) for router, each in scores.items()}

    def _standard(self, scores: Numbers) -> tuple[Numbers, Numbers]:
        """Return what is subtracted from every link's scores, and what the rest is multiplied by."""
        if self.standardise == "none":
            return np.zeros(scores.shape[1]), np.ones(scores.shape[1])
        spread = scores.std(0)
        return scores.mean(0), np.where(spread > 0, self.gain / np.maximum(spread, 1e-12), 0.0)

    def _gating(self, leaf: Tensor, decision: Decision) -> Callable[[], Tensor]:
        noise, hard = leaf.new_tensor(decision.noise), leaf.new_tensor(decision.gates)

        def gates() -> Tensor:
            soft = binary_concrete(leaf, noise, decision.temperature)
            return soft if self.gating == "soft" else straight_through(soft, hard)

        return gates

    def _teach(self, client: LocalClient, gradient: Tensor) -> None:
        """Take one step of the router by the gradient of its scores."""
        router = _router(client)
        for weight in router.parameters():
            weight.grad = None
        router.learn(client.in_order("train"), gradient)
        used = {name: weight for name, weight in router.named_parameters() if weight.grad is not None}
        gradients = {name: weight.grad for name, weight in used.items() if weight.grad is not None}
        if self.router_clip:
            gradients = _shortened(gradients, self.router_clip)
        with torch.no_grad():
            for name, weight in used.items():
                weight.sub_(gradients[name], alpha=self.router_lr or client.lr)
                weight.grad = None


@part
class FedMNPlus(FedMN):
    """FedMN with a router that sees how inputs and labels are paired: a variant of ours, not the paper's.

    The router's `tensor` form (eq. 7 taken as a product), with scores standardised over the population: clients
    differ by so little that the gates' noise hides it otherwise. A single client has no spread: all its links have
    pi = 1/2, and the router gets no gradient. Gradients are larger by what differences are scaled up by, and it takes
    large steps to learn to tell clients apart; as no link's mean score can leave the middle, `router_clip` is 1000.
    """

    name: ClassVar[str] = "fedmn+"
    title: ClassVar[str] = "FedMN+ (ours)"

    form: Form = "tensor"
    standardise: Literal["none", "population"] = "population"
    router_clip: Annotated[float, Field(ge=0)] = 1000.0


def _shortened(tensors: Mapping[str, Tensor], most: float) -> dict[str, Tensor]:
    """Return tensors whose common norm is at most this: themselves, where it is (up to rounding)."""
    squares = [float(tensor.double().square().sum()) for tensor in tensors.values()]
    length = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf
    if length <= most * (1 + ROUNDING):
        return dict(tensors)
    return {name: (tensor.double() * (most / length)).to(tensor.dtype) for name, tensor in tensors.items()}


def _nearer(block: Block, sent: Block, most: float) -> Block:
    """Return a block whose parameters are at most this far from what was sent; one that does not fit, as it is."""
    if block.layout != sent.layout:
        return block
    names = [name for name, tensor in sent.tensors.items() if tensor.is_floating_point()]
    moved = {n: block.tensors[n].double() - sent.tensors[n].double() for n in names if n not in sent.buffers}
    shorter = _shortened(moved, most)
    if all(shorter[name] is moved[name] for name in moved):
        return block
    near = {n: (sent.tensors[n].double() + shorter[n]).to(sent.tensors[n].dtype) for n in moved}
    return block.alike({**block.tensors, **near})


def _router(client: LocalClient) -> Router:
    router = client.model.get_submodule(ROUTER)
    assert isinstance(router, Router)
    return router.eval()


def _logits(client: LocalClient) -> Tensor:
    if client.loss.name != "cross_entropy":
        raise SettingsError("FedMN's router embeds labels: it needs classes, not numbers to predict")
    scores: Tensor = _router(client)(client.in_order("train"))
    return scores


def _noise(server: Server, client: str, links: int) -> Numbers:
    drawn = chance.numpy_generator(server.seed, GATES, server.round, client).random(links)
    return np.clip(drawn, 1e-6, 1 - 1e-6)


def _needed(server: Server, client: str, gates: list[float]) -> set[str]:
    """Return the blocks that a client needs: all but modules behind the encoders that are not active."""
    pool = pool_of(server.model_of(client).module, FedMN.name)
    active = active_blocks(pool.layers, torch.tensor(gates))
    idle = {pool.block_name(place) for place in pool.places if place[0] > 0 and place not in active}
    return set(server.model_of(client).blocks) - idle


def _restart(server: Server) -> None:
    """Put all but encoders and routers back to where they began; frozen weights lie elsewhere."""
    beginnings = {}
    for client in server.clients:
        pool = pool_of(server.model_of(client).module, FedMN.name)
        for place in pool.places:
            if place[0] > 0:
                address = server.address(pool.block_name(place), client)
                beginnings[address] = taken(pool, server.pool.get(address))
    for address, beginning in beginnings.items():
        server.pool.restart(address, beginning)


def _note(server: Server, stage: str, decisions: Mapping[str, Decision]) -> None:
    for name, decision in decisions.items():
        pool = pool_of(server.model_of(name).module, FedMN.name)
        active = sorted(active_blocks(pool.layers, torch.tensor(decision.gates)))
        server.note(
            "decision",
            stage=stage,
            client=name,
            gates=[round(gate, 6) for gate in decision.gates],
            probabilities=[round(float(p), 6) for p in torch.sigmoid(torch.tensor(decision.scores))],
            blocks=[pool.block_name(place) for place in active],
            fallback=decision.fallback,
        )


def _global_loss(replies: Replies) -> float:
    """Return eq. 6 for the networks drawn in this round: each client's loss while training, weighted by samples."""
    weights = {name: update.samples for name, update in replies.items()}
    total = sum(replies[name].values["loss"] * n for name, n in weights.items())
    return float(total / sum(weights.values()))
