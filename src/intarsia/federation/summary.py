"""What is said of a run: accuracy, loss and bytes as rows and in the summary; who is told of it meanwhile."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from intarsia.blocks import Plan
from intarsia.data import Population
from intarsia.engines import Failure, Reply
from intarsia.federation.plan import TRAIN
from intarsia.methods import EVALUATE, NEW, OWN, TUNED
from intarsia.runs import RunState
from intarsia.setup import Setup

Row = dict[str, Any]
SECONDS = "seconds_"
WARNING = "warning"
"""The kind of an event that is one: nothing was lost."""
STAGES = ("train", "merge", "server", "evaluate", "save")
"""What a round's time goes into: clients' work and its transport, merging, what the method itself does between
exchanges, evaluation, records and what must be waited for of checkpoints."""


def summarise(
    setup: Setup, state: RunState, metrics: Sequence[Row], newcomers: int, finished: bool
) -> dict[str, Any]:
    """Return the result of a run so far, as `summary.json` holds it."""
    totals, last = state.totals, max((r["round"] for r in metrics if r["split"] == "test"), default=0)
    seconds = {name: totals.get(f"{SECONDS}{name}", 0.0) for name in ("total", *STAGES, "clients")}
    summary: dict[str, Any] = {
        "method": setup.method.name,
        "run": state.run,
        "finished": finished,
        "rounds": state.round,
        "clients": len(setup.population),
        "seed": setup.seed,
        "parameters": _parameters(setup),
        "accuracy": accuracy_of(metrics, last, "test"),
        "loss": loss_of(metrics, last, "test"),
        "evaluated": sum(is_row_of(row, last, "test", OWN) for row in metrics),
        "bytes": total_bytes(totals),
        "evaluation_bytes": total_bytes(totals, EVALUATE),
        "seconds": seconds,
        "train_samples_per_second": totals.get("samples", 0) / max(seconds["train"], 1e-9),
        "failed": int(totals.get("failed", 0)),
        "refused": int(totals.get("refused", 0)),
    }
    more = {
        "before": accuracy_of(metrics, last, "test", "before"),
        "tasks": _by_task(setup.population, metrics, last),
        "newcomers": _of_newcomers(newcomers, metrics, last),
        "base": dict(setup.base),
        "best_on_validation": state.best,
        "virtual_seconds": totals.get("virtual_seconds"),
    }
    return summary | {name: value for name, value in more.items() if value}


def _parameters(setup: Setup) -> int:
    """Return how many parameters a client's model has, the mean over clients."""
    sizes = {key: sum(p.numel() for p in own.model.parameters()) for key, own in setup.templates.items()}
    return round(fmean(sizes[key] for key in setup.model_of.values()))


def _of_newcomers(count: int, metrics: Sequence[Row], last: int) -> dict[str, Any]:
    """Return the accuracy of clients that never trained, as they came and after an epoch of their own."""
    stages = {"accuracy": NEW, TUNED: TUNED}
    scores = {name: accuracy_of(metrics, last, "test", stage) for name, stage in stages.items()}
    return {"clients": count, **scores} if count else {}


def _by_task(population: Population, metrics: Sequence[Row], last: int) -> dict[str, Any]:
    """Return accuracy and loss of each task, where clients have several."""
    if len(population.goals) < 2:
        return {}
    members: dict[str, set[str]] = defaultdict(set)
    for info in population.infos:
        members[info.task].add(info.name)
    tasks = {}
    for task, clients in members.items():
        own = [row for row in metrics if row["client"] in clients]
        scores = {"accuracy": accuracy_of(own, last, "test"), "loss": loss_of(own, last, "test")}
        tasks[task] = {"clients": len(clients), **scores}
    return tasks


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


@dataclass(frozen=True)
class RoundReport:
    """What an observer is told of a round that is done."""

    round: int
    rounds: int
    accuracy: Mapping[str, float]
    bytes: Mapping[str, int]
    failures: Sequence[Failure]
    seconds: Mapping[str, float]
    """Where the time of this round went: the stages of `STAGES`, all of it, and the clients' own work."""
    epsilon: float | None = None
    """What the run has cost its clients of their privacy, where that is protected."""
    loss: Mapping[str, float] = field(default_factory=dict)
    """The loss over clients on their test data: the mean, and weighted by samples (none: not evaluated)."""


def report_of(
    state: RunState,
    rounds: int,
    lines: Mapping[str, Sequence[Row]],
    seconds: Mapping[str, float],
    epsilon: float | None,
) -> RoundReport:
    """Return what is told of the round that the state is after, which brought these lines."""
    fields = ("kind", "client", "stage", "block", "message", "details")
    lost = [Failure(**{k: event[k] for k in fields}) for event in lines["events"] if event["kind"] != WARNING]
    return RoundReport(
        round=state.round,
        rounds=rounds,
        accuracy=accuracy_of(lines["metrics"], state.round, "test"),
        bytes=total_bytes(state.totals),
        failures=lost,
        seconds=seconds,
        epsilon=epsilon,
        loss=loss_of(lines["metrics"], state.round, "test"),
    )


class Observer:
    """Told of what happens; every method may be left out."""

    def playing(self, what: str) -> None:
        """Say what begins beside the run itself, for example a baseline (empty: now the run itself)."""

    def opened(self, folder: Path) -> None:
        """Say in which folder the run is that begins, or goes on: its settings and population are there."""

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Say that the loop begins."""

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Say that tasks go out."""

    def replied(self, reply: Reply) -> None:
        """Say that one client has answered."""

    def round_done(self, report: RoundReport) -> None:
        """Say that a round is done."""

    def wants_stop(self) -> bool:
        """Ask, between two rounds, whether the run is to stop here, with its state saved."""
        return False

    def ended(self, summary: Mapping[str, Any]) -> None:
        """Say what came of the run, which is over or was stopped: `summary.json`, as it was written."""


def too_few(plan: Plan, got: int, needed: int, replies: Iterable[Reply]) -> str:
    """Say why an exchange does not count: so many updates were accepted, and more are needed."""
    reasons = [f"  {r.failure.client}: {r.failure.message}" for r in replies if r.failure is not None]
    more = f"\n  and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    return (
        f"exchange '{plan.exchange}': {got} of {len(plan.clients)} updates were "
        f"accepted, min_updates asks for {needed}:\n" + "\n".join(reasons[:3]) + more
    )
