"""What releases cost, by dp-accounting: nothing of it is worked out here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from intarsia.core import SettingsError

INTERVAL = 1e-3
"""How finely privacy losses are counted: figures are at most about 1e-4 too large, never too small."""
LARGE = 200.0
"""From here on an epsilon promises hardly anything: the coarser bound by Renyi divergences is told."""


@dataclass(frozen=True)
class Release:
    """A round whose sums are released: every client is in it with this chance, under this much noise."""

    chance: float
    noise: float


Spent = Mapping[Release, int]
"""How often there was which release."""


def epsilon_of(spent: Spent, delta: float) -> float:
    """Return what releases cost a client, one added or removed: the epsilon that belongs to this delta."""
    counted = tuple(sorted(((r.chance, r.noise, n) for r, n in spent.items() if n), reverse=True))
    return _epsilon(counted, delta) if counted else 0.0


@lru_cache(maxsize=4096)
def _epsilon(counted: tuple[tuple[float, float, int], ...], delta: float) -> float:
    accounting = _library()
    coarse = accounting.rdp.RdpAccountant()
    fine = accounting.pld.PLDAccountant(
        accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=INTERVAL
    )
    for chance, noise, count in counted:
        coarse.compose(_event(accounting, chance, noise), count)
    bound = float(coarse.get_epsilon(delta))
    if bound > LARGE:  # the finer accountant's tables grow with it
        return bound
    for chance, noise, count in counted:
        fine.compose(_event(accounting, chance, noise), count)
    return float(fine.get_epsilon(delta))


def _event(accounting: Any, chance: float, noise: float) -> Any:
    gaussian = accounting.GaussianDpEvent(noise)
    return gaussian if chance >= 1 else accounting.PoissonSampledDpEvent(chance, gaussian)


@lru_cache(maxsize=64)
def noise_for(epsilon: float, delta: float, chance: float, rounds: int) -> float:
    """Return the least noise with which so many rounds cost no more than this."""
    accounting = _library()
    found = accounting.calibrate_dp_mechanism(
        lambda: accounting.pld.PLDAccountant(
            accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=INTERVAL
        ),
        lambda noise: accounting.SelfComposedDpEvent(_event(accounting, chance, noise), rounds),
        epsilon,
        delta,
        bracket_interval=accounting.LowerEndpointAndGuess(0.2, 1.0),
        tol=1e-4,
    )
    while epsilon_of({Release(chance, found): rounds}, delta) > epsilon:
        found *= 1.0001
    return float(found)


def rounds_within(most: float, delta: float, spent: Spent, release: Release, asked: int) -> int:
    """Return how many further releases of a kind keep within an epsilon, of those that are asked for."""

    def keeps(count: int) -> bool:
        return epsilon_of({**spent, release: spent.get(release, 0) + count}, delta) <= most

    low, high = 0, asked
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle - 1)
    return low


def epsilon_of_fixed(clients: int, drawn: int, noise: float, rounds: int, delta: float) -> float:
    """Return what rounds of exactly so many clients cost, one replaced by another (Wang et al. 2019).

    Who is replaced moves a sum by two bounds: the noise counts half.
    """
    accounting = _library()
    relation = accounting.NeighboringRelation.REPLACE_ONE
    accountant = accounting.rdp.RdpAccountant(neighboring_relation=relation)
    gaussian = accounting.GaussianDpEvent(noise / 2)
    accountant.compose(accounting.SampledWithoutReplacementDpEvent(clients, drawn, gaussian), rounds)
    return float(accountant.get_epsilon(delta))


def usual_delta(clients: int) -> float:
    """Return the delta where none is given: less than one over the number of clients."""
    return float(max(2, clients) ** -1.1)


def _library() -> Any:
    """Return dp-accounting, which takes a second to load, without the warnings that it floods logs with."""
    try:
        import dp_accounting
        from dp_accounting import pld, rdp  # noqa: F401 - they are reached through the package
    except ImportError as error:
        raise SettingsError(
            "privacy: epsilon is worked out by dp-accounting, which is not installed: pip install 'intarsia[privacy]'"
        ) from error
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting
