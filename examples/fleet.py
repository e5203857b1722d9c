"""A table as people have it: twelve trucks of two generations, gaps, words, columns of unlike size.

Run it with: python examples/fleet.py, then look at what it wrote: intarsia data check fleet.csv --write fleet.toml
"""

from __future__ import annotations

import csv
import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

HEADER = ["", "truck", "time", "heat", "load", "vibration", "gear", "depot", "state"]


def readings(truck: int, rows: int = 80) -> list[list[str]]:
    """Return one truck's rows: worn brakes run hot; old trucks measure heat alone, new ones load and vibration too."""
    source = random.Random(truck)
    new, start = truck > 6, datetime(2026, 3, 1, 6) + timedelta(minutes=7 * truck)
    found = []
    for i in range(rows):
        worn = source.random() < 0.25
        gear = source.choice(["low", "high", "reverse"])
        load = source.uniform(2_000, 24_000)
        heat = 85 + 35 * worn + load / 2_000 + 2 * truck + source.gauss(0, 6)
        vibration = 0.002 + 0.003 * worn + source.gauss(0, 0.0006)
        label = "worn" if worn else source.choice(["ok"] * 9 + ["OK"])
        moment = (start + timedelta(minutes=15 * i)).isoformat(" ")
        sensors = [f"{heat:.1f}", f"{load:.0f}" if new else "", f"{vibration:.5f}" if new else ""]
        gaps = ["n/a" if cell and source.random() < 0.03 else cell for cell in sensors]
        found.append([f"truck-{truck:02}", moment, *gaps, gear, "north", label])
    return found


def write(path: Path, trucks: int = 12) -> None:
    """Write the table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        rows = [row for truck in range(1, trucks + 1) for row in readings(truck)]
        table.writerows([str(i), *row] for i, row in enumerate(rows))


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "fleet.csv")
    write(path)
    print(f"wrote {path}; now: intarsia data check {path} --write {path.with_suffix('.toml')}")
