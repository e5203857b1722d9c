"""The engine for a real federation: one message a site and exchange, over Flower."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from intarsia.blocks import Address, Block, Fold, Update, coded_bytes
from intarsia.blocks.merge import Holder
from intarsia.core import ClientError, Refused, WireError
from intarsia.data.public import digests
from intarsia.engines import Engine, Failure, Job, Reply
from intarsia.engines.answers import check_answer, expected
from intarsia.engines.engine import accept, failed, merging
from intarsia.experiment import Settings
from intarsia.experiment.settings import portable
from intarsia.flower.message_schema import (
    DONE,
    EXCHANGE,
    NEEDS,
    PROBLEM,
    Answered,
    Done,
    Fault,
    Needs,
    Problem,
    goals_to_json,
    info_to_json,
    read,
)
from intarsia.flower.messages import SiteMessage
from intarsia.flower.server.channel import EVALUATE as EVALUATE_MESSAGE
from intarsia.flower.server.channel import TRAIN, Channel, NoAnswer
from intarsia.flower.server.roster import Roster
from intarsia.flower.server.site_tasks import SiteTasks
from intarsia.methods import EVALUATE
from intarsia.setup import Setup

ANSWERS = (DONE, NEEDS, PROBLEM)


class FlowerEngine(Engine):
    """Carries each exchange to the sites, and closes it at the deadline with those who answered."""

    name = "flower"

    def __init__(
        self,
        setup: Setup,
        settings: Settings,
        channel: Channel,
        roster: Roster,
        deadline: float,
        may_return_to: Callable[[str], Collection[str]],
    ) -> None:
        self.setup = setup
        self.channel = channel
        self.roster = roster
        self.deadline = deadline
        self.may_return_to = may_return_to
        """The states of a client that the server may come back to, by their hashes."""
        self.description = _describe(setup, settings)
        self.setup_id = hashlib.sha256(json.dumps(self.description).encode()).hexdigest()[:32]
        self._told: set[int] = set()
        self._sizes: dict[tuple[str, str], int] = {}

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs: one message a site."""
        assert fold is not None
        self.roster.refresh()
        end = time.monotonic() + self.deadline
        waiting: dict[str, SiteTasks] = {}
        for tasks in self._by_site(jobs, fold, keep_blocks):
            name = self._send(tasks, content, fold, end) if tasks.node else None
            if name is None:
                yield from tasks.fail(f"site '{tasks.site}' is not connected")
            else:
                waiting[name] = tasks
        while waiting and time.monotonic() < end:
            for name, outcome in self.channel.receive(set(waiting)):
                tasks = waiting.pop(name)
                again = self._again(tasks, outcome, content, fold, end)
                if again is None:
                    yield from self._open(tasks, outcome, fold, keep_blocks)
                else:
                    waiting[again] = tasks
            if waiting:
                self.channel.pause()
        self.channel.forget(waiting)
        for tasks in waiting.values():
            yield from tasks.fail(f"site '{tasks.site}' did not answer within {self.deadline:.0f} s")

    def _by_site(self, jobs: Sequence[Job], fold: Fold, keep_blocks: bool) -> list[SiteTasks]:
        by_site: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            by_site[self.roster.site_of(job.task.client).name].append(job)
        return [
            SiteTasks(site, self.roster.node(site) or 0, own, not keep_blocks and self._pays(own, fold))
            for site, own in by_site.items()
        ]

    def _pays(self, jobs: Sequence[Job], fold: Fold) -> bool:
        """Return whether sums (8 bytes a number) are smaller than the single updates, and can be made at the site.

        Under privacy the server itself holds updates to their bound.
        """
        if self.setup.privacy.of_clients:
            return False
        returned = [(job.task, a) for job in jobs for a in job.task.plan.returned]
        addresses = {a for _, a in returned}
        if not addresses or any(task.versions.get(a) != fold.present[a].version for task, a in returned):
            return False
        if self.setup.secure_sums.on:  # masked numbers take as many bytes singly
            return True
        singly = sum(self._travels(task.client, a.block) for task, a in returned)
        return sum(fold.merge.sum_bytes(fold.present[a]) for a in addresses) <= singly

    def _travels(self, client: str, block: str) -> int:
        """Return the bytes of a client's update of a block, in the code that it travels in."""
        key = (self.setup.model_of[client], block)
        if key not in self._sizes:
            initial, merge = self.setup.template(client).initial[block], self.setup.method.merge
            masked = self.setup.secure_sums.on
            self._sizes[key] = merge.sum_bytes(initial) if masked else coded_bytes(self.setup.codec, initial)
        return self._sizes[key]

    def _send(self, tasks: SiteTasks, content: Mapping[str, Block], fold: Fold, end: float) -> str | None:
        tasks.tries += 1
        task = tasks.jobs[0].task
        uses, changes = tasks.uses(), tasks.changes()
        returned = {a for job in tasks.jobs for a in job.task.plan.returned} if tasks.merge else set()
        header: dict[str, Any] = {
            "kind": EXCHANGE,
            "run": task.run,
            "round": task.round,
            "exchange": task.exchange,
            "purpose": task.purpose,
            "setup_id": self.setup_id,
            "jobs": [self._job(job) for job in tasks.jobs],
            "merge": tasks.merge,
            "present": {str(a): fold.present[a].version for a in sorted(returned)},
            "planned": {str(a): fold.planned[a] for a in sorted(returned)},
        }
        if tasks.node not in self._told:
            header["setup"] = self.description
        header["changes"] = {version: base for version, (base, _) in sorted(changes.items())}
        blocks = {v: changes[v][1] if v in changes else content[v] for v in sorted(uses)}
        message = SiteMessage(header, blocks | self._initial(tasks))
        kind = EVALUATE_MESSAGE if task.purpose == EVALUATE else TRAIN
        limit = self._limit(tasks, fold)
        name = self.channel.send(tasks.node, message, kind, end - time.monotonic(), limit)
        if name is not None:
            self._told.add(tasks.node)
            tasks.sent += tasks.down(message, uses)
        return name

    def _initial(self, tasks: SiteTasks) -> dict[str, Block]:
        """Return the blocks to start from that the site asked for, because it could not make them itself."""
        every = {b.version: b for t in self.setup.templates.values() for b in t.initial.values()}
        return {f"initial/{version}": every[version] for version in sorted(tasks.initial) if version in every}

    def _job(self, job: Job) -> dict[str, Any]:
        keep = sorted(self.may_return_to(job.task.client))
        return {"task": job.task.header(), "samples": job.samples, "keep": keep}

    def _limit(self, tasks: SiteTasks, fold: Fold) -> int:
        """Return the most bytes that the answer may have: the blocks asked for, and room for plain values."""
        named = sum(expected(self.setup, job.task).nbytes for job in tasks.jobs)
        room = (1 << 22) + (1 << 16) * len(tasks.jobs) + named
        if tasks.merge:
            addresses = {a for job in tasks.jobs for a in job.task.plan.returned}
            return room + sum(fold.merge.sum_bytes(fold.present[a]) for a in addresses)
        returned = [(job.task.client, a.block) for job in tasks.jobs for a in job.task.plan.returned]
        envelopes = sum(self.setup.template(client).initial[block].envelope for client, block in returned)
        return room + 4 * envelopes + sum(self._travels(client, block) for client, block in returned)

    def _again(
        self,
        tasks: SiteTasks,
        outcome: SiteMessage | NoAnswer,
        content: Mapping[str, Block],
        fold: Fold,
        end: float,
    ) -> str | None:
        """Send once more what the site says that it lacks: after a restart, or when a round is played again."""
        needs = _needs(outcome)
        if needs is None or tasks.tries > 2:
            return None
        named = {v for job in tasks.jobs for v in job.task.versions.values()}
        tasks.extra |= named & set(needs.blocks)
        tasks.initial = set(needs.initial)
        if needs.setup or tasks.initial:
            self._told.discard(tasks.node)
        return self._send(tasks, content, fold, end)

    def _open(
        self, tasks: SiteTasks, outcome: SiteMessage | NoAnswer, fold: Fold, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Check what a site answered, and merge it."""
        if isinstance(outcome, NoAnswer):
            yield from tasks.fail(f"site '{tasks.site}': {outcome.reason}", refused=outcome.refused)
            return
        try:
            answer = read(outcome.header, ANSWERS)
            if isinstance(answer, Problem):
                yield from tasks.fail(f"site '{tasks.site}': {answer.message}", answer.details)
                return
            replies = self._replies(tasks, answer, outcome)
            if tasks.merge:
                replies = _absorb(tasks, outcome, replies, fold)
        except (Refused, WireError) as error:
            yield from tasks.fail(f"site '{tasks.site}': {error}", refused=True)
            return
        except ClientError as error:
            yield from tasks.fail(f"site '{tasks.site}': {error}", error.details)
            return
        envelope = len(outcome.header_text())
        replies[0] = replace(
            replies[0],
            sent=tasks.sent,
            traffic=[*replies[0].traffic, tasks.row("", "", "up", 0, envelope)],
        )
        for job, reply in zip(tasks.jobs, replies, strict=True):
            yield self._accept(tasks, job, reply, fold, keep_blocks)

    def _replies(self, tasks: SiteTasks, answer: object, message: SiteMessage) -> list[Reply]:
        """Return one reply a job, in their order; tensors that are not merged yet are not checked yet."""
        if not isinstance(answer, Done) or answer.site != tasks.site:
            raise Refused(f"it answered as {getattr(answer, 'site', '')!r} with {type(answer).__name__}")
        answers = {own.client: own for own in answer.replies}
        if len(answers) < len(answer.replies) or answers.keys() != {job.task.client for job in tasks.jobs}:
            raise Refused("it answered for other clients than it was asked for")
        if answer.sums and not tasks.merge:
            raise Refused("it sent sums that it was not asked for")
        named = {f"{own.client}/{name}" for own in answer.replies for name in _names(own)}
        odd = message.blocks.keys() - named - ({"sums"} if tasks.merge else set())
        if odd:
            raise Refused(f"it sent a block {min(odd)[:80]!r} that nobody named")
        return [self._reply(tasks, job, answers[job.task.client], message) for job in tasks.jobs]

    def _reply(self, tasks: SiteTasks, job: Job, answer: Answered, message: SiteMessage) -> Reply:
        """Return one client's reply; where updates come singly, one that is none is refused alone."""
        if answer.failure is not None:
            return Reply(job.task.client, failure=_failure(job, answer.failure), sent=())
        try:
            update = _update(job, answer, message)
            if tasks.merge:
                with merging(update):
                    check_answer(self.setup, job.task, update)
                if update.blocks:
                    raise Refused("it sent single updates beside their sums")
            rows = tasks.up(update)
            return Reply(job.task.client, update, {**answer.state}, rows, answer.seconds, sent=())
        except (Refused, WireError) as error:
            if tasks.merge:
                raise
            return Reply(job.task.client, failure=tasks.refusal(job.task.client, error), sent=())

    def _accept(self, tasks: SiteTasks, job: Job, reply: Reply, fold: Fold, keep_blocks: bool) -> Reply:
        if reply.update is None or tasks.merge:
            return reply
        try:
            full = accept(self.setup, fold, job, reply.update)
        except Refused as error:
            return replace(reply, update=None, state={}, failure=tasks.refusal(reply.client, error))
        except ClientError as error:
            return replace(reply, update=None, state={}, failure=failed(reply.client, error).failure)
        return replace(reply, update=full if keep_blocks else full.without_blocks())


def _describe(setup: Setup, settings: Settings) -> dict[str, Any]:
    """Return what a site must know to build the same models and method: one nameless client of every model.

    Paths of the server's machine are none of it.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for info in setup.population.infos:
        key = setup.model_of[info.name]
        if key not in kinds:
            nameless = replace(info, name=f"#{len(kinds)}", samples={"train": 1, "test": 1})
            kinds[key] = info_to_json(nameless)
    return {
        "settings": portable(settings).to_toml(),
        "kinds": list(kinds.values()),
        "goals": goals_to_json(setup.population.goals),
        "public": digests(setup.population.public) if setup.population.public is not None else [],
        "initial": {k: {n: b.version for n, b in t.initial.items()} for k, t in setup.templates.items()},
    }


def _needs(outcome: SiteMessage | NoAnswer) -> Needs | None:
    """Return what a site says that it lacks, if it says that."""
    try:
        answer = None if isinstance(outcome, NoAnswer) else read(outcome.header, ANSWERS)
    except WireError:
        return None
    return answer if isinstance(answer, Needs) else None


def _names(answer: Answered) -> list[str]:
    """Return the names of the blocks that a client's update says to hold."""
    update = answer.update or {}
    lists = (update.get("records"), update.get("tensors"))
    return [n for names in lists if isinstance(names, list) for n in names if isinstance(n, str)]


def _update(job: Job, answer: Answered, message: SiteMessage) -> Update:
    """Return the update that a client's answer holds."""
    blocks = [message.blocks.get(f"{job.task.client}/{name}") for name in _names(answer)]
    return Update.from_header(answer.update or {}, [block for block in blocks if block is not None])


def _failure(job: Job, fault: Fault) -> Failure:
    """Return what went wrong at a client, by its site; whose failure it is, the server knows."""
    return Failure(**{**fault.model_dump(), "client": job.task.client})


def _absorb(tasks: SiteTasks, message: SiteMessage, replies: list[Reply], fold: Fold) -> list[Reply]:
    """Check the sums that a site made of its clients' updates, and add them."""
    holders: dict[Address, list[Holder]] = defaultdict(list)
    for job, reply in zip(tasks.jobs, replies, strict=True):
        if reply.update is not None:
            for address in job.task.plan.returned:
                holders[address].append((job.samples, reply.update.values))
    tensors = message.blocks.get("sums", Block({}))
    fold.check_sums(message.header["sums"], tensors, holders)
    fold.absorb(message.header["sums"], tensors)
    rows = []
    for address in sorted(holders):
        own = [t for n, t in tensors.tensors.items() if n.startswith(f"{address}/")]
        size = sum(t.numel() * t.element_size() for t in own)
        rows.append(tasks.row(address.block, address.group, "up", size, 0, tasks.site))
    return [replace(replies[0], traffic=[*replies[0].traffic, *rows]), *replies[1:]]
