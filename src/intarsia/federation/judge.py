"""The end of a run: clients' own models are judged, and what looks wrong is told."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.blocks import Address, Values
from intarsia.data import SEEN, ClientInfo
from intarsia.federation.summary import WARNING, Row, is_row_of
from intarsia.judging import FACTS, JUDGE, tallies
from intarsia.judging.metrics import parts_of
from intarsia.judging.verdict import judged_rows, overall
from intarsia.judging.warnings import After, Before, after, before, to_rows
from intarsia.methods import OWN, Exchange, Replies, Server
from intarsia.setup import Setup
from intarsia.trust import few_holders

TEST = "test"
LOST = ("failed", "refused")
NO_NUMBERS = ("a NaN", "an infinity")
"""What messages say of updates that hold them."""


@dataclass(frozen=True)
class Judge:
    """Asks clients to count what their own models say, and makes a verdict of it."""

    setup: Setup
    metrics: Sequence[str] = ()
    """Which metrics (none: nothing is asked)."""
    alone: Sequence[Row] = field(default_factory=tuple)
    """The judged rows of a run in which every client trained alone."""

    def asking(self, exchange: Exchange) -> Exchange:
        """Return an evaluation that asks for counts too."""
        return replace(exchange, values=functools.partial(self._values, exchange))

    def _values(self, exchange: Exchange, client: ClientInfo) -> Values:
        values = exchange.values(client) if exchange.values else {}
        return {**values, JUDGE: parts_of(self.metrics)}

    def rows(self, round: int, replies: Replies) -> list[Row]:
        """Return the lines of `judged.jsonl`: what clients counted, with metrics and baselines."""
        known = self.setup.population.known
        counted = [
            _counted(round, name, known[name].task, score, update.values[FACTS])
            for name, update in replies.items()
            for score in update.values["scores"]
            if "tally" in score
        ]
        alone = {(row["client"], row["split"]): row for row in self.alone if row["stage"] == OWN}
        return judged_rows(counted, self.metrics, alone) if counted else []

    def warnings(
        self, server: Server, judged: Sequence[Row], metrics: Sequence[Row], events: Iterable[Row] = ()
    ) -> list[Row]:
        """Return what looks wrong, as lines of `events.jsonl`."""
        round = server.round
        tests = [row for row in metrics if is_row_of(row, round, TEST, OWN)]
        rows = _tested(judged, round)
        known = After(
            rows=rows,
            losses={row["client"]: row["loss"] for row in tests},
            training=_training_losses(metrics),
            lr=self.setup.training.lr,
            words=words_of(self.setup),
            balanced=self.setup.training.class_weights != "none",
            scaled=not any(row["unscaled"] for row in rows),
            not_finite=sum(_is_not_finite(event) for event in events),
        )
        first = before(known_before(self.setup, server))
        told = {warned.kind for warned in first}
        return to_rows([*first, *(warned for warned in after(known) if warned.kind not in told)], round)

    def verdict(self, judged: Sequence[Row], events: Iterable[Row]) -> dict[str, Any]:
        """Return what `summary.json` says of a run that has ended (empty: nothing was judged)."""
        last = max((row["round"] for row in judged), default=0)
        rows = _tested(judged, last)
        if not rows:
            return {}
        warned = [
            {"kind": row["stage"], "message": row["message"]}
            for row in events
            if row["kind"] == WARNING and row["round"] == last
        ]
        found = overall(rows, self.metrics, words_of(self.setup))
        return {"round": last, "split": TEST, **found, "warnings": warned}


def known_before(setup: Setup, server: Server) -> Before:
    """Return what is known before a run begins."""
    population, residents = setup.population, server.residents
    samples = {name: server.clients[name].train_samples for name in residents}
    looked_at = population.some(SEEN) if population.on_demand else residents
    trained = {name: population.clients[name].data.get("train") for name in looked_at if name in samples}
    far = [n for n, own in trained.items() if own and own.scaling is None and tallies.unscaled(own.x)]
    few = few_holders(setup.method.merge, _holders(setup, server)) if setup.method.merge.gathers else ""
    return Before(samples, setup.training.batch_size, setup.method.name, setup.method.doubt(server), far, few)


def _holders(setup: Setup, server: Server) -> Counter[Address]:
    """Return how many clients train the block of each address."""
    return Counter(
        server.address(block, name) for name in server.residents for block in setup.template(name).changing
    )


def words_of(setup: Setup) -> dict[str, Sequence[str]]:
    """Return the words of the labels of every task that has labels."""
    goals = setup.population.goals
    return {task: goal.columns for task, goal in goals.items() if goal.problem == "classification"}


def _counted(round: int, client: str, task: str, score: Mapping[str, Any], facts: Mapping[str, Any]) -> Row:
    own = {key: score[key] for key in ("split", "stage", "n", "unseen", "tally")}
    return {"round": round, "client": client, "task": task, **own, "usual_tally": score["usual"], **facts}


def _tested(judged: Iterable[Row], round: int) -> list[Row]:
    return [row for row in judged if is_row_of(row, round, TEST, OWN)]


def _is_not_finite(event: Row) -> bool:
    """Return whether an update was left out since it held no numbers."""
    return event["kind"] in LOST and any(word in event["message"] for word in NO_NUMBERS)


def _training_losses(metrics: Iterable[Row]) -> list[float | None]:
    """Return the mean training loss of every round; none of one in which a client's was not finite."""
    losses: dict[int, list[float | None]] = defaultdict(list)
    for row in metrics:
        if row["split"] == "train":
            losses[row["round"]].append(row["loss"])
    return [_mean(losses[round]) for round in sorted(losses)]


def _mean(losses: Sequence[float | None]) -> float | None:
    finite = [loss for loss in losses if loss is not None]
    return math.fsum(finite) / len(losses) if len(finite) == len(losses) else None
