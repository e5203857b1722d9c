"""A catalogue of lies: what a site may send instead of an honest answer, by what it was asked.

A group is one federation, with settings and a site that lies; in every round of it one lie is told.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from torch import Tensor

from tests.flower.loopback import Answer, Lie

HUGE = 10**400
DEEP = "[" * 100_000
Tensors = dict[str, Tensor]


@dataclass
class Group:
    """Lies in answer to one step of one method."""

    lies: dict[str, Lie]
    settings: dict[str, Any] = field(default_factory=dict)
    step: str = "train"
    purpose: str = "train"
    clients: int = 1
    """How many clients the lying site has: with several, it sends sums."""


def put(path: str, value: Any) -> Lie:
    """Write a value at a place of the header (`a.0.b`)."""

    def lie(answer: Answer) -> None:
        *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        here: Any = answer.header
        for step in way:
            here = here[step]
        here[last] = value

    return lie


def drop(path: str) -> Lie:
    """Leave out a field of the header."""

    def lie(answer: Answer) -> None:
        *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        here: Any = answer.header
        for step in way:
            here = here[step]
        del here[last]

    return lie


def text(change: Callable[[str], str]) -> Lie:
    """Change the header as it travels."""

    def lie(answer: Answer) -> None:
        answer.text = change(json.dumps({**answer.header, "protocol": 1}))

    return lie


def raw(change: Callable[[bytes], bytes]) -> Lie:
    """Change the bytes of every block."""

    def lie(answer: Answer) -> None:
        answer.records = {name: change(data) for name, data in answer.records.items()}

    return lie


def tensors(change: Callable[[Tensors], Tensors], only: str = "") -> Lie:
    """Change the tensors of the blocks (whose names end in `only`)."""

    def one(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        return safetensors.torch.save(change(safetensors.torch.load(data)), metadata)

    def lie(answer: Answer) -> None:
        answer.records = {n: one(d) if n.endswith(only) else d for n, d in answer.records.items()}

    return lie


def metadata(change: Callable[[dict[str, Any]], Any]) -> Lie:
    """Change what a block says beside its tensors."""

    def one(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header["__metadata__"] = change(header["__metadata__"])
        encoded = json.dumps({k: v for k, v in header.items() if v is not None}).encode()
        return struct.pack("<Q", len(encoded)) + encoded + data[8 + size :]

    return raw(one)


def every(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda own: {name: change(tensor).contiguous() for name, tensor in own.items()}


def filled(value: float) -> Callable[[Tensors], Tensors]:
    return every(lambda t: torch.full_like(t, value))


def beside(name: str, record: Any) -> Lie:
    """Send one more record of Flower's."""

    def lie(answer: Answer) -> None:
        answer.extra[name] = record

    return lie


def both(*lies: Lie) -> Lie:
    def lie(answer: Answer) -> None:
        for one in lies:
            one(answer)

    return lie


def instead(**header: Any) -> Lie:
    """Send another header, and no blocks."""

    def lie(answer: Answer) -> None:
        answer.header = {"site": answer.header["site"], **header}
        answer.records = {}

    return lie


def _named(record: str) -> str:
    return record.partition("/")[0]


def _nothing_returned(answer: Answer) -> None:
    answer.records = {}
    answer.header["replies"][0]["update"]["records"] = []


def _twice(answer: Answer) -> None:
    answer.header["replies"] *= 2


def _block_twice(answer: Answer) -> None:
    answer.header["replies"][0]["update"]["records"] *= 2


def _same_client(answer: Answer) -> None:
    answer.header["replies"][1]["client"] = answer.header["replies"][0]["client"]


def _another_client(answer: Answer) -> None:
    answer.header["replies"][0]["client"] = "ann"


UPDATE = "replies.0.update"
VALUES = f"{UPDATE}.values"

