"""Own models that are more than blocks joined: kept with the run where making them takes the client's data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.blocks import Block, BlockStore
from intarsia.blocks.plain import read_json
from intarsia.clients import ClientRuntime
from intarsia.clients.workbench import own_attributes
from intarsia.core import CheckpointError, one_thread, warn, write_atomically
from intarsia.data.recorded import DataAbsent, without_data
from intarsia.engines import Job
from intarsia.federation import Planner, Sampling
from intarsia.methods import EVALUATE
from intarsia.runs import RunFolder, RunState
from intarsia.setup import Setup

PLAIN = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class Own:
    """What made a client's blocks its own model: tensors that changed, and attributes that were set."""

    tensors: Mapping[str, Tensor]
    attributes: Mapping[str, Mapping[str, Any]]
    """By module and name: plain values or tensors."""

    @classmethod
    def between(cls, joined: nn.Module, template: nn.Module, own: nn.Module) -> Own | None:
        """Return what differs from the joined blocks; None if an attribute is neither plain nor a tensor."""
        before = joined.state_dict()
        tensors = {n: t for n, t in own.state_dict().items() if not torch.equal(t, before[n])}
        attributes = {}
        for path, module in own.named_modules():
            usual = own_attributes(template.get_submodule(path))
            set_here = {
                name: value
                for name, value in own_attributes(module).items()
                if not _same(value, usual.get(name, ...))
            }
            if not all(isinstance(value, (Tensor, *PLAIN)) for value in set_here.values()):
                return None
            if set_here:
                attributes[path] = set_here
        return cls(tensors, attributes)

    @torch.no_grad()
    def put_into(self, joined: nn.Module) -> nn.Module:
        """Make joined blocks the own model."""
        there = joined.state_dict()
        for name, tensor in self.tensors.items():
            there[name].copy_(tensor)
        for path, values in self.attributes.items():
            vars(joined.get_submodule(path)).update(values)
        return joined


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    return one is other or bool(one == other)


class OwnModels:
    """The own models that a run keeps: `state/own.json`, and blocks beside it."""

    def __init__(self, folder: Path) -> None:
        self._index = folder / "state" / "own.json"
        self._store = BlockStore(folder / "state" / "own")

    def write(self, state: RunState, models: Iterable[tuple[str, Own]]) -> None:
        """Keep these models of a round, one after the other; earlier ones go."""
        clients, versions = {}, set()
        for name, own in models:
            tensors = {f"{path}|{n}": v for path, n, v in _flat(own.attributes) if isinstance(v, Tensor)}
            blocks = {key: Block(dict(t)) for key, t in (("model", own.tensors), ("set", tensors)) if t}
            stored = {key: self._store.put(block) for key, block in blocks.items()}
            plain = [[path, n, v] for path, n, v in _flat(own.attributes) if not isinstance(v, Tensor)]
            clients[name] = {"blocks": stored, "attributes": plain}
            versions |= set(stored.values())
        if clients:
            self._store.sync(versions)
            about = {"format": 1, "run": state.run, "round": state.round, "clients": clients}
            write_atomically(self._index, (json.dumps(about) + "\n").encode())
            self._store.sweep(versions)

    def forget(self) -> None:
        """Let go of the models: the round that they are of is played anew."""
        self._index.unlink(missing_ok=True)

    def read(self, state: RunState, client: str) -> Own | None:
        """Return what is kept of a client for this state of the run, if anything is."""
        if not self._index.exists():
            return None
        about = read_json(self._index.read_bytes(), str(self._index))
        if (about.get("run"), about.get("round")) != (state.run, state.round):
            return None
        try:
            entry = about["clients"].get(client)
            return None if entry is None else self._read(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{self._index} is damaged: put back a copy") from error

    def _read(self, entry: Mapping[str, Any]) -> Own:
        blocks = {key: self._store.get(version).tensors for key, version in entry["blocks"].items()}
        attributes: dict[str, dict[str, Any]] = {}
        for path, name, value in entry["attributes"]:
            attributes.setdefault(path, {})[name] = value
        for key, tensor in blocks.get("set", {}).items():
            path, _, name = key.rpartition("|")
            attributes.setdefault(path, {})[name] = tensor
        return Own(blocks.get("model", {}), attributes)


def _flat(attributes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, Any]]:
    return [(path, name, value) for path, own in attributes.items() for name, value in own.items()]


def keep_own_models(setup: Setup, folder: RunFolder, sampling: Sampling, names: Iterable[str]) -> None:
    """Keep, after a run, clients' own models that cannot be made without their data: tuned ones, for example.

    All others follow from the blocks that the run holds anyway.
    """
    if setup.method.own_as_joined:
        return
    state = folder.state_at()
    with folder.writing():
        OwnModels(folder.path).write(state, _made_of_data(setup, folder, sampling, state, names))


def _made_of_data(
    setup: Setup, folder: RunFolder, sampling: Sampling, state: RunState, names: Iterable[str]
) -> Iterator[tuple[str, Own]]:
    """Yield the own models that their method cannot make of the run's blocks alone."""
    bare = dataclasses.replace(setup, population=without_data(setup.population))
    bare = bare.starting_from(state.initial_blocks(folder.store))
    runtime, blind = (ClientRuntime(each, folder.store, "cpu") for each in (setup, bare))
    for client in names:
        job, content = own_job(setup, sampling, state, client)
        asked = (job.task, job.state, content.__getitem__)
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
            try:
                blind.own_model(*asked)
                continue
            except DataAbsent:
                joined = runtime.joined_model(*asked)
            try:
                model = runtime.own_model(*asked)
            except Exception as error:  # noqa: BLE001 - models may raise anything; the run has ended well
                warn(f"the own model of client '{client}' could not be made, and is not kept: {error}")
                continue
        own = Own.between(joined, bare.template(client).model, model)
        if own is not None:
            yield client, own


def own_job(setup: Setup, sampling: Sampling, state: RunState, client: str) -> tuple[Job, dict[str, Block]]:
    """Return the task that gives a client what its own model is made of, and the blocks that it names."""
    planner = Planner(setup, sampling)
    exchange = setup.method.own(planner.server(state))
    plan = planner.plan(exchange, {client: 1}, planner.addresses(state), EVALUATE)
    (job,), content = planner.jobs(state, plan, exchange)
    return job, content
