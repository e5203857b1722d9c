"""A small knowledge network travels; the client's own, of any kind, learns with it and stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from intarsia.blocks import ME, Address, Cut
from intarsia.core import SettingsError, build_part, chance, one_thread, part
from intarsia.data import ClientInfo, Examples
from intarsia.methods.base import Exchange, Method, Replies, Round, Sharing
from intarsia.methods.distilling.common import Count, check_public, divergence
from intarsia.methods.server import Server, descend, filled, taken
from intarsia.models import MODELS, Shape
from intarsia.training import (
    LOSSES,
    Batch,
    Extended,
    LocalClient,
    Pass,
    Situation,
    Trained,
    batches,
    predict,
    through,
)


class Pair(nn.Module):
    """A client's own network, which answers, and a knowledge network beside it."""

    def __init__(self, own: nn.Module, knowledge: nn.Module) -> None:
        super().__init__()
        self.own = own
        self.knowledge = knowledge

    def forward(self, x: Tensor) -> Tensor:
        """Return what the own network says."""
        scores: Tensor = self.own(x)
        return scores

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each network says; from copies of the inputs, as either may change them."""
        return self.own(x.clone()), self.knowledge(x.clone())

    def plain(self) -> nn.Module:
        """Return the own network alone."""
        return self.own


LOCAL, KNOWLEDGE = "own", "knowledge"
Named = Annotated[
    dict[str, Any], BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
]


@part
class KnowledgeTravels(Sharing):
    """The knowledge network with everyone, the client's own network at home."""

    name: ClassVar[str] = "fedkemf"
    needs: ClassVar[frozenset[str]] = frozenset({LOCAL, KNOWLEDGE})

    def cut(self, model: nn.Module) -> Cut:
        """Cut the two networks apart."""
        if not isinstance(model, Pair):
            raise SettingsError(
                "sharing 'fedkemf' is for the pair of networks that method 'fedkemf' makes of a model"
            )
        return Cut({LOCAL: (f"{LOCAL}.*",), KNOWLEDGE: (f"{KNOWLEDGE}.*",)})

    def group(self, block: str, client: ClientInfo) -> str:
        """Return everyone for the knowledge network, the client itself for its own."""
        return self.everyone(client) if block == KNOWLEDGE else ME


@dataclass(frozen=True)
class Mutual(Extended):
    """What each of two networks minimises: its loss, and KL(the other || itself) by a weight."""

    weight: float

    def forward(self, at: Situation, batch: Batch) -> Pass:
        """Pass a batch through both; the score while training is that of the client's own."""
        own, knowledge = through(at.model, _pair(at.model).both, batch.x)
        fit = at.loss(own, batch.y)
        value = self.given.value(at, batch, own, fit) + at.loss(knowledge, batch.y)
        apart = divergence(knowledge, own) + divergence(own, knowledge)
        return Pass(own, fit, value + self.weight * apart)


@part
class FedKEMF(Method):
    """Mutual learning of own and knowledge network at the clients, ensemble distillation at the server.

    Yu, Qian and Jannesari 2022, "Resource-aware federated learning using knowledge extraction and multi-model
    fusion". A client receives the knowledge network and trains it together with its own network by deep mutual
    learning (Zhang et al. 2018): each minimises its cross entropy + `mutual` KL(the other || itself). The server gets
    the knowledge networks of the round and fuses them into one, which it trains on the public data, without labels, to
    say what their ensemble says. A client's own model is its own network.
    Ours: the fused network starts from the weighted mean of the round's, not from the one that was sent; both networks
    step on the same batch at the same time; temperatures are 1; the ensemble is the mean of the members' scores, each
    counting once (or the largest score of any, `ensemble = "max"`); the server descends plainly; the default
    knowledge network is ours. It is no mean of updates, so it travels whole to clients, with `codec.down` too.
    """

    name: ClassVar[str] = "fedkemf"
    title: ClassVar[str] = "FedKEMF"
    needs_loss: ClassVar[str] = "cross_entropy"
    gives_away: ClassVar[str | None] = "what every client's knowledge network says of the public samples"

    sharing: Sharing = Field(default_factory=KnowledgeTravels)
    knowledge: Named = Field(default_factory=lambda: {"name": "mlp"})
    """The knowledge network: the name of an architecture, or a table with its settings."""
    mutual: Annotated[float, Field(ge=0)] = 1.0
    """Weight of what the networks learn from each other."""
    ensemble: Literal["mean", "max"] = "mean"
    """How the members' scores become the ensemble's."""
    server_epochs: Count = 3
    """Epochs of distillation on the public data, every round."""
    server_batch: Annotated[int, Field(ge=2)] = 64
    """Public samples a batch."""
    server_lr: Annotated[float, Field(gt=0)] = 0.05
    """The server's learning rate."""

    @property
    def sees_updates(self) -> bool:
        """The server asks every member's knowledge network."""
        return True

    def equip(self, model: nn.Module, shape: Shape, outputs: int) -> nn.Module:
        """Put a knowledge network beside the model."""
        if not isinstance(self.sharing, KnowledgeTravels):
            raise SettingsError(
                f"method 'fedkemf' shares the knowledge network alone: sharing '{self.sharing.name}' does not; leave "
                "`sharing` out"
            )
        return Pair(model, build_part(MODELS, self.knowledge, "method.knowledge").build(shape, outputs))

    def check(self, server: Server) -> None:
        """Refuse public data that not all clients' models can take."""
        check_public(server)

    def round(self, server: Server) -> Round:
        """Let clients learn mutually; then make their knowledge networks one."""
        public = check_public(server)
        replies = yield Exchange()
        addresses = {server.address(KNOWLEDGE, name): name for name in replies}
        for address in sorted(addresses):
            members = {n: u for n, u in replies.items() if address in u.blocks}
            self._fuse(server, public, address, addresses[address], members)

    def train(self, client: LocalClient) -> Trained:
        """Train both networks, each on the labels and on what the other says."""
        return client.train(Mutual(self.objective, self.mutual))

    def _fuse(
        self, server: Server, public: Examples, address: Address, member: str, replies: Replies
    ) -> None:
        """Distil the members' ensemble into their mean; note how far they are apart, before and after."""
        present, template = server.pool.get(address), server.model_of(member).module
        key = (server.seed, "fusion", server.round, address.group)
        with one_thread(), chance.torch_seeded(*key):
            networks = [
                _pair(filled(template, update.blocks[address])).knowledge for update in replies.values()
            ]
            teacher = self.teach([predict(network, public) for network in networks])
            fused = filled(template, present)
            student = _pair(fused).knowledge
            before = float(divergence(teacher, predict(student, public)))
            descend(student, self.server_lr, self._losses(student, public, teacher, chance.generator(*key)))
            after = float(divergence(teacher, predict(student, public)))
        server.pool.put(address, taken(fused, present))
        server.note("fusion", address=str(address), members=len(networks), before=before, after=after)

    def teach(self, members: list[Tensor]) -> Tensor:
        """Return the scores of the ensemble."""
        each = torch.stack(members)
        return each.mean(0) if self.ensemble == "mean" else each.amax(0)

    def _losses(
        self, student: nn.Module, public: Examples, teacher: Tensor, order: torch.Generator
    ) -> Iterator[Tensor]:
        at = Situation(student, LOSSES[self.needs_loss], {})
        for batch in batches(at, public, self.server_batch, self.server_epochs, order):
            yield divergence(teacher[batch.rows], student(batch.x))


def _pair(model: nn.Module) -> Pair:
    assert isinstance(model, Pair)
    return model
