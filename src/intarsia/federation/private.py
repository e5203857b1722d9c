"""What the round loop does for clients' privacy: bounds on updates, noise on sums, the ledger, the budget."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from intarsia.blocks import Address, Block, Fold, Plan, Update
from intarsia.core import CheckpointError, IntarsiaError
from intarsia.federation.gathering import still_in
from intarsia.federation.plan import Planner, Sampling
from intarsia.methods import EVALUATE, Exchange
from intarsia.runs import RunFolder, RunState
from intarsia.setup import Setup
from intarsia.trust.accounting import Release, epsilon_of, rounds_within, usual_delta
from intarsia.trust.ledger import LEDGER, Entry, Ledger, spent_by
from intarsia.trust.noise import add_noise, randomness
from intarsia.trust.privacy import BOUND, WITHIN

LAST_BOUND, RELEASES = "privacy_bound", "privacy_releases"
"""What a run's totals keep: an adaptive bound, and how many releases its ledger must have at least."""


class Open:
    """What the loop does where nobody asked for privacy: nothing beside the usual."""

    def __init__(self, setup: Setup, sampling: Sampling, planner: Planner) -> None:
        self.setup = setup
        self.sampling = sampling
        self.planner = planner

    def choose(self, state: RunState) -> dict[str, int]:
        """Return the clients of a round."""
        return self.sampling.choose(still_in(self.planner.names, state), self.setup.seed, state.round)

    def asked(self, exchange: Exchange, state: RunState) -> Exchange:
        """Return an exchange as it goes out."""
        return exchange

    def counted(self, plan: Plan, exchange: Exchange, state: RunState) -> Plan:
        """Return the plan of those whose addresses are merged, and who count in that."""
        return plan

    def merged(
        self, state: RunState, plan: Plan, fold: Fold, updates: Sequence[Update]
    ) -> dict[Address, Block]:
        """Return the next versions of addresses."""
        return fold.finish()

    def is_last(self, round: int) -> bool:
        """Return whether a round is the last that the run can have."""
        return round == self.setup.rounds

    def epsilon(self) -> float | None:
        """Return what was spent."""
        return None

    def summary(self) -> dict[str, Any]:
        """Return what the run's summary says of privacy."""
        return {}


