"""Data sets, partitions and populations."""

from intarsia.data.datasets import DATASETS, Dataset, Found, get
from intarsia.data.digits import Digits
from intarsia.data.files import Files
from intarsia.data.images import Images
from intarsia.data.joint import SINGLE, Joint
from intarsia.data.motion import Motion
from intarsia.data.partitions import PARTITIONS, Partition
from intarsia.data.places import Places, cache_folder, places
from intarsia.data.population import (
    ATTRIBUTES,
    Client,
    ClientInfo,
    Examples,
    Population,
    PopulationSource,
    Problem,
    Scaling,
    from_dict,
    make_client,
    who_holds_what,
)
from intarsia.data.text import Roles
from intarsia.data.zoos import ZOOS, deal_zoo

POPULATIONS: dict[str, type[PopulationSource]] = {**SINGLE, Joint.name: Joint}

__all__ = [
    "ATTRIBUTES",
    "DATASETS",
    "PARTITIONS",
    "POPULATIONS",
    "ZOOS",
    "Client",
    "ClientInfo",
    "Dataset",
    "Digits",
    "Examples",
    "Files",
    "Found",
    "Images",
    "Joint",
    "Motion",
    "Partition",
    "Places",
    "Population",
    "PopulationSource",
    "Problem",
    "Roles",
    "Scaling",
    "cache_folder",
    "deal_zoo",
    "from_dict",
    "get",
    "make_client",
    "places",
    "who_holds_what",
]
