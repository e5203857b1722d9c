"""What all partitions have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import DataError, chance, part

Rows = NDArray[np.int64]
Shares = list[Rows]
"""The row numbers of each client."""
Count = Annotated[int, Field(ge=1)]
Concentration = Annotated[float, Field(gt=0)]
REDRAWS = 10_000


@part
class Partition:
    """Deals samples to clients; the same for the same labels, number of clients and seed.

    The shares are sorted and have no row in common.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    by_rule: ClassVar[bool] = True
    """Whether who holds which label follows from the seed alone, so that parts dealt apart agree; else the
    parts are dealt as one."""

    def deal(self, labels: Rows, clients: int, seed: int, natural: Rows | None = None) -> Shares:
        """Return the rows of each client; `natural` says which writer or subject a row comes from."""
        shares = self._deal(self._checked(labels, clients), clients, seed)
        return [np.sort(rows) for rows in shares]

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        raise DataError(f"{type(self).__name__} does not say how it deals: give it a method _deal")

    def _checked(self, labels: Rows, clients: int) -> Rows:
        labels = np.asarray(labels)
        if labels.size == 0:
            raise self._error("there are no samples to deal: give it some")
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise self._error(
                f"labels must be whole numbers, one a sample, not {labels.dtype} {list(labels.shape)}"
            )
        if labels.min() < 0:
            raise self._error(f"there is a label {labels.min()}: number the labels from 0")
        if clients < 1:
            raise self._error(f"cannot deal to {clients} clients: ask for at least 1")
        if clients > len(labels):
            raise self._error(f"{len(labels)} samples are too few for {clients} clients: lower clients")
        return labels.astype(np.int64)

    def _error(self, problem: str) -> DataError:
        return DataError(f"partition '{self.name}': {problem}")

    def _random(self, seed: int, *purpose: str | int) -> np.random.Generator:
        return chance.numpy_generator(seed, "partition", self.name, *purpose)

    def _classes(self, labels: Rows) -> int:
        """Return the number of labels, each of which must have a sample."""
        missing = np.flatnonzero(np.bincount(labels) == 0).tolist()
        if missing:
            named = f"label {missing[0]} has" if len(missing) == 1 else f"labels {missing} have"
            raise self._error(f"{named} no sample: number the labels 0, 1, 2, ... without a gap")
        return int(labels.max()) + 1

    def _check_number(self, setting: str, number: int, classes: int) -> None:
        if number > classes:
            raise self._error(
                f"{setting} is {number}, but there are {classes} labels: lower it to at most {classes}"
            )

    def _among_holders(self, labels: Rows, held: Sequence[Rows], seed: int, exact: bool = False) -> Shares:
        """Divide each label's samples equally among its holders; `exact` leaves the remainder out."""
        pieces: list[list[Rows]] = [[] for _ in held]
        for label in range(int(labels.max()) + 1):
            rows = self._random(seed, "rows", label).permutation(np.flatnonzero(labels == label))
            holders = [client for client, own in enumerate(held) if label in own]
            if not holders:
                raise self._error(f"no client would hold label {label}: ask for more clients")
            if len(holders) > len(rows):
                raise self._error(
                    f"label {label} has {len(rows)} samples for {len(holders)} clients that hold it: "
                    "lower clients or the labels a client, or give it more samples"
                )
            end = len(rows) - len(rows) % len(holders) if exact else len(rows)
            for client, piece in zip(holders, np.array_split(rows[:end], len(holders)), strict=True):
                pieces[client].append(piece)
        return [np.concatenate(rows) for rows in pieces]

    def _redrawn(
        self, draw: Callable[[], NDArray[np.int64]], clients: int, minimum: int, samples: int, setting: str
    ) -> NDArray[np.int64]:
        """Draw sizes (groups x clients) until every client has the minimum."""
        if minimum * clients > samples:
            raise self._error(
                f"{samples} samples cannot give {clients} clients at least {minimum} each: "
                "lower clients or minimum"
            )
        for _ in range(REDRAWS):
            sizes = draw()
            if sizes.sum(axis=0).min() >= minimum:
                return sizes
        raise self._error(
            f"{REDRAWS:,} draws gave none in which each of {clients} clients has at least {minimum} of "
            f"{samples} samples: raise {setting}, or lower minimum or clients"
        )


def dealt_by_sizes(groups: Shares, sizes: NDArray[np.int64], random: np.random.Generator) -> Shares:
    """Deal each group's rows in random order: to client i, sizes[group, i] of them."""
    ends = np.cumsum(sizes, axis=1)
    dealt = [np.split(random.permutation(rows), own) for rows, own in zip(groups, ends, strict=True)]
    return [np.concatenate([pieces[client] for pieces in dealt]) for client in range(sizes.shape[1])]


def weights_among(drawn: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the drawn proportions among the allowed, or equal ones where nothing is left of them."""
    weights = np.where(allowed, drawn, 0.0)
    if not weights.sum() > 0:  # a proportion can vanish in floating point
        weights = allowed.astype(np.float64)
    weights /= weights.sum()
    return weights


def sizes_in_proportion(samples: int, weights: NDArray[np.float64]) -> Rows:
    """Return sizes in these proportions that sum to the samples; a weight of 0 gives none."""
    ends = np.cumsum(weights)
    sizes: Rows = np.diff((ends / ends[-1] * samples).astype(np.int64), prepend=0)
    return sizes
