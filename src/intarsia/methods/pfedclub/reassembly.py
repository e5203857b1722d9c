"""What methods share whose server puts clients' models together anew and lets the results teach."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import ME, Address, Block, Expected, Number, Values
from intarsia.core import SettingsError, chance, part
from intarsia.data import ClientInfo
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import Exchange, Method, Replies, Round, Sharing, report
from intarsia.methods.distilling.common import KL, Taught
from intarsia.methods.pfedclub.assembly import Assembly, rebuild
from intarsia.methods.pfedclub.decompose import total
from intarsia.methods.pfedclub.round_models import (
    RoundModels,
    check_models,
    check_samples,
    takes_channels_last,
)
from intarsia.methods.pfedclub.stitch_tuning import StitchTuning, Tuned, choose
from intarsia.methods.pfedclub.views import PublicData, as_inputs, drawn, unlabelled
from intarsia.methods.server import Server
from intarsia.models import MODELS
from intarsia.training import LocalClient, channels_first, channels_last_layout, predict

TEACHER, ITSELF = "teacher", "itself"
TEACHER_SCORE, RIGHT, RIGHT_AMONG_HELD = "lesson", "teacher_right", "teacher_right_among_held"
"""What a client reports of its teacher: in which share of its samples it is right."""
TEACHERS, SIZES = "teachers", "sizes"
"""Where the server keeps, by client: how its teacher is built, and how large all of its teachers were."""


@part
class OnServer(Sharing):
    """One block for the whole model, which lives on the server and has one holder: its client."""

    name: ClassVar[str] = "client"
    has_everyone: ClassVar[bool] = False

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client's name."""
        if client.name == ME:
            raise SettingsError(f"a client is named '{ME}', the word for what never leaves: rename it")
        return client.name


@part
class Reassembly(Method):
    """Clients return their models; the server makes teachers of their blocks, one for each client of the round.

    A client that has a teacher minimises the objective + lam KL(teacher || itself). The teacher travels when the
    client next takes part; it holds it until there is another. One that is the client's own model does not
    travel: the client has just received it. Subclasses say which candidates there are, and who gets which.
    """

    needs_loss: ClassVar[str] = "cross_entropy"
    gives_away: ClassVar[str | None] = "every client's own model, whose blocks become others' teachers"

    sharing: Sharing = Field(default_factory=OnServer)
    lam: Annotated[float, Field(ge=0)] = 0.2
    """How much the teacher counts (lambda)."""
    kl: KL = "teacher-student"
    """KL(teacher || student), or the other way round."""
    k: Annotated[int, Field(ge=1)] = 4
    """How many functional groups the blocks are put into (fewer where there are fewer blocks)."""
    labelled: bool = True
    """Whether stitches are tuned with the labels of the public data; else by NT-Xent on changed copies of it."""
    flips: bool = True
    """Whether those copies may be mirrored: digits must not be."""
    copies: Annotated[int, Field(ge=1)] = 3
    """How many changed copies of the public data NT-Xent has."""
    tailoring: StitchTuning = Field(default_factory=StitchTuning)
    """How stitches are tuned."""

    def candidates(self, models: RoundModels) -> Mapping[str, Sequence[Assembly]]:
        """Return the teachers that each client of the round can have; who is left out keeps the one it has."""
        raise SettingsError(
            f"{type(self).__name__} does not say who can be taught by what: it needs candidates"
        )

    def check(self, server: Server) -> None:
        """Refuse models without functional blocks, and clients that cannot be compared on the public data."""
        check_models(server)
        check_samples(server, self.labelled)

    def round(self, server: Server) -> Round:
        """Play one round: the clients train with the teachers they have; the server makes new ones."""
        teachers = server.state.setdefault(TEACHERS, {})
        replies = yield Exchange(
            values=lambda client: {TEACHER: teachers[client.name]} if client.name in teachers else {},
            send=lambda client: _waiting(server, client.name),
        )
        _note_teacher_scores(server, replies)
        models = self.models(server, list(replies))
        _note_groups(models)
        chosen = choose(self.candidates(models), models.prefixes, self.tailoring, models.seed, server.each)
        for client, teacher in chosen.items():
            _hand_over(models, client, teacher)
            _note_teacher(models, client, teacher)

    def models(self, server: Server, clients: Sequence[str]) -> RoundModels:
        """Return the models of the round, with the public samples that their stitches are tuned on."""
        assert server.public is not None  # checked before the run began
        seed = chance.key(server.seed, self.name, server.round)
        some = drawn(server.public, self.tailoring.samples, seed, "public samples")
        public = PublicData((as_inputs(some),), some.y)
        if not self.labelled:
            public = unlabelled(some, seed, self.copies, self.flips)
        return RoundModels.of(server, clients, seed, self.k, public)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Train, with the teacher if there is one."""
        teacher = _teacher(client)
        if teacher is None:
            return report(client.train(self.objective))
        own = client.data["train"]
        answers = predict(teacher, own, client.channels_last)  # the same in every epoch
        taught = Taught(self.objective, ((self.lam, lambda batch: answers[batch.rows]),), self.kl)
        return {**report(client.train(taught)), **_teacher_score(answers, own.y.to(answers.device))}

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client reports of its training and of its teacher."""
        share = Number(0, 1)
        return of_training(asked, **{RIGHT: share, RIGHT_AMONG_HELD: share})


