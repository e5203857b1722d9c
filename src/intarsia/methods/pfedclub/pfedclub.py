"""Clients with different architectures teach each other through exchanged blocks, within limits."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from intarsia.core import chance, part
from intarsia.methods.pfedclub.assembly import Assembly, Constraint
from intarsia.methods.pfedclub.cmsr import CMSR, Search
from intarsia.methods.pfedclub.decompose import total
from intarsia.methods.pfedclub.reassembly import Reassembly
from intarsia.methods.pfedclub.round_models import RoundModels


@part
class PFedClub(Reassembly):
    """Teachers of a client's own length, made by replacing its blocks with others that do alike work.

    Wang et al. 2024, "Controllable heterogeneous model aggregation for personalized federated learning", section 3
    and Algorithm 1. Each round, the server takes the models of the round's clients to blocks, compares them by
    CKA of inputs and outputs on public data (eq. 1) and groups them by K-means. For each client, CMSR searches
    candidates: an anchor from the first block's group, then blocks of the same groups with a rising index,
    completed with the client's own. Stitches between them are tuned on public data, with labels (eq. 2) or
    without (eq. 3); the candidate whose logits are closest to the client's own (eq. 4) teaches it when it next
    takes part (eq. 5). Notes of every round have the groups, and each client's teacher with phi (eq. 6).

    Deviations, where the paper is silent: candidates are capped (`search.most`), drawn depth first; a
    round tunes on at most 512 public samples, drawn anew (`tailoring.samples`); a stitch
    between maps is a 1x1 convolution, as a dense one would outweigh the model; eq. 5's KL has the teacher first
    (`kl` turns it round), at temperature 1; where the own model is a candidate, nothing is closer, so it teaches
    itself. Blocks that work on maps do not follow those that give a vector (`search.fc_to_conv` allows it). A model's
    head is a block like all others, so it can stand inside a chain, with a stitch from its scores to what follows
    (`search.outputs_last` forbids it, as pFedHR does). Where the shapes of two blocks fit, there is no stitch between
    them, and a candidate without any has nothing to tune; the paper speaks of stitches without such a case
    (`seams.every` has one wherever two blocks are no neighbours at home). A stitch from a map into a dense layer
    averages the map to a point, which needs fewer weights than to flatten it (`seams.dense`: fewer still). Sizes of
    CNN1 to CNN4 are no figures of the paper: see `ClubCNN`.

    Ours, beside the paper: stitches that start in closed form (`tailoring.start`), that are tuned towards the scores
    of the client's own model (`tailoring.target`), on the labels that it holds (`tailoring.answers`).
    """

    name: ClassVar[str] = "pfedclub"
    title: ClassVar[str] = "pFedClub"

    search: Search = Field(default_factory=Search)
    eta: Annotated[float, Field(gt=-1)] = math.inf
    """Teachers have at most 1 + eta times the parameters of the client's model (inf: any number)."""
    flops: Annotated[float, Field(gt=-1)] = math.inf
    """They need at most 1 + this times its multiplications (inf: any number)."""
    activations: Annotated[float, Field(gt=-1)] = math.inf
    """Their layers give at most 1 + this times as many values, which need memory (inf: any number)."""
    capacity: Annotated[int, Field(ge=0)] = 0
    """How many parameters a client of capacity 1 can hold, others in proportion (0: any number)."""

    def candidates(self, models: RoundModels) -> Mapping[str, Sequence[Assembly]]:
        """Return what CMSR finds for each client (Algorithm 1)."""
        chains, groups, similarity, server = models.chains, models.groups, models.similarity, models.server
        found = {}
        for client in chains:
            draw = chance.numpy_generator(server.seed, "cmsr", server.round, client)
            limits = self.limits(models, client)
            search = CMSR(client, chains, groups, similarity, self.search, draw, limits, self.seams)
            found[client] = search.candidates()
        return found

    def limits(self, models: RoundModels, client: str) -> list[Constraint]:
        """Return what a client's teachers must keep to; subclasses add functions of their own, such as latency."""
        own = total(block.cost for block in models.chains[client])
        most = [
            (1 + share) * cost if share < math.inf else math.inf
            for share, cost in zip((self.eta, self.flops, self.activations), own, strict=True)
        ]
        if self.capacity:
            most[0] = min(most[0], int(self.capacity * models.server.clients[client].capacity))
        return [lambda cost: all(map(operator.le, cost, most))]
