"""The engine for a cluster: workers on any machines that a scheduler of dask.distributed knows, one thread each."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from intarsia.blocks import Block, BlockStore, Fold, pack, unpack
from intarsia.core import IntarsiaError, SettingsError
from intarsia.engines.cluster.members import (
    PATIENCE,
    Came,
    Cluster,
    Gone,
    Happening,
    Joined,
    Member,
    Tls,
    Unfit,
    the_library,
    warn_of_processor,
)
from intarsia.engines.cluster.worker import ClusterWorker
from intarsia.engines.dealing import DIED, STRIKES, Dealing, WorkerDied, dealt
from intarsia.engines.engine import Engine, Failure, Job, Reply
from intarsia.engines.local.helpers import take_answer
from intarsia.setup import Setup
from intarsia.training import instructions

T = TypeVar("T")
R = TypeVar("R")

RETURN = 300.0
"""Seconds to wait for a worker when the last one has gone in the midst of a run."""
LISTEN = 5.0
"""Seconds after which a silent connection is looked at."""
PORTIONS = 2
"""In how many calls a worker would be given its share, were all alike: the more, the evener; the fewer, the quicker."""


@dataclass
class _Work(Dealing):
    homes: Mapping[str, str] = field(default_factory=dict)
    """Which worker keeps a client's own blocks, by its address."""

    def home(self, group: Sequence[Job]) -> str:
        """Return where jobs are best done (empty: anywhere)."""
        return self.homes.get(group[0].task.client, "")

    def apart(self, groups: list[list[Job]]) -> list[list[Job]]:
        """Return the first of the groups that can be given at once: a client that a worker died of is given alone."""
        struck = [n for n, group in enumerate(groups) if self.strikes[group[0].task.client]]
        return groups[: max(1, struck[0])] if struck else groups


@dataclass
class _Pieces:
    """The server's own work: a function and items, as bytes; what is left, and what came of them."""

    number: int
    pickled: bytes
    waiting: deque[int]
    given: dict[Member, list[int]] = field(default_factory=dict)
    strikes: Counter[int] = field(default_factory=Counter)
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)


