"""Updates that are merged once all of an exchange are there: bounded, compared, and remembered by client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from intarsia.blocks import Address, Block, Fold, Layout, Update
from intarsia.core import Refused
from intarsia.engines import Failure, Job, Reply
from intarsia.federation.summary import WARNING
from intarsia.runs import RunState
from intarsia.setup import Setup
from intarsia.trust import change_norm, clipped, few_holders
from intarsia.trust.reputation import CLIPPED, FAR, LEFT_OUT, REFUSED, Reputation

COMPARED = 3
"""How many holders there must be for one of them to be far from the others."""


@dataclass
class Gathering:
    """The updates of one exchange, as they count and are merged.

    Where nothing asks for all of them at once, they are in the fold already, and nothing happens here.
    """

    setup: Setup
    state: RunState
    fold: Fold
    """What the updates were checked by, and, if it did not only check, merged."""
    jobs: Mapping[str, Job]
    holders: dict[Address, dict[str, Block]] = field(default_factory=dict)
    """The updates that count, by address and client."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """What is to be noted, as lines of `events.jsonl`."""
    faults: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, setup: Setup, state: RunState, fold: Fold, jobs: Sequence[Job]) -> Gathering:
        """Begin with what an engine carried."""
        return cls(setup, state, fold, {job.task.client: job for job in jobs})

    @property
    def reputation(self) -> Reputation:
        """What is remembered of clients."""
        return Reputation(self.state.trust)

    def counted(self, replies: Sequence[Reply]) -> list[Reply]:
        """Return the replies as they count: bounded, and without those that the merge refuses."""
        if not self.setup.gathers:
            return list(replies)
        for reply in replies:
            if reply.failure is not None and reply.failure.kind == REFUSED:
                self.faults[reply.client].add(REFUSED)
        self.fold = Fold(self.fold.merge, self.fold.present, self.fold.planned)
        by_name = sorted(self._bounded(replies), key=lambda reply: reply.client)
        counted = {reply.client: self._added(reply) for reply in by_name}
        self.holders = _holders(counted.values())
        return [counted[reply.client] for reply in replies]

    def settle(self, versions: Mapping[Address, Block]) -> None:
        """Remember who was far from the next versions of addresses."""
        if self.setup.gathers:
            self._tell_of_few()
            self._compare(versions)
            self._judge()

    def _bounded(self, replies: Sequence[Reply]) -> list[Reply]:
        """Scale back updates that go too far."""
        defence = self.setup.defence
        norms = {r.client: self._norm(r.update) for r in replies if r.update is not None and r.update.blocks}
        if not defence.norm or not norms:
            return list(replies)
        step = next(iter(self.jobs.values())).task.exchange
        bound = defence.bound(list(norms.values()), self.reputation.norms(step))
        self.reputation.add_norm(step, min(bound, median(norms.values())))
        return [self._clip(r, bound, norms[r.client]) if r.client in norms else r for r in replies]

    def _norm(self, update: Update) -> float:
        return change_norm(update.blocks, self._sent(update))

    def _clip(self, reply: Reply, bound: float, norm: float) -> Reply:
        if norm <= bound or reply.update is None:
            return reply
        blocks, _ = clipped(reply.update.blocks, self._sent(reply.update), bound)
        self._note(
            CLIPPED, reply.client, "", f"the update has a norm of {norm:.4g}, it counts with {bound:.4g}"
        )
        return replace(reply, update=replace(reply.update, blocks=blocks))

    def _added(self, reply: Reply) -> Reply:
        """Add an update to those that are merged; what a merge refuses is refused as by an engine."""
        if reply.update is None:
            return reply
        job = self.jobs[reply.client]
        try:
            self.fold.add(reply.update.blocks, self._layouts(reply.client), job.samples, reply.update.values)
        except Refused as error:
            self._note(REFUSED, reply.client, error.block, str(error))
            return replace(reply, update=None, state={})
        return reply

    def _layouts(self, client: str) -> dict[Address, Layout]:
        return self.setup.layouts(client, self.jobs[client].task.plan)

    def _sent(self, update: Update) -> dict[Address, Block]:
        """Return the blocks that an update goes on from, as its client holds them."""
        layouts = self._layouts(update.client)
        return {a: self.fold.merge.view(self.fold.present[a], layouts[a]) for a in update.blocks}

    def _tell_of_few(self) -> None:
        """Say, once an address, that too few hold it for the merge to bear any hostile one."""
        for address, own in sorted(self.holders.items()):
            told = few_holders(self.fold.merge, {address: len(own)})
            if told and self.reputation.first_time(str(address)):
                self._note(WARNING, "", address.block, told)

    def _compare(self, versions: Mapping[Address, Block]) -> None:
        """Mark clients whose updates lie far from what was merged, beside the others'."""
        times = self.setup.defence.far
        for address, own in sorted(self.holders.items()):
            if not times or len(own) < COMPARED:
                continue
            away = {name: self._away(block, versions[address], address) for name, block in own.items()}
            usual = median(away.values())
            for name, distance in sorted(away.items()):
                if distance > times * usual > 0:
                    told = f"{address}: the update is {distance / usual:.1f} times as far from the merged one as usual"
                    self._note(FAR, name, address.block, told)

    def _away(self, block: Block, merged: Block, address: Address) -> float:
        here = self.fold.merge.view(merged, block.layout)
        weights = {n: t for n, t in block.tensors.items() if n not in block.buffers}
        return change_norm({address: Block(weights, frozenset())}, {address: here})

    def _note(self, kind: str, client: str, block: str, message: str) -> None:
        whose = f"client '{client}': " if client else ""
        failure = Failure(kind, client, "merge", block, whose + message)
        step = next(iter(self.jobs.values())).task.exchange
        self.events.append({"round": self.state.round, "exchange": step, **failure.to_json()})
        if client:
            self.faults[client].add(kind)

    def _judge(self) -> None:
        """Give marks, and leave clients out that have too many."""
        most, round = self.setup.defence.leave_out, self.state.round
        for name in sorted(self.jobs) if self.setup.defence.on else ():
            half = 2 * (len(self.reputation.left_out) + 1) > len(self.setup.population.clients)
            if self.reputation.judge(name, self.faults.get(name, ()), 0 if half else most, round):
                seen = self.reputation.counts(name)
                words = ", ".join(f"{fault} {times} times" for fault, times in sorted(seen.items()))
                told = f"left out from now on: {words} (defence.leave_out is {most})"
                self._note(LEFT_OUT, name, "", told)


def _holders(replies: Iterable[Reply]) -> dict[Address, dict[str, Block]]:
    holders: dict[Address, dict[str, Block]] = defaultdict(dict)
    for reply in replies:
        for address, block in reply.update.blocks.items() if reply.update is not None else ():
            holders[address][reply.client] = block
    return holders


def still_in(names: Sequence[str], state: RunState) -> Sequence[str]:
    """Return the clients that are not left out."""
    out = Reputation(state.trust).left_out
    return [name for name in names if name not in out] if out else names
