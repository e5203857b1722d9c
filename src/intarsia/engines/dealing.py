"""One exchange as an engine deals it to its workers: who has which jobs, and what becomes of those of one that dies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.blocks import Block, Fold
from intarsia.core import IntarsiaError
from intarsia.engines.engine import Failure, Job, Reply
from intarsia.engines.replies import as_reply
from intarsia.setup import Setup

STRIKES = 2
"""How many workers may end while they run a client, until it is left out of the exchange."""
PATIENCE = 20
"""How many workers may end one after the other, without an answer between, until the run is stopped."""
DIED = "died"
"""The kind of event that a worker's death is."""


class WorkerDied(IntarsiaError):  # noqa: N818
    """Worker processes that end by themselves again and again: killed, or out of memory."""


@dataclass(eq=False)
class Lane:
    """What an engine knows of one worker."""

    has: set[str] = field(default_factory=set)
    """Versions that the worker keeps."""
    pending: deque[list[Job]] = field(default_factory=deque)
    """What it was given and has not answered, in this order."""
    done: list[Job] = field(default_factory=list)
    """What it has answered, and keeps the sums of."""
    begun: bool = False
    """Whether it takes part in the present exchange."""
    ended: bool = False
    """Whether it knows that nothing more will come in this exchange."""

    def given(self, group: list[Job], blocks: Collection[str]) -> None:
        """Note what the worker was given."""
        self.pending.append(list(group))
        self.has.update(blocks)

    def answered(self) -> Job:
        """Return the job that the next reply is to."""
        group = self.pending[0]
        job = group.pop(0)
        self.done.append(job)
        if not group:
            self.pending.popleft()
        return job

    def finish(self) -> None:
        """Note that the sums of all that was answered are here."""
        self.done, self.begun = [], False

    @property
    def running(self) -> list[Job]:
        """What it is at."""
        return self.pending[0] if self.pending else []


def dealt(setup: Setup, jobs: Sequence[Job], share: int) -> deque[list[Job]]:
    """Put together what trains side by side, like lengths with like, and no more than a worker's share of clients."""

    def cost(job: Job) -> int:
        return cost_of(setup, job)

    groups: list[list[Job]] = []
    latest: dict[Hashable, list[Job]] = {}
    for job in sorted(jobs, key=cost, reverse=True):
        key, most = setup.stack(job.task)
        if key not in latest or len(latest[key]) >= min(most, share):
            latest[key] = []
            groups.append(latest[key])
        latest[key].append(job)
    return deque(sorted(groups, key=lambda group: sum(map(cost, group)), reverse=True))


def cost_of(setup: Setup, job: Job) -> int:
    """Return about how long a job takes, beside others."""
    initial = setup.template(job.task.client).initial
    samples = sum(setup.population.clients[job.task.client].info.samples.values())
    return samples * sum(block.parameters for block in initial.values())


@dataclass
class Dealing:
    """What one exchange asks of the workers; a client's answer counts once, whoever gives it."""

    setup: Setup
    queue: deque[list[Job]]
    content: Mapping[str, Block]
    fold: Fold | None
    keep_blocks: bool
    strikes: Counter[str] = field(default_factory=Counter)
    """How many workers ended while they ran a client."""
    accepted: dict[str, bool] = field(default_factory=dict)
    """Who was answered for, and whether the update was accepted."""
    deaths: int = 0
    """How many workers ended since the last answer."""

    def message(self, lane: Lane, group: Sequence[Job]) -> tuple[dict[str, Any], list[str]]:
        """Return what a worker is told of jobs, and the versions that it lacks."""
        fold = self.fold
        returned = {} if fold is None else {str(a): a for job in group for a in job.task.plan.returned}
        present = {text: fold.present[a].version for text, a in returned.items() if fold}
        planned = {text: fold.planned[a] for text, a in returned.items() if fold}
        versions = {version for job in group for version in job.task.versions.values()}
        missing = sorted(versions.union(present.values()) - lane.has)
        jobs = [{"task": job.task.header(), "state": job.state, "samples": job.samples} for job in group]
        header = {"kind": "jobs", "jobs": jobs, "present": present, "planned": planned, "versions": missing}
        return header, missing

    def begin(self, lane: Lane) -> dict[str, Any]:
        """Return what a worker is told before its first jobs of an exchange; nothing later."""
        if lane.begun:
            return {}
        lane.begun = True
        lane.has &= self.content.keys()
        return {
            "begin": {"keep": sorted(lane.has), "blocks": self.keep_blocks, "merge": self.fold is not None}
        }

    def replies(self, lane: Lane, header: Mapping[str, Any], records: Sequence[Block]) -> Iterator[Reply]:
        """Yield what a worker answered; not again what another had answered before it died."""
        left = list(records)
        self.deaths = 0
        for told in header["replies"]:
            own, left = left[: told["records"]], left[told["records"] :]
            reply = as_reply(told, own, lane.answered().task)
            if self._is_news(reply):
                yield reply

    def _is_news(self, reply: Reply) -> bool:
        accepted = reply.failure is None
        before, self.accepted[reply.client] = self.accepted.get(reply.client), accepted
        return before is not accepted

    def died(self, lane: Lane, what: str) -> tuple[Failure, list[Reply]]:
        """Let others do what a worker had when it died; return the event, and replies of clients that are left out.

        Sums that had not come are lost: clients that it had answered for are done again. The clients that it was
        at are done alone, so that the one that ends workers is known.
        """
        running, waiting = lane.running, list(lane.pending)[1:]
        self._count(what, running)
        left_out = [self._left_out(job, what) for job in running if self._strike(job)]
        again = [job for job in lane.done if self._lost(job)]
        struck = [job for job in [*running, *again] if 0 < self.strikes[job.task.client] < STRIKES]
        others = dealt(self.setup, [job for job in again if not self.strikes[job.task.client]], len(again))
        self.queue.extendleft(reversed([*([job] for job in struck), *others, *waiting]))
        event = Failure(DIED, "", "worker", "", f"{_names(what, running)}; its clients are done by others")
        return event, [reply for reply in left_out if self._is_news(reply)]

    def _count(self, what: str, running: Sequence[Job]) -> None:
        self.deaths += 1
        if self.deaths > PATIENCE:
            last = _names(what, running)
            raise WorkerDied(f"{self.deaths} workers ended one after the other; the last: {last}")

    def _strike(self, job: Job) -> bool:
        """Count a death of a worker that ran a client; return whether it was one too many."""
        self.strikes[job.task.client] += 1
        return self.strikes[job.task.client] >= STRIKES

    def _left_out(self, job: Job, what: str) -> Reply:
        client = job.task.client
        message = (
            f"client '{client}' is left out: {STRIKES} workers ended while they ran it, the last: {what}"
        )
        return Reply(client, failure=Failure("failed", client, "worker", "", message))

    def _lost(self, job: Job) -> bool:
        """Return whether what a client answered is lost with the sums that it was added to."""
        merged = self.fold is not None and not self.fold.only_checks and job.task.plan.returned
        return bool(merged) and self.accepted[job.task.client]


def _names(what: str, running: Sequence[Job]) -> str:
    whose = " and ".join(f"'{job.task.client}'" for job in running)
    return f"{what}{f', at client {whose}' if whose else ''}"
