"""pFedClub's predecessor: layers of all clients put together anew, whatever size comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from intarsia.core import chance, part
from intarsia.methods.pfedclub.assembly import Assembly, Seams, assemble
from intarsia.methods.pfedclub.decompose import Ref, block_of
from intarsia.methods.pfedclub.reassembly import Reassembly
from intarsia.methods.pfedclub.round_models import RoundModels


@part
class PFedHR(Reassembly):
    """Candidates from all functional groups, the same for all clients of a round; each is taught by the closest.

    Wang et al. 2023, "Towards personalized federated learning via heterogeneous model reassembly", as Wang et al.
    2024 (pFedClub) describe it. From that description: models are taken to layers, which are grouped as
    pFedClub's are (K = 4); the server puts layers together in an order of operation types fixed beforehand,
    stitches them and tunes the stitches on public data, with or without labels; clients are matched with
    candidates by similarity and guided by distillation; nothing limits a candidate's size.

    Ours, where that description is silent: a candidate has one layer of every group at least, and as many
    layers as one of the models, drawn by lot; maps come before vectors, lower indices before higher ones;
    exactly one output layer, at the end. Layers are the functional blocks of pFedClub, and `most` candidates are
    made for each client of the round, so that both tune alike many. The published code of pFedHR tunes all weights of a
    candidate, with a dense stitch at every seam and a new classifier; here, as in pFedClub, stitches alone are tuned,
    and there are none where shapes fit.
    """

    name: ClassVar[str] = "pfedhr"
    title: ClassVar[str] = "pFedHR"

    most: Annotated[int, Field(ge=1)] = 8
    """Candidates for each client of a round; all clients choose among all of them."""

    def candidates(self, models: RoundModels) -> Mapping[str, Sequence[Assembly]]:
        """Return different assemblies of this round's layers, the same for every client."""
        words, count = (models.server.seed, "pfedhr", models.server.round), self.most * len(models.chains)
        draws = (chance.numpy_generator(*words, number) for number in range(count))
        made = (reassemble(models, draw, self.seams) for draw in draws)
        different = tuple({one.blocks: one for one in made}.values())
        return dict.fromkeys(models.chains, different)


def reassemble(
    models: RoundModels,
    draw: np.random.Generator,
    seams: Seams = Seams(),  # noqa: B008 - it never changes
) -> Assembly:
    """Draw layers of every group and put them in order; one output layer ends them."""
    lengths = [len(chain) for chain in models.chains.values()]
    ends = [Ref(client, len(chain) - 1) for client, chain in models.chains.items()]
    end = ends[draw.integers(len(ends))]
    others = [ref for ref in models.groups if ref not in ends]
    others = [others[i] for i in draw.permutation(len(others))]
    first_of = {models.groups[ref]: ref for ref in reversed(others)}
    first_of.pop(models.groups[end], None)
    needed = list(first_of.values())
    length = max(lengths[draw.integers(len(lengths))] - 1, len(needed))
    layers = [*needed, *(ref for ref in others if ref not in needed)][:length]
    chain = models.chains[end.model]
    blocks = [*sorted(layers, key=lambda ref: _place(models, ref)), end]
    return assemble(blocks, models.chains, chain[0].takes, chain[-1].gives[0], len(blocks), seams)


def _place(models: RoundModels, ref: Ref) -> tuple[bool, bool, int, str]:
    """Return what layers are sorted by: maps first, then vectors; by index, then by model."""
    block = block_of(models.chains, ref)
    return block.kind == "fc", len(block.gives) == 1, ref.index, ref.model
