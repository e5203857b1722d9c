"""A fleet's clock: what clients' devices can do, how long rounds take on them, and who is in time."""

from intarsia.federation.fleet.checks import check_fleet
from intarsia.federation.fleet.clock import COUNTED, DROPPED, NOW, Clock, Trip, asked_more
from intarsia.federation.fleet.outlook import outlook
from intarsia.federation.fleet.profiles import Fleet, Profile, Quantities
from intarsia.federation.fleet.reach import reachable

__all__ = [
    "COUNTED",
    "DROPPED",
    "NOW",
    "Clock",
    "Fleet",
    "Profile",
    "Quantities",
    "Trip",
    "asked_more",
    "check_fleet",
    "outlook",
    "reachable",
]
