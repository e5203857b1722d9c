"""Scores of clients' own models on their own data, and what is counted of them where they are to be judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from intarsia.blocks import Task
from intarsia.judging import JUDGE, tallies
from intarsia.methods import OWN
from intarsia.training import LocalClient, Score
from intarsia.training.fast import Chain, score_together

SPLITS = ("test", "validation")
"""What a client is judged by."""
Parts = Collection[str] | None
"""What is counted beside labels, where a model is judged (None: it is not)."""


def parts_asked(task: Task) -> Parts:
    """Return what a task asks to be counted."""
    return task.values.get(JUDGE)


def score_shared_model(clients: Sequence[LocalClient], parts: Parts = None) -> list[list[dict[str, Any]]]:
    """Score the one model that some clients share on the data of each."""
    model = clients[0].model
    chain, weights = Chain.of(model), dict(model.named_parameters())
    if chain is None:  # on another device than the CPU
        return [score_rows(client, OWN, parts) for client in clients]
    rows: list[list[dict[str, Any]]] = [[] for _ in clients]
    for split in SPLITS:
        having = [i for i, client in enumerate(clients) if split in client.data]
        said: list[list[Tensor]] = [[] for _ in having]
        data = [clients[i].data[split] for i in having]
        found = score_together(chain, weights, data, None if parts is None else said)
        for i, score, own in zip(having, found, said, strict=True):
            rows[i].append(_row(clients[i], OWN, split, score, own, parts))
    return rows


def score_rows(local: LocalClient, stage: str, parts: Parts = None) -> list[dict[str, Any]]:
    """Return the rows of a client's scores on the splits that it is judged by."""
    rows = []
    for split in (split for split in SPLITS if split in local.data):
        said: list[Tensor] = []
        score = local.score(split, None if parts is None else said)
        rows.append(_row(local, stage, split, score, said, parts))
    return rows


def facts(local: LocalClient) -> dict[str, Any]:
    """Return what the server is told of a client's training data where it is judged."""
    train = local.data["train"]
    labels = len(torch.unique(train.y)) if local.loss.hits else 0
    return {"labels": labels, "unscaled": train.scaling is None and tallies.unscaled(train.x)}


def _row(
    local: LocalClient, stage: str, split: str, score: Score, said: list[Tensor], parts: Parts
) -> dict[str, Any]:
    row = {"stage": stage, "split": split, "n": score.n, "correct": score.correct, "loss": score.loss}
    return row if parts is None else row | _judged(local, split, torch.cat(said).detach(), parts)


def _judged(local: LocalClient, split: str, outputs: Tensor, parts: Collection[str]) -> dict[str, Any]:
    """Count what a model said, and what one would have that only knows what is usual in the training data."""
    y, trained = local.data[split].y, local.data["train"].y
    if local.loss.hits is None:
        usual = tallies.of_values(tallies.usual_values(trained, len(y)), y, local.units)
        return {"tally": tallies.of_values(outputs, y, local.units), "usual": usual, "unseen": 0}
    constant = tallies.usual_labels(trained, outputs.shape[1], len(y))
    return {
        "tally": tallies.of_labels(outputs, y, parts),
        "usual": tallies.of_labels(constant, y, parts),
        "unseen": int(torch.isin(y, trained, invert=True).sum()),
    }
