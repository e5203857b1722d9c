"""Mutated frames and files for every decoder and reader: `python -m benchmarks.fuzz --frames 10000000`.

Real frames of a small federation, and real files (`benchmarks/fuzz_files.py`), are damaged, by bytes, by JSON values
and by tensors, from a seed; each goes to the decoder that it is meant for. Whatever comes out must be an error of ours:
another exception, a frame that takes longer than `PATIENCE`, memory beyond `MEMORY`, or a file that is touched outside
of the command's own folder is counted as foreign, shown, and ends the command with 1.

Batches of frames, each from a seed of its own, run in a process of their own, so that a crash is seen and counted. The
record, `benchmarks/fuzz.json`, adds up over calls: the same command goes on until there were so many frames in all.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
from benchmarks import sections
from benchmarks.fuzz_files import FileReaders
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from torch import Tensor

from intarsia.blocks import CODECS, Block, Fold, Task, Update, decode_block, encode_block
from intarsia.core import IntarsiaError
from intarsia.engines import Job
from intarsia.experiment import load
from intarsia.federation import Planner
from intarsia.flower.message_records import from_records, to_records
from intarsia.flower.messages import SiteMessage
from intarsia.flower.server.app import _build
from intarsia.flower.server.channel import Channel
from intarsia.flower.server.flower_engine import FlowerEngine
from intarsia.flower.server.roster import Roster
from intarsia.flower.site import agent_port, relay
from intarsia.flower.site.agent import Agent
from intarsia.flower.site.site_file import Site
from intarsia.runs import RunState

PATIENCE = 20
"""Seconds that one frame may take."""
MEMORY = 500 << 20
"""Bytes that the process may take beyond what it has when the frames begin."""
RECORD = Path(__file__).with_suffix(".json")
BATCH = 50_000
"""Frames in one process."""
TOUCHING = (
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
)
NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, math.nan, math.inf, -math.inf)
WORDS = ("", "x", "me", "@", "a@b@c", "model@all", "../../x", "\x1b[2J", "\ud800", "0" * 32, "x" * 70_000)
DTYPES = (
    *(torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.int64, torch.int8, torch.uint8, torch.bool),
)
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "fedavg"},
    {"method": "fednova", "codec": "int8"},
    {"method": "fedgh"},
    {"method": "fedavg", "codec": "topk"},
    {"method": "fedmn", "model": {"name": "module_pool", "features": 4, "hidden": 4}},
)


class Hung(BaseException):
    """A frame that took too long."""


@dataclass
class Frames:
    """Damages frames, every time in another way; the same ones from the same seed."""

    seed: int
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def in_bytes(self, data: bytes) -> bytes:
        """Damage some bytes."""
        ways = (self._flip, self._write, self._cut, self._repeat, self._insert, self._length, self._end)
        for _ in range(self.chance.choice((1, 1, 1, 2, 4))):
            data = self.chance.choice(ways)(data) if data else b"x"
        return data

    def in_values(self, table: Any) -> Any:
        """Damage some values of a table."""
        table = copy.deepcopy(table)
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            places = list(_places(table))
            if places:
                self._damage(*self.chance.choice(places))
        return table

    def block(self, data: bytes) -> bytes:
        """Damage a block: its bytes, its header, or a tensor."""
        if self.chance.random() < 0.4:
            return self.in_bytes(data)
        size = int.from_bytes(data[:8], "little")
        if self.chance.random() < 0.5:
            header = json.dumps(self.in_values(json.loads(data[8 : 8 + size]))).encode(
                "utf8", "surrogatepass"
            )
            return struct.pack("<Q", len(header)) + header + data[8 + size :]
        tensors = self._tensors(safetensors.torch.load(data))
        return safetensors.torch.save(tensors, json.loads(data[8 : 8 + size])["__metadata__"])

    def frame(self, data: bytes) -> bytes:
        """Damage a message of `pack`: its bytes, its header or one of its blocks; lengths fit then."""
        if self.chance.random() < 0.4:
            return self.in_bytes(data)
        count = int.from_bytes(data[8:16], "little")
        sizes = struct.unpack(f"<{count}Q", data[16 : 16 + 8 * count])
        parts, start = [], 16 + 8 * count
        for size in sizes:
            parts.append(data[start : start + size])
            start += size
        if count == 1 or self.chance.random() < 0.6:
            parts[0] = json.dumps(self.in_values(json.loads(parts[0]))).encode("utf8", "surrogatepass")
        else:
            at = self.chance.randrange(1, count)
            parts[at] = self.block(parts[at])
        return data[:16] + struct.pack(f"<{count}Q", *map(len, parts)) + b"".join(parts)

    def message(
        self, header: Mapping[str, Any], records: Mapping[str, bytes]
    ) -> tuple[str, dict[str, bytes]]:
        """Damage the header or a block of a message."""
        text, blocks = json.dumps({**header, "protocol": 1}), dict(records)
        kind = self.chance.random()
        if kind < 0.1:
            text = self.in_bytes(text.encode()).decode("latin1")
        elif kind < 0.7 or not blocks:
            text = json.dumps(self.in_values(json.loads(text)))
        elif kind < 0.95:
            name = self.chance.choice(sorted(blocks))
            blocks[name] = self.block(blocks[name])
        else:
            name = self.chance.choice(sorted(blocks))
            blocks[self.chance.choice((*WORDS[:8], f"{name}x"))] = blocks.pop(name)
        return text, blocks

    def _flip(self, data: bytes) -> bytes:
        at = self.chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self.chance.randrange(8))]) + data[at + 1 :]

    def _write(self, data: bytes) -> bytes:
        at = self.chance.randrange(len(data))
        return data[:at] + self.chance.randbytes(self.chance.randint(1, 9)) + data[at + 9 :]

    def _cut(self, data: bytes) -> bytes:
        at = self.chance.randrange(len(data))
        return data[:at] + data[at + self.chance.randint(1, 40) :]

    def _repeat(self, data: bytes) -> bytes:
        at = self.chance.randrange(len(data))
        return data[:at] + data[at : at + 40] * self.chance.randint(2, 5) + data[at + 40 :]

    def _insert(self, data: bytes) -> bytes:
        at = self.chance.randrange(len(data))
        return data[:at] + self.chance.choice((b"[" * 3000, b'"', b"}", b"\0" * 8, b"NaN")) + data[at:]

    def _length(self, data: bytes) -> bytes:
        at = self.chance.choice((0, 8, 16, 24, self.chance.randrange(len(data))))
        size = self.chance.choice((0, 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1))
        return data[:at] + struct.pack("<Q", size) + data[at + 8 :]

    def _end(self, data: bytes) -> bytes:
        return data[: self.chance.randrange(len(data))]

    def _damage(self, holder: Any, key: Any) -> None:
        way = self.chance.random()
        if way < 0.2:
            del holder[key]
        elif way < 0.3 and isinstance(holder, dict):
            holder[self.chance.choice(WORDS[:9])] = holder[key]
        elif way < 0.4 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = self.chance.choice((*NUMBERS, *WORDS, None, True, [], {}, [[]], {"a": 1}))

    def _tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if not tensors:
            return {"x": torch.zeros(2)}
        name = self.chance.choice(sorted(tensors))
        tensor = tensors.pop(name)
        ways: tuple[Callable[[], Tensor], ...] = (
            lambda: tensor.to(self.chance.choice(DTYPES)),
            lambda: tensor[None],
            lambda: tensor.flatten()[:-1].clone(),
            lambda: torch.full(tensor.shape, self.chance.choice((0.0, 1.0, -1.0, 2.0**40))).to(tensor.dtype),
            lambda: tensor.float() * self.chance.choice((math.nan, math.inf, 1e30)),
            lambda: torch.zeros(0, *tensor.shape, dtype=tensor.dtype),
        )
        way = self.chance.randrange(len(ways) + 2)
        if way < len(ways):
            return {**tensors, name: ways[way]().contiguous()}
        return tensors if way == len(ways) else {**tensors, f"{name}|x": tensor}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


class Line(HttpGrid):
    """Flower's Grid without Flower: whoever is asked answers at once, and the answer is fetched from memory."""

    def __init__(self, answer: Callable[[int, SiteMessage], RecordDict]) -> None:
        self.answer = answer
        self.asked: list[SiteMessage] = []
        self.keys = {1: b"key 1"}
        """The public key of each node."""
        self.node = Node(node_id=1)
        self._waiting: dict[str, RecordDict] = {}
        self._objects: dict[str, dict[str, bytes]] = {}
        """What each answer consists of, until it is confirmed."""
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    @property
    def run(self) -> Any:
        """The run that everything belongs to."""
        return SimpleNamespace(run_id=1)

    @property
    def _runtime_client(self) -> Any:
        return SimpleNamespace(
            PullMessages=self._messages, PullObject=self._object, ConfirmMessageReceived=self._forget
        )

    def get_nodes(self) -> list[NodeInfo]:
        """Return all nodes."""
        return [NodeInfo(node_id=number, public_key=key) for number, key in self.keys.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask; the answers are there at once."""
        names = []
        for message in messages:
            self.asked.append(from_records(message.content))
            names.append(f"message-{len(self.asked)}")
            self._waiting[names[-1]] = self.answer(message.metadata.dst_node_id, self.asked[-1])
        return names

    def _messages(self, request: Any) -> Any:
        """Return the answers to some messages, as trees of objects."""
        names = [name for name in self._waiting if name in set(request.message_ids)]
        abouts = [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)) for name in names]
        return SimpleNamespace(
            messages_list=abouts, message_object_trees=[self._tree(name) for name in names]
        )

    def _tree(self, name: str) -> Any:
        about = Metadata(1, "", 1, 2, name, "", time.time(), 60.0, "query")
        message = make_message(about, self._waiting.pop(name))
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = get_all_nested_objects(message).items()
        self._objects[message.object_id] = {key: part.deflate() for key, part in parts}
        return get_object_tree(message)

    def _object(self, request: Any) -> Any:
        data = next(own[request.object_id] for own in self._objects.values() if request.object_id in own)
        return PullObjectResponse(object_found=True, object_available=True, object_content=data)

    def _forget(self, request: Any) -> None:
        self._objects.pop(request.message_object_id, None)


class Bench:
    """A server and a site of one method, with the real frames that they exchange."""

    def __init__(self, agent: Agent, settings: Mapping[str, Any]) -> None:
        self.agent = agent
        self.line = Line(lambda node, asked: to_records(agent.answer(asked)))
        self.roster = Roster(Channel(self.line), None, lambda text: None)
        self.roster.wait(1, 5)
        base = {"rounds": 2, "model": {"name": "mlp", "hidden": [4]}, "training": {"batch_size": 8}}
        whole = load({**base, **settings})
        _, experiment = self.roster.admit(lambda population: _build(whole, population))
        self.setup = experiment.setup
        self.engine = FlowerEngine(
            self.setup, experiment.settings, self.roster.channel, self.roster, 60.0, lambda client: ()
        )
        self.planner, self.state = Planner(self.setup), RunState("run1", self.setup.initial_pool(), 1)
        self.jobs, self.content = self._jobs()
        self.exchange(keep=True)
        self.order = self.line.asked[-1]
        self.who = dict(agent.answer(SiteMessage({"kind": "who"})).header)
        self.answers = [self._answer(keep) for keep in (True, False)]

    def _jobs(self) -> tuple[list[Job], dict[str, Block]]:
        exchange = next(self.setup.method.round(self.planner.server(self.state)))
        plan = self.planner.plan(exchange, self.planner.weights(), self.planner.setup.addresses)
        jobs, content = self.planner.jobs(self.state, plan, exchange)
        self.present = {a: self.state.pool.get(a) for p in plan.clients.values() for a in p.returned}
        self.planned = self.planner.planned(plan)
        return jobs, content

    def exchange(self, keep: bool) -> list[Any]:
        """Carry one exchange, with whatever the line answers."""
        fold = Fold(self.setup.method.merge, self.present, self.planned)
        return list(self.engine.exchange(self.jobs, self.content, fold, keep))

    def _answer(self, keep: bool) -> tuple[bool, dict[str, Any], dict[str, bytes]]:
        self.exchange(keep)
        said = self.agent.answer(self.line.asked[-1])
        return keep, json.loads(json.dumps(dict(said.header))), dict(said.records())


class Decoders:
    """What frames are thrown at, by name."""

    def __init__(self, benches: Sequence[Bench], frames: Frames) -> None:
        self.benches, self.frames = benches, frames
        self.parts: dict[str, tuple[Callable[[], None], int]] = {
            "update": (self.update, 28),
            "task": (self.task, 20),
            "block": (self.block, 20),
            "codec": (self.codec, 10),
            "message": (self.message, 6),
            "records": (self.records, 5),
            "first answer": (self.first, 5),
            "answer": (self.answer, 2),
            "agent": (self.ask, 2),
            "connection": (self.connect, 2),
        }
        self.updates = [_update(b) for b in benches]
        self.tasks = [job.task.to_bytes() for b in benches for job in b.jobs]
        self.blocks = [block.to_bytes() for b in benches for block in b.content.values()]
        self.coded = [_coded(name, b) for name in CODECS for b in benches[:2]]

    def _pick(self, items: Sequence[Any]) -> Any:
        return self.frames.chance.choice(items)

    def update(self) -> None:
        """Read an update."""
        Update.from_bytes(self.frames.frame(self._pick(self.updates))).traffic()

    def task(self) -> None:
        """Read a task."""
        Task.from_bytes(self.frames.frame(self._pick(self.tasks)))

    def block(self) -> None:
        """Read a block, and its version and layout."""
        block = Block.from_bytes(self.frames.block(self._pick(self.blocks)))
        assert block.version
        assert block.envelope

    def codec(self) -> None:
        """Decode a coded block."""
        codec, data, present = self._pick(self.coded)
        decode_block(codec, Block.from_bytes(self.frames.block(data)), present, "model")

    def message(self) -> None:
        """Read a message as relay and agent exchange it."""
        _, header, records = self._pick(self._pick(self.benches).answers)
        message = SiteMessage(header, {name: Block.from_bytes(data) for name, data in records.items()})
        SiteMessage.read(io.BytesIO(self.frames.in_bytes(b"".join(message.frame()))).read)

    def records(self) -> None:
        """Read a message from Flower's records."""
        _, header, records = self._pick(self._pick(self.benches).answers)
        from_records(self._content(header, records))

    def first(self) -> None:
        """Take the answer who is there; the roster says no by itself."""
        bench = self._pick(self.benches)
        bench.line.answer = lambda node, asked: self._content(bench.who, {})
        channel = bench.roster.channel
        fresh = Roster(channel, None, lambda text: None)
        fresh.refresh()

    def answer(self) -> None:
        """Carry an exchange; the engine refuses by itself what it cannot use."""
        bench = self._pick(self.benches)
        keep, header, records = self._pick(bench.answers)
        if self.frames.chance.random() < 0.1:
            header = {"kind": "needs", "site": header["site"], "setup": True, "blocks": [], "initial": []}
        bench.line.answer = lambda node, asked: self._content(header, records)
        replies = bench.exchange(keep)
        wrong = [r.failure for r in replies if r.failure and "Traceback" in r.failure.details]
        if wrong:
            raise RuntimeError(wrong[0].details)

    def ask(self) -> None:
        """Let the agent do what a damaged order asks for."""
        anew = self.frames.chance.random() < 0.1
        order = (self._pick(self.benches) if anew else self.benches[-1]).order
        header = {name: value for name, value in order.header.items() if anew or name != "setup"}
        text, records = self.frames.message(header, dict(order.records()))
        self.benches[0].agent.do(SiteMessage.of(text, records))

    def connect(self) -> None:
        """Send damaged bytes to the agent, and hang up."""
        asked = b"".join(relay.frame(to_records(SiteMessage({"kind": "who"}))))
        ours, theirs = socket.socketpair()
        with closing(ours), closing(theirs):
            ours.sendall(self.frames.in_bytes(asked)[:60_000])
            ours.shutdown(socket.SHUT_WR)
            agent_port._handle(self.benches[0].agent, theirs, b"")

    def _content(self, header: Mapping[str, Any], records: Mapping[str, bytes]) -> RecordDict:
        text, blocks = self.frames.message(header, records)
        content = RecordDict({"intarsia": ConfigRecord({"json": text})})
        for name, data in blocks.items():
            content[name] = ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})
        return content


