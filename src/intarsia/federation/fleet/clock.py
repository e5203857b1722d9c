"""A fleet's clock: how long exchanges take on clients' devices, and who is in time. Nothing here waits.

All follows from the settings, the seed, counted bytes and counted multiplications: never from how fast this machine is,
nor from what training comes to.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from intarsia.blocks import ClientPlan, Plan, coded_bytes
from intarsia.core import SettingsError, chance
from intarsia.data import ClientInfo
from intarsia.engines import Job
from intarsia.engines.answers import expected
from intarsia.federation.fleet.profiles import Fleet, Profile
from intarsia.federation.fleet.work import Work
from intarsia.federation.plan import Sampling
from intarsia.runs import RunState
from intarsia.setup import Setup

NOW = "virtual_seconds"
"""The total of a run that is its virtual time."""
COUNTED, LATE, SURPLUS, DROPPED = "counted", "late", "surplus", "dropped"
"""What became of a client that was asked: its answer counted; came after the deadline; was one more than was needed;
did not come."""


@dataclass(frozen=True)
class Trip:
    """One client's part in an exchange, in virtual seconds."""

    client: str
    device: str
    asked: float
    latency: float
    down: float
    compute: float
    up: float
    outcome: str = COUNTED

    @property
    def answered(self) -> float:
        """When the answer is there, or would be."""
        return self.asked + self.latency + self.down + self.compute + self.up

    def row(self, round: int, exchange: str, **more: Any) -> dict[str, Any]:
        """Return the trip as a line of the table."""
        return {"round": round, "exchange": exchange, **vars(self), "answered": self.answered, **more}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Trip:
        """Read a trip from plain values."""
        return cls(**{field.name: row[field.name] for field in dataclasses.fields(cls)})


class Clock:
    """Says how long each client takes, and plays rounds of which the server takes the answers that are in time."""

    def __init__(self, setup: Setup, fleet: Fleet, take: int = 0) -> None:
        self.setup = setup
        self.fleet = fleet
        self.take = take
        """How many answers are enough (0: all)."""
        self.work = Work(setup)
        self.profile = functools.lru_cache(maxsize=4096)(self._profile)
        self._began = 0.0

    @classmethod
    def of(cls, setup: Setup, fleet: Fleet, sampling: Sampling) -> Clock | None:
        """Return the clock of a fleet; none, where nobody said anything of its devices."""
        told = any(info.profile for info in setup.population.kinds)
        if fleet == Fleet() and not setup.method.flushes_after and not told:
            return None
        residents = len(setup.population.infos) - sampling.newcomers
        return cls(setup, fleet, sampling.count(residents) if fleet.overselect > 1 else 0)

    def _profile(self, client: str) -> Profile:
        return self.fleet.profile(self.setup.population.clients[client].info, self.setup.seed)

    def begin(self, state: RunState) -> None:
        """Begin a round now."""
        state.totals.setdefault(NOW, 0.0)
        self._began = state.totals[NOW]

    def trip(self, job: Job, asked: float, number: int) -> Trip:
        """Return how long a client takes that is asked now; whether it drops out is drawn, anew for every number."""
        task = job.task
        info, profile = self.setup.population.clients[task.client].info, self.profile(task.client)
        down = sum(block.nbytes for block in task.blocks.values()) / profile.down
        up = self.up_bytes(job) / profile.up
        compute = self.seconds(info, task.plan, task.exchange)
        trip = Trip(task.client, info.device, asked, profile.latency, down, compute, up)
        if not math.isfinite(trip.answered):
            raise SettingsError(
                f"client '{task.client}' never answers: {down:g} s down, {compute:g} s computing, {up:g} s up, at "
                f"second {asked:g}: look at what fleet says of its device"
            )
        drawn = chance.numpy_generator(self.setup.seed, "dropout", number, task.exchange, task.client)
        left = trip.answered > profile.hours.closes(asked) or drawn.random() < profile.dropout
        return replace(trip, outcome=DROPPED) if left else trip

    def seconds(self, info: ClientInfo, plan: ClientPlan, step: str) -> float:
        """Return how long a client computes."""
        profile, count = self.profile(info.name), self.work.multiplications(info, plan, step)
        if profile.seconds:
            return profile.seconds * count / max(self.work.a_sample(info), 1.0)
        return count / profile.speed

    def up_bytes(self, job: Job) -> int:
        """Return how many bytes of tensors the answer to a task has."""
        task = job.task
        initial = self.setup.template(task.client).initial
        blocks = sum(coded_bytes(self.setup.codec, initial[a.block]) for a in task.plan.returned)
        return blocks + expected(self.setup, task).nbytes

    def sift(self, state: RunState, plan: Plan, jobs: Sequence[Job]) -> tuple[list[dict[str, Any]], set[str]]:
        """Play an exchange of a round: return lines of what became of whom, and whose answers count.

        Time goes on to the last answer that was waited for; who does not answer is noticed when the answer was due.
        """
        now = state.totals[NOW]
        trips = sorted((self.trip(job, now, state.round) for job in jobs), key=lambda trip: trip.answered)
        closes = self._began + self.fleet.deadline if self.fleet.deadline else math.inf
        enough = self.take if self.take and any(p.returned for p in plan.clients.values()) else len(trips)
        judged, end = _judged(trips, max(closes, now), enough)
        state.totals[NOW] = end
        place = {job.task.client: i for i, job in enumerate(jobs)}
        ordered = sorted(judged, key=lambda trip: place[trip.client])
        rows = [trip.row(state.round, plan.exchange) for trip in ordered]
        return rows, {trip.client for trip in ordered if trip.outcome == COUNTED}

    def whole(self, state: RunState) -> dict[str, Any]:
        """Return the line of a whole round."""
        about = {"round": state.round, "exchange": "", "client": "", "outcome": "round"}
        return {**about, "asked": self._began, "answered": state.totals[NOW]}


def _judged(trips: Sequence[Trip], closes: float, enough: int) -> tuple[list[Trip], float]:
    """Return trips, in the order of their answers, with what became of them; and when the server goes on."""
    judged: list[Trip] = []
    counted, end = 0, 0.0
    for trip in trips:
        outcome = trip.outcome
        if outcome == COUNTED:
            outcome = SURPLUS if counted == enough else LATE if trip.answered > closes else COUNTED
        if counted < enough:
            end = min(trip.answered, closes)
        counted += outcome == COUNTED
        judged.append(replace(trip, outcome=outcome))
    return judged, end


def asked_more(sampling: Sampling, fleet: Fleet, residents: int) -> Sampling:
    """Return the sampling by which a round asks more clients than it takes."""
    if fleet.overselect == 1:
        return sampling
    return replace(sampling, clients=math.ceil(min(residents, fleet.overselect * sampling.count(residents))))
