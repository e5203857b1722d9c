"""The embedded population: scikit-learn's handwritten digits, read by two generations of a sensor."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks import DataError, chance, part
from intarsia.data.places import Places
from intarsia.data.population import Client, Population, PopulationSource, make_client

CLASSES = 10


@part
class Digits(PopulationSource):
    """1,797 real handwritten digits (Alpaydin and Kaynak 1998) among clients of unlike devices.

    Generation `8x8` reads all pixels, generation `4x4` only means of 2x2 pixels. Each cohort sees a
    cyclic window of labels; every sample belongs to one client.
    """

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "handwritten digits, two sensor generations (8x8, 4x4), label-skewed cohorts"

    clients: Annotated[int, Field(ge=1)] = 40
    cohorts: Annotated[int, Field(ge=1)] = 5
    labels: Annotated[int, Field(ge=1, le=CLASSES)] = 4
    """How many labels a cohort sees."""
    generations: Annotated[tuple[str, ...], Field(min_length=1)] = ("8x8", "4x4")
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a client's training data that is kept for choosing the best round."""

    def load(self, seed: int, places: Places = ()) -> Population:
        """Return the population."""
        images, labels = _images()
        if self.clients > len(labels):
            raise DataError(
                f"population 'digits' has {len(labels)} samples, too few for {self.clients} clients: "
                "lower population.clients"
            )
        shares = self._deal(labels, seed)
        short = [i for i, own in shares if not own["train"] or not own["test"]]
        if short:
            raise DataError(
                f"population 'digits' has too few samples to train and test {len(short)} of {self.clients} "
                "clients: lower population.clients or population.validation"
            )
        clients = {c.info.name: c for c in (self._client(i, rows, images, labels) for i, rows in shares)}
        return Population(clients, CLASSES, labels=tuple(str(d) for d in range(CLASSES)))

    def _deal(self, labels: np.ndarray, seed: int) -> list[tuple[int, dict[str, list[int]]]]:
        """Divide every label's samples equally among the clients whose cohort sees the label."""
        shares: list[dict[str, list[int]]] = [
            {"train": [], "validation": [], "test": []} for _ in range(self.clients)
        ]
        for label in range(CLASSES):
            holders = [i for i in range(self.clients) if self._sees(i % self.cohorts, label)]
            rows = np.flatnonzero(labels == label)
            chance.numpy_generator(seed, "digits", label).shuffle(rows)
            for holder, dealt in zip(holders, np.array_split(rows, max(1, len(holders))), strict=False):
                tests = max(1, round(len(dealt) * self.test)) if len(dealt) > 1 else 0
                checks = round((len(dealt) - tests) * self.validation)
                shares[holder]["test"] += dealt[:tests].tolist()
                shares[holder]["validation"] += dealt[tests : tests + checks].tolist()
                shares[holder]["train"] += dealt[tests + checks :].tolist()
        return list(enumerate(shares))

    def _sees(self, cohort: int, label: int) -> bool:
        start = cohort * CLASSES // self.cohorts
        return (label - start) % CLASSES < self.labels

    def _client(self, i: int, rows: dict[str, list[int]], images: Tensor, labels: np.ndarray) -> Client:
        generation = self.generations[(i // self.cohorts) % len(self.generations)]
        name = f"client-{i:02d}" if self.clients <= 100 else f"client-{i:04d}"
        data = {
            split: (_read(images[picked], generation), labels[picked])
            for split, picked in rows.items()
            if picked or split != "validation"
        }
        cohort = f"cohort-{i % self.cohorts}"
        return make_client(name, data, "classification", device=generation, cohort=cohort)


def _read(images: Tensor, generation: str) -> Tensor:
    sensors = {"8x8": 1, "4x4": 2, "2x2": 4}
    if generation not in sensors:
        raise DataError(f"population.generations: no sensor '{generation}'; there are {', '.join(sensors)}")
    return torch.nn.functional.avg_pool2d(images, sensors[generation])


def _images() -> tuple[Tensor, np.ndarray]:
    from sklearn.datasets import load_digits

    raw = load_digits()
    return torch.from_numpy(raw.images).float().div(16).unsqueeze(1), raw.target.astype(np.int64)
