"""What a run has in every worker of a cluster: an actor that builds the setup once and does jobs as they come."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from intarsia.blocks import Block, pack, unpack
from intarsia.clients import ClientRuntime, resolve_device
from intarsia.core import IntarsiaError, one_thread
from intarsia.engines.cluster.lines import Listening
from intarsia.engines.cluster.members import ClusterActor
from intarsia.engines.cluster.own_blocks import CarriedBlocks
from intarsia.engines.local.helpers import answer_of
from intarsia.engines.replies import WorkerSide
from intarsia.setup import Setup
from intarsia.training import instructions, tune_allocator

About = dict[str, Any]
"""What a worker says of the setup that it built."""
Answered = tuple[bytes, list[bytes]]
"""A header as a frame, and blocks beside it: put into one they would be copied once more at either side."""


_TURN = threading.Lock()


@contextmanager
def _alone() -> Iterator[None]:
    """Compute with one thread, while no other run does in this process."""
    with _TURN, one_thread():
        yield


class ClusterWorker(ClusterActor, Listening):
    """Does what the server of one run asks of a worker, one call after the other, with one thread."""

    def __init__(self) -> None:
        self._side: WorkerSide | None = None
        self._store = CarriedBlocks()
        self._device = "cpu"
        self._work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None

    def build(self, recipe: bytes, device: str) -> About:
        """Build the setup; return what it is made of."""
        tune_allocator()
        with _alone():
            setup: Setup = pickle.loads(recipe)()  # noqa: S301 - dask itself pickles: trusted clusters alone
            resolve_device(device)
            self._device = device
            self._put(setup)
        initial = {
            key: {name: block.version for name, block in template.initial.items()}
            for key, template in setup.templates.items()
        }
        bf16 = bool(instructions(resolve_device(device)))
        return {"split": setup.population.split_hash, "initial": initial, "bf16": bf16}

    def start_from(self, message: bytes) -> None:
        """Let models start from these blocks, as the server's do."""
        header, records = unpack(message)
        blocks = dict(zip(header["versions"], map(Block.from_bytes, records), strict=True))
        initial = {
            key: {name: blocks[version] for name, version in own.items()}
            for key, own in header["initial"].items()
        }
        self._put(self._built.setup.starting_from(initial))

    def _put(self, setup: Setup) -> None:
        self._side = WorkerSide(setup, ClientRuntime(setup, self._store, self._device))

    @property
    def _built(self) -> WorkerSide:
        if self._side is None:
            raise IntarsiaError("this worker has not built the setup of the run")
        return self._side

    def answer(self, frame: bytes, records: Sequence[bytes]) -> Answered:
        """Do jobs; return the replies, what is new of clients' own blocks and, if it is asked for, the sums."""
        header, _ = unpack(frame)
        blocks = [Block.from_bytes(record) for record in records]
        with _alone():
            return self._answer(header, blocks)

    def _answer(self, header: Mapping[str, Any], blocks: list[Block]) -> Answered:
        self._work = None  # the server's own work is done, if clients are asked again
        side, jobs = self._built, [job for part in header["parts"] for job in part["jobs"]]
        self._store.begin([job["task"]["client"] for job in jobs], header["forget"])
        if "begin" in header:
            side.begin(header["begin"])
        own = len(blocks) - len(header["own"])
        self._store.bring(dict(zip(header["own"], blocks[own:], strict=True)))
        told, made, left = [], [], blocks[:own]
        for part in header["parts"]:
            count = len(part["versions"])
            side.take(part["versions"], left[:count])
            left = left[count:]
            for reply, more in side.jobs(part):
                told.append(reply)
                made += more
        made += [block for reply, job in zip(told, jobs, strict=True) for block in self._settled(reply, job)]
        answer: dict[str, Any] = {"replies": told}
        if header["end"]:
            sums, tensors = side.sums()
            answer, made = {**answer, **sums}, [*made, *tensors]
        return pack(answer), [block.to_bytes() for block in made]

    def _settled(self, reply: dict[str, Any], job: Mapping[str, Any]) -> list[Block]:
        """Keep the client's own blocks as its state is now; say which are new, and return them."""
        after = job["state"] if reply["failure"] else reply["state"]
        new, kept = self._store.settle(job["task"]["client"], job["state"], after)
        reply |= {"own": list(new), "kept": kept}
        return list(new.values())

    def do(self, work: bytes, items: Sequence[int]) -> list[bytes]:
        """Do pieces of the server's own work: call a function with some items; it comes once (empty: it is here)."""
        if work:
            self._work = pickle.loads(work)  # noqa: S301 - as above
        assert self._work is not None
        function, all_items = self._work
        with _alone():
            return [answer_of(function, all_items[number]) for number in items]
