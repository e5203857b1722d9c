"""What the first round would do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from intarsia.blocks import Cut, coded_bytes
from intarsia.blocks.wire import ClientPlan
from intarsia.data import ClientInfo
from intarsia.experiment.build import Experiment
from intarsia.experiment.given import Data, Given, Models, asked
from intarsia.experiment.plugged import with_plugins
from intarsia.experiment.settings import Source
from intarsia.federation import Clock, Planner
from intarsia.federation.fleet import outlook
from intarsia.methods import Exchange, Method
from intarsia.models import (
    parts_of,
)
from intarsia.runs import RunState
from intarsia.setup import Setup


def preview(
    settings: Source,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    changes: Iterable[str] = (),
) -> dict[str, Any]:
    """Return what the first round would do, without doing it: clients, blocks, addresses, bytes.

    Of a method that asks its clients before it decides what each of them trains, all that it could send.
    """
    given = Given(data, model, method)
    experiment = Experiment.build(with_plugins(asked(settings, changes, given)), given).check()
    setup, rules = experiment.setup, experiment.rules
    planner = Planner(setup, rules.sampling)
    state = RunState("0" * 16, setup.initial_pool(), 1)
    first = next(setup.method.round(planner.server(state)))
    exchange = first if first.step == Exchange().step else Exchange()
    chosen = rules.sampling.choose(planner.names, setup.seed, 1)
    plan = planner.plan(exchange, planner.weights(), setup.addresses)
    jobs, _ = planner.jobs(state, plan, exchange)
    clients = [_client_preview(setup, job.task.plan, planner.infos[job.task.client]) for job in jobs]
    clock = Clock.of(setup, rules.fleet, rules.sampling)
    taking_part = [c["bytes"] for c in clients if c["client"] in set(chosen)]
    return {
        "name": experiment.settings.name,
        "method": setup.method.name,
        "rounds": setup.rounds,
        "base": dict(setup.base),
        "clients": clients,
        "clients_a_round": len(chosen),
        "addresses": {
            str(a): {"parameters": state.pool.get(a).parameters, "bytes": state.pool.get(a).nbytes}
            for a in state.pool
        },
        "cut_points": {key: _cut_points(t.model) for key, t in setup.templates.items()},
        "bytes_a_round": {way: sum(own[way] for own in taking_part) for way in ("down", "up")},
        **({"fleet": outlook(clock, jobs, chosen)} if clock else {}),
    }


def _cut_points(model: nn.Module) -> list[dict[str, Any]]:
    """Return, for every part that a later block may begin with, the bytes before it and from it on."""
    parts = parts_of(model)
    blocks = Cut(parts).split(model) if parts else {}
    sizes = [block.nbytes for block in blocks.values()]
    return [
        {"part": name, "before": sum(sizes[:i]), "from": sum(sizes[i:])}
        for i, name in enumerate(blocks)
        if i > 0
    ]


def _client_preview(setup: Setup, plan: ClientPlan, info: ClientInfo) -> dict[str, Any]:
    initial = setup.template(info.name).initial
    returned = {a.block for a in plan.returned}
    blocks: list[dict[str, Any]] = [
        {
            "block": block,
            "address": str(address),
            "parameters": initial[block].parameters,
            "bytes": initial[block].nbytes,
            "down": 0 if address.private else initial[block].nbytes,
            "up": coded_bytes(setup.codec, initial[block]) if block in returned else 0,
        }
        for block, address in plan.hold.items()
    ]
    return {
        "client": info.name,
        "device": info.device,
        "cohort": info.cohort,
        "model": info.model,
        "task": info.task,
        "samples": dict(info.samples),
        "blocks": blocks,
        "bytes": {way: sum(b[way] for b in blocks) for way in ("down", "up")},
    }
