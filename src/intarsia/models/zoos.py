"""pFedClub's model zoos: which clients hold which architecture."""

from __future__ import annotations

from intarsia.blocks import SettingsError, chance
from intarsia.blocks.part import suggest
from intarsia.models.club_cnn import ClubCNN
from intarsia.models.mobilenet import MobileNetV2
from intarsia.models.mobilenet_v1 import MobileNetV1
from intarsia.models.mobilenet_v3 import MobileNetV3
from intarsia.models.spec import Architecture

Zoo = tuple[tuple[Architecture, int], ...]
"""Architectures, each with how many of fifty clients hold it."""

CNN1, CNN2, CNN3, CNN4 = (ClubCNN(number=n) for n in (1, 2, 3, 4))
V1, V2, V3 = MobileNetV1(stride=1), MobileNetV2(stride=1), MobileNetV3(size="small", stride=1)

ZOOS: dict[str, Zoo] = {
    "I": ((CNN1, 8), (CNN2, 7), (CNN3, 7), (CNN4, 7), (V1, 7), (V2, 7), (V3, 7)),
    "II": ((V1, 16), (V2, 17), (V3, 17)),
    "III": ((CNN1, 12), (CNN2, 12), (CNN3, 12), (CNN4, 14)),
}
"""The zoos of Wang et al. 2024, section 4.1, for images of 32x32.

Ours: MobileNetV3 is the small one, and the stems of the MobileNets have a stride of 1, so that a 2x2 map is left
at their end and batch norm has more than one value to go by.
"""


def zoo(name: str) -> list[Architecture]:
    """Return the architectures of a zoo."""
    return [architecture for architecture, _ in _named(name)]


def deal_zoo(name: str, clients: int, seed: int) -> list[Architecture]:
    """Return one architecture for each client: the zoo's shares, in an order that the seed draws.

    Where the shares do not come out even, the largest remainders get one more; of equal ones, the first.
    """
    animals = _named(name)
    total = sum(count for _, count in animals)
    shares = [count * clients / total for _, count in animals]
    counts = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for i in order[: clients - sum(counts)]:
        counts[i] += 1
    dealt = [animal for (animal, _), count in zip(animals, counts, strict=True) for _ in range(count)]
    places = chance.numpy_generator(seed, "model zoo", name).permutation(clients)
    return [dealt[place] for place in places]


def _named(name: str) -> Zoo:
    if name not in ZOOS:
        raise SettingsError(f"there is no model zoo '{name}'{suggest(name, ZOOS)}")
    return ZOOS[name]