def _update(bench: Bench) -> bytes:
    _, header, records = bench.answers[0]
    own = header["replies"][0]["update"]
    names = [*own["records"], *own.get("tensors", ())]
    blocks = [Block.from_bytes(records[f"{own['client']}/{name}"]) for name in names]
    return Update.from_header(own, blocks).to_bytes()


def _coded(name: str, bench: Bench) -> tuple[Any, bytes, Block]:
    codec, present = CODECS[name](), next(iter(bench.present.values()))
    trained = Block({n: t + 0.1 if t.is_floating_point() else t for n, t in present.tensors.items()})
    return codec, encode_block(codec, trained, present, None)[0].to_bytes(), present


@contextmanager
def benches(folder: Path) -> Iterator[list[Bench]]:
    """Make a site with two clients, and a server for each of some methods."""
    (folder / "data").mkdir()
    rows = ["a,b,label", *(f"{i % 7},{i % 5},{'xyz'[i % 3]}" for i in range(24))]
    for name in ("ann", "bob"):
        (folder / "data" / f"{name}.csv").write_text("\n".join(rows))
    lines = [
        'name = "north"',
        "workers = 1",
        'device = "cpu"',
        "[population]",
        'name = "files"',
        'path = "data"',
    ]
    (folder / "site.toml").write_text("\n".join(lines))
    agent = Agent(Site.load(folder / "site.toml"), lambda text: None)
    try:
        yield [Bench(agent, settings) for settings in METHODS]
    finally:
        agent.close()


