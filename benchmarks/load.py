"""A federation under load: `python -m benchmarks.load many`, `python -m benchmarks.load long`.

    many    10,000 sites of one client each are registered; 1,000 updates are in flight at once, and come back in any
            order, some of them twice, some much later. The server side is the real one: ServerApp, roster,
            engine, channel, with Flower's messages and objects in their bytes. Sites answer from this process, without
            training and without sockets: Flower's own transport is not measured.
    long    2,000 rounds of a small run: memory, open files and the time of a round must not grow.

The record is `benchmarks/load.json`.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomli_w
import torch
from benchmarks import sections
from benchmarks.fuzz import Line
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from tests.conftest import SMALL

import intarsia
from intarsia.blocks import Block
from intarsia.flower.message_records import to_records
from intarsia.flower.messages import SiteMessage
from intarsia.flower.server import app as server

RECORD = Path(__file__).with_suffix(".json")
GOAL = {"outputs": 3, "problem": "classification", "labels": "567a648207b52b51"}
EVERY = 50
"""Rounds between two looks at memory and files."""


class Sites:
    """Sites of one client each that answer at once: the model they got, moved a little, as a keyed draw says."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}

    def answer(self, node: int, asked: SiteMessage) -> RecordDict:
        """Answer what a site is asked."""
        header = asked.header
        if header["kind"] == "who":
            return to_records(SiteMessage(self._here(node)))
        self.blocks |= {v: block for v, block in asked.blocks.items() if "/" not in v}
        (job,) = header["jobs"]
        wanted = set(job["task"]["versions"].values())
        missing = wanted - self.blocks.keys()
        if missing:
            needs = {"kind": "needs", "site": f"site-{node}", "setup": False, "blocks": sorted(missing)}
            return to_records(SiteMessage({**needs, "initial": []}))
        return to_records(self._done(node, job["task"]))

    def _here(self, node: int) -> dict[str, Any]:
        about = {"shape": [2], "samples": {"train": 16, "test": 4}, "device": "d", "cohort": "c"}
        client = {"name": f"client-{node}", **about, "capacity": 1.0, "model": "", "task": "", "place": node}
        return {
            "kind": "here",
            "site": f"site-{node}",
            "version": "0",
            "clients": [client],
            "goals": {"": GOAL},
        }

    def _done(self, node: int, task: Mapping[str, Any]) -> SiteMessage:
        trains = task["purpose"] == "train"
        scores = [{"split": "test", "stage": "own", "n": 4, "correct": 2, "loss": 1.0}]
        trained = {"n": 16, "correct": 8, "loss": 1.0, "steps": 1, "step_weight": 1.0}
        update = {
            **{key: task[key] for key in ("run", "round", "exchange", "purpose", "client", "state")},
            "records": ["model@all"] if trains else [],
            "values": trained if trains else {"scores": scores},
            "samples": 16,
        }
        moved = {f"{task['client']}/model@all": self._moved(node, task)} if trains else {}
        reply = {"client": task["client"], "failure": None, "update": update, "state": {}, "seconds": 0.0}
        return SiteMessage({"kind": "done", "site": f"site-{node}", "replies": [reply], "sums": {}}, moved)

    def _moved(self, node: int, task: Mapping[str, Any]) -> Block:
        present = self.blocks[task["versions"]["model@all"]]
        step = random.Random(f"{node} {task['round']}").uniform(-0.01, 0.01)
        return Block({name: tensor + step for name, tensor in present.tensors.items()})


