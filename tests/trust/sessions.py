"""A session of secure sums played by hand: the server's part in plain lines, the clients' by their guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from intarsia.blocks import Task
from intarsia.trust.guard import Guard
from intarsia.trust.identities import OnOneMachine
from intarsia.trust.masks import Numbers, in_line
from intarsia.trust.opening import take_off
from intarsia.trust.secure_sums import (
    AGREE,
    KEYS,
    MASKED,
    OPEN,
    SHARES,
    Keys,
    Opened,
    SecureSums,
    Session,
    to_text,
)
from intarsia.trust.vault import Vault

RULES = SecureSums(on=True)


@dataclass
class Play:
    """Ten clients or so, who hold some addresses; every step can be done out of its turn, and otherwise than meant."""

    folder: Path
    holders: Mapping[str, Sequence[str]]
    round: int = 1
    run: str = "r"
    rules: SecureSums = RULES
    guard: Guard | None = None
    sealed: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guard = self.guard or Guard(Vault(self.folder), OnOneMachine(), self.rules)
        self.names = sorted({name for own in self.holders.values() for name in own})

    def task(self, step: str, client: str, values: Mapping[str, Any]) -> Task:
        return Task(self.run, self.round, step, "train", client, "", values=values)

    def ask(self, step: str, client: str, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self.guard is not None
        return self.guard.answer(self.task(step, client, values))

    def keys(self) -> Session:
        made = {name: Keys(**self.ask(KEYS, name, **{"for": "train"})[0]) for name in self.names}
        needed = self.rules.needed(len(made))
        return Session(self.run, self.round, "train", self.rules.floor, needed, made, self.holders)

    def share(self, session: Session, told: Mapping[str, Session] | None = None) -> None:
        for name in self.names:
            mine = (told or {}).get(name, session)
            _, tensors = self.ask(SHARES, name, session=mine.to_json())
            self.sealed[name] = tensors["sealed"]["rows"]

    def mask(
        self, client: str, part: Mapping[str, torch.Tensor], members: Sequence[str] = (), work: str = "w"
    ) -> dict[str, Numbers]:
        assert self.guard is not None
        how = {"members": list(members or self.names), "weight": 1, "planned": {}}
        task = self.task("train", client, {MASKED: how})
        masked = self.guard.mask(task, {a: {"x": numbers} for a, numbers in part.items()}, work)
        return {address: in_line(tensors) for address, tensors in masked.items()}

    def agree(self, survivors: Sequence[str], who: Sequence[str] = ()) -> dict[str, str]:
        return {
            name: self.ask(AGREE, name, survivors=list(survivors))[0]["signature"]
            for name in who or survivors
        }

    def open(self, session: Session, client: str, signatures: Mapping[str, str]) -> dict[str, torch.Tensor]:
        place = session.order.index(client)
        mine = {name: to_text(rows[place].numpy().tobytes()) for name, rows in self.sealed.items()}
        _, tensors = self.ask(OPEN, client, signatures=dict(signatures), sealed=mine, rows=[0, 0])
        return tensors["shares"]

    def until_masked(self, gone: Sequence[str] = (), work: str = "w") -> Masked:
        """Play until the masked numbers of all but some are there."""
        session = self.keys()
        self.share(session)
        random = np.random.default_rng(0)
        parts, sums = {}, {}
        for name in self.names:
            own = {a: torch.from_numpy(random.integers(-(2**50), 2**50, 5)) for a in session.addresses(name)}
            parts[name] = own
            if name not in gone:
                for address, line in self.mask(name, own, work=work).items():
                    sums[address] = sums[address] + line if address in sums else line
        return Masked(session, sums, parts, [name for name in self.names if name not in gone])

    def to_the_end(self, gone: Sequence[str] = (), silent: Sequence[str] = (), work: str = "w") -> Masked:
        """Play a whole session; some drop out before they mask, some before they give shares."""
        masked = self.until_masked(gone, work)
        signatures = self.agree(masked.survivors)
        opened = masked.session.opening(self.names, masked.survivors)
        given = {
            name: self.open(masked.session, name, signatures)
            for name in masked.survivors
            if name not in silent
        }
        take_off(masked.session, opened, given, masked.sums)
        return replace(masked, opened=opened, given=given)


@dataclass
class Masked:
    """What the server has: the session, masked sums (opened ones, once it is played to the end), and who came."""

    session: Session
    sums: dict[str, Numbers]
    parts: dict[str, dict[str, torch.Tensor]]
    """What each client put in; the server has not."""
    survivors: list[str]
    opened: Opened | None = None
    given: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def exact(self, address: str) -> list[int]:
        """Return the sum of who came, with Python's whole numbers, modulo 2^64."""
        own = [self.parts[n][address].tolist() for n in self.survivors if address in self.parts[n]]
        return [sum(column) % 2**64 for column in zip(*own, strict=True)]