class DaskEngine(Engine):
    """Workers build the setup once and keep clients' own blocks; the server has all that a checkpoint needs."""

    name = "dask"

    def __init__(
        self,
        setup: Setup,
        store: BlockStore,
        recipe: Callable[[], Setup],
        scheduler: str,
        tls: Tls | None = None,
        device: str = "cpu",
        workers: int = 0,
    ) -> None:
        if setup.secure_sums.on:
            raise SettingsError(
                "secure_sums: on a cluster the workers, and so the server's owner, see single updates: use engine "
                "'local' to try them out, and Flower where they protect somebody"
            )
        the_library()
        from intarsia.engines.cluster.pickled import pickled

        self.setup = setup
        self._store = store
        self._most = workers or math.inf
        self._members: list[Member] = []
        self._spare: list[Member] = []
        self._deaths: list[Failure] = []
        self._pieces = 0
        self._recipe = (pickled(recipe), device)
        self._cluster = Cluster(scheduler, tls, ClusterWorker, self._prepare)
        try:
            self._gather()
        except BaseException:
            self.close()
            raise

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs, the longest first, clients' own blocks where they are kept, if that worker is free."""
        while (happening := self._cluster.next(0)) is not None:
            self._idle(happening)
        work = self._work(jobs, content, fold, keep_blocks)
        self._deal(work)
        while work.queue or any(member.busy for member in self._members):
            happening = self._await()
            if isinstance(happening, Came):
                yield from self._take(happening, work)
            elif member := self._gone(happening):
                self._check_scheduler()
                event, left_out = work.died(member, f"worker {member.address} has gone")
                self._deaths.append(event)
                yield from left_out
            self._deal(work)

    def happened(self) -> list[Failure]:
        """Return which workers have gone, or could not take part, since this was last asked."""
        deaths, self._deaths = self._deaths, []
        return deaths

    def close(self) -> None:
        """Let go of what the run has in the cluster; the cluster itself stays."""
        self._cluster.close()

    def _gather(self) -> None:
        """Wait for the workers that there are to build the setup; one that does not fit stops the run."""
        waiting, end = set(self._cluster.expected), time.monotonic() + PATIENCE
        while waiting or not self._members:
            happening = self._cluster.next(min(LISTEN, PATIENCE))
            if isinstance(happening, Unfit):
                raise SettingsError(f"engine 'dask': {happening.reason}")
            if happening is not None:
                self._idle(happening)
                waiting -= {_address(happening)}
            elif not self._cluster.connected or (not waiting and time.monotonic() > end):
                raise SettingsError(
                    f"engine.scheduler: {self._cluster.scheduler} has no worker: start some there, one thread each "
                    f"(dask worker {self._cluster.scheduler} --nworkers 4 --nthreads 1)"
                )

    async def _prepare(self, actor: Any) -> None:
        """Let a worker build the setup; what came out must be what is here."""
        made = await actor.build(*self._recipe)
        if made["split"] != self.setup.population.split_hash:
            raise SettingsError(
                "its data are not those that are here: give every machine the same files (data_folder)"
            )
        asked = (self.setup.training.precision, self.setup.scoring)
        if "bf16" in asked and not made["bf16"] and instructions(torch.device("cpu")):
            raise SettingsError(
                "it has no instructions for bf16, this machine has: leave it out, or ask for fp32 (training.precision)"
            )
        initial = {key: dict(template.initial) for key, template in self.setup.templates.items()}
        versions = {key: {n: b.version for n, b in blocks.items()} for key, blocks in initial.items()}
        if made["initial"] != versions:
            blocks = {b.version: b for own in initial.values() for b in own.values()}
            header = {"initial": versions, "versions": list(blocks)}
            await actor.start_from(pack(header, [block.to_bytes() for block in blocks.values()]))

    def _await(self) -> Happening:
        """Wait for what happens next; if nobody is left, not for ever."""
        end = time.monotonic() + RETURN
        while (happening := self._cluster.next(LISTEN)) is None:
            if not self._cluster.connected:
                self._check_scheduler()
            if not self._members and time.monotonic() > end:
                raise WorkerDied(
                    f"the cluster at {self._cluster.scheduler} has no worker for {RETURN:.0f} s: start some, and go on"
                )
        return happening

    def _check_scheduler(self) -> None:
        """Stop if the scheduler has gone: workers end then, which is the fault of no client that they were at."""
        if not self._cluster.alive():
            raise WorkerDied(
                f"the cluster at {self._cluster.scheduler} has lost its scheduler, and workers end with it: start "
                "both, and go on"
            )

    def _idle(self, happening: Happening) -> None:
        """Take note of who comes and goes while nothing is asked."""
        member = self._gone(happening)
        if member is not None:
            message = f"worker {member.address} has gone while it had nothing to do"
            self._deaths.append(Failure(DIED, "", "worker", "", message))

    def _gone(self, happening: Happening) -> Member | None:
        """Take note of who comes and goes; return who was in the run and has gone."""
        if isinstance(happening, Joined):
            warn_of_processor(happening.member)
            (self._members if len(self._members) < self._most else self._spare).append(happening.member)
        if isinstance(happening, Unfit):
            self._deaths.append(Failure(DIED, "", "worker", "", happening.reason))
        if not isinstance(happening, Gone):
            return None
        self._spare = [member for member in self._spare if member.address != happening.address]
        here = [m for m in self._members if m.address == happening.address and happening.member in (None, m)]
        for member in here:
            self._members.remove(member)
            self._members += [self._spare.pop()] if self._spare else []
        return here[0] if here else None

    def _work(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> _Work:
        """Put together what goes together: of clients whose blocks are kept at one worker, and of all others."""
        for member in self._members:
            member.begun = member.ended = False
        homes = {client: m.address for m in self._members for client in m.kept.clients}
        share = math.ceil(len(jobs) / max(1, len(self._members)))
        places: dict[str, list[Job]] = {}
        for job in jobs:
            places.setdefault(homes.get(job.task.client, ""), []).append(job)
        groups = [group for own in places.values() for group in dealt(self.setup, own, share)]
        return _Work(self.setup, deque(groups), content, fold, keep_blocks, homes=homes)

    def _deal(self, work: _Work) -> None:
        """Give jobs to every worker that has none; ask those who end with an exchange for their sums."""
        free, able = [member for member in self._members if not member.busy], self._able()
        # All portions first: who gets the last of them is then told so at once, and need not be asked for its sums.
        portions = [(member, self._portion(member, work, able) if member in able else []) for member in free]
        for member, groups in portions:
            if groups or (member.begun and not member.ended and not work.queue):
                self._give(member, groups, work)

    def _able(self) -> list[Member]:
        """Return whom to give work: nobody who is paused for its memory, if there are others."""
        return [m for m in self._members if not self._cluster.paused(m.address)] or self._members

    def _portion(self, member: Member, work: _Work, able: Sequence[Member]) -> list[list[Job]]:
        """Take from what waits: what belongs to this worker, else what belongs nowhere, else another's last."""
        there = {other.address for other in able}
        mine = [group for group in work.queue if work.home(group) == member.address]
        free = [group for group in work.queue if work.home(group) not in there]
        count = math.ceil(len(work.queue) / (PORTIONS * len(self._members)))
        chosen = work.apart((mine or free or list(work.queue)[-1:])[:count])
        for group in chosen:
            work.queue.remove(group)
        return chosen

    def _give(self, member: Member, groups: Sequence[list[Job]], work: _Work) -> None:
        """Send jobs with the blocks that the worker lacks; without jobs, only ask for the sums."""
        begin, parts, blocks = work.begin(member), [], []
        jobs = [job for group in groups for job in group]
        for group in groups:
            message, missing = work.message(member, group)
            member.has.update(missing)
            parts.append(message)
            blocks += [work.content[version] for version in missing]
        own = {v: None for job in jobs for v in member.kept.missing(job.task.client, job.state)}
        if jobs:
            member.given(jobs, ())
        member.ended = not work.queue
        gone = member.kept.crowded_out({job.task.client for job in jobs})
        header = {**begin, "parts": parts, "own": list(own), "forget": gone, "end": member.ended}
        records = [block.to_bytes() for block in (*blocks, *map(self._store.get, own))]
        self._cluster.call(member, "answer", pack(header), records)

    def _take(self, came: Came, work: _Work) -> Iterator[Reply]:
        """Take what a worker answered: replies, clients' own blocks, sums."""
        member = came.member
        if member not in self._members:
            return
        member.busy = False
        header, records = _read(came)
        blocks = sum(told["records"] for told in header["replies"])
        self._keep_own(member, header["replies"], records[blocks:])
        if "sums" in header and work.fold is not None:
            work.fold.absorb(header["sums"], Block.from_bytes(records[-1]))
        yield from work.replies(member, header, [Block.from_bytes(record) for record in records[:blocks]])
        if "sums" in header:
            member.finish()

    def _keep_own(
        self, member: Member, replies: Sequence[Mapping[str, Any]], records: Sequence[bytes]
    ) -> None:
        """Put clients' new blocks to the run's; note what the worker keeps."""
        left = iter(records)
        for told, job in zip(replies, list(member.running), strict=True):
            for version in told["own"]:
                self._store.keep(version, next(left))
            after = job.state if told["failure"] else told["state"]
            member.kept.note(job.task.client, after, told["kept"])

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do pieces of the server's work at the workers, which have nothing to do now."""
        from intarsia.engines.cluster.pickled import pickled

        if len(items) < 2:
            return super().each(function, items)
        self._pieces += 1
        work = _Pieces(self._pieces, pickled((function, list(items))), deque(range(len(items))))
        while len(work.results) + len(work.errors) < len(items):
            if work.errors and not any(member.busy for member in self._members):
                break
            self._deal_pieces(work)
            self._hear(self._await(), work)
        if work.errors:
            raise work.errors[min(work.errors)]
        return [work.results[number] for number in range(len(items))]

    def _deal_pieces(self, work: _Pieces) -> None:
        if work.errors:
            work.waiting.clear()
        for member in self._able():
            count = math.ceil(len(work.waiting) / (PORTIONS * len(self._members)))
            if member.busy or not count:
                continue
            count = 1 if work.strikes else count  # whoever ends workers is to be known
            work.given[member] = [work.waiting.popleft() for _ in range(count)]
            sent = b"" if member.loaded == work.number else work.pickled
            member.loaded = work.number
            self._cluster.call(member, "do", sent, work.given[member])

    def _hear(self, happening: Happening, work: _Pieces) -> None:
        """Take results, or do elsewhere what a worker was at that has gone."""
        if isinstance(happening, Came):
            if happening.member in self._members:
                happening.member.busy = False
                answers = _answer_of(happening)
                for number, answer in zip(work.given.pop(happening.member), answers, strict=True):
                    take_answer(answer, number, work.results, work.errors)
            return
        member = self._gone(happening)
        if member is None:
            return
        self._check_scheduler()
        lost = work.given.pop(member, [])
        work.strikes.update(lost)
        message = f"worker {member.address} has gone"
        if any(work.strikes[number] >= STRIKES for number in lost):
            raise WorkerDied(f"{message}, as did the one before at the same piece of the server's work")
        self._deaths.append(Failure(DIED, "", "server", "", f"{message}; others do its work"))
        work.waiting.extendleft(reversed(lost))


def _address(happening: Happening) -> str:
    """Return the worker that something happened to."""
    if isinstance(happening, Joined | Came):
        return happening.member.address
    return happening.address


def _answer_of(came: Came) -> Any:
    """Return what a worker answered; an error that is not a client's stops the run."""
    if came.error is not None:
        raise IntarsiaError(
            f"worker {came.member.address}: {type(came.error).__name__}: {came.error}"
        ) from came.error
    return came.answer


def _read(came: Came) -> tuple[dict[str, Any], list[bytes]]:
    frame, records = _answer_of(came)
    return unpack(bytes(frame))[0], list(map(bytes, records))
