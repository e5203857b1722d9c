"""Accuracy, loss and bytes of rounds, as rows of tables and in the summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from intarsia.federation.plan import TRAIN
from intarsia.methods import OWN

Row = dict[str, Any]


def accuracy_of(metrics: Iterable[Row], round: int, split: str, stage: str = OWN) -> dict[str, float]:
    """Return the accuracy over clients in one round: mean, weighted by samples, 10th percentile, worst."""
    rows = [r for r in metrics if is_row_of(r, round, split, stage) and r["accuracy"] is not None]
    if not rows:
        return {}
    each = [r["accuracy"] for r in rows]
    return {
        "mean": fmean(each),
        "weighted": sum(r["correct"] for r in rows) / sum(r["n"] for r in rows),
        "p10": float(np.percentile(each, 10)),
        "worst": min(each),
    }


def loss_of(metrics: Iterable[Row], round: int, split: str, stage: str = OWN) -> dict[str, float]:
    """Return the loss over clients in one round: mean, and weighted by samples."""
    rows = [r for r in metrics if is_row_of(r, round, split, stage) and r["loss"] is not None]
    if not rows:
        return {}
    weighted = math.fsum(r["loss"] * r["n"] for r in rows) / sum(r["n"] for r in rows)
    return {"mean": fmean(r["loss"] for r in rows), "weighted": weighted}


def is_row_of(row: Row, round: int, split: str, stage: str) -> bool:
    """Return whether a row of the metrics is of this round, split and stage."""
    return bool(row["round"] == round and row["split"] == split and row["stage"] == stage)


def metric_row(round: int, client: str, score: Mapping[str, Any]) -> Row:
    """Return a client's score as a row of the metrics."""
    n, correct, loss = score["n"], score["correct"], score["loss"]
    hits = correct if correct >= 0 else None
    return {
        "round": round,
        "client": client,
        "split": score["split"],
        "stage": score["stage"],
        "n": n,
        "correct": hits,
        "loss": float(loss) if math.isfinite(loss) else None,
        "accuracy": None if hits is None or n == 0 else hits / n,
    }


def total_bytes(totals: Mapping[str, float], purpose: str = TRAIN) -> dict[str, int]:
    """Return how many bytes travelled up and down for a purpose."""
    return {way: int(totals.get(f"bytes_{purpose}_{way}", 0)) for way in ("up", "down")}
