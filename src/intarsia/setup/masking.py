"""Which methods can sum under masks, and which cannot: asked before a run, and said with the reason."""

from __future__ import annotations

from intarsia.blocks import Merge
from intarsia.core import SettingsError
from intarsia.methods import Method, Server
from intarsia.setup.setup import Setup
from intarsia.trust import COUNTER
from intarsia.trust.guarding import check_installed


def obstacle(method: Method) -> str:
    """Return why a method cannot use secure sums, as the end of a sentence (empty: it can)."""
    merge = method.merge
    if method.sharing.sees_updates:
        return f"its sharing '{method.sharing.name}' compares single updates to decide who shares what"
    if method.sees_updates:
        return "its server reads single updates"
    if method.flushes_after:
        return "its server merges changes against several versions, and clients that never meet in a round"
    if merge.partial:
        return f"its merge '{merge.name}' sums over other clients in every part of a tensor"
    if not method.reports_training:
        return "its clients answer with values or tensors of their own, which the server reads one by one"
    if not _adds(merge):
        return f"its merge '{merge.name}' reads single updates"
    return ""


def _adds(merge: Merge) -> bool:
    """Return whether a merge adds up whole steps and nothing else: as the mean does, or by its own word."""
    owner = next(k for k in type(merge).__mro__ if {"add", "open", "adds_up"} & vars(k).keys())
    return bool(vars(owner).get("adds_up", False)) and not merge.gathers


def check_secure_sums(setup: Setup, server: Server) -> None:
    """Raise if updates are to travel under masks, and cannot."""
    if not setup.secure_sums.on:
        return
    check_installed()
    reason = obstacle(setup.method)
    if reason:
        raise SettingsError(
            f"secure_sums: method '{setup.method.name}' cannot use it: {reason}. Choose another (intarsia list "
            "secure-sums says which can), or leave secure_sums out and say so to your clients"
        )
    if setup.sees_updates:
        raise SettingsError(
            "secure_sums: the merge or the defence of these settings reads single updates, which nobody sees under "
            "masks: leave out one or the other"
        )
    if setup.codec.lossy:
        raise SettingsError(
            f"secure_sums: under masks a code saves nothing, every number travels in 64 bits: codec "
            f"'{setup.codec.name}' must be 'none'"
        )
    _check_tensors(setup)
    _check_groups(setup, server)


def _check_tensors(setup: Setup) -> None:
    """Refuse whole numbers that are merged by their maximum, unless they only count steps."""
    for name in setup.model_of:
        template = setup.template(name)
        for address in setup.addresses.of(name).values():
            if address.private or address.block not in template.changing:
                continue
            for tensor_name, tensor in template.initial[address.block].tensors.items():
                if not tensor.is_floating_point() and not tensor_name.endswith(COUNTER):
                    raise SettingsError(
                        f"secure_sums: tensor '{tensor_name}' of block '{address.block}' holds whole numbers, which "
                        "are merged by their maximum, and a maximum cannot be masked: make it a float, register "
                        "it with persistent=False, or keep its block at home"
                    )


def _check_groups(setup: Setup, server: Server) -> None:
    """Refuse a block that fewer clients share than may be summed."""
    holders: dict[str, int] = {}
    for name in server.residents:
        for block, address in server.addresses.of(name).items():
            if not address.private and block in setup.template(name).changing:
                holders[str(address)] = holders.get(str(address), 0) + 1
    floor = setup.secure_sums.floor
    few = {address: count for address, count in sorted(holders.items()) if count < floor}
    if few:
        first, count = next(iter(few.items()))
        raise SettingsError(
            f"secure_sums: {first} has {count} holder{'s' * (count > 1)}, and sums are of at least {floor} "
            "(secure_sums.floor): a sum of fewer says too much of each. Put them into larger groups, or keep the block "
            "at home"
        )
