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
from intarsia.core import SettingsError, chance, part
from intarsia.data import Examples
from intarsia.data.public import PUBLIC, to_block
from intarsia.methods.base import Exchange, Round
from intarsia.methods.distilling.common import ask, divergence, received
from intarsia.methods.distilling.in_public import InPublic, Lesson
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

CLUB, SCORES, PARTNER, SHARE = "club", "scores", "partner", "share"
"""What a round's models together say of public samples; with which other one each was mixed, and its own share."""
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
    ones: cross entropy + `lam` KL(teacher || model) on the first, as eq. 5 has it, and cross entropy on the second,
    where these have labels. A third batch has lessons, `lam_public` KL(lessons || model), from the client's teacher, or
    from the club: the mean of what all models of the last round say, by their probabilities; where there are labels,
    these count too (`known`). Lessons are about mixtures of two public samples each (`mixed`), drawn anew every round,
    as nobody has learned those: of samples that all have learned, models say little more than their labels. Each sample
    of these batches counts `public` times as much as one of the client's own, however many there are of either. All
    this is about the labels that the client holds (`about`). Stitches are started in closed form and not tuned
    further, so the server only passes public samples through blocks and solves least squares; they keep places
    (`seams.dense`), and output blocks stand last.

    `teacher` names controls: without a teacher this is each client alone with the public samples (without their labels,
    just alone); a uniform one only smooths; itself is self-distillation; labels are mixup (Zhang et al. 2018).

    Deviations: this is no published method. Of pFedClub's it leaves out the tuning of stitches; clients learn on public
    samples, from labels and from all models of a round. The paper's own pFedClub+ is `pfedclub` with `eta = 0.1`.
    """

    name: ClassVar[str] = "pfedclub+"
    title: ClassVar[str] = "pFedClub+ (ours)"
    gives_away: ClassVar[str | None] = "every client's own model, whose blocks become others' teachers"

    eta: Annotated[float, Field(gt=-1)] = 0.1
    search: OutputsLast = Field(default_factory=OutputsLast)
    seams: KeepingPlaces = Field(default_factory=KeepingPlaces)
    tailoring: ClosedForm = Field(default_factory=ClosedForm)
    public: Annotated[float, Field(ge=0)] = 1.0
    """What a public sample counts, beside one of the client's own (0: nothing; 1: as much)."""
    lam_public: Annotated[float, Field(ge=0)] = 1.0
    """How much lessons on public samples count, beside labels."""
    lessons: Literal["club", "teacher"] = "club"
    """Who teaches on public samples: the round's models together, or the teacher that also teaches on own ones."""
    mixed: bool = True
    """Whether these lessons are about mixtures of two public samples each, or about the samples as they are."""
    about: Literal["all", "held"] = "held"
    """Which labels all that is about: all, or those that the client holds: public samples of others do not count, and
    of what is said of mixtures only what is said of these. Nobody is told which these are."""
    known: Annotated[float, Field(ge=0, le=1)] = 0.5
    """What the labels of two samples count in a lesson on their mixture, where there are any; the rest is what others
    say. A label that the client does not hold counts nothing."""
    teacher: Literal["made", "itself", "uniform", "labels", "none"] = "made"
    """Who teaches: one that the server made; or, as controls, on own and public samples alike, the client's model as it
    came, one to whom all labels are alike; the labels of what was mixed, alone (mixup); nobody. With these the server
    does nothing."""

    def check(self, server: Server) -> None:
        """Refuse labels as teachers where there are none."""
        super().check(server)
        if self.teacher == "labels" and not self.labelled:
            raise SettingsError(
                'method.teacher = "labels" needs labels of public data: set method.labelled = true, or another teacher'
            )

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
        """Let the round's models score public samples, or mixtures of them, and take the mean of what they say."""
        server = models.server
        if self.lessons != "club":
            return
        assert server.public is not None
        mixing = mixtures(len(server.public), chance.generator(models.seed, "mixtures")) if self.mixed else {}
        x = mixed(as_inputs(server.public), mixing)
        scored = server.each(lambda client: _scores(models.chains[client], x), list(models.chains))
        mean = torch.stack(scored).double().softmax(2).mean(0).log().clamp_min(SURELY_NOT).float()
        server.pool.put(Address(CLUB, ALL), Block({SCORES: mean, **mixing}))

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
        lessons = (*self._of_labels(client), *self._of_others(client, teacher))
        return InPublic(objective, lessons) if lessons else objective, score

    def _of_labels(self, client: LocalClient) -> list[Lesson]:
        """Return the lesson on labels of public samples, if there are any that the client is to learn."""
        public = received(client)
        rows = torch.isin(public.y, self._columns(client))
        if not self.labelled or not rows.any():
            return []
        of_these = Examples(public.x[rows], public.y[rows], public.scaling)
        return [Lesson.of(client, of_these, _wrong, self._weight(client, of_these), "public batches")]

    def _of_others(self, client: LocalClient, teacher: nn.Module | None) -> list[Lesson]:
        """Return the lesson on public samples, or mixtures of them, if there is anybody to give it."""
        public, club, columns = received(client), client.sent.get(CLUB), self._columns(client)
        if club is None and teacher is None and self.teacher != "labels":
            return []
        mixing = club or (mixtures(len(public), client.chance("mixtures")) if self.mixed else {})
        shown = Examples(mixed(as_inputs(public), mixing), public.y) if PARTNER in mixing else public
        labels = self._share * mixed(_certain(public.y, outputs_of(client)), mixing)[:, columns]

        def apart(batch: Batch, outputs: Tensor) -> Tensor:
            own = outputs[:, columns]
            others = own.detach()  # nobody says anything but labels
            if club is not None:
                others = club[SCORES][batch.rows][:, columns]
            elif teacher is not None:
                others = ask(teacher, batch.x)[:, columns]
            known = labels[batch.rows.to(labels.device)].to(own.device)
            said = known + (1 - known.sum(1, keepdim=True)) * others.softmax(1)
            return divergence(said.log().clamp_min(SURELY_NOT), own, self.kl)

        weight = self.lam_public * self._weight(client, shown)
        return [Lesson.of(client, shown, apart, weight, "lesson batches")]

    def _weight(self, client: LocalClient, samples: Examples) -> float:
        """Return what a batch of these counts beside one of own samples: as many times more as there are more."""
        return self.public * len(samples) / len(client.data["train"])

    def _columns(self, client: LocalClient) -> Tensor:
        """Return the labels that lessons are about."""
        held = torch.unique(client.data["train"].y)
        return held if self.about == "held" else torch.arange(outputs_of(client))

    @property
    def _share(self) -> float:
        """What labels count in lessons on mixtures; samples as they are have a lesson on their labels already."""
        return float(self.teacher == "labels") or self.known * (self.labelled and self.mixed)

    def _confers(self, server: Server) -> bool:
        return self.lessons == "club" and Address(CLUB, ALL) in server.pool


def _certain(y: Tensor, outputs: int) -> Tensor:
    """Return labels as probabilities."""
    return functional.one_hot(y, outputs).float()


def _wrong(batch: Batch, outputs: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, batch.y)


def mixtures(count: int, draw: torch.Generator) -> dict[str, Tensor]:
    """Draw for each sample which other one it is mixed with, and its own share."""
    return {PARTNER: torch.randperm(count, generator=draw), SHARE: torch.rand(count, generator=draw)}


def mixed(x: Tensor, mixing: Mapping[str, Tensor]) -> Tensor:
    """Return samples, each mixed with its partner; as they are, if nothing is to be mixed."""
    if PARTNER not in mixing:
        return x
    share = mixing[SHARE].to(x).reshape(-1, *[1] * (x.dim() - 1))
    return share * x + (1 - share) * x[mixing[PARTNER].to(x.device)]


def _scores(chain: Chain, x: Tensor) -> Tensor:
    return through([block.module for block in chain], x).float()
