"""The engine for a real federation: one message a site and exchange, over Flower."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.blocks import Address, Block, Fold, Traffic, Update, coded_bytes
from intarsia.blocks.merge import Holder
from intarsia.core import ClientError, Refused, WireError
from intarsia.data.public import digests
from intarsia.engines import Engine, Failure, Job, Reply
from intarsia.engines.answers import check_answer, expected
from intarsia.engines.engine import accept, failed, merging
from intarsia.experiment import Settings
from intarsia.flower.parcel import Parcel
from intarsia.flower.post import EVALUATE as EVALUATE_MESSAGE
from intarsia.flower.post import TRAIN, Post, Trouble
from intarsia.flower.roster import Roster
from intarsia.flower.schema import DONE, EXCHANGE, NEEDS, PROBLEM, Answered, Done, Fault, Needs, Problem, read
from intarsia.flower.site import goals_to_json, info_to_json
from intarsia.methods import EVALUATE
from intarsia.setup import Setup

_Uses = dict[str, set[tuple[str, Address]]]
"""Which clients need a version, and at which address."""

ANSWERS = (DONE, NEEDS, PROBLEM)


@dataclass
class _Letter:
    """What goes to one site in one exchange, and what that costs."""

    site: str
    node: int
    jobs: Sequence[Job]
    merge: bool
    extra: set[str] = field(default_factory=set)
    """Versions that the site asked for although the server thought them held."""
    initial: set[str] = field(default_factory=set)
    """Blocks to start from that the site asked for."""
    tries: int = 0
    sent: list[Traffic] = field(default_factory=list)

    @property
    def who(self) -> str:
        """Whom the message is counted under: its client, or, if there are several, the site."""
        return self.jobs[0].task.client if len(self.jobs) == 1 else self.site

    def row(self, block: str, group: str, way: str, size: int, envelope: int, who: str = "") -> Traffic:
        """Return a line of traffic."""
        task = self.jobs[0].task
        head = (task.round, task.exchange, task.purpose, who or self.who)
        return Traffic(*head, block, group, way, size, envelope)  # type: ignore[arg-type]


class FlowerEngine(Engine):
    """Carries each exchange to the sites, and closes it at the deadline with those who answered."""

    name = "flower"

    def __init__(
        self,
        setup: Setup,
        settings: Settings,
        post: Post,
        roster: Roster,
        deadline: float,
        may_return_to: Callable[[str], Collection[str]],
    ) -> None:
        self.setup = setup
        self.post = post
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
        waiting: dict[str, _Letter] = {}
        for letter in self._letters(jobs, fold, keep_blocks):
            name = self._send(letter, content, fold, end) if letter.node else None
            if name is None:
                yield from _fail(letter, f"site '{letter.site}' is not connected")
            else:
                waiting[name] = letter
        while waiting and time.monotonic() < end:
            for name, outcome in self.post.receive(set(waiting)):
                letter = waiting.pop(name)
                again = self._again(letter, outcome, content, fold, end)
                if again is None:
                    yield from self._open(letter, outcome, fold, keep_blocks)
                else:
                    waiting[again] = letter
            if waiting:
                self.post.pause()
        for letter in waiting.values():
            yield from _fail(letter, f"site '{letter.site}' did not answer within {self.deadline:.0f} s")

    def _letters(self, jobs: Sequence[Job], fold: Fold, keep_blocks: bool) -> list[_Letter]:
        by_site: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            by_site[self.roster.site_of(job.task.client).name].append(job)
        return [
            _Letter(site, self.roster.node(site) or 0, own, not keep_blocks and self._pays(own, fold))
            for site, own in by_site.items()
        ]

    def _pays(self, jobs: Sequence[Job], fold: Fold) -> bool:
        """Return whether sums (8 bytes a number) are smaller than the single updates, and can be made at the site."""
        returned = [(job.task, a) for job in jobs for a in job.task.plan.returned]
        addresses = {a for _, a in returned}
        if not addresses or any(task.versions.get(a) != fold.present[a].version for task, a in returned):
            return False
        singly = sum(self._travels(task.client, a.block) for task, a in returned)
        return sum(fold.merge.sum_bytes(fold.present[a]) for a in addresses) <= singly

    def _travels(self, client: str, block: str) -> int:
        """Return the bytes of a client's update of a block, in the code that it travels in."""
        key = (self.setup.model_of[client], block)
        if key not in self._sizes:
            self._sizes[key] = coded_bytes(self.setup.codec, self.setup.template(client).initial[block])
        return self._sizes[key]

    def _send(self, letter: _Letter, content: Mapping[str, Block], fold: Fold, end: float) -> str | None:
        letter.tries += 1
        task = letter.jobs[0].task
        uses, changes = self._uses(letter), _changes(letter)
        returned = {a for job in letter.jobs for a in job.task.plan.returned} if letter.merge else set()
        header: dict[str, Any] = {
            "kind": EXCHANGE,
            "run": task.run,
            "round": task.round,
            "exchange": task.exchange,
            "purpose": task.purpose,
            "setup_id": self.setup_id,
            "jobs": [self._job(job) for job in letter.jobs],
            "merge": letter.merge,
            "present": {str(a): fold.present[a].version for a in sorted(returned)},
            "planned": {str(a): fold.planned[a] for a in sorted(returned)},
        }
        if letter.node not in self._told:
            header["setup"] = self.description
        header["changes"] = {version: base for version, (base, _) in sorted(changes.items())}
        blocks = {v: changes[v][1] if v in changes else content[v] for v in sorted(uses)}
        parcel = Parcel(header, blocks | self._initial(letter))
        kind = EVALUATE_MESSAGE if task.purpose == EVALUATE else TRAIN
        limit = self._limit(letter, fold)
        name = self.post.send(letter.node, parcel, kind, end - time.monotonic(), limit)
        if name is not None:
            self._told.add(letter.node)
            letter.sent += _down(letter, parcel, uses)
        return name

    def _uses(self, letter: _Letter) -> _Uses:
        """Return the versions that must travel, and who uses them."""
        uses: _Uses = defaultdict(set)
        for job in letter.jobs:
            for address, version in job.task.versions.items():
                if address in job.task.blocks or version in letter.extra:
                    uses[version].add((job.task.client, address))
        return uses

    def _initial(self, letter: _Letter) -> dict[str, Block]:
        """Return the blocks to start from that the site asked for, because it could not make them itself."""
        every = {b.version: b for t in self.setup.templates.values() for b in t.initial.values()}
        return {
            f"initial/{version}": every[version] for version in sorted(letter.initial) if version in every
        }

    def _job(self, job: Job) -> dict[str, Any]:
        keep = sorted(self.may_return_to(job.task.client))
        return {"task": job.task.header(), "samples": job.samples, "keep": keep}

    def _limit(self, letter: _Letter, fold: Fold) -> int:
        """Return the most bytes that the answer may have: the blocks asked for, and room for plain values."""
        named = sum(expected(self.setup, job.task).nbytes for job in letter.jobs)
        room = (1 << 22) + (1 << 16) * len(letter.jobs) + named
        if letter.merge:
            addresses = {a for job in letter.jobs for a in job.task.plan.returned}
            return room + sum(fold.merge.sum_bytes(fold.present[a]) for a in addresses)
        returned = [(job.task.client, a.block) for job in letter.jobs for a in job.task.plan.returned]
        envelopes = sum(self.setup.template(client).initial[block].envelope for client, block in returned)
        return room + 4 * envelopes + sum(self._travels(client, block) for client, block in returned)

    def _again(
        self,
        letter: _Letter,
        outcome: Parcel | Trouble,
        content: Mapping[str, Block],
        fold: Fold,
        end: float,
    ) -> str | None:
        """Send once more what the site says that it lacks: after a restart, or when a round is played again."""
        needs = _needs(outcome)
        if needs is None or letter.tries > 2:
            return None
        named = {v for job in letter.jobs for v in job.task.versions.values()}
        letter.extra |= named & set(needs.blocks)
        letter.initial = set(needs.initial)
        if needs.setup or letter.initial:
            self._told.discard(letter.node)
        return self._send(letter, content, fold, end)

    def _open(
        self, letter: _Letter, outcome: Parcel | Trouble, fold: Fold, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Check what a site answered, and merge it."""
        if isinstance(outcome, Trouble):
            yield from _fail(letter, f"site '{letter.site}': {outcome.reason}", refused=outcome.refused)
            return
        try:
            answer = read(outcome.header, ANSWERS)
            if isinstance(answer, Problem):
                yield from _fail(letter, f"site '{letter.site}': {answer.message}", answer.details)
                return
            replies = self._replies(letter, answer, outcome)
            if letter.merge:
                replies = _absorb(letter, outcome, replies, fold)
        except (Refused, WireError) as error:
            yield from _fail(letter, f"site '{letter.site}': {error}", refused=True)
            return
        except ClientError as error:
            yield from _fail(letter, f"site '{letter.site}': {error}", error.details)
            return
        envelope = len(outcome.header_text())
        replies[0] = replace(
            replies[0],
            sent=letter.sent,
            traffic=[*replies[0].traffic, letter.row("", "", "up", 0, envelope)],
        )
        for job, reply in zip(letter.jobs, replies, strict=True):
            yield self._accept(letter, job, reply, fold, keep_blocks)

    def _replies(self, letter: _Letter, answer: object, parcel: Parcel) -> list[Reply]:
        """Return one reply a job, in their order; tensors that are not merged yet are not checked yet."""
        if not isinstance(answer, Done) or answer.site != letter.site:
            raise Refused(f"it answered as {getattr(answer, 'site', '')!r} with {type(answer).__name__}")
        answers = {own.client: own for own in answer.replies}
        if len(answers) < len(answer.replies) or answers.keys() != {job.task.client for job in letter.jobs}:
            raise Refused("it answered for other clients than it was asked for")
        if answer.sums and not letter.merge:
            raise Refused("it sent sums that it was not asked for")
        named = {f"{own.client}/{name}" for own in answer.replies for name in _names(own)}
        odd = parcel.blocks.keys() - named - ({"sums"} if letter.merge else set())
        if odd:
            raise Refused(f"it sent a block {min(odd)[:80]!r} that nobody named")
        return [self._reply(letter, job, answers[job.task.client], parcel) for job in letter.jobs]

    def _reply(self, letter: _Letter, job: Job, answer: Answered, parcel: Parcel) -> Reply:
        """Return one client's reply; where updates come singly, one that is none is refused alone."""
        if answer.failure is not None:
            return Reply(job.task.client, failure=_failure(job, answer.failure), sent=())
        try:
            update = _update(job, answer, parcel)
            if letter.merge:
                with merging(update):
                    check_answer(self.setup, job.task, update)
                if update.blocks:
                    raise Refused("it sent single updates beside their sums")
            rows = _up(letter, update)
            return Reply(job.task.client, update, {**answer.state}, rows, answer.seconds, sent=())
        except (Refused, WireError) as error:
            if letter.merge:
                raise
            return Reply(job.task.client, failure=_refusal(letter, job.task.client, error), sent=())

    def _accept(self, letter: _Letter, job: Job, reply: Reply, fold: Fold, keep_blocks: bool) -> Reply:
        if reply.update is None or letter.merge:
            return reply
        try:
            full = accept(self.setup, fold, job, reply.update)
        except Refused as error:
            return replace(reply, update=None, state={}, failure=_refusal(letter, reply.client, error))
        except ClientError as error:
            return replace(reply, update=None, state={}, failure=failed(reply.client, error).failure)
        return replace(reply, update=full if keep_blocks else full.without_blocks())


def _describe(setup: Setup, settings: Settings) -> dict[str, Any]:
    """Return what a site must know to build the same models and method: one nameless client of every model."""
    kinds: dict[str, dict[str, Any]] = {}
    for info in setup.population.infos:
        key = setup.model_of[info.name]
        if key not in kinds:
            nameless = replace(info, name=f"#{len(kinds)}", samples={"train": 1, "test": 1})
            kinds[key] = info_to_json(nameless)
    return {
        "settings": settings.to_toml(),
        "kinds": list(kinds.values()),
        "goals": goals_to_json(setup.population.goals),
        "public": digests(setup.population.public) if setup.population.public is not None else [],
        "initial": {k: {n: b.version for n, b in t.initial.items()} for k, t in setup.templates.items()},
    }


def _changes(letter: _Letter) -> dict[str, tuple[str, Block]]:
    """Return the versions that travel as coded changes: what they apply to, and the change."""
    return {
        job.task.versions[a]: (base, job.task.blocks[a])
        for job in letter.jobs
        for a, base in job.task.changes.items()
        if job.task.versions[a] not in letter.extra
    }


def _down(letter: _Letter, parcel: Parcel, uses: _Uses) -> list[Traffic]:
    rows = []
    for name, block in parcel.blocks.items():
        used = uses.get(name, set())
        clients = {client for client, _ in used}
        address = min((address for _, address in used), default=None)
        who = min(clients) if len(clients) == 1 else letter.site
        where = (address.block, address.group) if address else ("initial", "")
        rows.append(letter.row(*where, "down", block.nbytes, block.envelope, who))
    return [*rows, letter.row("", "", "down", 0, len(parcel.header_text()))]


def _needs(outcome: Parcel | Trouble) -> Needs | None:
    """Return what a site says that it lacks, if it says that."""
    try:
        answer = None if isinstance(outcome, Trouble) else read(outcome.header, ANSWERS)
    except WireError:
        return None
    return answer if isinstance(answer, Needs) else None


def _names(answer: Answered) -> list[str]:
    """Return the names of the blocks that a client's update says to hold."""
    update = answer.update or {}
    lists = (update.get("records"), update.get("tensors"))
    return [n for names in lists if isinstance(names, list) for n in names if isinstance(n, str)]


def _update(job: Job, answer: Answered, parcel: Parcel) -> Update:
    """Return the update that a client's answer holds."""
    blocks = [parcel.blocks.get(f"{job.task.client}/{name}") for name in _names(answer)]
    return Update.from_header(answer.update or {}, [block for block in blocks if block is not None])


def _up(letter: _Letter, update: Update) -> list[Traffic]:
    named = [(a.block, a.group, b) for a, b in update.blocks.items()]
    named += [(name, "", b) for name, b in update.tensors.items()]
    return [letter.row(n, g, "up", b.nbytes, b.envelope, update.client) for n, g, b in named]


def _failure(job: Job, fault: Fault) -> Failure:
    """Return what went wrong at a client, by its site; whose failure it is, the server knows."""
    return Failure(**{**fault.model_dump(), "client": job.task.client})


def _refusal(letter: _Letter, client: str, error: Refused | WireError) -> Failure:
    block = getattr(error, "block", "")
    where = f"site '{letter.site}', client '{client}'" + (f", block {block!r}" if block else "")
    return Failure("refused", client, "merge", block, f"{where}: {error}")


def _absorb(letter: _Letter, parcel: Parcel, replies: list[Reply], fold: Fold) -> list[Reply]:
    """Check the sums that a site made of its clients' updates, and add them."""
    holders: dict[Address, list[Holder]] = defaultdict(list)
    for job, reply in zip(letter.jobs, replies, strict=True):
        if reply.update is not None:
            for address in job.task.plan.returned:
                holders[address].append((job.samples, reply.update.values))
    tensors = parcel.blocks.get("sums", Block({}))
    fold.check_sums(parcel.header["sums"], tensors, holders)
    fold.absorb(parcel.header["sums"], tensors)
    rows = []
    for address in sorted(holders):
        own = [t for n, t in tensors.tensors.items() if n.startswith(f"{address}/")]
        size = sum(t.numel() * t.element_size() for t in own)
        rows.append(letter.row(address.block, address.group, "up", size, 0, letter.site))
    return [replace(replies[0], traffic=[*replies[0].traffic, *rows]), *replies[1:]]


def _fail(letter: _Letter, message: str, details: str = "", refused: bool = False) -> Iterator[Reply]:
    """Give every client of a site the same failure; what was sent has travelled all the same."""
    kind = "refused" if refused else "failed"
    for i, job in enumerate(letter.jobs):
        client = job.task.client
        failure = Failure(kind, client, "carry", "", f"client '{client}': {message}", "" if i else details)
        yield Reply(client, failure=failure, sent=letter.sent if i == 0 else ())
