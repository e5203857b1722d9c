"""A site agent that lies, for the tests: `python -m tests.flower.liar SITE.toml`; what it lies about goes by the round."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from intarsia.blocks import Block
from intarsia.flower import agent
from intarsia.flower.parcel import Parcel
from intarsia.flower.site import Site


def shape(block: Block) -> Block:
    return Block({name: torch.cat([t, t]) for name, t in block.tensors.items()}, block.buffers)


def nan(block: Block) -> Block:
    return Block({n: torch.full_like(t, float("nan")) for n, t in block.tensors.items()}, block.buffers)


def oversized(block: Block) -> Block:
    return Block({**block.tensors, "extra": torch.zeros(3_000_000)}, block.buffers)


def huge(block: Block) -> Block:
    return Block({n: torch.full_like(t, 2**62) for n, t in block.tensors.items()}, block.buffers)


SINGLE = {1: shape, 2: nan, 3: oversized}
SUMS = {1: shape, 2: huge, 3: oversized}


class Liar(agent.Agent):
    def answer(self, parcel: Parcel) -> Parcel:
        honest = super().answer(parcel)
        if honest.header["kind"] != agent.DONE or parcel.header["purpose"] == "evaluate":
            return honest
        lies = SUMS if parcel.header["merge"] else SINGLE
        lie = lies.get(parcel.header["round"], lambda block: block)
        header: Mapping[str, Any] = honest.header
        if parcel.header["merge"] and parcel.header["round"] == 4:
            sums = {a: {**s, "samples": s["samples"] * 2} for a, s in honest.header["sums"].items()}
            header = {**honest.header, "sums": sums}
        return Parcel(header, {name: lie(block) for name, block in honest.blocks.items()})


if __name__ == "__main__":
    agent.Agent = Liar
    agent.serve(Site.load(Path(sys.argv[1])), lambda text: print(text, flush=True))
