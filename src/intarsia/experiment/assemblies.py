"""What a newcomer's model can be made of: the blocks of a run, by group."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from intarsia.core import SettingsError
from intarsia.experiment.joining import Joining, Kin
from intarsia.methods import Addresses
from intarsia.runs import RunState
from intarsia.setup import Setup
from intarsia.setup.setup import FROZEN, NORMS

MOST = 64
"""Assemblies that are tried; where blocks could be put together in more ways, only those that clients have."""


@dataclass(frozen=True)
class Candidate:
    """What a newcomer's model can be made of: groups by block, and whose decisions it is lent."""

    kin: Kin
    joining: Joining
    groups: Mapping[str, str]
    like: str


@dataclass(frozen=True)
class Blocks:
    """The blocks of a run, for one client that was not there."""

    setup: Setup
    state: RunState
    name: str
    """The newcomer's."""

    def assemblies(self, kin: Kin, read: Joining) -> list[Candidate]:
        """Return what blocks there are for a model like this client's: every group that fits, one for each block."""
        shared = self.setup.addresses.now(self.state.groups, self.state.pool)
        peers = self.peers(kin)
        options = {block: self.groups(block, kin, shared) for block in shared.of(kin.info.name)}
        if not any(options.values()):
            raise SettingsError(
                f"the clients of this run share no block that a newcomer could begin with "
                f"(method '{self.setup.method.name}'): run a method that shares some (FedAvg, FedPer, ModFL)"
            )
        options = {block: groups for block, groups in options.items() if groups}
        ways = [dict(zip(options, way, strict=True)) for way in _ways(options)]
        if not ways:
            theirs = ({b: a.group for b, a in shared.of(name).items() if b in options} for name in peers)
            ways = [json.loads(way) for way in dict.fromkeys(json.dumps(own) for own in theirs)]
        return [Candidate(kin, read, way, like) for way in ways for like in self.lenders(peers)]

    def peers(self, kin: Kin) -> list[str]:
        """Return the clients with the same model."""
        key = self.setup.model_of[kin.info.name]
        return [name for name, own in self.setup.model_of.items() if own == key]

    def lenders(self, peers: Sequence[str]) -> list[str]:
        """Return one client for each thing that the server decided for some of these."""
        server = self.state.draft().server
        lent = {json.dumps(self.setup.method.lend(server, name, self.name)): name for name in reversed(peers)}
        return list(reversed(lent.values()))

    def groups(self, block: str, kin: Kin, shared: Addresses) -> list[str]:
        """Return the groups whose block a newcomer can take (none: it begins with its own)."""
        here = shared.where(block, kin.info.name)
        if here.private:
            return []
        if block in (FROZEN, NORMS) or block in self.setup.groups:
            return [here.group]
        sharing = self.setup.method.sharing
        own = sharing.group(block, kin.info)
        if sharing.group(block, replace(kin.info, name=self.name)) != own:
            raise SettingsError(
                f"the models of this run are each somebody's own (method '{self.setup.method.name}'), so that none is "
                "a newcomer's: run again with its data among the others', or choose a method that shares blocks"
            )
        by_device = sharing.group(block, replace(kin.info, device=f"not {kin.info.device}")) != own
        return sorted(
            {
                shared.where(block, info.name).group
                for info in self.setup.population.infos
                if self.has_block(block, kin, info.name)
                and info.task == kin.info.task
                and (info.device == kin.info.device or not by_device)
            }
        )

    def has_block(self, block: str, kin: Kin, name: str) -> bool:
        """Return whether a client has such a block, in the same layout."""
        mine, theirs = (self.setup.template(n).initial.get(block) for n in (kin.info.name, name))
        return theirs is not None and mine is not None and mine.layout == theirs.layout

    def joined(self, one: Candidate) -> Setup:
        """Return the setup with the newcomer in it: a client like its kin."""
        setup, kin = self.setup, one.kin.info.name
        there, prepared = setup.population, one.joining.prepared
        clients = {**there.clients, self.name: one.joining.client}
        preparations = {**there.preparations, **({self.name: prepared} if prepared else {})}
        population = replace(there, clients=clients, preparations=preparations)
        groups = {b: {**of, self.name: of[kin]} if kin in of else of for b, of in setup.groups.items()}
        model_of = {**setup.model_of, self.name: setup.model_of[kin]}
        return replace(setup, population=population, model_of=model_of, groups=groups)

    def begun(self, one: Candidate) -> RunState:
        """Return the run's state with the newcomer in its groups."""
        state = self.state.draft()
        for block, group in one.groups.items():
            if block not in (FROZEN, NORMS):
                state.groups.setdefault(block, {})[self.name] = group
        self.setup.method.lend(state.server, one.like, self.name)
        return state

    def addresses(self, one: Candidate) -> dict[str, str]:
        """Return where the newcomer's blocks come from."""
        addresses = self.joined(one).addresses
        state = self.begun(one)
        return {b: str(a) for b, a in addresses.now(state.groups, state.pool).of(self.name).items()}

    def begins_at_home(self, one: Candidate) -> bool:
        """Return whether a block is nobody's yet, so that a model is worth little before it is tuned."""
        changing = self.setup.template(one.kin.info.name).changing
        return any(block not in one.groups for block in changing)


def _ways(options: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return every way to take a group for each block; none where these are too many."""
    many = math.prod(map(len, options.values())) > MOST
    return [] if many else list(itertools.product(*options.values()))
