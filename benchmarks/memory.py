"""Peak memory of the server against the number of clients: `python benchmarks/memory.py`.

A model of one million parameters, 50 clients a round, populations of 100 and 1,000 clients; each case in a
process of its own. The figure is the peak of the process that runs the federation. The clients' data is part
of the population and not of the server, so it is made small.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile

import torch

import intarsia

METHODS = ("fedavg", "fedper", "local")


def population(size: int) -> dict[str, dict[str, object]]:
    source = torch.Generator().manual_seed(0)

    def split(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 100, generator=source), torch.arange(n) % 10

    return {f"client-{i:04d}": {"train": split(20), "test": split(10)} for i in range(size)}


def measure(method: str, size: int) -> dict[str, float]:
    settings = {
        "rounds": 5,
        "method": method,
        "model": {"name": "mlp", "hidden": [1000, 890]},
        "sampling": {"clients": 50},
        "evaluation": {"every": 5, "metrics": []},
        "engine": {"name": "local", "device": "cpu"},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = intarsia.run(settings, data=population(size), out=f"{folder}/run")
        model = run.client("client-0000").model()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"parameters": sum(p.numel() for p in model.parameters()), "server": peak, "worker": workers}


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    for method in METHODS:
        peaks = {}
        for size in (100, 1000):
            command = [sys.executable, __file__, method, str(size)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks[size] = json.loads(done.stdout.splitlines()[-1])
            print(f"{method}, {size} clients: {peaks[size]}")
        ratio = peaks[1000]["server"] / peaks[100]["server"]
        print(f"{method}: server memory with 1,000 clients is {ratio:.2f} of that with 100")


if __name__ == "__main__":
    main()