def _waiting(server: Server, client: str) -> dict[Address, Block]:
    """Return the tensors of a client's teacher, if it has one that is not itself."""
    address = Address(TEACHER, client)
    return {address: server.pool.get(address)} if address in server.pool else {}


def _hand_over(models: RoundModels, client: str, teacher: Tuned) -> None:
    """Keep a teacher until its client takes part again."""
    server, address, assembly = models.server, Address(TEACHER, client), teacher.assembly
    if assembly.is_own(client, models.chains):
        server.pool.remove(address)
        server.state[TEACHERS][client] = ITSELF
        return
    network = teacher.model(models.chains)
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
    block = Block(tensors, frozenset(name for name, _ in network.named_buffers()))
    if block.finite:  # else the client keeps the one it has
        server.pool.put(address, block)
        server.state[TEACHERS][client] = assembly.blueprint(models.specs)


def _teacher(client: LocalClient) -> nn.Module | None:
    """Return the teacher that the task names, in evaluation mode."""
    blueprint: Any = client.values.get(TEACHER)
    if blueprint is None:
        return None
    if blueprint == ITSELF:
        return copy.deepcopy(client.model).eval()
    teacher, specs = rebuild(blueprint, client.sent[TEACHER], MODELS)
    if client.channels_last and all(map(takes_channels_last, specs)):
        channels_last_layout(teacher)
    elif client.channels_last:
        teacher.register_forward_pre_hook(lambda _, inputs: channels_first(inputs[0]))
    return teacher.to(next(client.model.parameters()).device).eval()


def _teacher_score(answers: Tensor, labels: Tensor) -> Values:
    """Return how often a teacher is right: among all labels, and among those that the client has."""
    held = torch.unique(labels)
    among_held = held[answers[:, held].argmax(1)]
    return {
        RIGHT: float((answers.argmax(1) == labels).double().mean()),
        RIGHT_AMONG_HELD: float((among_held == labels).double().mean()),
    }


def _note_teacher_scores(server: Server, replies: Replies) -> None:
    """Record how good the teachers were that clients of the round have just learned from."""
    for client, update in replies.items():
        if RIGHT in update.values:
            scores = {key: update.values.get(key) for key in (RIGHT, RIGHT_AMONG_HELD)}
            server.note(TEACHER_SCORE, client=client, **scores)


def _note_groups(models: RoundModels) -> None:
    models.server.note(
        "functional groups",
        blocks=[[ref.model, ref.index, group] for ref, group in models.groups.items()],
        similarity=models.similarity.values.round(4).tolist(),
    )


def _note_teacher(models: RoundModels, client: str, teacher: Tuned) -> None:
    """Record a client's teacher, and phi over all it had: how much larger they were than its model (eq. 6)."""
    assembly, own = teacher.assembly, total(block.cost for block in models.chains[client]).parameters
    sizes = models.server.state.setdefault(SIZES, {}).setdefault(client, [])
    sizes.append(assembly.cost.parameters)
    models.server.note(
        TEACHER,
        client=client,
        blocks=[[ref.model, ref.index] for ref in assembly.blocks],
        stitched=[place for place, stitch in enumerate(assembly.stitches) if stitch is not None],
        filled=assembly.filled,
        itself=assembly.is_own(client, models.chains),
        parameters=assembly.cost.parameters,
        own_parameters=own,
        phi=sum((size - own) / own for size in sizes) / len(sizes),
        scores=list(teacher.scores.values()),
    )
