"""What the round loop does where single samples are protected: who may still train, and what that has cost."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

from intarsia.blocks import Plan
from intarsia.core import IntarsiaError
from intarsia.federation.plan import Planner, Sampling
from intarsia.federation.private import Open, Private
from intarsia.methods import EVALUATE, Exchange
from intarsia.runs import RunFolder, RunState
from intarsia.setup import Setup
from intarsia.training.private import steps_of
from intarsia.trust import STEPS
from intarsia.trust.accounting import Release, epsilon_of, rounds_within, usual_delta
from intarsia.trust.ledger import LEDGER, Entry, Ledger


class PrivateExamples(Open):
    """Clients protect their samples themselves (DP-SGD); the loop counts how often each has trained.

    Every step of a client is a Gaussian mechanism on samples that are in it by chance. One that has spent its budget is
    not drawn any more. A client that trained has spent, whether its update arrived or not.
    """

    def __init__(self, setup: Setup, sampling: Sampling, planner: Planner, folder: RunFolder) -> None:
        super().__init__(setup, sampling, planner)
        self.privacy = setup.privacy
        self.keyed = setup.privacy.randomness != "system"
        self.ledger = Ledger(folder.path / LEDGER)
        self.times = Counter(
            part for _, part in {(e.draw, part) for e in self.ledger.entries for part in e.parts}
        )
        self._known = {entry.draw for entry in self.ledger.entries}

    def choose(self, state: RunState) -> dict[str, int]:
        """Return the clients of a round that may still train."""
        chosen = super().choose(state)
        able = {name: count for name, count in chosen.items() if self._may_train(name, state)}
        if not able and self._all_spent():
            raise IntarsiaError(
                f"the privacy budget is spent: no client can train any more with an epsilon of {self.privacy.most:.3g} "
                f"for its samples (it is {self.epsilon():.3g} where it is largest). The models of the last round can "
                "be used; training goes no further"
            )
        return able

    def counted(self, plan: Plan, exchange: Exchange, state: RunState) -> Plan:
        """Note who is about to train."""
        if plan.purpose != EVALUATE and plan.exchange not in STEPS and plan.clients:
            self._note(tuple(plan.clients), plan.exchange, state)
        return plan

    def _note(self, clients: tuple[str, ...], exchange: str, state: RunState) -> None:
        draw = self._draw(state) if self.keyed else f"{self._draw(state)}, time {len(self.ledger.entries)}"
        entry = Entry(
            draw=draw,
            round=state.round,
            exchange=exchange,
            chance=1.0,
            noise=self.privacy.noise,
            bound=self.privacy.clip,
            parts=clients,
        )
        self.ledger.add(entry)
        if draw not in self._known:
            self.times.update(clients)
        self._known.add(draw)

    def _draw(self, state: RunState) -> str:
        return f"{state.round} of {self.setup.rounds}"

    def _may_train(self, client: str, state: RunState) -> bool:
        again = self.keyed and any(
            entry.draw == self._draw(state) and client in entry.parts for entry in self.ledger.entries
        )
        return again or not self._has_spent(client)

    def _has_spent(self, client: str) -> bool:
        return bool(self.privacy.most) and self.times[client] >= self._most_times[self._samples(client)]

    def _all_spent(self) -> bool:
        return all(self._has_spent(client) for client in self.planner.residents)

    @cached_property
    def _most_times(self) -> dict[int, int]:
        """How often a client with so many samples can train within the budget."""
        found = {}
        for samples in {self._samples(client) for client in self.planner.residents}:
            chance, steps = steps_of(samples, self.setup.training)
            release, asked = Release(chance, self.privacy.noise), 2 * steps * self.setup.rounds
            within = rounds_within(self.privacy.most, self._delta(samples), {}, release, asked)
            found[samples] = within // steps
        return found

    def _samples(self, client: str) -> int:
        return self.planner.infos[client].train_samples

    def _delta(self, samples: int) -> float:
        return self.privacy.delta or usual_delta(samples)

    def _spent(self, client: str) -> float:
        samples = self._samples(client)
        chance, steps = steps_of(samples, self.setup.training)
        spent = {Release(chance, self.privacy.noise): self.times[client] * steps}
        return epsilon_of(spent, self._delta(samples))

    def is_last(self, round: int) -> bool:
        """Return whether nobody can train any more, or the run ends."""
        return super().is_last(round) or self._all_spent()

    def epsilon(self) -> float:
        """Return what was spent by the client that has spent most."""
        return max((self._spent(client) for client in self.planner.residents), default=0.0)

    def summary(self) -> dict[str, Any]:
        """Return what was spent, by every client."""
        clients = {
            name: {
                "times": self.times[name],
                "epsilon": self._spent(name),
                "delta": self._delta(self._samples(name)),
            }
            for name in self.planner.residents
        }
        worst = max(clients.values(), key=lambda own: own["epsilon"])
        told = {
            "level": "example",
            "epsilon": worst["epsilon"],
            "delta": worst["delta"],
            "noise": self.privacy.noise,
            "bound": self.privacy.clip,
            "randomness": "keyed" if self.keyed else "system",
            "budget": self.privacy.most,
            "budget_spent": self._all_spent(),
            "clients": clients,
        }
        return {"privacy": told}


def guarded(setup: Setup, sampling: Sampling, planner: Planner, folder: RunFolder) -> Open:
    """Return what the loop does for privacy."""
    if setup.privacy.of_examples:
        return PrivateExamples(setup, sampling, planner, folder)
    return Private(setup, sampling, planner, folder) if setup.privacy.on else Open(setup, sampling, planner)
