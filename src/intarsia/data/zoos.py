"""Model zoos: how many clients hold which architecture, by name."""

from __future__ import annotations

from intarsia.core import SettingsError, chance, suggest

ZOOS: dict[str, dict[str, int]] = {
    "I": {
        "cnn1": 8,
        "cnn2": 7,
        "cnn3": 7,
        "cnn4": 7,
        "mobilenet_v1": 7,
        "mobilenet_v2": 7,
        "mobilenet_v3": 7,
    },
    "II": {"mobilenet_v1": 16, "mobilenet_v2": 17, "mobilenet_v3": 17},
    "III": {"cnn1": 12, "cnn2": 12, "cnn3": 12, "cnn4": 14},
}
"""How many of fifty clients hold which model (Wang et al. 2024, pFedClub, section 4.1)."""


def deal_zoo(name: str, clients: int, seed: int) -> list[str]:
    """Return the name of each client's model: the zoo's shares, in an order that the seed draws.

    Where the shares do not come out even, the largest remainders get one more; of equal ones, the first.
    """
    if name not in ZOOS:
        raise SettingsError(f"population.zoo: there is no model zoo '{name}'{suggest(name, ZOOS)}")
    animals = ZOOS[name]
    total = sum(animals.values())
    shares = [count * clients / total for count in animals.values()]
    counts = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for i in order[: clients - sum(counts)]:
        counts[i] += 1
    dealt = [animal for animal, count in zip(animals, counts, strict=True) for _ in range(count)]
    places = chance.numpy_generator(seed, "model zoo", name).permutation(clients)
    return [dealt[place] for place in places]
