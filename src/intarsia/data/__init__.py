"""Data sets, partitions and populations."""

from collections import ChainMap
from collections.abc import Mapping

from intarsia.data.datasets import DATASETS, Dataset, Found, get
from intarsia.data.dealing import ZOOS, deal_zoo
from intarsia.data.on_demand import from_function
from intarsia.data.own import from_dict, make_client
from intarsia.data.partitions import PARTITIONS
from intarsia.data.partitions.base import Partition
from intarsia.data.places import Places, cache_folder, places
from intarsia.data.population import (
    ATTRIBUTES,
    EVERYONE,
    SEEN,
    Client,
    ClientInfo,
    Examples,
    Population,
    PopulationSource,
    Problem,
    Scaling,
    label_words,
    who_holds_what,
)
from intarsia.data.sources.digits import Digits
from intarsia.data.sources.files import Files
from intarsia.data.sources.images import Images
from intarsia.data.sources.joint import SINGLE, Joint
from intarsia.data.sources.motion import Motion
from intarsia.data.sources.synthetic import Synthetic
from intarsia.data.sources.text import Roles

POPULATIONS: Mapping[str, type[PopulationSource]] = ChainMap({Joint.name: Joint}, SINGLE)

__all__ = [
    "ATTRIBUTES",
    "DATASETS",
    "EVERYONE",
    "PARTITIONS",
    "POPULATIONS",
    "SEEN",
    "SINGLE",
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
    "Synthetic",
    "cache_folder",
    "deal_zoo",
    "from_dict",
    "from_function",
    "get",
    "label_words",
    "make_client",
    "places",
    "who_holds_what",
]
