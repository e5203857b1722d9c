"""What a run folder says of its run: settings, result and tables; and how it shows itself."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.core import IntarsiaError
from intarsia.core.text import duration, percent, size
from intarsia.experiment.frames import frame_of
from intarsia.experiment.settings import Settings, load
from intarsia.runs import SETTINGS, RunFolder

if TYPE_CHECKING:
    import pandas


class RunRecord:
    """A run as its folder records it: the settings, the result, and every table as rows."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"{run_in_words(self)}\n.clients; .client(name).model(), .predict(new), .export(to); .frame()"

    def _repr_html_(self) -> str:
        return run_as_html(self)

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def settings(self) -> Settings:
        """The complete settings."""
        return load(self.path / SETTINGS)

    @property
    def summary(self) -> dict[str, Any]:
        """The result, as `summary.json` holds it."""
        return self._folder.summary()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row a round, client, split and stage."""
        return self._folder.rows("metrics")

    @property
    def traffic(self) -> list[dict[str, Any]]:
        """One row a message and block."""
        return self._folder.rows("traffic")

    @property
    def events(self) -> list[dict[str, Any]]:
        """One row a client that failed, an update that was refused, or a warning."""
        return self._folder.rows("events")

    @property
    def judged(self) -> list[dict[str, Any]]:
        """One row a client and split: what its own model is worth after the last round, beside baselines."""
        return self._folder.rows("judged")

    @property
    def groups(self) -> list[dict[str, Any]]:
        """One row a client that moved to another group."""
        return self._folder.rows("groups")

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What the method recorded of its rounds, by `kind`."""
        return self._folder.rows("notes")

    @property
    def clock(self) -> list[dict[str, Any]]:
        """One row a client that was asked, in virtual seconds of its fleet, and one a round, which names no client."""
        return self._folder.rows("clock")

    @property
    def seconds(self) -> list[dict[str, Any]]:
        """One row a round: what its time went into; the one table that differs when a run is repeated."""
        return self._folder.rows("seconds")

    @property
    def population(self) -> dict[str, Any]:
        """Who holds what: attributes, counts and labels of every client."""
        return self._folder.population()

    def frame(self, table: str = "metrics") -> pandas.DataFrame:
        """Return a table as a pandas frame: `metrics` has a row a round, client, split and stage.

        The others are `traffic`, `events`, `judged`, `groups`, `notes`, `seconds`, and `clients` (who holds what).
        Needs pandas: `pip install 'intarsia[pandas]'`.
        """
        return frame_of(self._folder, table)


def run_in_words(run: RunRecord) -> str:
    """Return a run in a line: where it is, what it was, how far it is and what came of it."""
    facts = _facts(run)
    return f"<Run {run.path}: {', '.join(facts.values())}>" if facts else f"<Run {run.path}: no result yet>"


def run_as_html(run: RunRecord) -> str:
    """Return a run as a small table."""
    facts = {"run folder": str(run.path), **(_facts(run) or {"result": "none yet"})}
    rows = (f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table>{''.join(rows)}</table>"


def _facts(run: RunRecord) -> dict[str, str]:
    """Return what there is to say; nothing of a run that has no summary, or a damaged one."""
    try:
        summary: Mapping[str, Any] = run.summary
        rounds = run.settings.rounds
    except IntarsiaError:
        return {}
    accuracy, loss = summary["accuracy"], summary["loss"]
    facts = {
        "method": str(summary["method"]),
        "rounds": f"{summary['rounds']} of {rounds} rounds",
        "clients": f"{summary['clients']} clients",
        "accuracy": f"mean accuracy {percent(accuracy['mean'])}" if accuracy else "",
        "worst": f"worst client {percent(accuracy['worst'])}" if accuracy else "",
        "loss": f"mean loss {loss['mean']:.3f}" if loss and not accuracy else "",
        "sent": f"sent {size(sum(summary['bytes'].values()))}",
        "time": duration(summary["seconds"]["total"]),
    }
    return {name: value for name, value in facts.items() if value}
