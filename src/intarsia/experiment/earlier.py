"""Going on from an earlier run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from intarsia.blocks import Block, Pool
from intarsia.clients import KEPT
from intarsia.core import SettingsError, some, warn
from intarsia.data import ClientInfo
from intarsia.experiment.build import Experiment
from intarsia.experiment.settings import load
from intarsia.federation import new_run_id
from intarsia.runs import ClientRecord, Records, RunFolder, RunState
from intarsia.setup import Setup


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What goes on from an earlier run: blocks with the same address and layout, shared or a client's own.

    The others start afresh. So a new generation of devices can join: its own input side is new, the modules
    of its cohort are there already. A client that is now in another cohort, or has another device, finds that
    cohort's or device's module; what it keeps to itself stays, as long as it still fits. What the server kept beside
    the models (groups that it found, teachers, plain values) is of the earlier run's clients and rounds: it begins
    afresh, and a warning names it.
    """

    pool: Pool
    private: Mapping[str, Mapping[str, Block]]
    """Clients' own blocks, by client and block."""

    @classmethod
    def of(cls, experiment: Experiment) -> Earlier | None:
        """Read the run that `start_from` names, if any."""
        source = experiment.settings.start_from
        if not source:
            return None
        folder = RunFolder(Path(source))
        _ = folder.settings_text
        same_method = load(folder.path / "settings.toml").method["name"] == experiment.setup.method.name
        before, setup = folder.state_at(), experiment.setup
        pool, taken = setup.initial_pool(), 0
        for address in pool:
            present = before.pool.present(address)
            if present in before.pool and before.pool.get(present).layout == pool.get(address).layout:
                pool.put(address, before.pool.get(present))
                taken += 1
        private = {
            info.name: cls._own(setup, info, folder, before, same_method)
            for info in setup.population.infos
            if info.name in before.clients
        }
        if not taken and not any(private.values()):
            there = ", ".join(str(a) for a in before.pool) or "no shared block"
            raise SettingsError(f"start_from: {source} has no block that fits; it has: {there}")
        if afresh := _left_behind(before):
            warn(
                f"start_from: what the server of {source} kept beside its models begins afresh: {'; '.join(afresh)}"
            )
        return cls(pool, private)

    @staticmethod
    def _own(
        setup: Setup, info: ClientInfo, folder: RunFolder, before: RunState, same_method: bool
    ) -> dict[str, Block]:
        """Return what a client kept, keeps still, and that fits: its own blocks, and what its method keeps for it."""
        versions = before.clients[info.name].state.get("private", {})
        template = setup.template(info.name)
        wanted = [b for b, a in setup.addresses.of(info.name).items() if a.private and b in versions]
        blocks = {name: folder.store.get(versions[name]) for name in wanted}
        fitting = {n: block for n, block in blocks.items() if block.layout == template.initial[n].layout}
        kept = [name for name in versions if same_method and name.endswith(KEPT)]
        shapes = {name: tensor.shape for name, tensor in template.model.state_dict().items()}
        for name in kept:
            block = folder.store.get(versions[name])
            if all(t.shape == shapes.get(n, t.shape) for n, t in block.tensors.items()):
                fitting[name] = block
        return fitting

    def start(self, folder: RunFolder) -> RunState:
        """Return a state before round 1; what clients keep to themselves is copied to this folder."""
        records = {
            client: ClientRecord(state={"private": {n: folder.store.put(b) for n, b in blocks.items()}})
            for client, blocks in self.private.items()
            if blocks
        }
        return RunState(new_run_id(), self.pool, clients=Records(records))


def _left_behind(before: RunState) -> list[str]:
    """Return in words what a run's server kept that is no block of a model."""
    of_models = {name for blocks in before.initial.values() for name in blocks}
    made = [str(address) for address in before.pool if address.block not in of_models]
    kept = {"groups that were found for": before.groups, "blocks": made, "values": before.server}
    return [f"{what} {some(list(names))}" for what, names in kept.items() if names]
