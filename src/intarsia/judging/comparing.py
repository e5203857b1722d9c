"""Runs side by side: those that differ in their seed alone are one group; groups are compared in pairs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from intarsia.judging.metrics import paired

BESIDE = ("name", "seed", "split_hash", "weights_hash", "data_folder", "engine", "checkpoints", "evaluation")
"""Settings that two runs of the same experiment may differ in."""
VERSUS = ("difference", "low", "high", "p")
"""How a group compares with the first: by how much it is above, from where to where (95 %), how likely by chance."""
HEADS = (
    *("experiment", "seeds", "measure", "mean", "deviation", "balanced_accuracy", "majority", "worst"),
    *("parameters", "bytes", "seconds", *VERSUS),
)
VIRTUAL = "virtual_seconds"
"""What rounds take on a fleet, where there is one."""
Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Played:
    """What is compared of a run."""

    folder: str
    title: str
    """What its method is called."""
    settings: Mapping[str, Any]
    """By dotted name."""
    summary: Mapping[str, Any]
    clients: Mapping[str, float]
    """What each client's own model reached after the last round: accuracy, or else the loss."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.summary["seed"])

    @property
    def experiment(self) -> str:
        """What two runs have in common that differ in their seed alone."""
        kept = {k: v for k, v in self.settings.items() if k.partition(".")[0] not in BESIDE}
        return json.dumps(kept, sort_keys=True)

    @property
    def measure(self) -> str:
        """What the run is measured by."""
        return "accuracy" if self.summary["accuracy"] else "loss"

    @property
    def result(self) -> float | None:
        """The mean over clients of what it is measured by."""
        value = self.summary[self.measure].get("mean")
        return None if value is None else float(value)


@dataclass(frozen=True)
class Group:
    """Runs of one experiment, with seeds of their own."""

    label: str
    runs: Sequence[Played]

    @property
    def measure(self) -> str:
        """What the runs are measured by."""
        return self.runs[0].measure


def grouped(runs: Sequence[Played]) -> list[Group]:
    """Return runs by experiment, in the order in which they came, each named by what tells it apart."""
    found: dict[str, list[Played]] = {}
    for run in runs:
        found.setdefault(run.experiment, []).append(run)
    groups = list(found.values())
    return [Group(_label(own, groups), own) for own in groups]


def table_of(groups: Sequence[Group]) -> Table:
    """Return a row a group: figures over its runs, and the difference from the first group."""
    return [_row(group, groups[0]) for group in groups]


def to_csv(rows: Table) -> str:
    """Return the table as comma-separated values; seeds are separated by spaces."""
    text = io.StringIO()
    heads = (*HEADS, *([VIRTUAL] if any(VIRTUAL in row for row in rows) else []))
    writer = csv.DictWriter(text, heads, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "seeds": " ".join(map(str, row["seeds"]))} for row in rows)
    return text.getvalue()


def to_latex(rows: Table) -> str:
    """Return the table as LaTeX (with the package booktabs)."""
    heads = ("Experiment", "Seeds", "Result", "Balanced", "Parameters", "MB", "Seconds", "Difference", "p")
    lines = [" & ".join(heads), *(" & ".join(_latex_cells(row)) for row in rows)]
    first, *rest = (f"{line} \\\\" for line in lines)
    body = ["\\toprule", first, "\\midrule", *rest, "\\bottomrule"]
    return "\n".join(["\\begin{tabular}{lrrrrrrrr}", *body, "\\end{tabular}"]) + "\n"


def _label(own: Sequence[Played], groups: Sequence[Sequence[Played]]) -> str:
    """Return the method's title, and which settings tell the group apart from others of the method."""
    title = own[0].title
    alike = [group[0].settings for group in groups if group[0].title == title]
    keys = sorted({key for settings in alike for key in settings} - {"split_hash"})
    unlike = [
        key
        for key in keys
        if key.partition(".")[0] not in BESIDE and len({json.dumps(s.get(key)) for s in alike}) > 1
    ]
    words = [f"{key}={own[0].settings.get(key, '-')}" for key in unlike]
    return f"{title} ({', '.join(words)})" if words else title


