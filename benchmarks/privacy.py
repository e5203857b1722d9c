"""What privacy costs: accuracy of FedAvg, ModFL and adapters at three budgets of epsilon.

    python -m benchmarks.privacy [--data FOLDER] [--out benchmarks/privacy.json] [--work FOLDER]

MNIST at 14x14 among 1,000 clients of two cohorts that call the digits differently, each client in a round with a chance
of 0.1, 40 rounds. The bound is chosen once a method, at the middle budget, by the accuracy on validation data
of a seed that is not reported. The base of the adapters is trained on Fashion-MNIST, which is nobody's. Every epsilon
is worked out by dp-accounting and checked with prv-accountant. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import intarsia
from intarsia.core import write_atomically
from intarsia.methods import METHODS as REGISTERED
from intarsia.methods.local import StayHome

BUDGETS = (0.5, 2.0, 8.0)
MIDDLE = 2.0
BOUNDS = (0.3, 1.0)
SEEDS = {"fedavg": (0, 1), "modfl": (0, 1), "adapters": (0, 1)}
"""Those that are reported, by method."""
TUNING_SEED = 100
ROUNDS, CHANCE, CLIENTS = 40, 0.1, 1000
COMMON: dict[str, Any] = {
    "rounds": ROUNDS,
    "population": {
        "name": "images",
        "dataset": "mnist",
        "clients": CLIENTS,
        "size": 14,
        "validation": 0.15,
        "partition": "permuted_labels",
    },
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"lr": 0.1, "epochs": 2, "batch_size": 16},
    "sampling": {"kind": "poisson", "fraction": CHANCE},
    "evaluation": {"every": ROUNDS, "metrics": []},
    "checkpoints": {"every": ROUNDS},
}
CNN = {"name": "cnn", "channels": [8, 16], "hidden": 32}
ADAPTED = {"adapters": {"name": "parallel", "init": "zero", "rank": 4}, "model": CNN}
BASE = [
    "model={name='cnn', channels=[8, 16], hidden=32}",
    "population.dataset=fashion_mnist",
    "population.size=14",
    "training.lr=0.05",
    "training.epochs=5",
]
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "modfl": {"method": "modfl"},
    "adapters": {"method": "modfl", **ADAPTED, "training": {**COMMON["training"], "lr": 0.3}},
}
TITLES = {"fedavg": "FedAvg", "modfl": "ModFL", "adapters": "ModFL with adapters"}


class Study:
    """The runs of the study, each done once and kept in the record."""

    def __init__(self, out: Path, work: Path, data: str) -> None:
        self.out = out
        self.work = work
        self.data = data
        self.record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"runs": {}}

    def base(self) -> Path:
        """Return the base that adapters stand beside, trained once."""
        path = self.work / "base.safetensors"
        self.work.mkdir(parents=True, exist_ok=True)
        intarsia.pretrain(path, changes=BASE, data_folder=self.data)
        return path

    def run(self, method: str, seed: int, epsilon: float, bound: float) -> dict[str, Any]:
        """Return the figures of one run (no epsilon: without privacy)."""
        key = f"{method}, seed {seed}, epsilon {epsilon:g}, bound {bound:g}"
        if key not in self.record["runs"]:
            figures = self._play(method, seed, epsilon, bound)
            self.record["runs"][key] = {
                "method": method,
                "seed": seed,
                "asked": epsilon,
                "bound": bound,
                **figures,
            }
            self.save()
            print(key, self.record["runs"][key], flush=True)
        return dict(self.record["runs"][key])

    def _play(self, method: str, seed: int, epsilon: float, bound: float) -> dict[str, Any]:
        settings = {**COMMON, **METHODS[method], "seed": seed, "data_folder": self.data}
        if method == "adapters":
            settings["weights"] = str(self.base())
        if epsilon:
            settings["privacy"] = {"clip": bound, "epsilon": epsilon}
        folder = self.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        summary = intarsia.run(settings, out=folder, progress=False).summary
        figures = {
            "accuracy": summary["accuracy"]["mean"],
            "validation": summary["best_on_validation"]["validation"],
            "seconds": round(summary["seconds"]["total"], 1),
        }
        return {**figures, **(_spent(summary["privacy"]) if epsilon else {})}

    def save(self) -> None:
        """Write the record."""
        write_atomically(self.out, (json.dumps(self.record, indent=1) + "\n").encode())


def _spent(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run has spent, by both accountants."""
    return {
        "epsilon": told["epsilon"],
        "second": second_epsilon(told["noise"], told["chance"], told["releases"], told["delta"]),
        "delta": told["delta"],
        "noise": told["noise"],
        "releases": told["releases"],
        "addresses": len(told["addresses"]),
    }


