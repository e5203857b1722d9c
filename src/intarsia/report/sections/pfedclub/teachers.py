"""What a server made of clients' blocks (pFedClub, pFedHR): functional groups, teachers, their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from intarsia.experiment.run_record import RunRecord
from intarsia.methods.pfedclub.reassembly import RIGHT, RIGHT_AMONG_HELD, TEACHER_SCORE
from intarsia.report.elements import evenly

MOST_TEACHERS = 24
"""How many teachers are shown."""


class BlockSpot(NamedTuple):
    """A block of a client's model in the plane: near those that do alike work."""

    x: float
    y: float
    client: str
    place: int
    """Its place in the model, from 1."""
    group: int


class Piece(NamedTuple):
    """A block of a teacher: the client that it is from, its place there (from 1), and whether a seam is before it."""

    donor: str
    place: int
    seam: bool


@dataclass(frozen=True)
class Teacher:
    """A client's last teacher."""

    client: str
    round: int
    pieces: Sequence[Piece]
    stitched: Sequence[int]
    """Before which pieces a tuned stitch stands (their count: a head of its own after the last)."""
    growth: float
    """By what share it is larger than the client's model."""
    itself: bool
    """Whether it is the client's own model."""


@dataclass(frozen=True)
class Reassembly:
    """All that a run noted of its teachers."""

    groups: Mapping[str, Any]
    """The functional groups of the last round."""
    notes: Sequence[Mapping[str, Any]]
    """One a teacher, in the order of rounds."""
    models: Mapping[str, str]
    """The name of every client's model, where it has one."""
    scored: Sequence[Mapping[str, Any]] = ()
    """How good teachers were when clients learned from them, in the order of rounds."""
    training: Sequence[Mapping[str, Any]] = ()
    """How well clients did while they trained."""

    def words(self, client: str) -> str:
        """Return a client with its model."""
        model = self.models.get(client, "")
        return f"{client} ({model})" if model else client

    @cached_property
    def spots(self) -> list[BlockSpot]:
        """The blocks of the last round in the plane."""
        places = embed(np.asarray(self.groups["similarity"], dtype=np.float64))
        return [
            BlockSpot(float(x), float(y), client, index + 1, group)
            for (x, y), (client, index, group) in zip(places, self.groups["blocks"], strict=True)
        ]

    @cached_property
    def teachers(self) -> list[Teacher]:
        """The last teacher of every client, by name; of many, some from the first to the last."""
        last = {note["client"]: note for note in self.notes}
        return [_teacher(last[client]) for client in evenly(sorted(last), MOST_TEACHERS)]

    @property
    def chains(self) -> dict[str, Sequence[tuple[str, int]]]:
        """The blocks of the last teacher of every client: their owner, and their place there (from 1)."""
        last = {note["client"]: note["blocks"] for note in self.notes}
        return {client: [(donor, index + 1) for donor, index in own] for client, own in last.items()}

    @property
    def donors(self) -> list[str]:
        """The clients that blocks of the shown teachers are from."""
        return sorted({piece.donor for teacher in self.teachers for piece in teacher.pieces})

    @property
    def phi(self) -> dict[str, list[tuple[int, float]]]:
        """Every client's phi (eq. 6) after each round in which it got a teacher."""
        lines: dict[str, list[tuple[int, float]]] = {}
        for note in sorted(self.notes, key=lambda note: (note["client"], note["round"])):
            lines.setdefault(note["client"], []).append((note["round"], note["phi"]))
        return lines

    @property
    def teacher_scores(self) -> dict[str, list[tuple[int, float]]]:
        """How often teachers and those they taught were right on clients' training data: means by round."""
        learned = {(note["round"], note["client"]) for note in self.scored}
        pupils = [row for row in self.training if (row["round"], row["client"]) in learned]
        return {
            "teachers, among all labels": _means(self.scored, RIGHT),
            "teachers, among the client's labels": _means(self.scored, RIGHT_AMONG_HELD),
            "their clients, while training": _means(pupils, "accuracy"),
        }

    @property
    def own(self) -> float:
        """In which share of all cases a client's own model was its teacher."""
        return sum(bool(note["itself"]) for note in self.notes) / len(self.notes)


def read_reassembly(run: RunRecord) -> Reassembly | None:
    """Return what a run noted of its teachers; None where there are none."""
    notes = run.notes
    groups = [note for note in notes if note["kind"] == "functional groups"]
    made = [note for note in notes if note["kind"] == "teacher"]
    if not groups or not made:
        return None
    about = run.population.get("clients", {})
    return Reassembly(
        groups[-1],
        made,
        {name: own.get("model", "") for name, own in about.items()},
        [note for note in notes if note["kind"] == TEACHER_SCORE],
        [row for row in run.metrics if row["stage"] == "training"],
    )


def _means(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """Return the mean of each round."""
    by_round: dict[int, list[float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row[key])
    return [(round, fmean(values)) for round, values in sorted(by_round.items())]


def embed(similarity: np.ndarray) -> np.ndarray:
    """Return points in the plane whose distances are about sqrt(s_ii + s_jj - 2 s_ij): classical scaling."""
    count = len(similarity)
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(centre @ ((similarity + similarity.T) / 2) @ centre)
    order = np.argsort(values)[::-1][:2]
    points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0))
    points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    # An eigenvector has no sign of its own: its largest entry points up.
    signs = np.sign(points[np.abs(points).argmax(0), np.arange(2)])
    return np.asarray(points * np.where(signs == 0, 1, signs))


def _teacher(note: Mapping[str, Any]) -> Teacher:
    own = note["own_parameters"]
    return Teacher(
        note["client"],
        note["round"],
        pieces(note["blocks"]),
        note.get("stitched", ()),
        (note["parameters"] - own) / own,
        bool(note["itself"]),
    )


def pieces(blocks: Sequence[tuple[str, int]]) -> list[Piece]:
    """Return a teacher's blocks; a seam is where the donor changes, or a block of it is left out."""
    made: list[Piece] = []
    for donor, index in blocks:
        seam = bool(made) and (made[-1].donor, made[-1].place) != (donor, index)
        made.append(Piece(donor, index + 1, seam))
    return made