@dataclass
class Outcome:
    """What came of the frames for one decoder."""

    frames: int = 0
    refused: int = 0
    foreign: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **{"frames": self.frames, "refused": self.refused, "foreign": dict(self.foreign)},
            **{"seconds": round(self.seconds, 3), "slowest": round(self.slowest, 3)},
        }


def throw(part: Callable[[], None], outcome: Outcome) -> None:
    """Throw one frame, and note what comes of it."""
    start = time.perf_counter()
    outcome.frames += 1
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        part()
    except IntarsiaError:
        outcome.refused += 1
    except (Exception, Hung) as error:  # noqa: BLE001 - they are what is looked for
        outcome.foreign[f"{type(error).__name__}: {str(error)[-300:]}"] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    spent = time.perf_counter() - start
    outcome.seconds += spent
    outcome.slowest = max(outcome.slowest, spent)


class Outside:
    """Notes what is written, renamed or removed outside of some folders."""

    def __init__(self, *folders: Path) -> None:
        self.inside = tuple(str(folder.resolve()) for folder in folders)
        self.touched: list[str] = []
        self.looking = True
        sys.addaudithook(self._look)

    def _look(self, event: str, about: tuple[Any, ...]) -> None:
        if not self.looking or (event != "open" and event not in TOUCHING):
            return
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        if event == "open" and (not isinstance(about[2], int) or not about[2] & writes):
            return
        path = str(about[0]) if isinstance(about[0], str | Path) else ""
        if (
            path
            and path not in (os.devnull, "/dev/shm")
            and not os.path.abspath(path).startswith(self.inside)
        ):
            self.touched.append(f"{event} {path}")


