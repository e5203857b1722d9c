"""A site agent that lies, for the tests: `python -m tests.flower.liar SITE.toml`; what it lies about goes by the round."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from intarsia.blocks import Block
from intarsia.flower.message_schema import DONE
from intarsia.flower.messages import SiteMessage
from intarsia.flower.site import agent, agent_port
from intarsia.flower.site.site_file import Site
from tests.flower.lies import put
from tests.flower.loopback import Answer


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


def in_header(path: str, value: Any) -> Callable[[SiteMessage], SiteMessage]:
    """Write a value at a place of the header."""

    def lie(message: SiteMessage) -> SiteMessage:
        answer = Answer(json.loads(json.dumps(dict(message.header))), {})
        put(path, value)(answer)
        return SiteMessage(answer.header, message.blocks)

    return lie


IN_EVALUATION = {
    1: in_header("replies.0.update.values", {}),
    2: in_header("replies.0.update.values.scores.0.n", 10**400),
    3: in_header("replies.0.seconds", 10**400),
    4: in_header("replies.0.update.records", ["no address"]),
}


class Liar(agent.Agent):
    def answer(self, message: SiteMessage) -> SiteMessage:
        honest = super().answer(message)
        if honest.header["kind"] != DONE:
            return honest
        if message.header["purpose"] == "evaluate":
            return IN_EVALUATION.get(message.header["round"], lambda answer: answer)(honest)
        lies = SUMS if message.header["merge"] else SINGLE
        lie = lies.get(message.header["round"], lambda block: block)
        header: Mapping[str, Any] = honest.header
        if message.header["merge"] and message.header["round"] == 4:
            sums = {a: {**s, "samples": s["samples"] * 2} for a, s in honest.header["sums"].items()}
            header = {**honest.header, "sums": sums}
        return SiteMessage(header, {name: lie(block) for name, block in honest.blocks.items()})


if __name__ == "__main__":
    agent_port.Agent = Liar
    agent_port.serve(Site.load(Path(sys.argv[1])), lambda text: print(text, flush=True))
