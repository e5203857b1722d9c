"""Clients that train while the server goes on: who is on the way, who comes in next, from which version."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from intarsia.blocks import Address, Block, Pool
from intarsia.core import IntarsiaError, chance
from intarsia.engines import Reply
from intarsia.federation.draft import Draft
from intarsia.federation.fleet.clock import DROPPED, NOW, Clock, Trip
from intarsia.federation.plan import Planner
from intarsia.methods import Exchange
from intarsia.runs import Flight, RunState

NUMBER = "flights"
"""The total of a run that counts how often a client was asked."""
TRIES = 64
"""How many clients are looked at to find one that can be asked."""
LOST = 100
"""How often clients may be lost, for each answer that is waited for, before the run is stopped."""
TRAIN = Exchange()


class Flights:
    """Asks clients one by one, and takes their answers in the order in which they come in."""

    def __init__(self, clock: Clock, planner: Planner, at_once: int) -> None:
        self.clock = clock
        self.planner = planner
        self.at_once = at_once
        """How many clients train at the same time."""
        self.wanted = min(clock.setup.method.flushes_after, len(planner.residents))

    def arrivals(self, draft: Draft) -> dict[str, Flight]:
        """Let time go on until the buffer is full; return the flights that filled it, by client."""
        state, lost = draft.state, 0
        buffer: dict[str, Flight] = {}
        while len(buffer) < self.wanted:
            self._send_out(state, buffer)
            client, flight = min(state.flying.items(), key=lambda item: (item[1].due, item[1].number))
            del state.flying[client]
            state.totals[NOW] = flight.due
            if flight.trip["outcome"] != DROPPED:
                buffer[client] = flight
                continue
            self._note_lost(draft, client, flight)
            lost += 1
            if lost > LOST * self.wanted:
                raise IntarsiaError(
                    f"{lost} times in one round a client was asked and did not answer: look at fleet.dropout and "
                    "fleet.available (a window that is shorter than a client needs)"
                )
        return buffer

    def _send_out(self, state: RunState, buffer: Collection[str]) -> None:
        """Ask clients until as many train as can; if nobody does and nobody can be reached, wait."""
        while len(state.flying) < self.at_once:
            client, opens = self._next(state, buffer)
            if client is not None:
                self._ask(state, client)
            elif state.flying:
                return
            else:
                state.totals[NOW] = opens

    def _next(self, state: RunState, buffer: Collection[str]) -> tuple[str | None, float]:
        """Draw a client that is neither on the way nor buffered and can be reached now; or say when one can."""
        residents, now = self.planner.residents, state.totals[NOW]
        state.totals[NUMBER] = state.totals.get(NUMBER, 0) + 1
        random = chance.numpy_generator(self.clock.setup.seed, "flight", int(state.totals[NUMBER]))
        drawn = random.choice(len(residents), min(TRIES, len(residents)), replace=False)
        free = [n for i in drawn.tolist() if (n := residents[i]) not in buffer and n not in state.flying]
        hours = {name: self.clock.profile(name).hours for name in free}
        opens = min((own.opens(now) for own in hours.values()), default=now)
        return next((name for name, own in hours.items() if own.open_at(now)), None), opens

    def _ask(self, state: RunState, client: str) -> None:
        """Send a client the present versions."""
        plan = self.planner.plan(TRAIN, {client: 1}, self.planner.addresses(state))
        (job,), content = self.planner.jobs(state, plan, TRAIN)
        number = int(state.totals[NUMBER])
        trip = self.clock.trip(job, state.totals[NOW], number)
        versions = {str(address): version for address, version in job.task.versions.items()}
        replaced = {text: state.replaced.get(text, 0) for text in versions}
        about: dict[str, Any] = {"number": number, "sent": state.round - 1, "trip": vars(trip)}
        state.flying[client] = Flight(**about, versions=versions, replaced=replaced)
        state.flown.update({version: content[version] for version in versions.values()})

    def _note_lost(self, draft: Draft, client: str, flight: Flight) -> None:
        """Note a client that did not answer: it was sent something all the same."""
        state = replace(draft.state, pool=Pool(versions_of(draft.state, flight)))
        plan = self.planner.plan(TRAIN, {client: 1}, self.planner.addresses(draft.state))
        jobs, _ = self.planner.jobs(state, plan, TRAIN)
        draft.note_traffic(jobs, [Reply(client)])
        draft.lines["clock"].append(row_of(flight, draft.state))


def row_of(flight: Flight, state: RunState) -> dict[str, object]:
    """Return a flight as a line of the table of the clock, in the round in which it ends."""
    stale = staleness(flight, state).values()
    return Trip.read(flight.trip).row(state.round, TRAIN.step, staleness=max(stale, default=0))


def staleness(flight: Flight, state: RunState) -> dict[str, int]:
    """Return how often the block of each address was replaced since a client was asked."""
    return {address: state.replaced.get(address, 0) - then for address, then in flight.replaced.items()}


def versions_of(state: RunState, flight: Flight) -> dict[Address, Block]:
    """Return the blocks that a flight went out with."""
    return {Address.parse(text): state.flown[version] for text, version in flight.versions.items()}
