"""Which clients take part in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from intarsia.core import SettingsError, chance, part


@part
class Sampling:
    """Which clients take part in a round: a function of seed and round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    clients: Annotated[int, Field(ge=0)] = 0
    """How many clients a round (0: the fraction decides)."""
    replacement: bool = False
    """Whether a client can be drawn twice in a round; it then trains once and counts twice."""
    kind: Literal["fixed", "poisson"] = "fixed"
    """`fixed`: as many clients every round. `poisson`: each client by a chance of its own, so that rounds differ in
    how many there are (what privacy is cheapest with)."""
    newcomers: Annotated[int, Field(ge=0)] = 0
    """The last so many clients of the population never train: they come when all is done, and are evaluated apart,
    as they come and after one epoch of their own."""

    @model_serializer(mode="wrap")
    def _without_the_usual_kind(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the kind out where it is the usual one."""
        return {key: value for key, value in usual(self).items() if (key, value) != ("kind", "fixed")}

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
        if self.kind == "poisson":
            return self.by_chance(names, chance.numpy_generator(seed, "sampling", round).random(len(names)))
        count = self.count(len(names))
        if count == len(names) and not self.replacement:
            return dict.fromkeys(names, 1)
        random = chance.numpy_generator(seed, "sampling", round)
        picked = Counter(random.choice(len(names), count, replace=self.replacement).tolist())
        return {names[i]: picked[i] for i in sorted(picked)}

    def chance(self, population: int) -> float:
        """Return with which chance a client takes part where each has a chance of its own."""
        return min(1.0, self.clients / population) if self.clients else self.fraction

    def by_chance(self, names: Sequence[str], drawn: np.ndarray) -> dict[str, int]:
        """Return the clients whose number, drawn between 0 and 1, is within their chance."""
        most = self.chance(len(names))
        return {name: 1 for name, number in zip(names, drawn.tolist(), strict=True) if number <= most}
