"""How a round goes by a fleet's clock: who is asked, whose answers count, and which are against older versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from intarsia.blocks import Address, Block, Fold, Plan, Pool
from intarsia.blocks.merge import Merge, Stale
from intarsia.core import chance
from intarsia.engines import Job, Reply
from intarsia.federation.draft import Draft, NobodyInTime
from intarsia.federation.fleet import DROPPED, Clock, reachable
from intarsia.federation.fleet.flights import Flights, row_of, staleness, versions_of
from intarsia.federation.gathering import still_in
from intarsia.federation.masked import Carried
from intarsia.federation.plan import Planner, Sampling
from intarsia.federation.private import Open
from intarsia.methods import Exchange
from intarsia.runs import Flight, RunState

CarryDraft = Callable[[Draft, Plan, Exchange], Carried]
"""Sends the tasks of a plan from the state of a draft, and takes the replies."""


class Pace:
    """Rounds without a clock: all who were chosen are waited for."""

    def __init__(self, guard: Open) -> None:
        self.guard = guard

    def choose(self, draft: Draft) -> Mapping[str, int]:
        """Return the clients of a round."""
        return self.guard.choose(draft.state)

    @contextmanager
    def round(self, draft: Draft) -> Iterator[None]:
        """Play a round."""
        yield

    def in_time(self, draft: Draft, plan: Plan, exchange: Exchange) -> Plan:
        """Return the plan of those whose answers count."""
        return plan

    def carry(self, carry: CarryDraft, draft: Draft, plan: Plan, exchange: Exchange) -> Carried:
        """Carry an exchange."""
        return carry(draft, plan, exchange)


class ByClock(Pace):
    """Rounds by a fleet's clock: who is late, was one too many or dropped out does not count."""

    def __init__(self, guard: Open, planner: Planner, clock: Clock) -> None:
        super().__init__(guard)
        self.planner = planner
        self.clock = clock

    def choose(self, draft: Draft) -> Mapping[str, int]:
        """Return the clients of a round, of those that can be reached."""
        state = draft.state

        def again(number: int) -> Mapping[str, int]:
            seed = chance.key(self.clock.setup.seed, "reach", number)
            return self.guard.sampling.choose(still_in(list(self.planner.infos), state), seed, state.round)

        chosen = reachable(self.clock, state, self.guard.choose(state), again)
        self.clock.begin(state)
        return chosen

    @contextmanager
    def round(self, draft: Draft) -> Iterator[None]:
        """Play a round, and note how long it takes; one that nobody answers in time ends there."""
        with suppress(NobodyInTime):
            yield
        draft.lines["clock"].append(self.clock.whole(draft.state))

    def in_time(self, draft: Draft, plan: Plan, exchange: Exchange) -> Plan:
        """Return the plan of those whose answers count; the others were asked in vain."""
        jobs, _ = self.planner.jobs(draft.state, plan, exchange)
        rows, counted = self.clock.sift(draft.state, plan, jobs)
        draft.lines["clock"] += rows
        missed = [job for job in jobs if job.task.client not in counted]
        draft.note_traffic(missed, [Reply(job.task.client) for job in missed])
        gone = {row["client"] for row in rows if row["outcome"] == DROPPED}
        for job in missed:
            if job.task.client not in gone:
                draft.hold(job.task)
        if not counted:
            raise NobodyInTime
        return _only(plan, [name for name in plan.clients if name in counted])


