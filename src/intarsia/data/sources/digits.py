"""The embedded population: scikit-learn's handwritten digits, read by two generations of a sensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from intarsia.core import DataError, chance, part
from intarsia.data.dealing import Share
from intarsia.data.own import make_client
from intarsia.data.places import Places
from intarsia.data.population import Client, Examples, Goal, Population, PopulationSource

CLASSES = 10
LOOPS = (1, 0, 0, 0, 0, 0, 1, 0, 2, 1)
"""Closed loops of each digit as it is written here (a 4 is open)."""

Task = Literal["digit", "loops", "slant"]
GOALS: dict[Task, Goal] = {
    "digit": Goal(CLASSES, labels=tuple(str(d) for d in range(CLASSES))),
    "loops": Goal(max(LOOPS) + 1, labels=("none", "one", "two")),
    "slant": Goal(1, "regression"),
}


@part
class Digits(PopulationSource):
    """1,797 real handwritten digits (Alpaydin and Kaynak 1998) among clients of unlike devices.

    Generation `8x8` reads all pixels, generation `4x4` only means of 2x2 pixels. Each cohort sees a
    cyclic window of labels; every sample belongs to one client. Clients may have different tasks: which digit
    it is, how many closed loops it has (0, 1 or 2), or how far it leans (a number).
    """

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "handwritten digits, two sensor generations (8x8, 4x4), label-skewed cohorts"

    clients: Annotated[int, Field(ge=1)] = 40
    """How many clients there are."""
    cohorts: Annotated[int, Field(ge=1)] = 5
    """How many cohorts; each sees labels of its own."""
    labels: Annotated[int, Field(ge=1, le=CLASSES)] = 4
    """How many labels a cohort sees."""
    generations: Annotated[tuple[str, ...], Field(min_length=1)] = ("8x8", "4x4")
    """The sensors that clients have, in turns: 8x8, 4x4 or 2x2 pixels."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of a client's samples that it is tested on."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a client's training data that is kept for choosing the best round."""
    tasks: tuple[Task, ...] = ()
    """What clients predict, in turns: digit, loops, slant (none: the digit, for all)."""
    models: tuple[str, ...] = ()
    """The names of clients' models, in turns (none: all have the same, or one a device)."""
    public: Share = 0.0
    """Share of every label's samples that no client is dealt: public data (needs one generation, one task)."""

    def load(self, seed: int, places: Places = ()) -> Population:
        """Return the population."""
        images, labels = _images()
        if self.clients > len(labels):
            raise DataError(
                f"population 'digits' has {len(labels)} samples, too few for {self.clients} clients: "
                "lower population.clients"
            )
        shares, aside = self._deal(labels, seed)
        short = [i for i, own in shares if not own["train"] or not own["test"]]
        if short:
            raise DataError(
                f"population 'digits' has too few samples to train and test {len(short)} of {self.clients} "
                "clients: lower population.clients or population.validation"
            )
        targets = {task: _targets(task, images, labels) for task in self.tasks or ("digit",)}
        clients = {c.info.name: c for c in (self._client(i, rows, images, targets) for i, rows in shares)}
        first = GOALS[(self.tasks or ("digit",))[0]]
        goals: dict[str, Goal] = {task: GOALS[task] for task in self.tasks}
        public = self._public(aside, images, targets)
        return Population(clients, first.outputs, first.problem, first.labels, public, tasks=goals)

    def _public(self, rows: list[int], images: Tensor, targets: Mapping[Task, np.ndarray]) -> Examples | None:
        """Return the samples that nobody was dealt, as the only generation reads them."""
        if not rows:
            return None
        if len(set(self.generations)) > 1 or len(targets) > 1:
            raise DataError(
                "population.public: samples for all clients need one shape and one task: name one of "
                "population.generations, and one of population.tasks"
            )
        (target,) = targets.values()
        return Examples(_read(images[rows], self.generations[0]), torch.from_numpy(target[rows]))

    def _deal(
        self, labels: np.ndarray, seed: int
    ) -> tuple[list[tuple[int, dict[str, list[int]]]], list[int]]:
        """Divide every label's samples equally among the clients whose cohort sees it; some are left aside."""
        shares: list[dict[str, list[int]]] = [
            {"train": [], "validation": [], "test": []} for _ in range(self.clients)
        ]
        aside: list[int] = []
        for label in range(CLASSES):
            holders = [i for i in range(self.clients) if self._sees(i % self.cohorts, label)]
            rows = np.flatnonzero(labels == label)
            chance.numpy_generator(seed, "digits", label).shuffle(rows)
            public = round(len(rows) * self.public)
            aside += rows[:public].tolist()
            for holder, dealt in zip(
                holders, np.array_split(rows[public:], max(1, len(holders))), strict=False
            ):
                tests = max(1, round(len(dealt) * self.test)) if len(dealt) > 1 else 0
                checks = round((len(dealt) - tests) * self.validation)
                shares[holder]["test"] += dealt[:tests].tolist()
                shares[holder]["validation"] += dealt[tests : tests + checks].tolist()
                shares[holder]["train"] += dealt[tests + checks :].tolist()
        return list(enumerate(shares)), aside

    def _sees(self, cohort: int, label: int) -> bool:
        start = cohort * CLASSES // self.cohorts
        return (label - start) % CLASSES < self.labels

    def _client(
        self, i: int, rows: dict[str, list[int]], images: Tensor, targets: Mapping[Task, np.ndarray]
    ) -> Client:
        turn, which = divmod(i // self.cohorts, len(self.generations))
        generation, task = self.generations[which], list(targets)[turn % len(targets)]
        name = f"client-{i:02d}" if self.clients <= 100 else f"client-{i:04d}"
        data = {
            split: (_read(images[picked], generation), targets[task][picked])
            for split, picked in rows.items()
            if picked or split != "validation"
        }
        cohort = f"cohort-{i % self.cohorts}"
        named = task if self.tasks else ""
        model = self.models[i % len(self.models)] if self.models else ""
        return make_client(
            name, data, GOALS[task].problem, device=generation, cohort=cohort, task=named, model=model
        )


def _read(images: Tensor, generation: str) -> Tensor:
    sensors = {"8x8": 1, "4x4": 2, "2x2": 4}
    if generation not in sensors:
        raise DataError(f"population.generations: no sensor '{generation}'; there are {', '.join(sensors)}")
    return torch.nn.functional.avg_pool2d(images, sensors[generation])


def _targets(task: Task, images: Tensor, labels: np.ndarray) -> np.ndarray:
    """Return what clients of a task predict, for every image."""
    if task == "digit":
        return labels
    return np.asarray(LOOPS)[labels] if task == "loops" else _slant(images)


def _slant(images: Tensor) -> np.ndarray:
    """Return how far each digit leans: columns to the side for a row up, from the ink's second moments."""
    ink = images[:, 0].double() / images.double().sum((1, 2, 3)).view(-1, 1, 1)
    up, right = -torch.arange(8.0).double().view(1, 8, 1), torch.arange(8.0).double().view(1, 1, 8)
    up = up - (ink * up).sum((1, 2)).view(-1, 1, 1)
    right = right - (ink * right).sum((1, 2)).view(-1, 1, 1)
    lean: np.ndarray = ((ink * up * right).sum((1, 2)) / (ink * up * up).sum((1, 2))).float().numpy()
    return lean


def _images() -> tuple[Tensor, np.ndarray]:
    from sklearn.datasets import load_digits

    raw = load_digits()
    return torch.from_numpy(raw.images).float().div(16).unsqueeze(1), raw.target.astype(np.int64)