class Private(Open):
    """What the loop does under client-level privacy.

    A round is one Gaussian mechanism: a client's changes over all addresses have a norm of at most the bound C, the sum
    of every address gets noise of z C, and is divided by how many holders are expected, never by who came. An address
    that nobody came for gets its noise all the same. Groups, the number of clients and their chance are public.
    """

    def __init__(self, setup: Setup, sampling: Sampling, planner: Planner, folder: RunFolder) -> None:
        super().__init__(setup, sampling, planner)
        self.privacy = setup.privacy
        self.keyed = setup.privacy.randomness != "system"
        self.source = randomness(setup.privacy.randomness, setup.seed)
        self.ledger = Ledger(folder.path / LEDGER)
        self.clients = len(planner.residents)
        self.chance = sampling.chance(self.clients)
        self.delta = setup.privacy.delta or usual_delta(self.clients)
        self._draw = ""

    def check(self, state: RunState) -> None:
        """Refuse a run whose ledger lacks what its state has released."""
        if len(self.ledger.entries) < state.totals.get(RELEASES, 0):
            raise CheckpointError(
                f"{self.ledger.path} has {len(self.ledger.entries)} releases, the run's state has "
                f"{state.totals[RELEASES]:.0f}: put back the file, else nobody can say what was spent"
            )

    def choose(self, state: RunState) -> dict[str, int]:
        """Draw the clients of a round; not if that would cost more than there is."""
        self.check(state)
        self._stop_before_the_budget(state.round)
        if self.keyed:
            self._draw = f"{state.round} of {self.setup.rounds}"
            return super().choose(state)
        self._draw = secrets.token_hex(8)
        return self.sampling.by_chance(self.planner.residents, self.source.uniform(self.clients))

    def asked(self, exchange: Exchange, state: RunState) -> Exchange:
        """Let every task say how far its answer may go."""
        bound, given = self.bound(state), exchange.values
        return replace(exchange, values=lambda info: {**(given(info) if given else {}), BOUND: bound})

    def counted(self, plan: Plan, exchange: Exchange, state: RunState) -> Plan:
        """Return the plan as it would be with every client: whose addresses are merged does not depend on who came."""
        if plan.purpose == EVALUATE:
            return plan
        everyone = dict.fromkeys(self.planner.residents, 1)
        return self.planner.plan(exchange, everyone, self.planner.addresses(state))

    def merged(
        self, state: RunState, plan: Plan, fold: Fold, updates: Sequence[Update]
    ) -> dict[Address, Block]:
        """Note the release, add noise to all sums, and make next versions of them."""
        if not fold.present:
            return {}
        bound, addresses = self.bound(state), sorted(fold.present)
        named = tuple(str(address) for address in addresses)
        entry = Entry(
            draw=self._draw,
            round=state.round,
            exchange=plan.exchange,
            chance=self.chance,
            noise=self.privacy.noise,
            bound=bound,
            parts=named,
        )
        self.ledger.add(entry)
        state.totals[RELEASES] = len(self.ledger.entries)
        for address in addresses:
            self._cover(address, fold, bound, (state.round, plan.exchange))
        self._follow(state, plan, bound, updates)
        return {address: _possible(block) for address, block in fold.finish().items()}

    def _cover(self, address: Address, fold: Fold, bound: float, when: tuple[int, str]) -> None:
        """Add noise to the sums of an address, and let them be divided by how many holders are expected."""
        sums, present = fold.sums(address), fold.present[address]
        deviation = self.privacy.sum_noise(self._expected) * bound / sums.planned
        add_noise(sums, deviation, self.source, "privacy noise", *when, str(address))
        for name in sums.tensors.keys() - sums.grids.keys():
            sums.tensors[name] = present.tensors[name].clone()  # counts have no noise: they are not released
        sums.samples, sums.planned = self.chance, 1.0

    def _follow(self, state: RunState, plan: Plan, bound: float, updates: Sequence[Update]) -> None:
        """Let an adaptive bound follow the noisy share of updates that kept within it (Andrew et al. 2021)."""
        if not self.privacy.adaptive:
            return
        halves = math.fsum(update.values[WITHIN] - 0.5 for update in updates)
        noise = self.source.normal(1, "privacy bound", state.round, plan.exchange)[0]
        noisy = halves + float(noise) * self.privacy.bits_noise(self._expected)
        share = noisy / self._expected + 0.5
        state.totals[LAST_BOUND] = bound * math.exp(-self.privacy.rate * (share - self.privacy.quantile))

    @property
    def _expected(self) -> float:
        """How many clients take part on average."""
        return self.chance * self.clients

    def bound(self, state: RunState) -> float:
        """Return how far updates may go in the round that begins."""
        return float(state.totals.get(LAST_BOUND, self.privacy.clip))

    @cached_property
    def _left(self) -> tuple[int, int]:
        """How many releases there were when this began, and how many more the budget allows."""
        spent, most = spent_by(self.ledger.entries), self.privacy.most
        asked = 2 * self.setup.rounds
        left = rounds_within(most, self.delta, spent, self._release, asked) if most else asked
        return spent.total(), left

    @property
    def _release(self) -> Release:
        return Release(self.chance, self.privacy.noise)

    def is_last(self, round: int) -> bool:
        """Return whether the budget ends with a round, or the run."""
        return super().is_last(round) or (self.privacy.most > 0 and not self._allows_another())

    def _allows_another(self) -> bool:
        before, left = self._left
        return spent_by(self.ledger.entries).total() < before + left

    def _stop_before_the_budget(self, round: int) -> None:
        """Raise before a round that would cost more than there is."""
        played_again = self.keyed and any(
            entry.draw == f"{round} of {self.setup.rounds}" for entry in self.ledger.entries
        )
        if self.privacy.most and not played_again and not self._allows_another():
            raise IntarsiaError(
                f"the privacy budget is spent: epsilon is {self.epsilon():.3g} of {self.privacy.most:.3g} "
                f"(delta {self.delta:.1e}), and round {round} would go beyond it. The models of the last round can be "
                "used; training goes no further"
            )

    def epsilon(self) -> float:
        """Return what was spent so far."""
        return epsilon_of(spent_by(self.ledger.entries), self.delta)

    def summary(self) -> dict[str, Any]:
        """Return what was spent: by the run, and by every address for who sees that alone."""
        entries = self.ledger.entries
        own = {a: spent_by(entries, a) for a in sorted({a for entry in entries for a in entry.parts})}
        told = {
            "level": "client",
            "epsilon": self.epsilon(),
            "delta": self.delta,
            "releases": len({(entry.draw, entry.exchange) for entry in entries}),
            "noise": self.privacy.noise,
            "bound": entries[-1].bound if entries else self.privacy.clip,
            "chance": self.chance,
            "randomness": "keyed" if self.keyed else "system",
            "budget": self.privacy.most,
            "budget_spent": bool(self.privacy.most) and not self._allows_another(),
            "addresses": {
                a: {"releases": spent.total(), "epsilon": epsilon_of(spent, self.delta)}
                for a, spent in own.items()
            },
        }
        return {"privacy": told}


def _possible(block: Block) -> Block:
    """Return a block whose variances are no less than nothing, whatever the noise made of them."""
    tensors = {
        name: tensor.clamp(min=0) if name.rpartition(".")[2] == "running_var" else tensor
        for name, tensor in block.tensors.items()
    }
    return block.alike(tensors)