class Unwaiting(ByClock):
    """Rounds of a server that does not wait: each is a buffer of answers, some against versions that were replaced."""

    def __init__(self, guard: Open, planner: Planner, clock: Clock, at_once: int) -> None:
        super().__init__(guard, planner, clock)
        self.flights = Flights(clock, planner, at_once)
        self._arrived: dict[str, Flight] = {}

    def choose(self, draft: Draft) -> Mapping[str, int]:
        """Return the clients whose answers come in next."""
        self.clock.begin(draft.state)
        self._arrived = self.flights.arrivals(draft)
        draft.lines["clock"] += [row_of(flight, draft.state) for flight in self._arrived.values()]
        return dict.fromkeys(self._arrived, 1)

    @contextmanager
    def round(self, draft: Draft) -> Iterator[None]:
        """Play a round, and count which blocks it replaced."""
        state, before = draft.state, draft.state.pool.copy()
        with super().round(draft):
            yield
        for address in state.pool:
            if address in before and state.pool.version(address) != before.version(address):
                state.replaced[str(address)] = state.replaced.get(str(address), 0) + 1

    def in_time(self, draft: Draft, plan: Plan, exchange: Exchange) -> Plan:
        """Return the plan with all counting alike: who is in the buffer came in."""
        return replace(plan, weights=dict.fromkeys(plan.clients, 1))

    def carry(self, carry: CarryDraft, draft: Draft, plan: Plan, exchange: Exchange) -> Carried:
        """Carry an exchange, those who went on from one version together; return sums that know of the versions."""
        jobs: dict[str, Job] = {}
        replies: dict[str, Reply] = {}
        parts = []
        for sent in sorted({self._arrived[name].sent for name in plan.clients}):
            own = [name for name in plan.clients if self._arrived[name].sent == sent]
            stale = replace(draft, state=self._as_sent(draft.state, own))
            part_jobs, part_replies, fold = carry(stale, _only(plan, own), exchange)
            jobs |= {job.task.client: job for job in part_jobs}
            replies |= {reply.client: reply for reply in part_replies}
            old = {a: s for name in own for a, s in staleness(self._arrived[name], draft.state).items()}
            parts.append((fold, {address: old[str(address)] for address in fold.present}))
        _forget(draft.state)
        present = {a: draft.state.pool.get(a) for fold, _ in parts for a in fold.present}
        merged = StaleFold(self.clock.setup.method.merge, present, parts)
        return [jobs[name] for name in plan.clients], [replies[name] for name in plan.clients], merged

    def _as_sent(self, state: RunState, clients: Sequence[str]) -> RunState:
        """Return the state with the blocks that these clients, asked at one version, went out with."""
        sent = [versions_of(state, self._arrived[name]) for name in clients]
        return replace(state, pool=Pool({a: block for own in sent for a, block in own.items()}))


class StaleFold(Fold):
    """The updates of one buffer: sums of changes against several versions of an address."""

    def __init__(
        self,
        merge: Merge,
        present: Mapping[Address, Block],
        parts: Sequence[tuple[Fold, Mapping[Address, int]]],
    ) -> None:
        super().__init__(merge, present, {})
        self.parts = parts

    def finish(self) -> dict[Address, Block]:
        """Return the next version of every address that had an update."""
        return {
            address: self.merge.flush(now, self._of_address(address))
            for address, now in sorted(self.present.items())
        }

    def _of_address(self, address: Address) -> list[Stale]:
        return [
            Stale(old[address], fold.present[address], fold.sums(address))
            for fold, old in self.parts
            if address in fold.present
        ]


def _only(plan: Plan, names: Sequence[str]) -> Plan:
    """Return the plan of some of its clients."""
    return replace(
        plan,
        clients={name: plan.clients[name] for name in names},
        weights={name: plan.weights[name] for name in names},
    )


def _forget(state: RunState) -> None:
    """Forget the blocks that nobody is on the way with."""
    needed = {version for flight in state.flying.values() for version in flight.versions.values()}
    for version in state.flown.keys() - needed:
        del state.flown[version]


def pace_of(guard: Open, planner: Planner, clock: Clock | None, sampling: Sampling) -> Pace:
    """Return how rounds go: without a clock, by one, or without waiting."""
    if clock is None:
        return Pace(guard)
    if clock.setup.method.flushes_after:
        return Unwaiting(guard, planner, clock, sampling.count(len(planner.residents)))
    return ByClock(guard, planner, clock)
