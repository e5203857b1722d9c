"""The page of results: `docs/benchmarks.md`, made from `results.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.speed.entries import TITLES
from benchmarks.speed.results import Results, Row
from benchmarks.speed.studies import STUDIES
from benchmarks.speed.workloads import FEDERATED

HEAD = """# Benchmarks

Made by `make bench` from `benchmarks/results.json`; do not edit. {machine}

A ratio is their time divided by ours, so above 1 we are faster: the median of pairs that were measured in turn, in
rotated order, with the 95 % bootstrap interval. Time is wall time; "CPU" is the same ratio of the CPU time of the whole
process tree. Everyone trains on the same batches from the same weights (random numbers of the data set's shape), and
everyone's weights were compared with a reference in double precision before anything was timed: they differ by
rounding, and by what rounding makes of a unit that is all but zero. Start-up is not counted, except in `job` and
`job-mlp`. Pairs in which other processes kept more than a fifth of a core busy were repeated a few times; the last
column says in how many of the pairs used they still did.
"""


def render(results: Results) -> str:
    """Return the page."""
    rows, about = results.rows, results.circumstances
    parts = [HEAD.format(machine=machine(about))]
    for name, title in titles().items():
        own = [row for row in rows if row["workload"].partition(" ")[0] == name]
        if own:
            parts.append(section(name, title, own))
    parts += ["## Who is who\n", *(f"- **{name}**: {title}." for name, title in TITLES.items()), ""]
    return "\n".join([*parts, *left_out(about.get("skipped", {}))])


def titles() -> dict[str, str]:
    """Return what every workload is, in the order of the page."""
    return {w.name: w.title for w in FEDERATED.values()} | {s.name: s.title for s in STUDIES.values()}


def machine(about: Mapping[str, Any]) -> str:
    """Return one sentence on where the figures come from."""
    if not about:
        return "Nothing was measured yet."
    return (
        f"The machine had {about['cores']} cores ({about['architecture']}), Python {about['python']} and "
        f"PyTorch {about['torch']}.{duration(about.get('seconds', {}))}"
    )


def duration(took: Mapping[str, float]) -> str:
    """Return a sentence on how long the command takes, once every workload's time is known."""
    known = took.keys() >= titles().keys()
    return f" All of it takes {minutes(sum(took.values()))}." if known else ""


def minutes(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def section(name: str, title: str, rows: Sequence[Row]) -> str:
    """Return one workload's table."""
    lines = [
        f"## {name}\n\n{title[0].upper()}{title[1:]}.\n",
        "| against | ratio | 95 % | CPU | pairs | ours | theirs | disturbed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(line, rows), ""])


def line(row: Row) -> str:
    """Return one row of a table."""
    aim = row["workload"].partition(" ")[2]
    cells = [
        f"{aim} against {row['against']}" if aim else row["against"],
        f"**{row['ratio']:.2f}**",
        f"{row['low']:.2f} - {row['high']:.2f}",
        "" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}",
        str(row["pairs"]),
        cost(row, 0),
        cost(row, 1),
        str(row.get("disturbed", "")),
    ]
    return f"| {' | '.join(cells)} |"


def cost(row: Row, side: int) -> str:
    """Return what one side took: microseconds a sample where samples are counted, else seconds."""
    if "shown" in row:
        return str(row["shown"][side])
    if "seconds" not in row:
        return ""
    wall, cpu = row["seconds"][side], row["cpu_seconds"][side]
    if row.get("samples"):
        wall_us, cpu_us = (1e6 * seconds / row["samples"] for seconds in (wall, cpu))
        return f"{wall_us:.0f} us a sample ({cpu_us:.0f} CPU); {wall:.2f} s ({cpu:.2f} CPU)"
    return f"{wall:.3g} s ({cpu:.3g} CPU)"


def left_out(skipped: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return who could not take part, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for workload, names in skipped.items():
        for name, reason in names.items():
            reasons.setdefault((name, reason), []).append(workload)
    if not reasons:
        return []
    lines = [f"- **{name}** in {', '.join(where)}: {why}" for (name, why), where in reasons.items()]
    return ["## Left out\n", *lines, ""]
