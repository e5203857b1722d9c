"""Made-up clients, as many as one likes: the data of each is made from the seed when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import chance, part
from intarsia.data.on_demand import ClientsOnDemand, Kind, Splits
from intarsia.data.places import Places
from intarsia.data.population import Population, PopulationSource

DECAY = -1.2
"""How fast the variance of features falls: feature j has j to this power."""


@part
class Synthetic(PopulationSource):
    """Features drawn at random, labelled by a linear rule; clients differ in both, as far as one likes.

    After Synthetic(alpha, beta) of Li et al. 2020, "Federated optimization in heterogeneous networks", section 5.1.
    There every client's rule is drawn by itself; here it is the common rule, a deviation of the client's cohort and one
    of its own, so that there is something to share. With `alpha` and `beta` 0 all clients are alike.
    """

    name: ClassVar[str] = "synthetic"
    summary: ClassVar[str] = (
        "made-up clients, made when they are needed: 100,000 take no more room than 1,000"
    )

    clients: Annotated[int, Field(ge=1)] = 1000
    """How many clients there are."""
    samples: Annotated[int, Field(ge=4)] = 40
    """How many samples a client has in the mean; each has between half and three halves of that."""
    features: Annotated[int, Field(ge=1)] = 60
    """How many numbers a sample is."""
    classes: Annotated[int, Field(ge=2)] = 10
    """How many labels there are."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """How far the rules of cohorts and clients lie from the common one."""
    beta: Annotated[float, Field(ge=0)] = 0.1
    """How far the means of clients' features lie apart."""
    cohorts: Annotated[int, Field(ge=1)] = 5
    """How many cohorts; each has a rule of its own."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of a client's samples that it is tested on."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a client's training data that is kept for choosing the best round."""

    def load(self, seed: int, places: Places = ()) -> Population:
        """Return the population; no client is made yet."""
        names = [f"client-{i:0{max(2, len(str(self.clients - 1)))}d}" for i in range(self.clients)]
        kinds = [Kind((self.features,), {"cohort": f"cohort-{i}"}) for i in range(self.cohorts)]
        cohort_of = np.arange(self.clients, dtype=np.int32) % self.cohorts
        make = Maker(self, seed)
        clients = ClientsOnDemand(names, make.counts, make, kinds, cohort_of, classes=self.classes)
        return Population(clients, self.classes)


@dataclass(frozen=True)
class Maker:
    """Makes the data of one client from the seed and the client's number."""

    source: Synthetic
    seed: int

    @cached_property
    def counts(self) -> dict[str, NDArray[np.int64]]:
        """How many samples each client has, by split."""
        mean, random = self.source.samples, chance.numpy_generator(self.seed, "synthetic", "counts")
        total = random.integers(mean // 2, mean + mean // 2, self.source.clients, endpoint=True)
        test = np.maximum(1, np.rint(total * self.source.test)).astype(np.int64)
        checks = np.rint((total - test) * self.source.validation).astype(np.int64)
        counts = {"train": np.maximum(1, total - test - checks), "validation": checks, "test": test}
        return {split: of.astype(np.int64) for split, of in counts.items() if of.any()}

    def __call__(self, name: str) -> Splits:
        """Return a client's data."""
        number = int(name.removeprefix("client-"))
        random = chance.numpy_generator(self.seed, "synthetic", number)
        deviation = self.source.alpha * random.standard_normal(self._rule.shape)
        rule = self._rule + self._of_cohort(number % self.source.cohorts) + deviation
        centre = self.source.beta * random.standard_normal(self.source.features)
        data, scale = {}, np.arange(1, self.source.features + 1) ** (DECAY / 2)
        for split, of in self.counts.items():
            x = centre + scale * random.standard_normal((int(of[number]), self.source.features))
            y = (x @ rule[:-1] + rule[-1]).argmax(1)
            data[split] = (x.astype(np.float32), y)
        return {split: pair for split, pair in data.items() if len(pair[0])}

    @cached_property
    def _rule(self) -> NDArray[np.float64]:
        """The common rule: weights of each feature and label, and what is added."""
        shape = (self.source.features + 1, self.source.classes)
        return chance.numpy_generator(self.seed, "synthetic", "rule").standard_normal(shape)

    def _of_cohort(self, cohort: int) -> NDArray[np.float64]:
        random = chance.numpy_generator(self.seed, "synthetic", "cohort", cohort)
        return self.source.alpha * random.standard_normal(self._rule.shape)
