"""An exchange that merges under masks: keys, shares, the masked exchange itself, who came, and the sums opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.blocks import Address, ClientPlan, Fold, Plan, Update, Values
from intarsia.blocks.merge import Holder
from intarsia.core import IntarsiaError, Refused
from intarsia.data import ClientInfo
from intarsia.engines import Failure, Job, Reply
from intarsia.federation.plan import Planner
from intarsia.methods import Exchange
from intarsia.runs import RunState
from intarsia.setup import Setup
from intarsia.trust.secure_sums import (
    AGREE,
    KEYS,
    MASKED,
    OPEN,
    SHARES,
    Keys,
    Opened,
    Session,
    to_text,
)

Carried = tuple[list[Job], list[Reply], Fold]
Carry = Callable[[Plan, Exchange], Carried]
"""Sends the tasks of a plan and takes the replies."""


@dataclass
class MaskedCarry:
    """Carries an exchange so that the server learns the sum of each address, and no single update."""

    setup: Setup
    planner: Planner
    carry: Carry
    state: RunState
    events: list[dict[str, Any]]
    """What is noted of the round."""
    failures: list[str] = field(default_factory=list)
    """Why clients dropped out."""

    def __call__(self, plan: Plan, exchange: Exchange) -> Carried:
        """Carry an exchange; return its tasks, its replies, and a fold as if single updates had been added to it."""
        session = self._session(plan)
        sealed = self._ask(session, SHARES, session.order, lambda _: {"session": session.to_json()})
        members = self._enough(session, sealed, "shared their secrets")
        jobs, replies, fold = self._masked(session, members, plan, exchange)
        updates = self._answered(replies)
        survivors = self._enough(session, updates, "sent their part")
        opened = session.opening(members, survivors)
        given = self._given(session, members, survivors, sealed, opened)
        return jobs, replies, self._opened(session, opened, given, fold, jobs, updates, plan)

    def _session(self, plan: Plan) -> Session:
        """Return who masks what with whom: those who made keys."""
        rules = self.setup.secure_sums
        about = (self.state.run, self.state.round, plan.exchange, rules.floor)
        start = Session(*about, 0, {}, {})
        made = self._ask(start, KEYS, list(plan.clients), lambda _: {"for": plan.exchange})
        holders: dict[str, list[str]] = {}
        for name in made:
            for address in plan.clients[name].returned:
                holders.setdefault(str(address), []).append(name)
        members = {name: Keys(**update.values) for name, update in made.items()}
        session = Session(*about, rules.needed(len(members)), members, holders)
        self._enough(session, made, "made keys")
        return session

    def _masked(self, session: Session, members: Sequence[str], plan: Plan, exchange: Exchange) -> Carried:
        """Carry the exchange itself; an address that too few hold is not asked for, and stays as it is."""
        few = [a for a in sorted(session.holders) if len(session.there(a, members)) < session.floor]
        self._note_kept(plan.exchange, few)
        planned = {str(a): samples for a, samples in self.planner.planned(plan).items()}
        clients = {name: _without(plan.clients[name], few) for name in plan.clients if name in members}

        def values(info: ClientInfo) -> Values:
            own = {str(a): planned[str(a)] for a in clients[info.name].returned}
            how = {"members": list(members), "weight": plan.weights[info.name], "planned": own}
            return {**(exchange.values(info) if exchange.values else {}), MASKED: how}

        return self.carry(replace(plan, clients=clients), replace(exchange, values=values))

    def _given(
        self,
        session: Session,
        members: Sequence[str],
        survivors: Sequence[str],
        sealed: Mapping[str, Update],
        opened: Opened,
    ) -> dict[str, Mapping[str, Any]]:
        """Let clients sign who came, then give what opens the sums."""
        signed = self._ask(session, AGREE, survivors, lambda _: {"survivors": list(survivors)})
        self._enough(session, signed, "signed who came")
        signatures = {name: update.values["signature"] for name, update in signed.items()}
        place = {name: i for i, name in enumerate(session.order)}
        rows = {name: sealed[name].tensors["sealed"].tensors["rows"] for name in members}
        counts = [len(opened.dropped), len(opened.seeds)]

        def values(info: ClientInfo) -> Values:
            mine = {name: to_text(own[place[info.name]].numpy().tobytes()) for name, own in rows.items()}
            return {"signatures": signatures, "sealed": mine, "rows": counts}

        given = self._ask(session, OPEN, list(signed), values)
        return {name: update.tensors["shares"].tensors for name, update in given.items()}

    def _opened(
        self,
        session: Session,
        opened: Opened,
        given: Mapping[str, Mapping[str, Any]],
        fold: Fold,
        jobs: Sequence[Job],
        updates: Mapping[str, Update],
        plan: Plan,
    ) -> Fold:
        """Return the fold of the sums without masks: checked for what updates can sum up to."""
        from intarsia.trust.opening import opened_sums

        self._note_kept(plan.exchange, opened.closed)
        header, block = opened_sums(session, opened, given, fold)
        holders: dict[Address, list[Holder]] = {Address.parse(text): [] for text in header}
        for job in jobs:
            for address in job.task.plan.returned:
                if job.task.client in updates and address in holders:
                    holders[address].append((job.samples, updates[job.task.client].values))
        plain = Fold(self.setup.method.merge, fold.present, self.planner.planned(plan))
        try:
            plain.check_sums(header, block, holders)
        except Refused as error:
            raise IntarsiaError(
                f"exchange '{plan.exchange}': {error}. Under masks nobody can say whose update it was: "
                "nothing is merged"
            ) from error
        plain.absorb(header, block)
        return plain

    def _ask(
        self, session: Session, step: str, clients: Sequence[str], values: Callable[[ClientInfo], Values]
    ) -> dict[str, Update]:
        """Ask clients for a step around the exchange; return what those said who answered."""
        parts = {name: ClientPlan({}) for name in clients}
        plan = Plan(step, "train", parts, dict.fromkeys(clients, 0))
        _, replies, _ = self.carry(plan, Exchange(step, values=values))
        return self._answered(replies)

    def _answered(self, replies: Sequence[Reply]) -> dict[str, Update]:
        self.failures += [reply.failure.message for reply in replies if reply.failure is not None]
        return {reply.client: reply.update for reply in replies if reply.update is not None}

    def _enough(self, session: Session, there: Collection[str], what: str) -> list[str]:
        """Return who is there, by name; too few are an error: nothing could be opened."""
        if len(there) < max(session.threshold, 1):
            raise IntarsiaError(
                f"exchange '{session.exchange}': {len(there)} clients {what}, of {len(session.members)} with keys; "
                f"{session.threshold} are needed to open sums (secure_sums.threshold). Nothing is merged"
                + "".join(f"\n  {reason}" for reason in self.failures[:3])
            )
        return sorted(there)

    def _note_kept(self, exchange: str, addresses: Sequence[str]) -> None:
        for text in addresses:
            address = Address.parse(text)
            reason = (
                f"{address}: fewer clients than secure_sums.floor ({self.setup.secure_sums.floor}) could be summed, "
                "the present version stays"
            )
            failure = Failure("refused", "", "merge", address.block, reason)
            self.events.append({"round": self.state.round, "exchange": exchange, **failure.to_json()})


def _without(plan: ClientPlan, addresses: Collection[str]) -> ClientPlan:
    """Return a client's part without sending these addresses back."""
    kept = {block for block, address in plan.hold.items() if str(address) not in addresses}
    return replace(plan, give_back=plan.give_back & kept)
