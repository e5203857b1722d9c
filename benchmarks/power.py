"""What it costs that a checkpoint outlives a power cut: `python benchmarks/power.py [PAIRS]`, on the disk of $TMPDIR.

The same run twice a pair, in turns: as it is, and with nothing synced but manifests, as it was before blocks, tables
and folders were synced. The figure is the ratio of a round's time, the median over pairs. Likewise what a site takes
to write down an exchange, which the server waits for. The record is written to `benchmarks/power.json`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import torch

import intarsia
from intarsia.blocks import Address, Block, ClientPlan, Task
from intarsia.clients import State
from intarsia.flower.site.site_store import SiteStore

RECORD = Path(__file__).with_suffix(".json")
ROUNDS = 12
RUNS = {
    "20 clients, heads of 170 parameters": ("fedper", 20, [16]),
    "20 clients, own models of 1,000,000 parameters": ("local", 20, [1000, 890]),
    "200 clients, own models of 2,600 parameters": ("local", 200, [32]),
}


@contextmanager
def manifests_only() -> Iterator[None]:
    """Let nothing be synced but what `write_atomically` writes."""
    with mock.patch("intarsia.blocks.store.sync"):
        yield


class Clock(intarsia.Observer):
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round_done(self, report: intarsia.RoundReport) -> None:
        """Note it."""
        self.ends.append(time.perf_counter())

    @property
    def round(self) -> float:
        """Seconds a round; the first is left out."""
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def data(clients: int) -> dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    source = torch.Generator().manual_seed(0)

    def split(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 64, generator=source), torch.arange(n) % 10

    return {f"client-{i:03d}": {"train": split(100), "test": split(20)} for i in range(clients)}


def of_a_run(method: str, clients: int, hidden: list[int]) -> float:
    settings = {
        "rounds": ROUNDS,
        "method": method,
        "model": {"name": "mlp", "hidden": hidden},
        "engine": {"name": "local", "device": "cpu"},
    }
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        intarsia.run(settings, data=data(clients), out=f"{folder}/run", observer=clock)
    return clock.round


def of_a_site(clients: int) -> float:
    """Return the seconds that a site takes to keep what an exchange brought."""
    plan = ClientPlan({"base": Address("base", "all")})
    with tempfile.TemporaryDirectory() as folder:
        store, seconds = SiteStore(Path(folder) / "run"), 0.0
        for exchange in range(ROUNDS):
            base = Block({"w": torch.full((2000,), float(exchange))})
            versions = {plan.hold["base"]: base.version}
            start = time.perf_counter()
            for number in range(clients):
                own = Block({"w": torch.full((2000,), exchange * 1000.0 + number)})
                task = Task(
                    "run", exchange, "train", "train", f"client-{number}", "", plan=plan, versions=versions
                )
                state: State = {"private": {"head": store.blocks.put(own)}}
                store.hold(task, {base.version: base})
                store.remember(task, state, [])
            store.save()
            seconds += time.perf_counter() - start
    return seconds / ROUNDS


@dataclass
class Cost:
    """What one case costs, pair by pair, in seconds."""

    synced: list[float] = field(default_factory=list)
    manifests_only: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, float | list[float]]:
        """Return the figures, in milliseconds."""
        ratios = sorted(one / other for one, other in zip(self.synced, self.manifests_only, strict=True))
        return {
            "ratio": round(statistics.median(ratios), 3),
            "synced": round(1000 * statistics.median(self.synced), 1),
            "manifests_only": round(1000 * statistics.median(self.manifests_only), 1),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }


def compare(measure: Callable[[], float], pairs: int) -> Cost:
    """Measure both sides in turns, each first in every other pair."""
    cost = Cost()
    for pair in range(pairs):
        for synced in (pair % 2 == 0, pair % 2 == 1):
            if synced:
                cost.synced.append(measure())
            else:
                with manifests_only():
                    cost.manifests_only.append(measure())
    return cost


def main() -> None:
    """Measure every case, say how it went, write the record."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], float]] = {
        **{f"run: {name}": partial(of_a_run, *case) for name, case in RUNS.items()},
        **{f"site: an exchange of {n} clients": partial(of_a_site, n) for n in (5, 50)},
    }
    record = {}
    for name, measure in cases.items():
        record[name] = compare(measure, pairs).to_json()
        print(f"{name}: {record[name]}", flush=True)
    RECORD.write_text(json.dumps({"pairs": pairs, "rounds": ROUNDS, "cases": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
