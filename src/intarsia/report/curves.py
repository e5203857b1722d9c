"""How good clients' own models were after each round, over clients and over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

Row = Mapping[str, Any]
ACCURACY, LOSS = "accuracy", "loss"


@dataclass(frozen=True)
class Curve:
    """The mean over clients of one task after some rounds, with the 10th and the 90th percentile."""

    task: str
    measure: str
    """`accuracy`, or `loss` where no client has one."""
    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    clients: dict[str, float]
    """What each client reached after the last of these rounds."""

    def after(self, rounds: Sequence[int], values: Sequence[float]) -> list[float]:
        """Return values after these rounds, of values after others: all of the curve's are among them."""
        known = dict(zip(self.rounds, values, strict=True))
        return [known[round] for round in rounds]


def curves_of(by_round: Mapping[int, Sequence[Row]], population: Mapping[str, Any]) -> list[Curve]:
    """Return a curve a task, from the rows of each evaluated round."""
    about = population.get("clients", {})
    task_of = {name: own.get("task", "") for name, own in about.items()}
    found: dict[str, dict[int, list[Row]]] = {}
    for round in sorted(by_round):
        for row in by_round[round]:
            found.setdefault(task_of.get(row["client"], ""), {}).setdefault(round, []).append(row)
    curves = [_curve(task, rows) for task, rows in sorted(found.items())]
    return [curve for curve in curves if curve.rounds]


def _curve(task: str, rows: Mapping[int, Sequence[Row]]) -> Curve:
    measure = ACCURACY if any(r[ACCURACY] is not None for own in rows.values() for r in own) else LOSS
    scores = {round: {r["client"]: r[measure] for r in own} for round, own in rows.items()}
    there = {r: {c: s for c, s in own.items() if s is not None} for r, own in scores.items()}
    there = {round: own for round, own in there.items() if own}
    each = [list(own.values()) for own in there.values()]
    low, high = ([float(np.percentile(own, share)) for own in each] for share in (10, 90))
    last = there[max(there)] if there else {}
    return Curve(task, measure, list(there), [fmean(own) for own in each], low, high, last)


@dataclass(frozen=True)
class OverSeeds:
    """What curves of several seeds say together, after the rounds that all of them have."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    """The 10th percentile over clients, the mean over seeds."""
    high: list[float]
    lowest: list[float]
    """The seed whose mean over clients is the lowest."""
    highest: list[float]


def over_seeds(curves: Sequence[Curve]) -> OverSeeds:
    """Return curves that differ in their seed as one."""
    rounds = [r for r in curves[0].rounds if all(r in own.rounds for own in curves)]
    means = _each(curves, rounds, lambda curve: curve.mean)
    low = _each(curves, rounds, lambda curve: curve.low)
    high = _each(curves, rounds, lambda curve: curve.high)
    return OverSeeds(
        rounds,
        [fmean(own) for own in means],
        [fmean(own) for own in low],
        [fmean(own) for own in high],
        [min(own) for own in means],
        [max(own) for own in means],
    )


def _each(
    curves: Sequence[Curve], rounds: Sequence[int], values: Callable[[Curve], Sequence[float]]
) -> list[tuple[float, ...]]:
    """Return what all curves say after each of some rounds."""
    return list(zip(*(curve.after(rounds, values(curve)) for curve in curves), strict=True))


def client_means(curves: Sequence[Curve]) -> dict[str, float]:
    """Return what each client reached after the last round, the mean over seeds."""
    names = dict.fromkeys(name for curve in curves for name in curve.clients)
    return {name: fmean(c.clients[name] for c in curves if name in c.clients) for name in names}
