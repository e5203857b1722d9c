"""What secure sums cost, and that they change no bit: `python -m benchmarks.secure_sums [PAIRS]`.

The same run twice a pair, in turns: as it is, and under masks. Seconds are those of a round's training and merging (the
first round is left out), the figure is the median ratio over pairs; the processor's time is what the masked side takes
more, server and clients together, a client and round; bytes are those of training, as counted. Then runs in which 0, 10
and 30 % of the clients drop out of every round, after they shared their secrets: both sides must agree to the last bit.
The record, `benchmarks/secure_sums.json`, is written after every case; what it has is not measured again.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch

import intarsia
from intarsia.core import part, write_atomically
from intarsia.methods.fedavg import FedAvg
from intarsia.training import LocalClient, Trained

RECORD = Path(__file__).with_suffix(".json")
ROUNDS = 3
CLIENTS = (10, 50, 100)
MODELS = {"10 thousand": [133], "100 thousand": [1330], "1 million": [960, 960]}
"""Hidden layers by the number of parameters, about."""
SHARES = (0.0, 0.1, 0.3)
Record = dict[str, dict[str, Any]]


@part
class Leaving(FedAvg):
    """A share of the clients fails in every round, in each other ones."""

    name: ClassVar[str] = "leaving"
    title: ClassVar[str] = "Leaving"

    share: float = 0.0

    def train(self, client: LocalClient) -> Trained:
        """Train, or fail."""
        number = int(client.info.name.split("-")[1])
        if (7 * number + 3 * client.round) % 10 < round(10 * self.share):
            raise ValueError("no power")
        return client.train(self.objective)


def data(clients: int) -> dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    source = torch.Generator().manual_seed(0)

    def split(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 64, generator=source), torch.arange(n) % 10

    return {f"client-{i:03d}": {"train": split(100), "test": split(10)} for i in range(clients)}


def run(folder: str, clients: int, hidden: list[int], masked: bool, share: float) -> intarsia.Run:
    settings = {
        "rounds": ROUNDS,
        "method": "leaving",
        "model": {"name": "mlp", "hidden": hidden},
        "training": {"batched": False},
        "evaluation": {"every": ROUNDS, "metrics": []},
        "engine": {"name": "local", "device": "cpu", "workers": 2},
        **({"secure_sums": {"on": True}} if masked else {}),
    }
    name = f"{folder}/{'masked' if masked else 'plain'}"
    return intarsia.run(settings, data=data(clients), method=Leaving(share=share), out=name)


def processor() -> float:
    """Return the processor's seconds of this process and of its workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def seconds(made: intarsia.Run) -> float:
    """Return what training and merging took a round, without the first."""
    lines = [json.loads(line) for line in (made.path / "seconds.jsonl").read_text().splitlines()[1:]]
    return float(statistics.mean(line["train"] + line["merge"] for line in lines))


def bytes_of(made: intarsia.Run, way: str) -> float:
    """Return what a client's training took on the wire a round, with all envelopes."""
    rows = [row for row in made.traffic if row["purpose"] == "train" and row["direction"] == way]
    return float(sum(row["bytes"] + row["envelope"] for row in rows) / ROUNDS / len(made.clients))


def content(made: intarsia.Run) -> list[object]:
    """Return all that two sides must agree in."""
    pool = made.state().pool
    return [(made.path / "metrics.jsonl").read_bytes(), {str(a): pool.get(a).version for a in pool}]


def pair(clients: int, hidden: list[int], share: float, masked_first: bool) -> dict[str, Any]:
    """Play both sides; return what they took, and whether they agree."""
    with tempfile.TemporaryDirectory() as folder:
        order = (True, False) if masked_first else (False, True)
        made, used = {}, {}
        for masked in order:
            start = processor()
            made[masked] = run(folder, clients, hidden, masked, share)
            used[masked] = processor() - start
        return {
            "more": (used[True] - used[False]) / ROUNDS / clients,
            "seconds": [seconds(made[False]), seconds(made[True])],
            "up": [bytes_of(made[False], "up"), bytes_of(made[True], "up")],
            "down": [bytes_of(made[False], "down"), bytes_of(made[True], "down")],
            "equal": content(made[False]) == content(made[True]),
            "failed": [made[side].summary["failed"] for side in (False, True)],
        }


def cost(clients: int, hidden: list[int], pairs: int) -> dict[str, Any]:
    """Return what masks cost a round: medians over pairs."""
    found = [pair(clients, hidden, 0.0, bool(i % 2)) for i in range(pairs)]
    plain, masked = (statistics.median(one["seconds"][side] for one in found) for side in (0, 1))
    ratios = sorted(one["seconds"][1] / one["seconds"][0] for one in found)
    return {
        "plain seconds": round(plain, 3),
        "masked seconds": round(masked, 3),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "more processor ms a client": round(1000 * statistics.median(one["more"] for one in found), 1),
        "plain kB": [round(found[0][way][0] / 1000, 1) for way in ("up", "down")],
        "masked kB": [round(found[0][way][1] / 1000, 1) for way in ("up", "down")],
        "equal": all(one["equal"] for one in found),
    }


def agreement(clients: int, share: float) -> dict[str, Any]:
    """Return whether both sides agree, with clients that drop out."""
    found = pair(clients, MODELS["10 thousand"], share, False)
    return {
        "equal": found["equal"],
        "failed": found["failed"],
        "seconds": [round(s, 3) for s in found["seconds"]],
    }


def measure(record: Record, pairs: int) -> None:
    """Measure what the record lacks; write it after every case."""
    for clients in CLIENTS:
        for share in SHARES:
            name = f"{clients} clients, {share:.0%} drop out"
            if name not in record["agreement"]:
                record["agreement"][name] = agreement(clients, share)
                keep(record, name, record["agreement"][name])
    for model, hidden in MODELS.items():
        for clients in CLIENTS:
            name = f"{clients} clients, {model} parameters"
            if record["cost"].get(name, {}).get("ratios", [])[pairs - 1 :] == []:
                record["cost"][name] = cost(clients, hidden, pairs)
                keep(record, name, record["cost"][name])


def keep(record: Record, name: str, found: dict[str, Any]) -> None:
    print(f"{name}: {found}", flush=True)
    write_atomically(RECORD, (json.dumps(record, indent=1) + "\n").encode())


def main() -> None:
    """Measure every case that is not in the record yet."""
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"cost": {}, "agreement": {}}
    measure(record, int(sys.argv[1]) if len(sys.argv) > 1 else 5)


if __name__ == "__main__":
    main()
