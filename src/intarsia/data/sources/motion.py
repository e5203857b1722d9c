"""Populations of motion sensors: windows are cut after the split by time or subject, never before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import DataError, chance, part
from intarsia.data.datasets import get
from intarsia.data.dealing import Dealt, Table
from intarsia.data.own import make_client
from intarsia.data.partitions.cohorts import Cohorts
from intarsia.data.partitions.natural import Natural
from intarsia.data.partitions.noise import Noise
from intarsia.data.places import Places
from intarsia.data.population import Population, Scaling
from intarsia.data.raw import Recording, Recordings, renumber

Signal = NDArray[np.float32]
Piece = tuple[int, int, str, Signal]
"""Subject, label, split, and a signal of one activity."""


@part
class Motion(Dealt):
    """A data set of motion sensors among clients; inputs are (steps, channels)."""

    name: ClassVar[str] = "motion"
    summary: ClassVar[str] = "windows of motion sensors, dealt by a partition"

    split: Literal["own", "published", "drawn"] = "published"
    split_by: Literal["time", "subject"] = "time"
    """`time`: the end of what a subject did of each activity is for testing; `subject`: whole subjects are."""
    seconds: Annotated[float, Field(gt=0)] = 2.56
    """Length of a window."""
    overlap: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Overlap of neighbouring windows, within a split."""
    channels: Annotated[int, Field(ge=0)] = 0
    """How many of the channels are used (3: the accelerometer alone; 0: all)."""
    standardise: bool = True
    """Whether channels are centred and scaled by their mean and deviation in the training windows."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population."""
        if self.split != "published":
            raise DataError("population.split: windows must be split before they are cut; use split_by")
        if isinstance(self.partition, (Noise, Cohorts)):
            raise DataError(f"population.partition: '{self.partition.name}' is for images; use 'iid'")
        raw = self._raw(places)
        x, y, part_of, subject = self._windows(raw, seed)
        labels = self.labels or raw.labels
        splits, public = self.deal(Table(y, part_of, subject), seed)
        scaling = self._scaling(x, np.concatenate([own["train"] for own in splits]))
        clients, rows = {}, {}
        for i, own in enumerate(splits):
            data = {split: (torch.from_numpy(x[kept]), y[kept]) for split, kept in own.items()}
            attributes = self.attributes(i, len(labels), seed)
            client = make_client(self.client_name(i), data, "classification", scaling, **attributes)
            clients[client.info.name] = client
            rows[client.info.name] = {split: kept.tolist() for split, kept in own.items()}
        if len(public):
            raise DataError("population.public: a motion population has no public share")
        return Population(clients, len(labels), labels=labels, rows=rows)

    def _raw(self, places: Places) -> Recordings:
        raw = get(self.dataset).locate(places).load()
        if not isinstance(raw, Recordings):
            raise DataError(f"data set '{self.dataset}' has no motion: use population 'images' or 'roles'")
        there = raw.items[0].signal.shape[1]
        if self.channels > there:
            raise DataError(
                f"population.channels: '{self.dataset}' has {there} channels, not {self.channels}"
            )
        return raw

    def _windows(
        self, raw: Recordings, seed: int
    ) -> tuple[Signal, NDArray[np.int64], NDArray[np.str_], NDArray[np.int64]]:
        wanted = (
            renumber(raw.labels, self.labels, f"data set '{self.dataset}'")
            if self.labels
            else np.arange(len(raw.labels))
        )
        length = round(self.seconds * raw.rate)
        step = max(1, round(length * (1 - self.overlap)))
        x, y, part_of, subject = [], [], [], []
        for who, label, split, signal in self._pieces(raw, wanted, seed):
            for start in range(0, len(signal) - length + 1, step):
                x.append(signal[start : start + length])
                y.append(label)
                part_of.append(split)
                subject.append(who)
        if not x:
            raise DataError(
                f"data set '{self.dataset}' has no stretch of {self.seconds} s: shorten the windows"
            )
        if self.validation and "validation" not in part_of:
            raise DataError(
                f"population.validation: a share of {self.validation} of '{self.dataset}' holds no whole window"
            )
        return np.stack(x), np.asarray(y), np.asarray(part_of), np.asarray(subject)

    def _pieces(self, raw: Recordings, wanted: NDArray[np.int64], seed: int) -> Iterator[Piece]:
        """Yield every stretch of one activity, whole or cut where one split ends and the next begins."""
        whose = self._split_of_subjects(raw, seed)
        stretches: dict[tuple[int, int], list[Signal]] = {}
        for recording in raw.items:
            for label, signal in _stretches(recording, wanted):
                key = (recording.subject, label)
                stretches.setdefault(key, []).append(signal[:, : self.channels or None])
        for (who, label), signals in stretches.items():
            for split, piece in [(whose[who], s) for s in signals] if whose else self._in_time(signals):
                yield who, label, split, piece

    def _in_time(self, signals: list[Signal]) -> Iterator[tuple[str, Signal]]:
        """Cut what a subject did of one activity in time: first training, last testing."""
        total = sum(len(signal) for signal in signals)
        borders = np.round(np.cumsum(list(self._parts().values())) * total).astype(int)
        begin = 0
        for signal in signals:
            cuts = np.clip(borders[:-1] - begin, 0, len(signal))
            yield from zip(self._parts(), np.split(signal, cuts), strict=True)
            begin += len(signal)

    def _parts(self) -> dict[str, float]:
        """Return the share of each split, in the order of time."""
        return {split: share for split, share in self._ways(self.test).items() if share > 0}

    def _split_of_subjects(self, raw: Recordings, seed: int) -> dict[int, str]:
        if self.split_by == "time":
            return {}
        if isinstance(self.partition, Natural):
            raise DataError("population.split_by: clients that are subjects are split by time")
        subjects = sorted({r.subject for r in raw.items})
        order = chance.numpy_generator(seed, "subjects", self.dataset).permutation(subjects)
        borders = np.round(np.cumsum(list(self._parts().values())) * len(order)).astype(int)
        parts = zip(self._parts(), np.split(order, borders[:-1]), strict=True)
        return {int(subject): split for split, own in parts for subject in own}

    def _scaling(self, x: Signal, train: NDArray[np.int64]) -> Scaling | None:
        if not self.standardise:
            return None
        values = x[train].reshape(-1, x.shape[-1]).astype(np.float64)
        mean, std = values.mean(0), np.maximum(values.std(0), 1e-6)
        return Scaling(1.0, tuple(mean.tolist()), tuple(std.tolist()))


def _stretches(recording: Recording, wanted: NDArray[np.int64]) -> Iterator[tuple[int, Signal]]:
    """Yield every stretch of one wanted activity, with its label."""
    marks = np.flatnonzero(np.diff(recording.y)) + 1
    for begin, end in zip([0, *marks], [*marks, len(recording.y)], strict=True):
        number = int(recording.y[begin])
        if number >= 0 and wanted[number] >= 0:
            yield int(wanted[number]), recording.signal[begin:end]