def run(
    count: int, seed: int, show: Callable[[str], None] = print, only: Sequence[str] = ()
) -> dict[str, Outcome]:
    """Throw so many frames; return what came of them, by decoder."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("wire", "files"):
            (folder / part).mkdir()
        os.environ["INTARSIA_CACHE"] = str(folder / "cache")
        frames = Frames(seed)
        with benches(folder / "wire") as made:
            readers = FileReaders(folder / "files", frames)
            parts = {**Decoders(made, frames).parts, **readers.parts}
            outside = Outside(folder)
            with _limits():
                outcomes = _thrown({n: p for n, p in parts.items() if not only or n in only}, count, seed)
            outside.looking = False
        if outside.touched:
            outcomes["agent"].foreign.update(outside.touched)
    return outcomes


def _thrown(parts: Mapping[str, tuple[Callable[[], None], int]], count: int, seed: int) -> dict[str, Outcome]:
    names = list(parts)
    outcomes = {name: Outcome() for name in names}
    order = random.Random(seed)
    for name in order.choices(names, [weight for _, weight in parts.values()], k=count):
        throw(parts[name][0], outcomes[name])
    return outcomes


def _batch(pipe: Any, count: int, seed: int, only: Sequence[str]) -> None:
    outcomes = run(count, seed, only=only)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    pipe.send(({name: o.to_json() for name, o in outcomes.items()}, peak))


def in_a_process(count: int, seed: int, only: Sequence[str] = ()) -> tuple[dict[str, Any], int]:
    """Throw a batch in a process of its own; if that crashes, the crash is what came of it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_batch, args=(theirs, count, seed, only))
    process.start()
    theirs.close()
    try:
        found: tuple[dict[str, Any], int] = ours.recv()
    except EOFError:
        process.join()
        crash = Outcome(foreign=Counter({f"seed {seed}: the process ended with {process.exitcode}": 1}))
        return {"crash": crash.to_json()}, 0
    process.join()
    return found


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two outcomes of one decoder together."""
    sums = {key: round(one[key] + other[key], 3) for key in ("frames", "refused", "seconds")}
    foreign = Counter(one["foreign"]) + Counter(other["foreign"])
    return {**sums, "slowest": max(one["slowest"], other["slowest"]), "foreign": dict(foreign)}


def go_on(
    count: int, record: Path, show: Callable[[str], None] = print, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Throw batches until the record has so many frames; return it."""
    known = sections.read(record) or {"batches": 0, "peak_mib": 0, "seconds": 0.0, "decoders": {}}
    while (total := sum(o["frames"] for o in known["decoders"].values())) < count:
        start = time.perf_counter()
        outcomes, peak = in_a_process(min(BATCH, count - total), known["batches"], only)
        known["batches"] += 1
        known["peak_mib"] = max(known["peak_mib"], peak)
        known["seconds"] = round(known["seconds"] + time.perf_counter() - start, 1)
        for name, outcome in outcomes.items():
            before = known["decoders"].get(name, Outcome().to_json())
            known["decoders"][name] = added(before, outcome)
        sections.update(record, **known)
        found = {name: o["foreign"] for name, o in outcomes.items() if o["foreign"]}
        show(f"{sum(o['frames'] for o in known['decoders'].values())} frames, foreign: {found or 'none'}")
        if "crash" in outcomes:
            break
    return known


@contextmanager
def _limits() -> Iterator[None]:
    """Let a frame that takes too long, or a huge piece of memory, be an error."""

    def hung(*_: object) -> None:
        raise Hung(f"longer than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, hung)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    """Throw the frames, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=10_000, help="how many frames the record is to have")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--only", nargs="*", default=(), help="names of decoders")
    options = parser.parse_args()
    known = go_on(options.frames, options.record, only=options.only)
    print(f"{'decoder':20}{'frames':>10}{'refused':>10}{'foreign':>9}{'seconds':>9}{'slowest':>9}")
    for name, o in known["decoders"].items():
        numbers = f"{o['frames']:10}{o['refused']:10}{sum(o['foreign'].values()):9}"
        print(f"{name:20}{numbers}{o['seconds']:9.1f}{o['slowest']:9.3f}")
    return 1 if any(o["foreign"] for o in known["decoders"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
