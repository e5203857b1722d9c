"""Scores of clients' own models on their own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intarsia.methods import OWN
from intarsia.training import LocalClient, Score
from intarsia.training.fast import Chain, score_together


def score_shared_model(clients: Sequence[LocalClient]) -> list[list[dict[str, Any]]]:
    """Score the one model that some clients share on the data of each."""
    model = clients[0].model
    chain, weights = Chain.of(model), dict(model.named_parameters())
    if chain is None:  # on another device than the CPU
        return [score_rows(client, OWN) for client in clients]
    rows: list[list[dict[str, Any]]] = [[] for _ in clients]
    for split in ("test", "validation"):
        having = [i for i, client in enumerate(clients) if split in client.data]
        found = score_together(chain, weights, [clients[i].data[split] for i in having])
        for i, score in zip(having, found, strict=True):
            rows[i].append({"stage": OWN, "split": split, **_as_json(score)})
    return rows


def score_rows(local: LocalClient, stage: str) -> list[dict[str, Any]]:
    """Return the rows of a client's scores on the splits that it is judged by."""
    splits = [split for split in ("test", "validation") if split in local.data]
    return [{"stage": stage, "split": split, **_as_json(local.score(split))} for split in splits]


def _as_json(score: Score) -> dict[str, Any]:
    return {"n": score.n, "correct": score.correct, "loss": score.loss}
