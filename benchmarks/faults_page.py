"""Puts the figures of the records into docs/trust/faults.md: `python -m benchmarks.faults_page`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import sections

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trust" / "faults.md"
BEGIN, END = "<!-- figures: {} -->\n", "<!-- end of figures -->\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counted(entries: Sequence[Mapping[str, Any]], key: str) -> list[tuple[Any, int, int]]:
    """Return how many entries of each kind there are, and how many of them went wrong."""
    kinds, wrong = Counter(e[key] for e in entries), Counter(e[key] for e in entries if e["found"])
    rows = [(kind, count, wrong[kind]) for kind, count in sorted(kinds.items())]
    return [*rows, ("all", len(entries), sum(wrong.values()))]


def kills(record: Mapping[str, Any]) -> str:
    """Return what came of kills."""
    plays = len({kill["play"] for kill in record["kills"]})
    text = table(("killed", "times", "not bit-equal"), _counted(record["kills"], "target"))
    text += f"\nOver {plays} of the golden plays, each of {record['rounds']} rounds.\n"
    if record.get("flower"):
        heads = ("on Flower: killed", "times", "not byte-equal")
        text += "\n" + table(heads, _counted(record["flower"], "target"))
    return text


def damages(record: Mapping[str, Any]) -> str:
    """Return what came of damaged files and broken disks."""
    damaged = record["damages"]
    ways = sorted({entry["damage"] for entry in damaged})
    rows = [_outcomes(way, [e for e in damaged if e["damage"] == way]) for way in ways]
    heads = (
        "a file was",
        "times",
        "went on to the same bits",
        "refused, nothing else changed",
        "anything else",
    )
    text = table(heads, [*rows, _outcomes("all", damaged)])
    disks = table(
        ("the disk failed with", "times", "lost, or said nothing"), _counted(record["disks"], "error")
    )
    clocks = f"Runs with a clock that jumps by years: {len(record['clocks'])}, "
    return f"{text}\n{disks}\n{clocks}{sum(bool(c['found']) for c in record['clocks'])} of them with another result.\n"


def _outcomes(name: str, entries: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    fine = Counter(entry["outcome"] for entry in entries if not entry["found"])
    return (name, len(entries), fine["equal"], fine["refused"], sum(bool(e["found"]) for e in entries))


def frames(record: Mapping[str, Any]) -> str:
    """Return what came of mutated frames and files."""
    rows = [
        (name, own["frames"], own["refused"], sum(own["foreign"].values()), f"{own['slowest']:.2f} s")
        for name, own in record["decoders"].items()
    ]
    decoders = record["decoders"].values()
    foreign = sum(sum(own["foreign"].values()) for own in decoders)
    totals = [sum(own["frames"] for own in decoders), sum(own["refused"] for own in decoders), foreign]
    whole = [*rows, ("all", *totals, f"{max(own['slowest'] for own in decoders):.2f} s")]
    text = table(("decoder or reader", "frames", "refused", "foreign errors", "slowest"), whole)
    return f"{text}\n{record['batches']} processes, {record['peak_mib']:,} MiB at most in one of them.\n"


def load(record: Mapping[str, Any]) -> str:
    """Return how a federation bore load."""
    text = ""
    for name, own in record.items():
        rows = [(key.replace("_", " "), value) for key, value in own.items()]
        text += table((name, ""), rows) + "\n"
    return text.rstrip("\n") + "\n"


PARTS = {
    "kills": (kills, "kills"),
    "damages": (damages, "kills"),
    "frames": (frames, "fuzz"),
    "load": (load, "load"),
}


def filled(page: str) -> str:
    """Return the page with the figures of the records."""
    for name, (part, record) in PARTS.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        page = before + begin + part(sections.read(ROOT / "benchmarks" / f"{record}.json")) + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
