"""The client's side of secure sums: makes keys, shares secrets, masks, and gives shares of one kind for each client."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from intarsia.blocks import Task
from intarsia.blocks.plain import read_as
from intarsia.core import ClientError
from intarsia.trust.identities import Identities
from intarsia.trust.masks import (
    Agree,
    Numbers,
    add_stream,
    agreeing,
    derived,
    fresh_key,
    in_line,
    in_shape,
    pair_sign,
    public_of,
)
from intarsia.trust.secure_sums import (
    AGREE,
    KEYS,
    MASKED,
    OPEN,
    SHARES,
    Agreed,
    Masking,
    Opening,
    SecureSums,
    Session,
    digest,
    from_text,
    to_text,
)
from intarsia.trust.shamir import SECRET, SHARE, split
from intarsia.trust.vault import Vault

NONCE = bytes(12)
"""Every key seals one message, so that all begin alike."""
Said = tuple[dict[str, Any], dict[str, dict[str, Tensor]]]
"""What a client answers: values, and tensors by name."""


class Guard:
    """Does the steps of secure sums for the clients of one place; each once, and none out of its turn."""

    def __init__(self, vault: Vault, identities: Identities, rules: SecureSums) -> None:
        self.vault = vault
        self.identities = identities
        self.rules = rules

    def answer(self, task: Task) -> Said:
        """Do one of the steps around an exchange that merges."""
        steps: dict[str, Callable[[Task], Said]] = {
            KEYS: self._keys,
            SHARES: self._shares,
            AGREE: self._agree,
            OPEN: self._open,
        }
        return steps[task.exchange](task)

    def mask(
        self, task: Task, part: Mapping[str, Mapping[str, Tensor]], work: str
    ) -> dict[str, dict[str, Tensor]]:
        """Return a client's part of the sums under masks, by address; `work` says what it was computed from."""
        mine, asked = self._session(task, SHARES), read_as(Masking, task.values[MASKED], "how to mask")
        session, client = Session.read(mine["session"]), task.client
        self._check_members(session, client, asked.members)
        for address in part:
            there = session.there(address, asked.members) if address in session.holders else []
            if client not in there or len(there) < self.rules.floor:
                raise ClientError(
                    f"{address} would be summed over {len(there)} clients, at least {self.rules.floor} are asked for "
                    "(secure_sums.floor): nothing is sent"
                )
        used = {
            **mine,
            "stage": MASKED,
            "members": sorted(asked.members),
            "work": work,
            "masked": sorted(part),
        }
        self.vault.put(client, used, for_good=True)
        lines = {address: in_line(tensors) for address, tensors in part.items()}
        for address, line in lines.items():
            self._add_masks(session, mine, client, session.there(address, asked.members), address, line)
        return {address: in_shape(lines[address], tensors) for address, tensors in part.items()}

    def _add_masks(
        self,
        session: Session,
        mine: Mapping[str, Any],
        client: str,
        there: Sequence[str],
        address: str,
        line: Numbers,
    ) -> None:
        add_stream(line, own_key(session, from_text(mine["seeds"][address]), address), 1)
        agree = agreeing(from_text(mine["mask"]))
        for other in there:
            if other != client:
                secret = agree(from_text(session.members[other].mask))
                add_stream(line, pair_key(session, secret, address), pair_sign(client, other))

    def _keys(self, task: Task) -> Said:
        mask, seal = fresh_key(), fresh_key()
        about = {"run": task.run, "round": task.round, "exchange": task.values["for"]}
        self.vault.put(
            task.client, {**about, "stage": KEYS, "mask": to_text(mask), "seal": to_text(seal), "work": ""}
        )
        told = {"mask": to_text(public_of(mask)), "seal": to_text(public_of(seal))}
        signature = self.identities.sign(task.client, signed_keys(about, task.client, told))
        return {**told, "signature": to_text(signature)}, {}

    def _shares(self, task: Task) -> Said:
        """Share this client's secrets among all members, each part sealed for the one that keeps it."""
        session, client = Session.read(task.values["session"]), task.client
        mine = self._session(task, KEYS)
        self._check_session(session, mine, client)
        seeds = {address: secrets.token_bytes(SECRET) for address in session.addresses(client)}
        shares = [
            split(secret, len(session.order), session.threshold)
            for secret in (from_text(mine["mask"]), *seeds.values())
        ]
        agree = agreeing(from_text(mine["seal"]))
        rows = [
            _sealing(session, agree, other, client, other).encrypt(
                NONCE, b"".join(own[i] for own in shares), session.digest
            )
            for i, other in enumerate(session.order)
        ]
        kept = {"session": session.to_json(), "seeds": {a: to_text(s) for a, s in seeds.items()}}
        self.vault.put(client, {**mine, **kept, "stage": SHARES})
        return {}, {"sealed": {"rows": as_bytes(rows, session.row(client))}}

    def _agree(self, task: Task) -> Said:
        """Sign who came: once, and never others than before for the same work."""
        mine, client = self._session(task, MASKED), task.client
        session = Session.read(mine["session"])
        survivors = sorted(read_as(Agreed, dict(task.values), "who came").survivors)
        self._check_members(session, client, survivors)
        if not set(survivors) <= set(mine["members"]):
            raise ClientError("someone is said to have come who masked nothing: nothing is opened")
        whose = to_text(digest("group", {a: session.there(a, survivors) for a in mine["masked"]}))
        before = self.vault.opened(client, mine["work"])
        if before not in (None, whose):
            raise ClientError(
                "this client's part of the same work was summed with others before, and the difference would give "
                "single updates away: play the round with the same clients, or start another run from this one "
                "(start_from)"
            )
        text = came(session, mine["members"], survivors)
        self.vault.open(client, {**mine, "stage": AGREE, "survivors": survivors}, mine["work"], whose)
        return {"signature": to_text(self.identities.sign(client, text))}, {}

    def _open(self, task: Task) -> Said:
        """Give shares: of who came, those of their own masks; of who did not, those of their keys; never both."""
        mine, client = self._session(task, AGREE), task.client
        session, asked = Session.read(mine["session"]), read_as(Opening, dict(task.values), "an opening")
        self._check_signatures(session, mine, asked)
        opened = session.opening(mine["members"], mine["survivors"])
        agree = agreeing(from_text(mine["seal"]))
        rows = {name: _unsealed(session, agree, client, name, asked) for name in mine["members"]}
        keys = [rows[name][:SHARE] for name in opened.dropped]
        seeds = [_part(rows[name], 1 + session.addresses(name).index(a)) for a, name in opened.seeds]
        self.vault.put(client, {})
        return {}, {"shares": {"keys": as_bytes(keys, SHARE), "seeds": as_bytes(seeds, SHARE)}}

    def _session(self, task: Task, stage: str) -> dict[str, Any]:
        """Return the client's session, if this step is the next one of it."""
        mine = self.vault.session(task.client)
        here = (mine.get("run"), mine.get("round"), mine.get("stage"))
        if here != (task.run, task.round, stage):
            raise ClientError(
                f"this step of secure sums is not the client's next one (run, round and last step here: {here}): "
                "masks and shares are used once"
            )
        return mine

    def _check_session(self, session: Session, mine: Mapping[str, Any], client: str) -> None:
        """Refuse a session that is not as agreed: other keys than were signed, too few clients, another threshold."""
        about = {"run": session.run, "round": session.round, "exchange": session.exchange}
        if any(mine[name] != value for name, value in about.items()):
            raise ClientError("the session of secure sums is another one than keys were made for")
        if session.threshold != self.rules.needed(len(session.members)) or session.floor != self.rules.floor:
            raise ClientError("the session of secure sums has other bounds than the settings")
        for name, keys in session.members.items():
            text = signed_keys(about, name, {"mask": keys.mask, "seal": keys.seal})
            if not self.identities.signed(name, text, from_text(keys.signature)):
                raise ClientError(
                    f"the keys that are said to be client '{name}''s are not signed by it: someone swapped them, or "
                    "its site is not in the list of keys here"
                )
        own = session.members.get(client)
        if own is None or own.mask != to_text(public_of(from_text(mine["mask"]))):
            raise ClientError("the session of secure sums has other keys of this client than it made")
        if not {name for holders in session.holders.values() for name in holders} <= set(session.members):
            raise ClientError("the session of secure sums names a holder that is no member")

    def _check_members(self, session: Session, client: str, named: Sequence[str]) -> None:
        fits = set(named) <= set(session.members) and client in named
        if not fits or len(set(named)) != len(named) or len(named) < session.threshold:
            raise ClientError(
                f"{len(named)} clients are named, of {len(session.members)} in the session; {session.threshold} are "
                "needed, and this one among them: nothing is sent"
            )

    def _check_signatures(self, session: Session, mine: Mapping[str, Any], asked: Opening) -> None:
        """Refuse to open anything that a threshold of the members did not see as this client did."""
        text = came(session, mine["members"], mine["survivors"])
        signed = [
            name
            for name, signature in asked.signatures.items()
            if name in mine["survivors"] and self.identities.signed(name, text, from_text(signature))
        ]
        if len(signed) < session.threshold:
            raise ClientError(
                f"{len(signed)} clients signed the same list of who came, {session.threshold} are needed: nothing is "
                "opened"
            )


