"""A run folder, read once: the folder of a run that goes on or was stopped too, as far as it has come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from intarsia.data.recorded import clients_in
from intarsia.experiment import Settings
from intarsia.experiment.run_record import RunRecord
from intarsia.federation import STAGES, accuracy_of, loss_of
from intarsia.methods import EVALUATE, OWN
from intarsia.runs import SUMMARY

Row = dict[str, Any]


class Reading(RunRecord):
    """What a run folder says, every table read once; rounds that are not whole yet are left out."""

    @cached_property
    def settings(self) -> Settings:
        """The complete settings."""
        return super().settings

    @cached_property
    def population(self) -> dict[str, Any]:
        """Who holds what."""
        return super().population

    @cached_property
    def finished(self) -> bool:
        """Whether the run has ended: nothing is added to its folder any more."""
        return bool(self._written_summary.get("finished"))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The result; of a run that has not ended, what it would be after the rounds that are done."""
        return self._written_summary if self.finished else {**self._written_summary, **so_far(self)}

    @cached_property
    def _written_summary(self) -> dict[str, Any]:
        return super().summary if (self.path / SUMMARY).exists() else {}

    @cached_property
    def done(self) -> int:
        """The last round whose lines are all there: its times are written last."""
        if self.finished:
            return int(self._written_summary["rounds"])
        times = [row["round"] for row in self.seconds]
        return max(times or (row["round"] for row in self._table("metrics")), default=0)

    @cached_property
    def metrics(self) -> list[Row]:
        """One row a round, client, split and stage."""
        return self._until_done("metrics")

    @cached_property
    def traffic(self) -> list[Row]:
        """One row a message and block."""
        return self._until_done("traffic")

    @cached_property
    def groups(self) -> list[Row]:
        """One row a client that moved to another group."""
        return self._until_done("groups")

    @cached_property
    def notes(self) -> list[Row]:
        """What the method recorded of its rounds."""
        return self._until_done("notes")

    @cached_property
    def judged(self) -> list[Row]:
        """One row a client and split: what its own model is worth after the last round."""
        return self._table("judged")

    @cached_property
    def events(self) -> list[Row]:
        """One row a client that failed, an update that was refused, or a warning; of a round broken off too."""
        return self._table("events")

    @cached_property
    def clock(self) -> list[Row]:
        """One row a client that was asked, in virtual seconds, and one a round."""
        return self._until_done("clock")

    @cached_property
    def seconds(self) -> list[Row]:
        """One row a round: what its time went into."""
        return self._table("seconds")

    def _until_done(self, table: str) -> list[Row]:
        return [row for row in self._table(table) if row["round"] <= self.done]

    def _table(self, table: str) -> list[Row]:
        return self._folder.rows(table, growing=not self.finished)


def so_far(run: Reading) -> dict[str, Any]:
    """Return what `summary.json` will say once a run has ended, as far as its tables tell it by now."""
    metrics, settings = run.metrics, run.settings
    last = max((row["round"] for row in metrics if row["split"] == "test"), default=0)
    kinds = [event["kind"] for event in run.events]
    clients = clients_in(run.population) or len({row["client"] for row in run.traffic})
    ends = [row for row in run.clock if not row["client"]]
    return {
        "method": settings.method["name"],
        "finished": False,
        "rounds": run.done,
        "clients": clients,
        "seed": settings.seed,
        "accuracy": accuracy_of(metrics, last, "test"),
        "loss": loss_of(metrics, last, "test"),
        "evaluated": sum((r["round"], r["split"], r["stage"]) == (last, "test", OWN) for r in metrics),
        "bytes": _sent(run.traffic, "train"),
        "evaluation_bytes": _sent(run.traffic, EVALUATE),
        "seconds": {
            name: math.fsum(row.get(name, 0.0) for row in run.seconds if row["round"] <= run.done)
            for name in ("total", *STAGES, "clients")
        },
        "failed": kinds.count("failed"),
        "refused": kinds.count("refused"),
        **({"virtual_seconds": max(row["answered"] for row in ends)} if ends else {}),
        **_by_task(run, last),
    }


def _sent(traffic: Sequence[Row], purpose: str) -> dict[str, int]:
    sent = {"up": 0, "down": 0}
    for row in traffic:
        if row["purpose"] == purpose:
            sent[row["direction"]] += row["bytes"]
    return sent


def _by_task(run: Reading, last: int) -> Mapping[str, Any]:
    """Return accuracy and loss of each task, where clients have several."""
    members: dict[str, set[str]] = {}
    for name, about in run.population.get("clients", {}).items():
        members.setdefault(about.get("task", ""), set()).add(name)
    if len(members) < 2:
        return {}
    own = {task: [row for row in run.metrics if row["client"] in names] for task, names in members.items()}
    return {
        "tasks": {
            task: {
                "clients": len(names),
                "accuracy": accuracy_of(own[task], last, "test"),
                "loss": loss_of(own[task], last, "test"),
            }
            for task, names in members.items()
        }
    }