TRANSPORT: dict[str, Lie] = {
    "header is no JSON": text(lambda t: t[:-5]),
    "header is a list": text(lambda t: f"[{t}]"),
    "header is a number": text(lambda t: "7"),
    "header is empty": text(lambda t: ""),
    "header is nested too deep": text(lambda t: t[:-1] + ', "x": ' + DEEP + "]" * len(DEEP) + "}"),
    "header is deep and open": text(lambda t: DEEP),
    "a key twice": text(lambda t: t[:-1] + ', "kind": "done"}'),
    "a number of 5,000 digits": text(lambda t: t[:-1] + ', "x": ' + "9" * 5000 + "}"),
    "another protocol": text(lambda t: t.replace('"protocol": 1', '"protocol": 2')),
    "protocol is a text": text(lambda t: t.replace('"protocol": 1', '"protocol": "1"')),
    "half of a letter": put(f"{UPDATE}.client", "\ud800"),
    "metric records": beside("more", MetricRecord({"loss": 1.0})),
    "two headers": beside("more", ConfigRecord({"json": "{}"})),
    "a block that is no safetensors record": beside(
        "odd", ArrayRecord({"safetensors": Array("uint8", (3,), "numpy.ndarray", b"abc")})
    ),
    "a block of two arrays": beside(
        "odd",
        ArrayRecord({n: Array("uint8", (1,), "safetensors", b"x") for n in ("safetensors", "other")}),
    ),
    "a block that nobody named": lambda answer: answer.records.update(
        {"dan/extra@all": next(iter(answer.records.values()))}
    ),
    "blocks are empty": raw(lambda data: b""),
    "blocks are cut": raw(lambda data: data[:-3]),
    "blocks go on": raw(lambda data: data + b"more"),
    "a pickle": raw(lambda data: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94."),
    "a block header of 2^63 bytes": raw(lambda data: b"\xff" * 8 + data[8:]),
    "a block header that is no JSON": raw(lambda data: data[:8] + b"x" * (len(data) - 8)),
    "too many bytes": raw(lambda data: data + bytes(8_000_000)),
    "no blocks": lambda answer: answer.records.clear(),
}

HEADER: dict[str, Lie] = {
    "kind is another": put("kind", "here"),
    "kind is a list": put("kind", ["done"]),
    "kind is none": put("kind", None),
    "no kind": drop("kind"),
    "site is another": put("site", "north"),
    "site is a number": put("site", 3),
    "a field more": put("more", 1),
    "replies are none": put("replies", None),
    "replies are a number": put("replies", 5),
    "replies are a table": put("replies", {"client": "dan"}),
    "replies are empty": put("replies", []),
    "replies are texts": put("replies", ["dan"]),
    "no replies": drop("replies"),
    "a client twice": _twice,
    "another client": _another_client,
    "client is a number": put("replies.0.client", 4),
    "client has an escape": put("replies.0.client", "dan\x1b[2J"),
    "no sums": drop("sums"),
    "sums are a list": put("sums", []),
    "sums that were not asked for": put("sums", {"model@all": {"samples": 1, "scalars": []}}),
    "seconds are 10**400": put("replies.0.seconds", HUGE),
    "seconds are negative": put("replies.0.seconds", -1.0),
    "seconds are endless": put("replies.0.seconds", math.inf),
    "seconds are no number": put("replies.0.seconds", math.nan),
    "seconds are a text": put("replies.0.seconds", "1"),
    "no seconds": drop("replies.0.seconds"),
    "state is a text": put("replies.0.state", "x"),
    "state is a path": put("replies.0.state", {"site": "../../etc/passwd"}),
    "state is a number": put("replies.0.state", {"site": 1}),
    "state has two": put("replies.0.state", {"site": "0" * 32, "private": {}}),
    "state is private": put("replies.0.state", {"private": {"model": "0" * 32}}),
    "neither update nor failure": put(UPDATE, None),
    "update is a list": put(UPDATE, [1]),
    "update is empty": put(UPDATE, {}),
    "failure is a text": put("replies.0.failure", "failed"),
    "failure of another kind": put("replies.0.failure", {"kind": "done"}),
    "failure without words": put("replies.0.failure", {"kind": "failed", "client": "dan"}),
}

MESSAGE: dict[str, Lie] = {
    **{f"no {name}": drop(f"{UPDATE}.{name}") for name in ("run", "round", "exchange", "client", "records")},
    **{f"no {name} in the update": drop(f"{UPDATE}.{name}") for name in ("purpose", "values", "samples")},
    "run is another": put(f"{UPDATE}.run", "x"),
    "run is a number": put(f"{UPDATE}.run", 1),
    "round is another": put(f"{UPDATE}.round", 99),
    "round is 10**400": put(f"{UPDATE}.round", HUGE),
    "round is a fraction": put(f"{UPDATE}.round", 1.5),
    "round is true": put(f"{UPDATE}.round", True),
    "exchange is another": put(f"{UPDATE}.exchange", "evaluate"),
    "exchange is a list": put(f"{UPDATE}.exchange", []),
    "purpose is another": put(f"{UPDATE}.purpose", "evaluate"),
    "client of another site": put(f"{UPDATE}.client", "ann"),
    "samples are negative": put(f"{UPDATE}.samples", -5),
    "samples are more than before": put(f"{UPDATE}.samples", 10**6),
    "samples are 10**400": put(f"{UPDATE}.samples", HUGE),
    "samples are a text": put(f"{UPDATE}.samples", "24"),
    "samples are true": put(f"{UPDATE}.samples", True),
    "samples are a fraction": put(f"{UPDATE}.samples", 24.0),
    "values are a list": put(VALUES, []),
    "values are none": put(VALUES, None),
    "records are a number": put(f"{UPDATE}.records", 3),
    "records are numbers": put(f"{UPDATE}.records", [3]),
    "an address without a group": put(f"{UPDATE}.records", ["model"]),
    "an address of nothing": put(f"{UPDATE}.records", ["@"]),
    "an address with two groups": put(f"{UPDATE}.records", ["a@b@c"]),
    "a private address": put(f"{UPDATE}.records", ["model@me"]),
    "another address": put(f"{UPDATE}.records", ["other@all"]),
    "an address twice": _block_twice,
    "nothing is returned": _nothing_returned,
    "tensors are a number": put(f"{UPDATE}.tensors", 3),
    "tensors that are not there": put(f"{UPDATE}.tensors", ["scores"]),
    "an update with more": put(f"{UPDATE}.more", 1),
}

REPORT: dict[str, Lie] = {
    **{f"no {name}": drop(f"{VALUES}.{name}") for name in ("n", "correct", "loss", "steps", "step_weight")},
    **{
        f"{name} is {what}": put(f"{VALUES}.{name}", value)
        for name in ("n", "correct", "loss", "steps", "step_weight")
        for what, value in (
            ("10**400", HUGE),
            ("a text", "1"),
            ("none", None),
            ("true", True),
            ("a list", []),
        )
    },
    "n is negative": put(f"{VALUES}.n", -1),
    "n is more than all samples": put(f"{VALUES}.n", 10**9),
    "n is a fraction": put(f"{VALUES}.n", 2.5),
    "correct is more than n": put(f"{VALUES}.correct", 10**6),
    "correct is negative": put(f"{VALUES}.correct", -7),
    "loss is 1e308": put(f"{VALUES}.loss", 1e308),
    "steps are negative": put(f"{VALUES}.steps", -3),
    "steps are more than possible": put(f"{VALUES}.steps", 10**6),
    "a value more": put(f"{VALUES}.more", 1),
}

BLOCKS: dict[str, Lie] = {
    "metadata buffers is a number": metadata(lambda m: {"buffers": "3"}),
    "metadata buffers is a table": metadata(lambda m: {"buffers": '{"a": 1}'}),
    "metadata buffers holds lists": metadata(lambda m: {"buffers": "[[1]]"}),
    "metadata buffers is no JSON": metadata(lambda m: {"buffers": "["}),
    "metadata buffers is nested": metadata(lambda m: {"buffers": DEEP}),
    "metadata buffers names what is not there": metadata(lambda m: {"buffers": '["x"]'}),
    "metadata names a parameter a buffer": metadata(lambda m: {"buffers": '["hidden1.weight"]'}),
    "metadata without buffers": metadata(lambda m: {"more": "1"}),
    "metadata with more": metadata(lambda m: {**m, "more": "1"}),
    "no metadata": metadata(lambda m: None),
    "a NaN": tensors(filled(math.nan)),
    "an infinity": tensors(filled(math.inf)),
    "1e38": tensors(filled(1e38)),
    "float64": tensors(every(Tensor.double)),
    "float16": tensors(every(Tensor.half)),
    "bfloat16": tensors(every(Tensor.bfloat16)),
    "float8": tensors(every(lambda t: t.to(torch.float8_e4m3fn))),
    "complex": tensors(every(lambda t: t.to(torch.complex64))),
    "whole numbers": tensors(every(Tensor.long)),
    "truths": tensors(every(Tensor.bool)),
    "twice as long": tensors(every(lambda t: torch.cat([t, t]))),
    "flat": tensors(every(Tensor.flatten)),
    "one dimension more": tensors(every(lambda t: t[None])),
    "empty tensors": tensors(every(lambda t: t[:0])),
    "a tensor is missing": tensors(lambda own: dict(list(own.items())[1:])),
    "no tensors": tensors(lambda own: {}),
    "a tensor more": tensors(lambda own: {**own, "extra": torch.zeros(2)}),
    "another name": tensors(lambda own: {f"{name}x": t for name, t in own.items()}),
}

SCORES = f"{VALUES}.scores"
EVALUATION: dict[str, Lie] = {
    "no scores": drop(SCORES),
    "no values": put(VALUES, {}),
    "scores are none": put(SCORES, None),
    "scores are a number": put(SCORES, 3),
    "scores are empty": put(SCORES, []),
    "scores are texts": put(SCORES, ["own"]),
    "scores are a table": put(SCORES, {"stage": "own"}),
    "a million scores": put(SCORES, [{}] * 10**6),
    **{f"a score without {n}": drop(f"{SCORES}.0.{n}") for n in ("stage", "split", "n", "correct", "loss")},
    **{
        f"a score's {name} is {what}": put(f"{SCORES}.0.{name}", value)
        for name in ("n", "correct", "loss")
        for what, value in (("10**400", HUGE), ("a text", "1"), ("none", None), ("true", True))
    },
    "n is another": put(f"{SCORES}.0.n", 10**6),
    "n is zero": put(f"{SCORES}.0.n", 0),
    "n is negative": put(f"{SCORES}.0.n", -4),
    "more correct than there are": put(f"{SCORES}.0.correct", 10**6),
    "correct is negative": put(f"{SCORES}.0.correct", -1),
    "loss is 1e308": put(f"{SCORES}.0.loss", 1e308),
    "stage is another": put(f"{SCORES}.0.stage", "before"),
    "stage is a list": put(f"{SCORES}.0.stage", ["own"]),
    "stage has an escape": put(f"{SCORES}.0.stage", "own\x1b[2J"),
    "split is another": put(f"{SCORES}.0.split", "train"),
    "split is a list": put(f"{SCORES}.0.split", []),
    "a score more": put(f"{SCORES}.0.more", 1),
    "samples are others": put(f"{UPDATE}.samples", 7),
}

NEEDED: dict[str, Lie] = {
    "blocks are a number": instead(kind="needs", setup=False, blocks=5, initial=[]),
    "blocks are none": instead(kind="needs", setup=False, blocks=None, initial=[]),
    "blocks are numbers": instead(kind="needs", setup=False, blocks=[1, 2], initial=[]),
    "blocks are lists": instead(kind="needs", setup=False, blocks=[[]], initial=[]),
    "initial is a number": instead(kind="needs", setup=False, blocks=[], initial=3),
    "initial is a path": instead(kind="needs", setup=False, blocks=[], initial=["../x"]),
    "setup is a text": instead(kind="needs", setup="yes", blocks=[], initial=[]),
    "nothing is needed": instead(kind="needs"),
    "what nobody has, again and again": instead(
        kind="needs", setup=True, blocks=["0" * 32], initial=["f" * 32]
    ),
    "a problem without words": instead(kind="problem"),
    "a problem of numbers": instead(kind="problem", message=7, details=[]),
    "a problem of a million letters": instead(kind="problem", message="x" * 10**6, details=""),
}

SUMS: dict[str, Lie] = {
    "sums are empty": put("sums", {}),
    "sums are texts": put("sums", {"model@all": "x"}),
    "sums of another address": put("sums", {"other@all": {"samples": 48, "scalars": []}}),
    "sums of no address": put("sums", {"model": {"samples": 48, "scalars": []}}),
    "sums of more samples": put("sums.model@all.samples", 10**6),
    "sums of 10**400 samples": put("sums.model@all.samples", HUGE),
    "sums of negative samples": put("sums.model@all.samples", -48),
    "sums of no samples": drop("sums.model@all.samples"),
    "scalars that were not expected": put("sums.model@all.scalars", [1.0]),
    "scalars are a number": put("sums.model@all.scalars", 1),
    "scalars are texts": put("sums.model@all.scalars", ["1"]),
    "scalars are endless": put("sums.model@all.scalars", [math.inf]),
    "sums with more": put("sums.model@all.more", 1),
    "no tensors of sums": lambda answer: answer.records.clear(),
    "sums are NaN": tensors(filled(math.nan)),
    "sums are endless": tensors(filled(math.inf)),
    "sums are 2^62": tensors(filled(2.0**62)),
    "sums of another type": tensors(every(Tensor.float)),
    "sums of another shape": tensors(every(lambda t: torch.cat([t, t]))),
    "a sum is missing": tensors(lambda own: dict(list(own.items())[1:])),
    "a sum more": tensors(lambda own: {**own, "model@all/x": torch.zeros(2).double()}),
    "single updates beside sums": both(
        put(f"{UPDATE}.records", ["model@all"]),
        lambda answer: answer.records.update({"dan/model@all": answer.records["sums"]}),
    ),
    "one client's n is 10**400": put(f"{VALUES}.n", HUGE),
    "one client's samples are others": put("replies.1.update.samples", 1),
    "one client twice": _same_client,
}

NOVA = {
    f"step_weight is {what}": put(f"{VALUES}.step_weight", value)
    for what, value in {
        "1e300": 1e300,
        "zero": 0.0,
        "negative": -2.0,
        "NaN": math.nan,
        "endless": math.inf,
        "none": None,
        "more than its steps": 1000.0,
        "10**400": HUGE,
    }.items()
}
NOVA_SUMS: dict[str, Lie] = {
    "scalars of 1e300": put("sums.model@all.scalars", [1e300, 1e300]),
    "fewer scalars": put("sums.model@all.scalars", [48.0]),
    "no scalars": put("sums.model@all.scalars", []),
    "other scalars": put("sums.model@all.scalars", [48.0, 47.0]),
    "step_weight is 1e300 in both": both(
        put(f"{VALUES}.step_weight", 1e300), put("sums.model@all.scalars", [2.4e301, 48.0])
    ),
}
SLICES: dict[str, Lie] = {
    "negative counts": tensors(lambda own: {n: -t if "#" in n else t for n, t in own.items()}),
    "counts of 2^62": tensors(lambda own: {n: t + 2**62 if "#" in n else t for n, t in own.items()}),
    "more counts than samples": tensors(lambda own: {n: t * 9 if "#" in n else t for n, t in own.items()}),
    "no counts": tensors(lambda own: {n: t for n, t in own.items() if "#" not in n}),
    "rows are a list": put(f"{VALUES}.rows", [1]),
    "rows of no tensor": put(f"{VALUES}.rows", {"x": [0]}),
    "rows that are not there": put(f"{VALUES}.rows", {"head.weight": [10**9]}),
    "rows are negative": put(f"{VALUES}.rows", {"head.weight": [-1]}),
    "rows twice": put(f"{VALUES}.rows", {"head.weight": [0, 0]}),
    "rows are texts": put(f"{VALUES}.rows", {"head.weight": ["0"]}),
}

CODED: dict[str, dict[str, Lie]] = {
    "int8": {
        "no scale": tensors(lambda own: {n: t for n, t in own.items() if "scale" not in n}),
        "scale is NaN": tensors(lambda own: {n: t * math.nan if "scale" in n else t for n, t in own.items()}),
        "scale is 3e38": tensors(
            lambda own: {n: torch.full_like(t, 3e38) if "scale" in n else t for n, t in own.items()}
        ),
        "scale of another shape": tensors(
            lambda own: {n: torch.cat([t, t]) if "scale" in n else t for n, t in own.items()}
        ),
        "numbers of another type": tensors(every(lambda t: t.float())),
        "a part more": tensors(
            lambda own: own | {n.replace("int8", "more"): t.clone() for n, t in own.items() if "int8" in n}
        ),
        "a tensor of nobody": tensors(lambda own: own | {"x|int8": torch.zeros(2, dtype=torch.int8)}),
        "a part without a tensor": tensors(lambda own: own | {"|int8": torch.zeros(2, dtype=torch.int8)}),
        "a block more": both(
            put(f"{UPDATE}.records", ["model@all", "other@all"]),
            lambda answer: answer.records.update({"dan/other@all": answer.records["dan/model@all"]}),
        ),
    },
    "topk": {
        "places are negative": tensors(
            lambda own: {n: -t - 1 if n.endswith("at") else t for n, t in own.items()}
        ),
        "places are outside": tensors(
            lambda own: {n: t + 2**30 if n.endswith("at") else t for n, t in own.items()}
        ),
        "places are twice": tensors(
            lambda own: {n: t * 0 if n.endswith("at") else t for n, t in own.items()}
        ),
        "places of another type": tensors(
            lambda own: {n: t.long() if n.endswith("at") else t for n, t in own.items()}
        ),
        "fewer values than places": tensors(
            lambda own: {n: t[1:] if n.endswith("top") else t for n, t in own.items()}
        ),
        "values are NaN": tensors(
            lambda own: {n: t * math.nan if n.endswith("top") else t for n, t in own.items()}
        ),
        "values in rows": tensors(every(lambda t: t[None])),
        "no places": tensors(lambda own: {n: t for n, t in own.items() if not n.endswith("at")}),
    },
    "fp16": {
        "endless changes": tensors(filled(math.inf)),
        "changes in float32": tensors(every(Tensor.float)),
        "changes of another shape": tensors(every(lambda t: t[:1])),
        "changes in another code": tensors(
            lambda own: {n.replace("half", "int8"): t for n, t in own.items()}
        ),
    },
}

LOGITS = f"{VALUES}.logits"
ROUTES: dict[str, Lie] = {
    "no logits": drop(LOGITS),
    "logits are none": put(LOGITS, None),
    "logits are a text": put(LOGITS, "0.5"),
    "logits are texts": put(LOGITS, ["0.5"] * 8),
    "logits are too few": put(LOGITS, [0.5]),
    "logits are empty": put(LOGITS, []),
    "a logit is NaN": put(f"{LOGITS}.0", math.nan),
    "a logit is endless": put(f"{LOGITS}.0", -math.inf),
    "a logit is 1e308": put(f"{LOGITS}.0", 1e308),
    "a logit is 10**400": put(f"{LOGITS}.0", HUGE),
    "a logit is true": put(f"{LOGITS}.0", True),
    "gates beside logits": put(f"{VALUES}.gates", [1.0]),
}

KEPT = f"{VALUES}.kept"
CHOICES: dict[str, Lie] = {
    "no gates": drop(KEPT),
    "gates are a text": put(KEPT, "1"),
    "gates are too few": put(KEPT, [1.0]),
    "a gate is NaN": put(f"{KEPT}.0", math.nan),
    "a gate is 2": put(f"{KEPT}.0", 2.0),
    "a gate is below 0": put(f"{KEPT}.0", -1.0),
}


def _public(lie: Callable[[Tensors], Tensors]) -> Lie:
    return tensors(lie, "scores")


PUBLIC_SCORES: dict[str, Lie] = {
    "scores of 3e38": _public(filled(3e38)),
    "scores are NaN": _public(filled(math.nan)),
    "scores in float8": _public(every(lambda t: t.to(torch.float8_e5m2))),
    "scores in float64": _public(every(Tensor.double)),
    "scores are complex": _public(every(lambda t: t.to(torch.complex64))),
    "scores of fewer samples": _public(every(lambda t: t[1:])),
    "scores of more classes": _public(every(lambda t: torch.cat([t, t], 1))),
    "scores in three dimensions": _public(every(lambda t: t[None])),
    "scores of another name": _public(lambda own: {"other": own["scores"]}),
    "scores and more": _public(lambda own: {**own, "more": torch.zeros(2)}),
    "no scores": both(put(f"{UPDATE}.tensors", []), lambda answer: answer.records.clear()),
    "tensors more": both(
        put(f"{UPDATE}.tensors", ["scores", "more"]),
        lambda answer: answer.records.update({"dan/more": answer.records["dan/scores"]}),
    ),
    "a value more": put(f"{VALUES}.more", 1),
}
MEANS: dict[str, Lie] = {
    "means of 3e38": tensors(lambda own: {**own, "means": torch.full_like(own["means"], 3e38)}),
    "means are NaN": tensors(lambda own: {**own, "means": own["means"] * math.nan}),
    "means in float8": tensors(lambda own: {**own, "means": own["means"].to(torch.float8_e4m3fn)}),
    "means of another width": tensors(lambda own: {**own, "means": own["means"][:, 1:].contiguous()}),
    "means in one row": tensors(lambda own: {**own, "means": own["means"][0].clone()}),
    "no means": tensors(lambda own: {"labels": own["labels"]}),
    "no labels": tensors(lambda own: {"means": own["means"]}),
    "labels that are not there": tensors(lambda own: {**own, "labels": own["labels"] + 1}),
    "labels are negative": tensors(lambda own: {**own, "labels": own["labels"] - 1}),
    "labels are twice": tensors(lambda own: {**own, "labels": own["labels"] * 0}),
    "labels are fractions": tensors(lambda own: {**own, "labels": own["labels"].float()}),
    "labels of fewer means": tensors(lambda own: {**own, "labels": own["labels"][1:].contiguous()}),
    "nothing": tensors(lambda own: {name: t[:0] for name, t in own.items()}),
}
ONE, TWO, THREE = (f"component-{n}@all" for n in (1, 2, 3))
MIXED: dict[str, Lie] = {
    "a component is NaN": tensors(filled(math.nan), ONE),
    "a component is missing": both(
        put(f"{UPDATE}.records", [TWO, THREE]), lambda answer: answer.records.pop(f"dan/{ONE}")
    ),
    "a component twice": put(f"{UPDATE}.records", [ONE, ONE, THREE]),
    "the mixture's weights": both(
        put(f"{UPDATE}.records", [ONE, TWO, THREE, "mixture@me"]),
        lambda answer: answer.records.update({"dan/mixture@me": answer.records[f"dan/{ONE}"]}),
    ),
}
FOUND: dict[str, Lie] = {
    "a direction of 1e38": tensors(filled(1e38)),
    "a direction is NaN": tensors(filled(math.nan)),
    "another cohort's module": put(f"{UPDATE}.records", ["configuration@default", "operation@cohort-9"]),
    "a value named cohort": put(f"{VALUES}.cohort", "x"),
}
TEACHERS: dict[str, Lie] = {
    "a teacher that is right seven times": put(f"{VALUES}.teacher_right", 7.0),
    "a teacher that is right by a text": put(f"{VALUES}.teacher_right", "always"),
    "a model that is NaN": tensors(filled(math.nan)),
}

POOL = {"model": {"name": "module_pool", "features": 8, "hidden": 8}}
GROUPS: dict[str, Group] = {
    "transport": Group(TRANSPORT),
    "header": Group(HEADER),
    "message": Group(MESSAGE),
    "report": Group(REPORT),
    "blocks": Group(BLOCKS),
    "evaluation": Group(EVALUATION, step="evaluate", purpose="evaluate"),
    "needs": Group(NEEDED),
    "sums": Group(SUMS, clients=2),
    "sums of blocks": Group({n: lie for n, lie in BLOCKS.items() if n != "float64"}, clients=2),
    "nova": Group(NOVA, {"method": "fednova"}),
    "nova sums": Group(NOVA_SUMS, {"method": "fednova"}, clients=2),
    "slices": Group(SLICES, {"method": {"name": "heterofl", "widths": [1.0]}}, clients=4),
    **{f"codec {name}": Group(lies, {"codec": name}) for name, lies in CODED.items()},
    "fedmn": Group(ROUTES, {"method": "fedmn", **POOL}, "route"),
    "fedmn+": Group(CHOICES, {"method": {"name": "fedmn+", "whole": 0}, **POOL}, "choose"),
    "fedmd": Group(PUBLIC_SCORES, {"method": "fedmd", "public": {}}, "predict"),
    "fccl": Group(PUBLIC_SCORES, {"method": {"name": "fccl", "pretraining": 1}, "public": {}}, "predict"),
    "fedgh": Group(MEANS, {"method": "fedgh"}),
    "fedem": Group(MIXED, {"method": "fedem"}),
    "cohorts": Group(FOUND, {"method": "modfl", "sharing": {"cohorts": "found", "number": 2}}),
    "teachers": Group(
        TEACHERS,
        {"method": {"name": "pfedclub", "tailoring": {"epochs": 1}, "search": {"most": 1}}, "public": {}},
    ),
}


def client(path: str, value: Any) -> Lie:
    return put(f"clients.0.{path}", value)


FIRST: dict[str, Lie] = {
    "no kind": drop("kind"),
    "kind is a number": put("kind", 7),
    "another kind": put("kind", "done"),
    "no site": drop("site"),
    "site is empty": put("site", ""),
    "site is a number": put("site", 3),
    "site is another's": put("site", "north"),
    "site of a megabyte": put("site", "s" * 10**6),
    "version is a number": put("version", 3),
    "no clients": put("clients", []),
    "clients are none": put("clients", None),
    "clients are a number": put("clients", 3),
    "clients are texts": put("clients", ["dan"]),
    "clients are a table": put("clients", {"dan": 1}),
    "a client of another site": client("name", "ann"),
    "name is a number": client("name", 5),
    "name is empty": client("name", ""),
    "name is none": client("name", None),
    "name is half a letter": client("name", "\udfff"),
    "shape is none": client("shape", None),
    "shape is a text": client("shape", "188"),
    "shape is negative": client("shape", [1, -8, 8]),
    "shape is 10**400": client("shape", [HUGE]),
    "shape is huge": client("shape", [10**6, 10**6]),
    "shape is a fraction": client("shape", [1.5]),
    "shape has a thousand sides": client("shape", [1] * 1000),
    "shape does not fit the others": client("shape", [5]),
    "samples are none": client("samples", None),
    "samples are a number": client("samples", 30),
    "samples are 10**400": client("samples.train", HUGE),
    "samples are negative": client("samples.train", -30),
    "samples are zero": client("samples.train", 0),
    "samples are a fraction": client("samples.train", 30.5),
    "samples are true": client("samples.train", True),
    "samples are a text": client("samples.train", "30"),
    "samples are more than believed": client("samples.train", 10**7),
    "no training samples": drop("clients.0.samples.train"),
    "no test samples": drop("clients.0.samples.test"),
    "samples of another split": client("samples.more", 3),
    "device is me": client("device", "me"),
    "device is an address": client("device", "a@b"),
    "device is empty": client("device", ""),
    "device is a number": client("device", 2),
    "cohort is me": client("cohort", "me"),
    "cohort is a list": client("cohort", ["a"]),
    "capacity is NaN": client("capacity", math.nan),
    "capacity is negative": client("capacity", -1.0),
    "capacity is 10**400": client("capacity", HUGE),
    "capacity is a text": client("capacity", "1"),
    "model is a number": client("model", 3),
    "a task without a goal": client("task", "other"),
    "place is negative": client("place", -1),
    "place is 10**400": client("place", HUGE),
    "a client with more": client("data", [1, 2, 3]),
    "no goals": drop("goals"),
    "goals are empty": put("goals", {}),
    "goals are a list": put("goals", []),
    "outputs are zero": put("goals..outputs", 0),
    "outputs are 10**400": put("goals..outputs", HUGE),
    "outputs are a text": put("goals..outputs", "3"),
    "outputs are others": put("goals..outputs", 4),
    "problem is another": put("goals..problem", "guessing"),
    "labels are others": put("goals..labels", "0" * 16),
    "labels are a number": put("goals..labels", 1),
    "an answer with more": put("more", 1),
    "a problem": instead(kind="problem", message="no", details=""),
    "a problem of numbers": instead(kind="problem", message=1, details=2),
    "header is no JSON": text(lambda t: t[1:]),
    "header is nested too deep": text(lambda t: DEEP),
    "blocks that nobody asked for": lambda answer: answer.records.update({"x": b"y"}),
}