def pair_key(session: Session, secret: bytes, address: str) -> bytes:
    """Return the key of the stream that two clients have in common for an address."""
    return derived(secret, session.digest, "pair", address)


def own_key(session: Session, seed: bytes, address: str) -> bytes:
    """Return the key of the stream that a client alone has for an address."""
    return derived(seed, session.digest, "own", address)


def signed_keys(about: Mapping[str, Any], client: str, told: Mapping[str, str]) -> bytes:
    """Return what a client signs of its keys."""
    return digest("keys", {**about, "client": client, **told})


def came(session: Session, members: Sequence[str], survivors: Sequence[str]) -> bytes:
    """Return what clients sign of who came."""
    return digest("came", [to_text(session.digest), sorted(members), sorted(survivors)])


def as_bytes(rows: Sequence[bytes], width: int) -> Tensor:
    """Return rows of bytes as a tensor."""
    if not rows:
        return torch.zeros((0, width), dtype=torch.uint8)
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).reshape(len(rows), width).clone()


def _part(row: bytes, number: int) -> bytes:
    return row[SHARE * number : SHARE * (number + 1)]


def _sealing(session: Session, agree: Agree, other: str, sender: str, receiver: str) -> ChaCha20Poly1305:
    """Return what seals for a receiver, or opens what a sender sealed; `other` is the one that is not here."""
    secret = agree(from_text(session.members[other].seal))
    return ChaCha20Poly1305(derived(secret, session.digest, "seal", sender, receiver))


def _unsealed(session: Session, agree: Agree, client: str, sender: str, asked: Opening) -> bytes:
    try:
        sealed = from_text(asked.sealed.get(sender, ""))
        return _sealing(session, agree, sender, sender, client).decrypt(NONCE, sealed, session.digest)
    except (InvalidTag, ValueError) as error:
        raise ClientError(
            f"what client '{sender}' sealed for this one did not come, or not as it was sealed"
        ) from error
