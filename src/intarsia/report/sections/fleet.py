"""What a fleet's clock says: how long kinds of devices take, and whose answers counted."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Self

from intarsia.core.text import lasting
from intarsia.experiment.run_record import RunRecord
from intarsia.report.elements import html_table
from intarsia.report.sections.base import Part, Section

STAGES = {"down": "Download, s", "compute": "Computing, s", "up": "Upload, s"}
OUTCOMES = {"counted": "Counted", "late": "Late", "surplus": "Not needed", "dropped": "Dropped out"}
MOST_DEVICES = 20
"""How many kinds of devices have a row."""
WORDS = (
    "<p>{rounds} rounds take {whole} on this fleet, half of them at most {middle}. A device's row has the mean of a "
    "client's trips; server and evaluation take no time.{stale}</p>"
)


@dataclass(frozen=True)
class FleetClock(Section):
    """Seconds and outcomes by kind of device."""

    trips: Sequence[Mapping[str, Any]]
    rounds: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, run: RunRecord) -> Self | None:
        """Return the section of a run that has a clock."""
        rows = run.clock
        rounds = [row for row in rows if not row["client"]]
        return cls([row for row in rows if row["client"]], rounds) if rounds else None

    def parts(self, label: str) -> list[Part]:
        """Return a table with a row a kind of device."""
        lengths = [row["answered"] - row["asked"] for row in self.rounds]
        words = WORDS.format(
            rounds=len(lengths),
            whole=lasting(max(row["answered"] for row in self.rounds)),
            middle=lasting(median(lengths)),
            stale=self._staleness(),
        )
        devices = Counter(row.get("device", "") for row in self.trips)
        rows = [self._device(device) for device, _ in devices.most_common(MOST_DEVICES)]
        if len(devices) > MOST_DEVICES:
            words += f"<p>The {MOST_DEVICES} of {len(devices)} devices that were asked most often.</p>"
        heads = ("Device", "Asked", *OUTCOMES.values(), *STAGES.values(), "In all, s")
        return [(f"Fleet: {html.escape(label)}", words + html_table(heads, rows))]

    def _device(self, device: str) -> list[str]:
        own = [row for row in self.trips if row.get("device", "") == device]
        outcomes = Counter(row["outcome"] for row in own)
        stages = [f"{fmean(row.get(stage, 0.0) for row in own):,.2f}" for stage in STAGES]
        whole = f"{fmean(row['answered'] - row['asked'] for row in own):,.2f}"
        return [device, str(len(own)), *(str(outcomes[outcome]) for outcome in OUTCOMES), *stages, whole]

    def _staleness(self) -> str:
        """Say how stale answers were, where the server does not wait."""
        stale = [row["staleness"] for row in self.trips if "staleness" in row and row["outcome"] == "counted"]
        return (
            f" Answers were {fmean(stale):.2f} versions behind on average, {max(stale)} at most."
            if stale
            else ""
        )