def second_epsilon(noise: float, chance: float, rounds: int, delta: float) -> float:
    """Return what prv-accountant says (Gopi, Lee and Wutschitz 2021), the upper end of its interval."""
    from prv_accountant.dpsgd import DPSGDAccountant

    accountant = DPSGDAccountant(
        noise_multiplier=noise,
        sampling_probability=chance,
        eps_error=0.01,
        delta_error=delta / 1000,
        max_steps=rounds,
    )
    return float(accountant.compute_epsilon(delta, rounds)[2])


def tables(record: Mapping[str, Any]) -> str:
    """Return the table of the record: the mean accuracy over seeds, by method and budget."""
    runs, budgets = record["runs"].values(), (0.0, *reversed(BUDGETS))
    heads = ["no privacy", *(f"epsilon {epsilon:g}" for epsilon in budgets[1:])]
    lines = [
        f"| method | bound | seeds | {' | '.join(heads)} |",
        f"| --- | --- | --- |{' --- |' * len(heads)}",
    ]
    for method, title in TITLES.items():
        bound = record["chosen"][method]
        cells = []
        for epsilon in budgets:
            own = [
                r["accuracy"]
                for r in runs
                if (r["method"], r["asked"]) == (method, epsilon)
                and r["seed"] in SEEDS[method]
                and r["bound"] in (0, bound)
            ]
            spread = f" ({100 * min(own):.1f} to {100 * max(own):.1f})" if len(own) > 1 else ""
            cells.append(f"{100 * fmean(own):.1f}{spread}")
        lines.append(f"| {title} | {bound:g} | {len(SEEDS[method])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def noise_table(record: Mapping[str, Any]) -> str:
    """Return what the budgets cost by both accountants."""
    lines = [
        "| budget | noise | epsilon by dp-accounting | by prv-accountant, at most |",
        "| --- | --- | --- | --- |",
    ]
    for budget in BUDGETS:
        own = next(r for r in record["runs"].values() if r["asked"] == budget)
        lines.append(f"| {budget:g} | {own['noise']:.3f} | {own['epsilon']:.3f} | {own['second']:.3f} |")
    return "\n".join(lines)


def covered_table() -> str:
    """Return which methods can protect whole clients, and what the others give away."""
    lines = ["| method | whole clients | single samples |", "| --- | --- | --- |"]
    for name, kind in sorted(REGISTERED.items()):
        method = kind()
        more = method.gives_away or method.sharing.gives_away
        shares = not isinstance(method.sharing, StayHome)
        if more:
            clients = f"refused: it gives away {more}"
        elif not method.merge.of_sums:
            clients = f"refused: merge `{method.merge.name}` reads more than sums"
        else:
            clients = "protected" if shares else "refused: it shares nothing"
        own_steps = not method.side_by_side or method.objective.form == "own"
        samples = "refused: steps of its own" if own_steps else "protected"
        samples = "refused: no account of who trained how often" if method.flushes_after else samples
        lines.append(f"| {name} | {clients} | {samples} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("privacy.json"))
    parser.add_argument("--work", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--data", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(asked.out, asked.work, asked.data)
    chosen = study.record.setdefault("chosen", {})
    for method in METHODS:
        tried = {bound: study.run(method, TUNING_SEED, MIDDLE, bound)["validation"] for bound in BOUNDS}
        chosen[method] = max(tried, key=lambda bound: tried[bound])
        study.save()
    for method, seeds in SEEDS.items():
        for seed in seeds:
            study.run(method, seed, 0.0, 0.0)
            for budget in BUDGETS:
                study.run(method, seed, budget, chosen[method])
    print(tables(study.record), noise_table(study.record), sep="\n\n")


if __name__ == "__main__":
    main()
