"""What a run's models are worth: every client's figures beside its baselines, and all of them together.

Rows are those of `judged.jsonl`: one a client and split, of its own model after the last round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from intarsia.core import DataError
from intarsia.judging.metrics import BY_CLASS, LEADING, METRICS, Value, around, mean_interval, measure, wilson
from intarsia.judging.tallies import Tally, pooled

Row = dict[str, Any]
Words = Mapping[str, Sequence[str]]
"""The words of labels by task; none of a task whose labels are numbers."""
WORST = 5
"""How many clients are named where the worst are."""
MATRIX = 30
"""Labels up to which the confusion of all clients is written down as a matrix."""


def judged_rows(
    counted: Iterable[Row], names: Sequence[str], alone: Mapping[tuple[str, str], Row] | None = None
) -> list[Row]:
    """Return what clients counted, with metrics, baselines and intervals.

    Rows have at least `client`, `split`, `n`, `tally` and `usual_tally`; `alone` are the rows, by client and split, of
    the same clients that trained alone.
    """
    rows = list(counted)
    singles = [name for name in names if name not in BY_CLASS]
    measured = measure([row[kind] for row in rows for kind in ("tally", "usual_tally")], singles)
    return [
        {
            **row,
            "metrics": own,
            "interval": _intervals(row["tally"], row["n"]),
            "usual": usual,
            **_beside_alone(own, (alone or {}).get((row["client"], row["split"]))),
        }
        for row, own, usual in zip(rows, measured[::2], measured[1::2], strict=True)
    ]


def overall(rows: Sequence[Row], names: Sequence[str], words: Words) -> dict[str, Any]:
    """Return the figures of all these clients: over clients, and over all samples where they can be pooled."""
    tasks = sorted({row["task"] for row in rows})
    verdict: dict[str, Any] = {
        "clients": len(rows),
        "samples": sum(row["n"] for row in rows),
        "metrics": _over_clients(rows, "metrics"),
        "usual": _over_clients(rows, "usual"),
        "worst": [_named(row) for row in sorted(rows, key=_merit)[:WORST]],
    }
    if len(tasks) == 1:
        _add_pooled(verdict, rows, names, words.get(tasks[0], ()))
    if any("gain" in row for row in rows):
        verdict["gain"] = gain_of(rows)
    if len(tasks) > 1:
        own = {task: [row for row in rows if row["task"] == task] for task in tasks}
        verdict["tasks"] = {task: overall(of_task, names, words) for task, of_task in own.items()}
    return verdict


def judged_client(rows: Iterable[Row], client: str, split: str, words: Words) -> dict[str, Any]:
    """Return what is known of one client's own model after the last round, as plain data that explains itself."""
    own = [row for row in rows if row["client"] == client and row["split"] == split]
    if not own:
        raise DataError(
            f"client '{client}' was not judged on {split} data: the run must have ended, with evaluation.metrics not "
            "empty, and the client must have such data"
        )
    row = max(own, key=lambda row: int(row["round"]))
    kept = ("client", "round", "split", "stage", "n", "interval", "alone", "gain", "unseen", "unscaled")
    found = {key: row[key] for key in kept if key in row}
    found |= {"metrics": dict(row["metrics"]), "usual": dict(row["usual"])}
    if "confusion" in row["tally"]:
        own_words = words.get(row["task"], ())
        (measured,) = measure([row["tally"]], BY_CLASS)
        found |= {"by_class": by_class(measured, own_words)}
        found |= _labelled_matrix(row["tally"], own_words)
    return found


def gain_of(rows: Iterable[Row]) -> dict[str, Any]:
    """Return what clients gained over training alone: the mean with its interval, and who lost."""
    having = [row for row in rows if row.get("gain") is not None]
    gains = [row["gain"] for row in having]
    lost = sorted((row for row in having if row["gain"] < 0), key=lambda row: float(row["gain"]))
    return {
        "metric": " and ".join(sorted({leading(row) for row in having})),
        "clients": len(gains),
        "mean": fmean(gains) if gains else None,
        "interval": mean_interval(gains),
        "lost": len(lost),
        "losers": [{"client": row["client"], "n": row["n"], "gain": row["gain"]} for row in lost[:WORST]],
    }


def leading(row: Row) -> str:
    """Return the metric that a client is measured by before all others."""
    return next(name for name in LEADING.values() if name in row["metrics"])


