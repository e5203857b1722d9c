"""What methods have in common that learn from each other's scores on public data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.blocks import Address, Block, Expected, Table, Values
from intarsia.core import DataError, SettingsError, chance, part
from intarsia.data import ClientInfo, Examples
from intarsia.data.public import PUBLIC
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import Exchange, Method, Replies, Round, Sharing, report
from intarsia.methods.local import StayHome
from intarsia.methods.server import Server
from intarsia.training import Batch, Extended, LocalClient, Objective, Pass, Situation, Trained, predict

PREDICT, DIGEST = "predict", "digest"
"""The two exchanges of a round: scores go up, and their mean comes down."""
SCORES, CONSENSUS = "scores", "consensus"
Count = Annotated[int, Field(ge=1)]
KL = Literal["teacher-student", "student-teacher"]
"""Which of the two a KL divergence has first."""
Answers = Callable[[Batch], Tensor]
"""Gives a teacher's scores for the samples of a batch."""


@part
class Conferring(Method):
    """Clients score some public samples, and digest the mean of all scores: the consensus. Their models stay home.

    Subclasses say how a client begins, how far scores are from the consensus, and what it does on its own data then.
    """

    needs_loss: ClassVar[str] = "cross_entropy"
    gives_away: ClassVar[str | None] = "every client's scores on the public samples"

    sharing: Sharing = Field(default_factory=StayHome)
    subset: Count = 5000
    """How many public samples a round is about, drawn anew every time (all, if there are fewer)."""
    digest_epochs: Count = 1
    """Epochs towards the consensus."""

    def begin(self, client: LocalClient) -> None:
        """Do what comes before a client's first scores."""

    def digest(self, client: LocalClient, samples: Examples) -> Trained:
        """Approach the consensus on these samples, then train on the own data; return what the latter did."""
        raise SettingsError(f"{type(self).__name__} does not say how clients learn: give it a method digest")

    def round(self, server: Server) -> Round:
        """Let clients predict, then digest the mean."""
        count = len(check_public(server))
        public = server.public_block()
        replies = yield Exchange(PREDICT, send=lambda client: public)
        agreed = _consensus(server, replies, self.sharing, min(self.subset, count))

        def send(client: ClientInfo) -> Mapping[Address, Block]:
            group = self.sharing.everyone(client)
            return {**public, Address(CONSENSUS, group): agreed[group]}

        yield Exchange(DIGEST, send=send)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Score the round's public samples; or digest what everyone says of them."""
        samples = _round_samples(client, self.subset)
        if step != PREDICT:
            return report(self.digest(client, samples))
        self.begin(client)
        client.answer[SCORES] = {SCORES: scores_of(client, samples)}
        return {}

    def check(self, server: Server) -> None:
        """Refuse public data that not all clients' models can take."""
        check_public(server)

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: a score a public sample and class; then what it says of its training."""
        if step != PREDICT:
            return of_training(asked)
        rows = -1 if asked.public is None else min(self.subset, asked.public)
        return Expected(tensors={SCORES: {SCORES: Table((rows, asked.outputs))}})


@dataclass(frozen=True)
class Approach(Objective):
    """How far a model's scores of public samples are from the consensus that was sent; labels do not count."""

    distance: Callable[[Tensor, Tensor], Tensor]

    def forward(self, at: Situation, batch: Batch) -> Pass:
        """Compare what the model says with what all say, row by row of the round's samples."""
        outputs, consensus = at.model(batch.x), at.sent[CONSENSUS][SCORES]
        if outputs.shape[1] != consensus.shape[1]:
            raise DataError(
                f"the consensus is about {consensus.shape[1]} classes, this client's model about {outputs.shape[1]}: "
                "all need the same"
            )
        distance = self.distance(outputs, consensus[batch.rows])
        return Pass(outputs, distance, distance)


def check_public(server: Server) -> Examples:
    """Return the public data; an error if there is none, or it is not like all clients' inputs."""
    server.public_block()
    assert server.public is not None
    shape = tuple(server.public.x.shape[1:])
    for client in server.clients.values():
        if client.shape != shape:
            raise DataError(
                f"public data has inputs of shape {list(shape)}, client '{client.name}' has {list(client.shape)}: "
                "all models must take the same inputs; choose one device, or public data of that shape"
            )
    if len({client.task for client in server.clients.values()}) > 1:
        raise SettingsError(
            "clients of different tasks have no scores in common: choose one of population.tasks"
        )
    return server.public


def _consensus(server: Server, replies: Replies, sharing: Sharing, samples: int) -> dict[str, Block]:
    """Return every group's mean of its members' scores; of unlike shapes, the most common one counts."""
    scores = {name: update.tensors[SCORES].tensors[SCORES] for name, update in replies.items()}
    shapes = Counter(tuple(s.shape) for s in scores.values() if len(s) == samples)
    if not shapes:
        raise DataError(f"no client scored the {samples} public samples of the round")
    shape, _ = shapes.most_common(1)[0]
    fitting = {name: own.double() for name, own in scores.items() if tuple(own.shape) == shape}
    for name in (name for name in scores if name not in fitting):
        server.note("left out", client=name, shape=list(scores[name].shape), expected=list(shape))
    return {group: _mean(server, sharing, fitting, group) for group in _groups(server, sharing, replies)}


def _groups(server: Server, sharing: Sharing, names: Iterable[str]) -> set[str]:
    return {sharing.everyone(server.clients[name]) for name in names}


def _mean(server: Server, sharing: Sharing, scores: Mapping[str, Tensor], group: str) -> Block:
    """Return the mean of a group's scores; of everyone's, where no member's fit."""
    own = [s for name, s in scores.items() if sharing.everyone(server.clients[name]) == group]
    return Block({SCORES: torch.stack(own or list(scores.values())).mean(0).float()})


def received(client: LocalClient) -> Examples:
    """Return the public data that the client was sent."""
    if client.public is None:
        raise DataError("the task came without public data")
    return client.public


def _round_samples(client: LocalClient, subset: int) -> Examples:
    """Return the public samples of this round, the same ones for every client; without their labels."""
    public = received(client)
    order = torch.randperm(len(public), generator=chance.generator(client.seed, PUBLIC, client.round))
    rows = order[:subset]
    return Examples(public.x[rows], torch.zeros_like(rows), public.scaling)


def scores_of(client: LocalClient, samples: Examples) -> Tensor:
    """Return the scores that the client's model gives to every class, for each sample."""
    return predict(client.model, samples, client.channels_last).float()


def divergence(teacher: Tensor, student: Tensor, kl: KL = "teacher-student") -> Tensor:
    """Return KL(teacher || student) of scores, or the other way round, the mean over samples; only students learn."""
    ours, theirs = student.log_softmax(1), teacher.detach().log_softmax(1)
    if kl == "student-teacher":
        ours, theirs = theirs, ours
    return functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Taught(Extended):
    """An objective, and for every teacher its weight times KL(teacher || model), or the other way round."""

    teachers: tuple[tuple[float, Answers], ...]
    kl: KL = "teacher-student"

    def value(self, at: Situation, batch: Batch, outputs: Tensor, fit: Tensor) -> Tensor:
        """Return what is minimised on one batch."""
        value = self.given.value(at, batch, outputs, fit)
        for weight, answers in self.teachers:
            value = value + weight * divergence(answers(batch), outputs, self.kl)
        return value


@torch.no_grad()
def ask(teacher: nn.Module, x: Tensor) -> Tensor:
    """Return a teacher's scores; from a copy of the inputs, as it may change them."""
    outputs: Tensor = teacher(x.clone())
    return outputs
