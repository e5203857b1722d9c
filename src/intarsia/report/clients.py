"""The clients of a run, worst first: what each is worth, what it shares and what failed, as columns of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from intarsia.data import label_words
from intarsia.judging.metrics import BY_CLASS, LEADING, METRICS
from intarsia.methods import OWN
from intarsia.methods.local import Local
from intarsia.report.elements import evenly
from intarsia.report.reading import Reading, Row
from intarsia.report.verdict import SHARES

LOST = ("failed", "refused")
"""Kinds of events that a client's failures are."""
IN_TABLE = ("accuracy", "balanced_accuracy", "f1", "rmse", "mae", "r2", "loss")
"""Metrics with a column; all others are told of a client that is opened."""
Value = float | int | None


@dataclass(frozen=True)
class Column:
    """What is told of every client: as a share, a step between shares, a number or a count."""

    key: str
    title: str
    form: str
    values: Sequence[Value]
    more: bool = True
    """Whether more is better."""
    in_table: bool = True


@dataclass(frozen=True)
class ClientScores:
    """What each client's own model is worth after the last evaluation: judged, or else accuracy and loss."""

    run: Reading

    @cached_property
    def evaluated(self) -> dict[str, Row]:
        """The last row of the metrics of every client's own model on its test data."""
        return {
            row["client"]: row for row in self.run.metrics if (row["split"], row["stage"]) == ("test", OWN)
        }

    @cached_property
    def judged(self) -> dict[str, Row]:
        """The judged rows of the last evaluation; none where that was not the last of the run."""
        last = max((row["round"] for row in self.evaluated.values()), default=0)
        wanted = (last, "test", OWN)
        return {r["client"]: r for r in self.run.judged if (r["round"], r["split"], r["stage"]) == wanted}

    @cached_property
    def metrics(self) -> dict[str, Mapping[str, Value]]:
        """Metrics by client and name."""
        if self.judged:
            return {client: row["metrics"] for client, row in self.judged.items()}
        return {
            client: {name: row[name] for name in ("accuracy", "loss") if row[name] is not None}
            for client, row in self.evaluated.items()
        }

    def leading(self, client: str) -> tuple[str, Value]:
        """Return what a client is measured by before all else, and its value."""
        own = self.metrics.get(client, {})
        name = next((name for name in (*LEADING.values(), "loss") if name in own), "")
        return name, own.get(name)

    @cached_property
    def clients(self) -> list[str]:
        """All clients, the worst first; who was not evaluated comes last."""
        everyone = dict.fromkeys([*self.run.population.get("clients", {}), *self.evaluated])
        return sorted(everyone, key=self._place)

    def _place(self, client: str) -> tuple[bool, float]:
        name, value = self.leading(client)
        merit = value if name in METRICS and METRICS[name].more else -(value or 0.0)
        return value is None, merit or 0.0

    @cached_property
    def alone(self) -> dict[str, Value]:
        """The leading metric of the same client that trained alone, where the run was judged beside that."""
        found = {}
        for client, row in self.judged.items():
            name, _ = self.leading(client)
            if name in row.get("alone", {}):
                found[client] = row["alone"][name]
        return found


def alone_in(scores: ClientScores, others: Sequence[ClientScores]) -> dict[str, Value]:
    """Return what the run's clients are worth that train alone: as it was judged beside, or as another run shows.

    Another run tells it where it has the same clients with the same data, and is as far.
    """
    if scores.alone or scores.run.settings.method["name"] == Local.name:
        return scores.alone
    for other in others:
        same = other.run.population == scores.run.population and other.run.done == scores.run.done
        if other.run.settings.method["name"] == Local.name and same and scores.run.population:
            return {
                client: value
                for client in scores.clients
                for name, value in [other.leading(client)]
                if name == scores.leading(client)[0]
            }
    return {}


def columns_of(scores: ClientScores, alone: Mapping[str, Value]) -> list[Column]:
    """Return what is told of the clients in their order, worst first; columns without a value are left out."""
    failures = Counter(e.get("client", "") for e in scores.run.events if e["kind"] in LOST)
    about = scores.run.population.get("clients", {})
    samples = [about.get(client, {}).get("samples", {}) for client in scores.clients]
    found = [
        Column("samples", "Training samples", "count", [own.get("train") for own in samples]),
        Column("test", "Test samples", "count", [own.get("test") for own in samples], in_table=False),
        *_metric_columns(scores),
        *(_usual_column(scores, name) for name in LEADING.values()),
        *(_gain_column(scores, alone, name) for name in (*LEADING.values(), "loss")),
        Column("failures", "Failures", "count", [failures[c] for c in scores.clients], more=False),
    ]
    return [column for column in found if any(value is not None for value in column.values)]


