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
from intarsia.methods.distilling.common import ask, divergence, received
from intarsia.methods.distilling.in_public import in_public
from intarsia.methods.pfedclub.assembly import Seams
from intarsia.methods.pfedclub.cmsr import Search
from intarsia.methods.pfedclub.pfedclub import PFedClub
from intarsia.methods.pfedclub.reassembly import outputs_of, teacher_of
from intarsia.methods.pfedclub.stitch_tuning import StitchTuning
from intarsia.methods.server import Server
from intarsia.training import Batch, LocalClient, Objective


@part
class ClosedForm(StitchTuning):
    """Stitches in closed form, and no steps."""

    epochs: Annotated[int, Field(ge=0)] = 0
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
    """pFedClub whose clients learn on the public samples too, from their teachers and, where there are any, labels.

    Ours; the paper (Wang et al. 2024) calls pFedClub with a limit on sizes so (section 4.4: eta = 0.1), which this
    method keeps: teachers are at most a tenth larger than their clients' models, asked of candidates before they are
    tuned; without any, a client is taught by its own model. The rest is new. Public samples travel to a
    client once, without labels if `labelled` is false. Every step takes a batch of the client's own samples and one of
    public ones: cross entropy + lam KL(teacher || model) on the first, and `public` times the same on the second (no
    cross entropy there without labels). Stitches are started in closed form and not tuned further, so the server only
    passes public samples through blocks and solves least squares; they keep places (`seams.dense`), and output
    blocks stand last.

    `teacher` names controls: without a teacher this is each client alone with the public samples (and, without labels,
    alone); a uniform teacher only smooths; itself is what self-distillation gives.
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
    teacher: Literal["club", "itself", "uniform", "none"] = "club"
    """Who teaches: a candidate of the server's; or, as controls, the client's model as it came, a teacher to which all
    labels are alike, nobody. With these the server makes no teachers."""

    def round(self, server: Server) -> Round:
        """Play one round; controls have no work for the server."""
        if self.teacher == "club":
            yield from super().round(server)
            return
        beside = self.beside(server)
        yield Exchange(send=lambda client: beside)

    def beside(self, server: Server) -> Mapping[Address, Block]:
        """Return the public samples; their labels only if clients may use them."""
        assert server.public is not None  # checked before the run began
        x, y, scaling = server.public.x, server.public.y, server.public.scaling
        return {
            Address(PUBLIC, ALL): to_block(Examples(x, y if self.labelled else torch.zeros_like(y), scaling))
        }

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
        if teacher is None and not self.labelled:  # nobody knows anything of public samples
            return objective, score

        def lesson(batch: Batch, outputs: Tensor) -> Tensor:
            value = functional.cross_entropy(outputs, batch.y) if self.labelled else outputs.new_zeros(())
            if teacher is None:
                return value
            return value + self.lam * divergence(ask(teacher, batch.x), outputs, self.kl)

        return in_public(client, objective, received(client), lesson, self.public), score