def said_by(tally: Tally) -> set[int]:
    """Return the labels that a model said."""
    return {said for _, said, _ in tally["confusion"]}


def there_in(tally: Tally) -> set[int]:
    """Return the labels that there are."""
    return {true for true, _, _ in tally["confusion"]}


def matrix(tally: Tally, size: int) -> list[list[int]]:
    """Return the confusion matrix: a row a true label, a column a label that was said."""
    rows = [[0] * size for _ in range(size)]
    for true, said, count in tally["confusion"]:
        rows[true][said] = count
    return rows


def by_class(found: Mapping[str, Value], words: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return those figures that are taken label by label, by the words of the labels."""
    return {
        name.removesuffix("_by_class"): {words[n] if n < len(words) else str(n): v for n, v in value.items()}
        for name, value in found.items()
        if isinstance(value, dict)
    }


def _add_pooled(
    verdict: dict[str, Any], rows: Sequence[Row], names: Sequence[str], words: Sequence[str]
) -> None:
    samples = [row["n"] for row in rows]
    own, usual = (pooled([row[kind] for row in rows], samples) for kind in ("tally", "usual_tally"))
    verdict["interval"] = _intervals(own, sum(samples))
    measured = measure([own, usual], names)
    for kind, found in zip(("metrics", "usual"), measured, strict=True):
        for name, value in found.items():
            if isinstance(value, float) and name in verdict[kind]:
                verdict[kind][name]["pooled"] = value
    if "confusion" in own:
        verdict["by_class"] = by_class(measured[0], words)
        verdict |= _labelled_matrix(own, words)


def _labelled_matrix(tally: Tally, words: Sequence[str]) -> dict[str, Any]:
    """Return the labels and the confusion matrix; nothing where there are too many to be read."""
    size = max(len(words), 1 + max(max(true, said) for true, said, _ in tally["confusion"]))
    if size > MATRIX:
        return {}
    return {"labels": [*words, *map(str, range(len(words), size))], "confusion": matrix(tally, size)}


def _over_clients(rows: Sequence[Row], kind: str) -> dict[str, dict[str, Any]]:
    names = [name for name in METRICS if any(name in row[kind] for row in rows)]
    return {name: spread for name in names if (spread := _spread(rows, kind, name))}


def _spread(rows: Sequence[Row], kind: str, name: str) -> dict[str, Any]:
    """Return a metric over clients that have it: mean, weighted by samples, a low share of clients, the worst."""
    pairs = [(row[kind][name], row["n"]) for row in rows if row[kind].get(name) is not None]
    if not pairs:
        return {}
    values = [value for value, _ in pairs]
    more = METRICS[name].more
    return {
        "mean": fmean(values),
        "weighted": math.fsum(v * n for v, n in pairs) / sum(n for _, n in pairs),
        "p10" if more else "p90": float(np.percentile(values, 10 if more else 90)),
        "worst": min(values) if more else max(values),
        "clients": len(values),
    }


def _intervals(tally: Tally, samples: int) -> dict[str, list[float]]:
    """Return Wilson's interval of the accuracy; of numbers, Student's of the mean absolute error."""
    if "confusion" in tally:
        return {"accuracy": wilson(sum(c for true, said, c in tally["confusion"] if true == said), samples)}
    if tally["mae"] is None or samples < 2 or len(tally["mae"]) > 1:
        return {}
    mae, mse = tally["mae"][0], tally["mse"][0]
    deviation = math.sqrt(max(0.0, mse - mae**2) * samples / (samples - 1))
    return {"mae": around(mae, deviation, samples)}


def _beside_alone(own: Mapping[str, Value], alone: Row | None) -> Row:
    """Return the figures of the same client that trained alone, and what it gained: above 0 is better."""
    if alone is None:
        return {}
    name = leading(alone)
    mine, theirs = own.get(name), alone["metrics"][name]
    if not isinstance(mine, float) or theirs is None:
        return {"alone": alone["metrics"]}
    return {"alone": alone["metrics"], "gain": mine - theirs if METRICS[name].more else theirs - mine}


def _merit(row: Row) -> float:
    """Return how well a client does, for an order from worst to best."""
    name = leading(row)
    value = row["metrics"][name]
    if value is None:
        return -math.inf
    return float(value) if METRICS[name].more else -float(value)


def _named(row: Row) -> dict[str, Any]:
    name = leading(row)
    return {"client": row["client"], "n": row["n"], name: row["metrics"][name], "usual": row["usual"][name]}