def _metric_columns(scores: ClientScores) -> list[Column]:
    titles = {name: metric.title for name, metric in METRICS.items() if name not in BY_CLASS}
    return [
        Column(
            name,
            title[:1].upper() + title[1:],
            _form(name),
            [scores.metrics.get(client, {}).get(name) for client in scores.clients],
            name in METRICS and METRICS[name].more,
            name in IN_TABLE,
        )
        for name, title in {**titles, "loss": "loss"}.items()
    ]


def _form(name: str) -> str:
    return "share" if name in SHARES else "number"


def _usual_column(scores: ClientScores, name: str) -> Column:
    """Return what a model would reach that knows the usual answer alone."""
    title = "Majority label" if name == LEADING["classification"] else "Mean of targets"
    values = [_usual(scores, client, name) for client in scores.clients]
    return Column(f"usual-{name}", title, _form(name), values, METRICS[name].more)


def _usual(scores: ClientScores, client: str, name: str) -> Value:
    if client in scores.judged:
        found: Value = scores.judged[client]["usual"].get(name)
        return found
    counts = scores.run.population.get("clients", {}).get(client, {}).get("labels", {})
    train, test = counts.get("train", []), counts.get("test", [])
    if scores.leading(client)[0] != name or name not in SHARES or not sum(train) or not sum(test):
        return None
    return float(test[train.index(max(train))] / sum(test))


def _gain_column(scores: ClientScores, alone: Mapping[str, Value], name: str) -> Column:
    """Return what clients gained over training alone: above 0 is better."""

    def gain(client: str) -> Value:
        own, (kind, value) = alone.get(client), scores.leading(client)
        if kind != name or own is None or value is None:
            return None
        return value - own if name in SHARES else own - value

    form = "points" if name in SHARES else "step"
    title = "Gain over alone, points" if name in SHARES else f"Gain over alone ({name})"
    return Column(f"gain-{name}", title, form, [gain(client) for client in scores.clients])


@dataclass(frozen=True)
class History:
    """Accuracy, or the loss where there is none, of every client after the evaluated rounds."""

    rounds: list[int]
    errors: list[int]
    """Which clients' values are losses."""
    values: list[list[Value]]


def history_of(scores: ClientScores, room: int) -> History:
    """Return the course of every client; of many rounds as many, from the first to the last, as there is room for."""
    rows = [r for r in scores.run.metrics if (r["split"], r["stage"]) == ("test", OWN)]
    rounds = evenly(sorted({row["round"] for row in rows}), max(2, room // max(1, len(scores.clients))))
    at = {(row["client"], row["round"]): row for row in rows}
    errors = [
        place
        for place, client in enumerate(scores.clients)
        if (scores.evaluated.get(client) or {"accuracy": 0})["accuracy"] is None
    ]
    lost = set(errors)
    values = [
        [at.get((client, r), {}).get("loss" if place in lost else "accuracy") for r in rounds]
        for place, client in enumerate(scores.clients)
    ]
    return History(rounds, errors, values)


def confusions_of(scores: ClientScores, room: int) -> dict[int, list[int]]:
    """Return what clients' models said, by the client's place: true label, said, how often; again and again.

    The worst clients come first, as many as there is room for.
    """
    found: dict[int, list[int]] = {}
    for place, client in enumerate(scores.clients):
        counts = scores.judged.get(client, {}).get("tally", {}).get("confusion")
        if counts is None:
            continue
        room -= len(counts)
        if room < 0:
            break
        found[place] = [number for entry in counts for number in entry]
    return found


def labels_of(scores: ClientScores) -> dict[str, list[str]]:
    """Return the words of labels by task."""
    about = scores.run.population
    tasks = {own.get("task", "") for own in about.get("clients", {}).values()} or {""}
    return {task: label_words(about, task) for task in sorted(tasks)}


def attributes_of(scores: ClientScores) -> list[dict[str, Any]]:
    """Return what clients are: every attribute with its words, and which of them each client has."""
    about = scores.run.population.get("clients", {})
    found = []
    for key in ("device", "cohort", "task", "model"):
        own = [str(about.get(client, {}).get(key) or "") for client in scores.clients]
        words = list(dict.fromkeys(own))
        if words != [""]:
            found.append({"title": key, "words": words, "of": [words.index(word) for word in own]})
    return found


def failures_of(scores: ClientScores, room: int = 300, each: int = 4) -> dict[int, list[list[Any]]]:
    """Return the last failures of clients, by their place: round, kind, message."""
    places = {client: place for place, client in enumerate(scores.clients)}
    found: dict[int, list[list[Any]]] = {}
    for event in reversed(scores.run.events):
        place = places.get(event.get("client", ""))
        if event["kind"] in LOST and place is not None and room > 0:
            own = found.setdefault(place, [])
            if len(own) < each:
                own.append([event["round"], event["kind"], event["message"][:300]])
                room -= 1
    return found
