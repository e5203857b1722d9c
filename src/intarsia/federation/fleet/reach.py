"""Who can be reached: devices that cannot be now give way to others; if none can, time goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from intarsia.core import chance
from intarsia.federation.fleet.clock import NOW, Clock
from intarsia.runs import RunState

DRAWS = 20
"""How often others are drawn in place of those that cannot be reached."""
Draw = Callable[[int], Mapping[str, int]]
"""Draws clients once more."""


def reachable(clock: Clock, state: RunState, chosen: Mapping[str, int], draw: Draw) -> dict[str, int]:
    """Return as many clients that can be reached as were chosen, or as can be found."""
    state.totals.setdefault(NOW, 0.0)
    here = _open(clock, chosen, state.totals[NOW])
    if len(here) == len(chosen):
        return dict(chosen)
    seen = dict(chosen)
    for number in range(DRAWS):
        drawn = draw(number)
        new = [name for name in drawn if name not in seen]
        chance.numpy_generator(clock.setup.seed, "reach", state.round, number).shuffle(new)
        seen |= {name: drawn[name] for name in new}
        here = _open(clock, seen, state.totals[NOW])
        if len(here) >= len(chosen) or not new:
            break
    if not here:
        state.totals[NOW] = min(clock.profile(name).hours.opens(state.totals[NOW]) for name in seen)
        here = _open(clock, seen, state.totals[NOW])
    return dict(list(here.items())[: len(chosen)])


def _open(clock: Clock, names: Mapping[str, int], now: float) -> dict[str, int]:
    return {name: count for name, count in names.items() if clock.profile(name).hours.open_at(now)}
