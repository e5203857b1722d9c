"""Which method for which clients, measured on little populations: `python -m benchmarks.choosing`.

    python -m benchmarks.choosing [--only labels models] [--page]

Three situations of scikit-learn's digits, methods beside each other with three seeds. Settings are as they stand here,
and nothing is tuned. The record is `benchmarks/choosing.json`; what is in it is not run again. In the end the tables of
`docs/choosing.md` are written anew (`--page`: only that).
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks import sections

import intarsia
from intarsia.core import write_atomically

HOME = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("choosing.json")
PAGE = HOME / "docs" / "choosing.md"
SEEDS = (0, 1, 2)
ROUNDS = 20
COMMON = {
    "rounds": ROUNDS,
    "evaluation": {"every": ROUNDS, "metrics": []},
    "checkpoints": {"every": ROUNDS},
    "model": {"name": "mlp", "hidden": [64, 32]},
}
FORTY = {"lr": 0.1, "epochs": 3, "batch_size": 8}
EIGHTY = {"lr": 0.1, "epochs": 3, "batch_size": 4}
"""Twice as many clients have half the samples each, and take as many steps."""
UNLIKE = ["models.small={name='mlp', hidden=[32]}", "models.large={name='mlp', hidden=[64, 32]}"]


@dataclass(frozen=True)
class Situation:
    """Clients of one kind, and what is tried on them: changes of the settings by the name of a row."""

    title: str
    training: Mapping[str, Any]
    population: Mapping[str, Any]
    cases: Mapping[str, Sequence[str]]


POOL = "model={name='module_pool', layers=[1, 4, 3], features=64, hidden=32, dropout=0.0}"
SITUATIONS = {
    "labels": Situation(
        "One sensor, unlike labels: 80 clients, in five cohorts that see four of the ten digits each",
        EIGHTY,
        {"name": "digits", "clients": 80, "generations": ["8x8"]},
        {
            "local": ["method=local"],
            "fedavg": ["method=fedavg"],
            "fedavg+": ["method=fedavg+"],
            "fedper": ["method=fedper"],
            "modfl": ["method=modfl"],
            "modfl, cohorts found": ["method=modfl", "sharing.cohorts=found", "sharing.number=5"],
            "clustered_fl": ["method=clustered_fl"],
            "per_fedavg": ["method=per_fedavg", "method.alpha=0.01", "method.variant=fo"],
            "fedem": ["method=fedem", "method.components=2"],
            "fedmn+": ["method=fedmn+", POOL],
        },
    ),
    "generations": Situation(
        "Two generations of a sensor (8x8 and 4x4 pixels): 80 clients, in the same five cohorts",
        EIGHTY,
        {"name": "digits", "clients": 80},
        {
            "local": ["method=local"],
            "fedavg, each generation by itself": ["method=fedavg", "sharing.by=device"],
            "fedper, each generation by itself": ["method=fedper", "sharing.by=device"],
            "modfl": ["method=modfl"],
            "fedmn+": ["method=fedmn+", "sharing.encoders_by=device", POOL],
        },
    ),
    "models": Situation(
        "Unlike models: 40 clients of the same cohorts, a small and a large network in turns; a tenth is public",
        FORTY,
        {"name": "digits", "generations": ["8x8"], "public": 0.1, "models": ["small", "large"]},
        {
            "local": ["method=local", *UNLIKE],
            "heterofl": [
                "method=heterofl",
                "method.by=lot",
                "method.widths=[1.0, 0.5]",
                "population.models=[]",
            ],
            "flexifed": ["method=flexifed", *UNLIKE],
            "fedmd": ["method=fedmd", *UNLIKE],
            "fedgh": ["method=fedgh", "method.features=32", *UNLIKE],
            "fedkemf": ["method=fedkemf", "method.knowledge={name='mlp', hidden=[32]}", *UNLIKE],
            "pfedclub+": ["method=pfedclub+", "method.flips=false", "method.search.most=4", *UNLIKE],
            "pfedclub+, without any teacher": ["method=pfedclub+", "method.teacher=none", *UNLIKE],
        },
    ),
}


def measure(situation: Situation, changes: Sequence[str], seed: int) -> dict[str, Any]:
    """Run one case with one seed; return how many test samples each client's own model has right, and what travels."""
    own = {"population": situation.population, "training": situation.training, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        run = intarsia.run({**COMMON, **own}, changes=changes, out=Path(folder) / "run", progress=False)
        last, sent = [row for row in run.metrics if row["split"] == "test"], run.summary["bytes"]
    right = {row["client"]: [row["correct"], row["n"]] for row in last if row["stage"] == "own"}
    return {"right": [right[name] for name in sorted(right)], "bytes": sent}


def fill(names: Iterable[str], record: Path = RECORD) -> None:
    """Measure what the record of these situations lacks."""
    for name in names:
        situation = SITUATIONS[name]
        for case, changes in situation.cases.items():
            for seed in SEEDS:
                done, key = sections.read(record).get(name, {}), f"{case} / {seed}"
                if key not in done:
                    done[key] = measure(situation, changes, seed)
                    sections.update(record, **{name: done})
                    print(f"{name}: {key}", flush=True)


@dataclass(frozen=True)
class Figures:
    """What became of one case: means over clients, one a seed."""

    accuracy: tuple[float, ...]
    tenth: tuple[float, ...]
    """The accuracy that nine tenths of the clients reach."""
    behind: float
    """The share of clients that do worse than alone."""
    traffic: float
    """Bytes a client and round, there and back."""


def figures(entries: Mapping[str, Any], case: str) -> Figures:
    """Return the figures of one case from the record of its situation."""
    runs = [entries[f"{case} / {seed}"] for seed in SEEDS]
    alone = [accuracies(entries[f"local / {seed}"]) for seed in SEEDS]
    own = [accuracies(run) for run in runs]
    pairs = [pair for mine, other in zip(own, alone, strict=True) for pair in zip(mine, other, strict=True)]
    sent = [sum(run["bytes"].values()) / ROUNDS / len(run["right"]) for run in runs]
    return Figures(
        tuple(map(statistics.mean, own)),
        tuple(statistics.quantiles(clients, n=10, method="inclusive")[0] for clients in own),
        statistics.mean(mine < other for mine, other in pairs),
        statistics.mean(sent),
    )


def accuracies(run: Mapping[str, Any]) -> list[float]:
    """Return the accuracy of every client's own model."""
    return [right / of for right, of in run["right"]]


def table(name: str, entries: Mapping[str, Any]) -> str:
    """Return a situation's table for the page."""
    head = "| method | accuracy | nine of ten clients reach | do worse than alone | kB a client and round |"
    lines = [f"{SITUATIONS[name].title}.", "", head, "|---|---|---|---|---|"]
    return "\n".join(lines + [row(case, figures(entries, case)) for case in SITUATIONS[name].cases])


def row(case: str, found: Figures) -> str:
    """Return the line of a case, with a link to its method's page."""
    method, comma, rest = case.partition(",")
    link = f"[`{method}`](methods/{method.replace('+', '_plus')}.md){comma}{rest}"
    spread = f"{100 * statistics.mean(found.accuracy):.1f} ± {100 * statistics.stdev(found.accuracy):.1f} %"
    reached = f"{100 * statistics.mean(found.tenth):.0f} %"
    behind = "-" if case == "local" else f"{100 * found.behind:.0f} %"
    return f"| {link} | {spread} | {reached} | {behind} | {found.traffic / 1000:.1f} |"


def written(page: str, record: Mapping[str, Any]) -> str:
    """Return the page with its tables made anew."""
    for name in SITUATIONS:
        own = re.compile(f"(<!-- {name} -->\\n).*?(<!-- end of {name} -->)", re.DOTALL)
        place = own.search(page)
        if place is None:
            raise ValueError(f"{PAGE} has no place for the table of '{name}'")
        page = f"{page[: place.end(1)]}{table(name, record[name])}\n{page[place.start(2) :]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", choices=list(SITUATIONS), default=list(SITUATIONS))
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page's tables")
    asked = parser.parse_args()
    if not asked.page:
        torch.set_num_threads(1)
        fill(asked.only)
    page = written(PAGE.read_text(), sections.read(RECORD))
    write_atomically(PAGE, page.encode())


if __name__ == "__main__":
    main()
