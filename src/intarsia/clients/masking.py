"""What a client does for secure sums: the steps around an exchange, and its own part of the sums under masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.blocks import Block, Task, Update
from intarsia.clients.state import State, state_version
from intarsia.core import ClientError
from intarsia.setup import Setup
from intarsia.trust.own_part import OwnPart

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard


@dataclass(frozen=True)
class Masking:
    """Masks what the clients of a setup send, if someone guards them."""

    setup: Setup
    guard: Guard | None

    def step(self, task: Task, state: State) -> Update:
        """Do a step of secure sums: the client's state stays as it is."""
        values, tensors = self._guard.answer(task)
        return Update(
            **{name: getattr(task, name) for name in ("run", "round", "exchange", "purpose", "client")},
            state=state_version(state),
            values=values,
            samples=self.setup.population.clients[task.client].info.train_samples,
            tensors={name: Block(own) for name, own in tensors.items()},
        )

    def masked(self, task: Task, update: Update, content: Callable[[str], Block]) -> Update:
        """Return the update as its part of the sums, under masks: as the server would have admitted and added it.

        Whatever bounds an update or adds noise to it belongs before `own_part`: nobody can do it later.
        """
        method, setup = self.setup.method, self.setup
        sent = {address: content(task.versions[address]) for address in task.plan.returned}
        admitted = method.admit(update, sent, setup.training.lr_in(task.round, setup.rounds))
        made_of = [setup.seed, task.round, task.exchange, task.state, task.header()["versions"]]
        own_part = OwnPart(method.merge, sent, setup.layouts(task.client, task.plan), json.dumps(made_of))
        return replace(update, blocks=own_part.masked(self._guard, task, admitted))

    @property
    def _guard(self) -> Guard:
        if self.guard is None:
            raise ClientError(
                "the server asks for secure sums, and the settings here do not (secure_sums.on)"
            )
        return self.guard