class Crowd(Line):
    """Flower's Grid to many sites; answers come in any order, a few at a time, some twice, some late."""

    def __init__(self, nodes: int, seed: int, twice: float = 0.0, late: float = 0.0) -> None:
        self.sites = Sites()
        super().__init__(self.sites.answer)
        self.keys = {number: b"key %d" % number for number in range(1, nodes + 1)}
        self.chance, self.twice, self.late = random.Random(seed), twice, late
        self.most = 0
        """How many answers were on their way at once."""
        self.delivered: Counter[str] = Counter()
        self._again: list[str] = []
        self._about: dict[str, RecordDict] = {}
        self._flat: dict[str, bytes] = {}
        self._holders: Counter[str] = Counter()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask; the answers are on their way."""
        names = super().push_messages(messages)
        self.asked = [SiteMessage({})] * len(self.asked)  # only their number counts here
        self._about |= {name: self._waiting[name] for name in names}
        self.most = max(self.most, len(self._waiting))
        return names

    def _messages(self, request: Any) -> Any:
        wanted = set(request.message_ids)
        there = [name for name in self._waiting if name in wanted]
        self.chance.shuffle(there)
        names = there[: self.chance.randint(1, max(1, len(there) // 3))] if there else []
        names += [name for name in names if self.chance.random() < self.twice]
        self._again += [name for name in names if self.chance.random() < self.late]
        names += [self._again.pop(0) for _ in range(min(2, len(self._again)))]
        abouts = [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)) for name in names]
        trees = [self._tree(name) for name in names]
        self.delivered.update(names)
        return SimpleNamespace(messages_list=abouts, message_object_trees=trees)

    def _tree(self, name: str) -> Any:
        self._waiting.pop(name, None)
        message = make_message(Metadata(1, "", 1, 2, name, "", time.time(), 60.0, "query"), self._about[name])
        message.metadata.__dict__["_message_id"] = message.object_id
        own = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
        self._objects[message.object_id] = own
        self._flat |= own
        self._holders.update(own.keys())
        return get_object_tree(message)

    def _object(self, request: Any) -> Any:
        content = self._flat[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def _forget(self, request: Any) -> None:
        for key in self._objects.pop(request.message_object_id, {}):
            self._holders[key] -= 1
            if self._holders[key] <= 0:
                del self._holders[key]
                self._flat.pop(key, None)


def federation(home: Path, crowd: Crowd, rounds: int, clients: int) -> intarsia.Run:
    """Let the ServerApp play a federation with a crowd."""
    settings = {
        "rounds": rounds,
        "method": "fedavg",
        "model": {"name": "mlp", "hidden": [4]},
        "sampling": {"clients": clients},
        "evaluation": {"every": rounds, "metrics": []},
    }
    home.mkdir(parents=True, exist_ok=True)
    (home / "settings.toml").write_text(tomli_w.dumps(settings))
    config = {"folder": str(home / "run"), "sites": len(crowd.keys), "wait": 3600.0, "deadline": 3600.0}
    server.run(crowd, server.Options.read(config), home)
    return intarsia.open_run(home / "run")


def many(nodes: int = 10_000, clients: int = 1_000, rounds: int = 3) -> dict[str, Any]:
    """Register many clients, and let many updates be in flight."""
    with tempfile.TemporaryDirectory() as home:
        crowd, start = Crowd(nodes, seed=0, twice=0.05, late=0.02), time.perf_counter()
        run = federation(Path(home), crowd, rounds, clients)
        seconds = time.perf_counter() - start
        train = [row["train"] for row in run.seconds]
        return {
            "registered": nodes,
            "sampled": clients,
            "rounds": rounds,
            "in_flight": crowd.most,
            "delivered": sum(crowd.delivered.values()),
            "delivered_again": sum(count - 1 for count in crowd.delivered.values() if count > 1),
            "refused": run.summary["refused"],
            "failed": run.summary["failed"],
            "seconds": round(seconds, 1),
            "seconds_of_an_exchange": round(statistics.median(train), 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }


class Looking(intarsia.Observer):
    """Notes memory, open files and time while rounds go by."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.ends: list[float] = []

    def round_done(self, report: intarsia.RoundReport) -> None:
        """Note them."""
        self.ends.append(time.process_time())
        if report.round % EVERY == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            files = len(os.listdir("/proc/self/fd"))
            self.rows.append((report.round, pages * resource.getpagesize() >> 10, files))


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the growth a round, by least squares."""
    x, y = zip(*points, strict=True)
    return statistics.linear_regression(x, y).slope


def long(rounds: int = 2_000) -> dict[str, Any]:
    """Play many rounds of a small run; the first quarter, in which caches fill, is left out."""
    looking = Looking()
    changes = ["method=fedper", f"rounds={rounds}", "sampling.clients=2", "engine.name=debug"]
    with tempfile.TemporaryDirectory() as home:
        intarsia.run(SMALL, changes=[*changes, "evaluation.every=10"], out=f"{home}/run", observer=looking)
    rows = [row for row in looking.rows if row[0] > rounds // 4]
    spent = [b - a for a, b in zip(looking.ends, looking.ends[1:], strict=False)]
    quarters = [statistics.median(spent[i * len(spent) // 4 : (i + 1) * len(spent) // 4]) for i in range(4)]
    return {
        "rounds": rounds,
        "kib_at_a_quarter": rows[0][1],
        "kib_at_the_end": rows[-1][1],
        "kib_a_round": round(slope([(r, kib) for r, kib, _ in rows]), 3),
        "files_at_a_quarter": rows[0][2],
        "files_at_the_end": rows[-1][2],
        "milliseconds_a_round_by_quarter": [round(1000 * quarter, 2) for quarter in quarters],
        "time": "of this process's own, so that other work on the machine does not count",
    }


def main() -> int:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["long", "many"], choices=["long", "many"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for what in options.what:
        found = many() if what == "many" else long()
        print(what, found, flush=True)
        sections.update(RECORD, **{what: found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
