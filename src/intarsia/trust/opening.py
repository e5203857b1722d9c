"""The server's side of secure sums: takes the masks off sums, with what enough clients gave for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from intarsia.blocks import Address, Block, Fold
from intarsia.core import IntarsiaError
from intarsia.trust.guard import own_key, pair_key
from intarsia.trust.masks import Numbers, add_stream, agreeing, in_line, in_shape, pair_sign, public_of
from intarsia.trust.secure_sums import Opened, Session, from_text
from intarsia.trust.shamir import coefficients, joined

K = TypeVar("K", bound=Hashable)
Given = Mapping[str, Mapping[str, Tensor]]
"""The shares that clients gave, by client: rows of `keys` and of `seeds`, in the order of what is opened."""


def opened_sums(
    session: Session, opened: Opened, given: Given, fold: Fold
) -> tuple[dict[str, object], Block]:
    """Return the sums of a masked fold without masks, as `Fold.dump` does, of every address that is opened."""
    header, masked = fold.dump()
    shapes = {a: fold.merge.open(fold.present[Address.parse(a)], 1) for a in opened.whole}
    summed = {a: {name: masked.tensors[f"{a}/{name}"] for name in own.grids} for a, own in shapes.items()}
    lines = {address: in_line(tensors) for address, tensors in summed.items()}
    take_off(session, opened, given, lines)
    tensors = {f"{a}/{n}": masked.tensors[f"{a}/{n}"] for a, own in shapes.items() for n in own.tensors}
    for address, own in shapes.items():
        for name, tensor in in_shape(lines[address], summed[address]).items():
            tensors[f"{address}/{name}"] = tensor.to(own.grids[name].dtype)
    return {address: header[address] for address in opened.whole}, Block(tensors)


def take_off(session: Session, opened: Opened, given: Given, sums: Mapping[str, Numbers]) -> None:
    """Take the masks off the sums of every address that is opened, in place."""
    keys, seeds = _secrets(session, opened, given)
    for address, survivors in opened.whole.items():
        line = sums[address]
        for client in survivors:
            add_stream(line, own_key(session, seeds[address, client], address), -1)
        for gone in session.there(address, opened.dropped):
            agree = agreeing(keys[gone])
            for client in survivors:
                secret = agree(from_text(session.members[client].mask))
                add_stream(line, pair_key(session, secret, address), -pair_sign(client, gone))


def _secrets(
    session: Session, opened: Opened, given: Given
) -> tuple[dict[str, bytes], dict[tuple[str, str], bytes]]:
    """Put together the secrets that a threshold of the clients gave shares of."""
    if len(given) < session.threshold:
        raise IntarsiaError(
            f"exchange '{session.exchange}': {len(given)} of {len(session.members)} clients gave shares, "
            f"{session.threshold} are needed to open the sums (secure_sums.threshold): nothing is merged"
        )
    number = {name: i for i, name in enumerate(session.order, 1)}
    chosen = {number[name]: given[name] for name in sorted(given)[: session.threshold]}
    counts = coefficients(list(chosen))
    try:
        keys = _joined(chosen, counts, "keys", opened.dropped)
        seeds = _joined(chosen, counts, "seeds", opened.seeds)
        wrong = [n for n, key in keys.items() if public_of(key) != from_text(session.members[n].mask)]
    except ValueError:
        wrong = [""]
    if wrong:
        raise IntarsiaError(
            f"exchange '{session.exchange}': the shares that clients gave do not fit each other: one of them gave "
            "wrong ones, and nothing is merged"
        )
    return keys, seeds


def _joined(
    chosen: Mapping[int, Mapping[str, Tensor]], counts: Mapping[int, int], kind: str, names: Sequence[K]
) -> dict[K, bytes]:
    rows = {holder: own[kind].numpy() for holder, own in chosen.items()}
    return {
        name: joined({holder: own[i].tobytes() for holder, own in rows.items()}, counts)
        for i, name in enumerate(names)
    }
