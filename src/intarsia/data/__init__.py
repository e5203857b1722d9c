"""Data sets, partitions and populations."""

from intarsia.data.digits import Digits
from intarsia.data.population import (
    ATTRIBUTES,
    Client,
    ClientInfo,
    Examples,
    Population,
    PopulationSource,
    Problem,
    from_dict,
    make_client,
)

POPULATIONS: dict[str, type[PopulationSource]] = {kind.name: kind for kind in (Digits,)}

__all__ = [
    "ATTRIBUTES",
    "POPULATIONS",
    "Client",
    "ClientInfo",
    "Digits",
    "Examples",
    "Population",
    "PopulationSource",
    "Problem",
    "from_dict",
    "make_client",
]
