"""Which clients take part in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from intarsia.core import SettingsError, chance, part


@part
class Sampling:
    """Which clients take part in a round: a function of seed and round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    clients: Annotated[int, Field(ge=0)] = 0
    """How many clients a round (0: the fraction decides)."""
    replacement: bool = False
    """Whether a client can be drawn twice in a round; it then trains once and counts twice."""

    newcomers: Annotated[int, Field(ge=0)] = 0
    """The last so many clients of the population never train: they come when all is done, and are evaluated apart,
    as they come and after one epoch of their own."""

    def residents(self, names: Sequence[str]) -> Sequence[str]:
        """Return the clients that can take part in training."""
        if self.newcomers >= len(names):
            raise SettingsError(
                f"sampling.newcomers is {self.newcomers}, but there are {len(names)} clients: leave some to train"
            )
        return names[: len(names) - self.newcomers]

    def count(self, population: int) -> int:
        """Return how many clients take part."""
        return min(population, self.clients or max(1, round(self.fraction * population)))

    def choose(self, names: Sequence[str], seed: int, round: int) -> dict[str, int]:
        """Return the clients of a round, in the order of the population, and how often each counts."""
        names = self.residents(names)
        count = self.count(len(names))
        if count == len(names) and not self.replacement:
            return dict.fromkeys(names, 1)
        random = chance.numpy_generator(seed, "sampling", round)
        picked = Counter(random.choice(len(names), count, replace=self.replacement).tolist())
        return {names[i]: picked[i] for i in sorted(picked)}
