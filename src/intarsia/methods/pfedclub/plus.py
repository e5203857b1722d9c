"""Ours: teachers that also teach on public samples, made by a server that computes little."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.blocks import ALL, Address, Block, Values
from intarsia.core import part
from intarsia.data import Examples
from intarsia.data.public import PUBLIC, to_block
from intarsia.methods.base import Exchange, Round
from intarsia.methods.distilling.common import Answers, ask, divergence, received
from intarsia.methods.distilling.in_public import in_public
from intarsia.methods.pfedclub.assembly import Seams
from intarsia.methods.pfedclub.cmsr import Search
from intarsia.methods.pfedclub.decompose import Chain
from intarsia.methods.pfedclub.pfedclub import PFedClub
from intarsia.methods.pfedclub.reassembly import outputs_of, teacher_of
from intarsia.methods.pfedclub.round_models import RoundModels
from intarsia.methods.pfedclub.stitch_tuning import StitchTuning, through
from intarsia.methods.pfedclub.views import as_inputs
from intarsia.methods.server import Server
from intarsia.training import Batch, LocalClient, Objective

CLUB, SCORES = "club", "scores"
"""What all models together say of the public samples; and, on the server, what each said last."""
SURELY_NOT = -100.0
"""The logarithm of a probability that is as good as none."""


@part
class ClosedForm(StitchTuning):
    """Stitches in closed form, from few samples, and no steps."""

    epochs: Annotated[int, Field(ge=0)] = 0
    samples: Annotated[int, Field(ge=0)] = 128
    start: Literal["random", "ridge"] = "ridge"


@part
class OutputsLast(Search):
    """Chains that end in a block that gives scores, and have none before."""

    outputs_last: bool = True


@part
class KeepingPlaces(Seams):
    """Stitches into dense layers that keep where things are."""

    dense: Literal["point", "smaller"] = "smaller"


class Uniform(nn.Module):
    """A teacher that knows nothing: all labels are alike to it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of zero."""
        return torch.zeros(len(x), self.outputs, device=x.device)


@part
class PFedClubPlus(PFedClub):
    """pFedClub whose clients learn on the public samples too: from labels, where there are any, and from each other.

    Ours. The paper (Wang et al. 2024) calls pFedClub with a limit on sizes so (section 4.4: eta = 0.1), which this
    method keeps: teachers are at most a tenth larger than their clients' models, asked of candidates before they are
    tuned; without any, a client is taught by its own model. The rest is new. Public samples travel to a client once,
    without their labels if `labelled` is false. Every step takes a batch of the client's own samples and one of public
    ones: cross entropy + `lam` KL(teacher || model) on the first, as eq. 5 has it, and `public` times cross entropy +
    `lam_public` KL(lessons || model) on the second (no cross entropy without labels). The lessons are those of the
    client's teacher, or of the club: the mean of what all models that the server has seen, as they last were, say of
    each public sample. Stitches are started in closed form and not tuned further, so the server only passes public
    samples through blocks and solves least squares; they keep places (`seams.dense`), and output blocks stand last.

    `teacher` names controls: without a teacher this is each client alone with the public samples (without their labels,
    just alone); a uniform one only smooths; itself is self-distillation.
    """

    name: ClassVar[str] = "pfedclub+"
    title: ClassVar[str] = "pFedClub+"
    gives_away: ClassVar[str | None] = "every client's own model, whose blocks become others' teachers"

    eta: Annotated[float, Field(gt=-1)] = 0.1
    search: OutputsLast = Field(default_factory=OutputsLast)
    seams: KeepingPlaces = Field(default_factory=KeepingPlaces)
    tailoring: ClosedForm = Field(default_factory=ClosedForm)
    public: Annotated[float, Field(ge=0)] = 1.0
    """What a step's public samples count, beside as many of the client's own."""
    lam_public: Annotated[float, Field(ge=0)] = 1.0
    """How much lessons on public samples count, beside labels."""
    lessons: Literal["club", "teacher"] = "club"
    """Who teaches on public samples: all models together, or the teacher that also teaches on the client's own."""
    teacher: Literal["made", "itself", "uniform", "none"] = "made"
    """Who teaches: one that the server made; or, as controls, on own and public samples alike, the client's model as it
    came, one to whom all labels are alike, nobody. With these the server does nothing."""

    def round(self, server: Server) -> Round:
        """Play one round; controls have no work for the server."""
        if self.teacher == "made":
            yield from super().round(server)
            return
        beside = self.beside(server)
        yield Exchange(send=lambda client: beside)

    def beside(self, server: Server) -> Mapping[Address, Block]:
        """Return the public samples, with labels only if clients may use them, and what the club says of them."""
        assert server.public is not None  # checked before the run began
        x, y, scaling = server.public.x, server.public.y, server.public.scaling
        public = Examples(x, y if self.labelled else torch.zeros_like(y), scaling)
        said = {Address(CLUB, ALL): server.pool.get(Address(CLUB, ALL))} if self._confers(server) else {}
        return {Address(PUBLIC, ALL): to_block(public), **said}

    def conclude(self, models: RoundModels) -> None:
        """Let the round's models score all public samples, and take the mean of all scores that there are."""
        server = models.server
        if self.lessons != "club":
            return
        assert server.public is not None
        x = as_inputs(server.public)
        scored = server.each(lambda client: _scores(models.chains[client], x), list(models.chains))
        for client, scores in zip(models.chains, scored, strict=True):
            server.pool.put(Address(SCORES, client), Block({SCORES: scores}))
        every = [
            server.pool.get(address).tensors[SCORES] for address in server.pool if address.block == SCORES
        ]
        mean = torch.stack(every).double().softmax(2).mean(0).log().float()
        server.pool.put(Address(CLUB, ALL), Block({SCORES: mean.clamp_min(SURELY_NOT)}))
        server.note(CLUB, models=len(every))

    def guide(self, client: LocalClient) -> nn.Module | None:
        """Return who teaches a client now: the teacher that was sent, or a control."""
        if self.teacher == "itself":
            return copy.deepcopy(client.model).eval()
        if self.teacher == "uniform":
            return Uniform(outputs_of(client))
        return teacher_of(client)

    def taught(self, client: LocalClient, teacher: nn.Module | None) -> tuple[Objective, Values]:
        """Return what a client minimises on own and public samples, and how good its teacher is on its own."""
        objective, score = super().taught(client, teacher)
        answers = _answers(client, teacher)
        if answers is None and not self.labelled:  # nobody knows anything of public samples
            return objective, score

        def lesson(batch: Batch, outputs: Tensor) -> Tensor:
            value = functional.cross_entropy(outputs, batch.y) if self.labelled else outputs.new_zeros(())
            if answers is None:
                return value
            return value + self.lam_public * divergence(answers(batch), outputs, self.kl)

        return in_public(client, objective, received(client), lesson, self.public), score

    def _confers(self, server: Server) -> bool:
        return self.lessons == "club" and Address(CLUB, ALL) in server.pool


def _answers(client: LocalClient, teacher: nn.Module | None) -> Answers | None:
    """Return what is said of public samples: by the club, if it was sent, or else by the teacher, if there is one."""
    if CLUB in client.sent:
        said = client.sent[CLUB][SCORES]
        return lambda batch: said[batch.rows]
    return None if teacher is None else lambda batch: ask(teacher, batch.x)


def _scores(chain: Chain, x: Tensor) -> Tensor:
    return through([block.module for block in chain], x).float()