def _row(group: Group, first: Group) -> dict[str, Any]:
    results = [run.result for run in group.runs if run.result is not None]
    judged = [run.summary.get("judged", {}) for run in group.runs]
    virtual = [run.summary.get(VIRTUAL) for run in group.runs]
    return {
        "experiment": group.label,
        "runs": [run.folder for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "measure": group.measure,
        "mean": fmean(results) if results else None,
        "deviation": stdev(results) if len(results) > 1 else None,
        "balanced_accuracy": _mean([_metric(one, "metrics", "balanced_accuracy") for one in judged]),
        "majority": _mean([_metric(one, "usual", group.measure) for one in judged]),
        "worst": _mean([run.summary[group.measure].get("worst") for run in group.runs]),
        "parameters": _mean([run.summary.get("parameters") for run in group.runs]),
        "bytes": _mean([sum(run.summary["bytes"].values()) for run in group.runs]),
        "seconds": _mean([run.summary["seconds"]["total"] for run in group.runs]),
        **({VIRTUAL: _mean(virtual)} if any(virtual) else {}),
        **(_against(group, first) if group is not first else dict.fromkeys(VERSUS)),
    }


def _against(group: Group, first: Group) -> dict[str, Any]:
    """Return by how much a group is above the first, in pairs of the same data: of seeds, or of clients."""
    nothing = dict.fromkeys(VERSUS)
    ours, theirs = ({run.seed: run for run in own.runs if run.result is not None} for own in (group, first))
    same = [s for s in sorted(ours.keys() & theirs.keys()) if _same_data(ours[s], theirs[s])]
    if not same or group.measure != first.measure:
        return {**nothing, "pairs": 0, "paired": "nothing: no seed with the same data on both sides"}
    if len(same) > 1:
        sides = [[own[seed].result or 0.0 for seed in same] for own in (ours, theirs)]
        return _tested(sides, "seeds")
    mine, yours = ours[same[0]].clients, theirs[same[0]].clients
    both = sorted(mine.keys() & yours.keys())
    if not both:
        return {**nothing, "pairs": 0, "paired": "nothing: no client has a result on both sides"}
    return _tested([[own[client] for client in both] for own in (mine, yours)], "clients")


def _tested(sides: Sequence[Sequence[float]], what: str) -> dict[str, Any]:
    found = asdict(paired(sides[0], sides[1], few=what == "seeds"))
    low, high = found["interval"] or (None, None)
    figures = {"difference": found["mean"], "low": low, "high": high, "p": found["p"]}
    return {**figures, "pairs": found["pairs"], "paired": what, "test": found["test"]}


def _same_data(one: Played, other: Played) -> bool:
    return bool(one.settings.get("split_hash") == other.settings.get("split_hash"))


def _metric(judged: Mapping[str, Any], kind: str, name: str) -> float | None:
    value = judged.get(kind, {}).get(name, {}).get("mean")
    return None if value is None else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _latex_cells(row: Mapping[str, Any]) -> list[str]:
    share = row["measure"] == "accuracy"
    spread = "" if row["deviation"] is None else f" $\\pm$ {_number(row['deviation'], share)}"
    return [
        _latex(row["experiment"]),
        str(len(row["seeds"])),
        f"{_number(row['mean'], share)}{spread}",
        _number(row["balanced_accuracy"], True),
        "-" if row["parameters"] is None else f"{row['parameters']:.0f}",
        f"{row['bytes'] / 1e6:.2f}",
        f"{row['seconds']:.1f}",
        _number(row["difference"], share),
        "-" if row["p"] is None else f"{row['p']:.2g}",
    ]


def _number(value: float | None, share: bool) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if share else f"{value:.4g}"


def _latex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", **{letter: f"\\{letter}" for letter in "&%$#_{}"}}
    special |= {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return "".join(special.get(letter, letter) for letter in text)
