"""How long a round would take on each kind of device, and which of them is waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any

from intarsia.engines import Job
from intarsia.federation.fleet.clock import Clock, Trip

STAGES = ("latency", "down", "compute", "up")
"""What a client's time goes into."""


def outlook(clock: Clock, jobs: Sequence[Job], chosen: Collection[str]) -> dict[str, Any]:
    """Return, for the clients of these jobs, seconds by kind of device and what a round of the chosen waits for."""
    first = {job.task.client: clock.trip(job, 0.0, 1) for job in jobs}
    later = {job.task.client: clock.trip(_again(clock, job), 0.0, 1) for job in jobs}
    devices = dict.fromkeys(trip.device for trip in first.values())
    rows = [_device(device, list(first.values()), list(later.values())) for device in devices]
    deadline = clock.fleet.deadline
    slowest = max((later[name] for name in chosen), key=lambda trip: trip.answered)
    return {
        "devices": rows,
        "first_round": max(first[name].answered for name in chosen),
        "round": slowest.answered,
        "slowest": slowest.client,
        "bottleneck": slowest.device,
        "waits": not clock.setup.method.flushes_after,
        **({"in_time": sum(later[name].answered <= deadline for name in chosen)} if deadline else {}),
        "because_of": max(STAGES, key=lambda stage: float(getattr(slowest, stage))),
    }


def _device(device: str, first: Sequence[Trip], later: Sequence[Trip]) -> dict[str, Any]:
    """Return the seconds of one kind of device: means over its clients, and its slowest one."""
    own = [trip for trip in later if trip.device == device]
    return {
        "device": device,
        "clients": len(own),
        **{stage: fmean(getattr(trip, stage) for trip in own) for stage in STAGES},
        "round": fmean(trip.answered for trip in own),
        "slowest": max(trip.answered for trip in own),
        "first_round": fmean(trip.answered for trip in first if trip.device == device),
    }


def _again(clock: Clock, job: Job) -> Job:
    """Return the job of a later round: what never changes is not sent again."""
    changing = clock.setup.template(job.task.client).changing
    blocks = {a: block for a, block in job.task.blocks.items() if a.block in changing}
    return dataclasses.replace(job, task=dataclasses.replace(job.task, blocks=blocks))
