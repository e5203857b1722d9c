"""What cannot go together with a fleet's clock: said before a run begins."""

from __future__ import annotations

from intarsia.blocks import Merge
from intarsia.core import SettingsError
from intarsia.federation.fleet.clock import Clock
from intarsia.federation.fleet.profiles import Fleet
from intarsia.federation.plan import Sampling
from intarsia.setup import Setup

LOOKED_AT = 4096
"""How many clients' devices are looked at before a run begins, so that it does not stop at one that cannot be."""


def check_fleet(setup: Setup, clock: Clock | None, sampling: Sampling) -> None:
    """Raise if what the settings ask for does not go together with the clock."""
    if clock is None:
        return
    clock.fleet.check({info.device: info for info in setup.population.kinds})
    wrong = _obstacles(setup, clock.fleet, sampling)
    if setup.method.flushes_after:
        wrong |= _when_unwaiting(setup, clock.fleet, sampling)
    for what, cure in wrong.items():
        raise SettingsError(f"{what}: {cure}")
    clock.fleet.check_table(setup.population.clients, {info.device for info in setup.population.kinds})
    for info in setup.population.infos[:LOOKED_AT]:
        clock.profile(info.name)


def _obstacles(setup: Setup, fleet: Fleet, sampling: Sampling) -> dict[str, str]:
    """Return what does not go with a clock at all, and what to do."""
    found = {}
    if setup.secure_sums.on:
        found["secure_sums"] = "a fleet's clock does not know what masks cost: leave out one of the two"
    if setup.privacy.of_clients:
        found["privacy"] = (
            "client-level privacy needs rounds that do not depend on how fast a client is: leave out the fleet, or "
            'protect samples (privacy.level = "example")'
        )
    if fleet.overselect > 1 and (sampling.replacement or sampling.kind != "fixed"):
        found["fleet.overselect"] = 'needs sampling.kind = "fixed", without replacement'
    return found


def _when_unwaiting(setup: Setup, fleet: Fleet, sampling: Sampling) -> dict[str, str]:
    """Return what does not go with a server that does not wait."""
    found, method = {}, f"method '{setup.method.name}'"
    if type(setup.method.merge).flush is Merge.flush or setup.sees_updates:
        found["merge"] = (
            f"{method} needs its own merge, which sees no update alone: leave out `merge`, found groups and the defence"
        )
    if setup.privacy.on:
        found["privacy"] = f"{method} keeps no account of who trained how often: choose another method"
    if setup.codec.lossy and setup.codec.down:
        found["codec.down"] = f"{method} sends whole versions, not changes: set it to false"
    if sampling.replacement or sampling.kind != "fixed":
        found["sampling"] = f"{method} asks one client after the other: leave out kind and replacement"
    if fleet.deadline or fleet.overselect > 1:
        found["fleet"] = f"{method} waits for nobody: leave out deadline and overselect"
    return found
