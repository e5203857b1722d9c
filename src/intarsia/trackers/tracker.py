"""What every tracker does: begin or go on, a point a round, the result; and never stop a run."""

from __future__ import annotations

import json
import math
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from intarsia.core import SettingsError, warn, write_atomically
from intarsia.core.text import flat
from intarsia.federation import Observer, RoundReport
from intarsia.judging.metrics import METRICS
from intarsia.runs import SETTINGS

RECORD = "trackers.json"
"""What a run folder says of trackers: under which name each knows the run, and up to which round."""


@dataclass(frozen=True)
class Begun:
    """The run that a tracker is told of."""

    folder: Path
    identity: str
    """The name that the tracker gave the run when it was begun (empty: it begins now)."""
    settings: Mapping[str, Any]
    """The complete settings, by dotted names."""
    text: str
    """The same as TOML."""

    @property
    def name(self) -> str:
        """How people call the run: the last two parts of its folder."""
        return "/".join(self.folder.resolve().parts[-2:])


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    finished: bool
    figures: Mapping[str, float]
    verdict: str
    """What the models are worth, beside what is usual in the clients' data; as a table in Markdown."""
    warnings: tuple[str, ...]
    summary: Mapping[str, Any]
    """All of `summary.json`."""


class Tracker(Observer, ABC):
    """An observer that hands a run's figures on; whatever goes wrong there is a warning, and the run goes on."""

    title: ClassVar[str]
    package: ClassVar[str]
    """What must be installed."""
    extra: ClassVar[str]
    """The extra of Intarsia that brings it."""

    def __init__(self) -> None:
        if find_spec(self.package) is None:
            raise SettingsError(
                f"track: {self.title} needs the package '{self.package}', which is not installed: "
                f"pip install 'intarsia[{self.extra}]'"
            )
        self._folder: Path | None = None
        self._noted: dict[str, Any] = {}

    @abstractmethod
    def begin(self, run: Begun) -> str:
        """Begin, or go on with what `run.identity` names; return the name to find it by later."""

    @abstractmethod
    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Note the figures of a round."""

    @abstractmethod
    def end(self, result: Result) -> None:
        """Note what came of the run, and let go of it."""

    def opened(self, folder: Path) -> None:
        """Begin with the run of a folder."""
        self._folder = folder
        self._careful(self._begin)

    def round_done(self, report: RoundReport) -> None:
        """Note a round, once: rounds that are played again after a stop end as they did."""
        if self._folder is not None:
            self._careful(lambda: self._log(report))

    def ended(self, summary: Mapping[str, Any]) -> None:
        """Note the result."""
        if self._folder is not None:
            self._careful(lambda: self.end(result_of(summary)))
            self._folder = None

    def _begin(self) -> None:
        folder = self._folder or Path()
        text = (folder / SETTINGS).read_text("utf-8")
        record = _read(folder).get(self.package, {})
        self._noted = {"identity": "", "round": 0, **record}
        self._noted["identity"] = self.begin(
            Begun(folder, self._noted["identity"], flat(tomllib.loads(text)), text)
        )
        self._note(self._noted["round"])

    def _log(self, report: RoundReport) -> None:
        if report.round > self._noted["round"]:
            self.log(report.round, figures_of(report))
            self._note(report.round)

    def _note(self, round: int) -> None:
        """Write down how far the tracker knows the run."""
        self._noted["round"] = round
        folder = self._folder or Path()
        known = {**_read(folder), self.package: self._noted}
        write_atomically(folder / RECORD, (json.dumps(known, indent=2) + "\n").encode())

    def _careful(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:  # noqa: BLE001 - a tracker may raise anything; the run goes on without it
            warn(
                f"{self.title} is told no more of the run in {self._folder}, which goes on: "
                f"{type(error).__name__}: {error}"
            )
            self._folder = None


def figures_of(report: RoundReport) -> dict[str, float]:
    """Return a round's figures by name; bytes are those of the run so far."""
    lost = Counter({"failed": 0, "refused": 0})
    lost.update(failure.kind for failure in report.failures)
    groups: dict[str, Mapping[str, float]] = {
        "accuracy": report.accuracy,
        "loss": report.loss,
        "bytes": report.bytes,
        "seconds": report.seconds,
        "clients": lost,
        "privacy": {} if report.epsilon is None else {"epsilon": report.epsilon},
    }
    return {f"{group}/{name}": float(value) for group, own in groups.items() for name, value in own.items()}


def result_of(summary: Mapping[str, Any]) -> Result:
    """Return what is to be said of a summary."""
    judged = summary.get("judged", {})
    warnings = tuple(warned["message"] for warned in judged.get("warnings", ()))
    figures = dict(_numbers({k: v for k, v in summary.items() if k not in ("judged", "seed")}))
    figures |= _numbers({"judged": {k: judged[k] for k in ("metrics", "usual", "gain") if k in judged}})
    return Result(bool(summary.get("finished")), figures, verdict_of(judged), warnings, summary)


def _numbers(table: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers in tables of tables, by names with slashes."""
    for name, value in flat(table).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"summary/{name.replace('.', '/')}", float(value)


def verdict_of(judged: Mapping[str, Any]) -> str:
    """Return what models are worth as a table: every metric over clients, and what is usual in their data."""
    if not judged:
        return ""
    rows: list[tuple[str, ...]] = [
        ("metric", "mean over clients", "worst client", "usual answer, mean"),
        ("---",) * 4,
    ]
    for name, own in judged["metrics"].items():
        usual = judged["usual"].get(name, {}).get("mean")
        cells = (f"{value:.4g}" if value is not None else "-" for value in (own["mean"], own["worst"], usual))
        rows.append((METRICS[name].title, *cells))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    return dict(json.loads(path.read_bytes())) if path.exists() else {}
