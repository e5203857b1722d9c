"""What Flower costs beside `local`: time an exchange, a thousand clients, bytes on the wire.

    python benchmarks/flower.py overhead    # 4 sites: seconds an exchange, beside local with the same workers
    python benchmarks/flower.py many        # 1,000 clients on 2 sites, beside local
    python benchmarks/flower.py wire        # bytes counted beside bytes on the wire, 5 million parameters

Needs `pip install 'intarsia[flower]'`; everything runs on loopback.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import intarsia
from intarsia.flower.operating.processes import Federation
from intarsia.flower.superexec import HOST, free_port

TABLE = Mapping[str, Any]


def on_flower(settings: TABLE, sites: int, workers: int, proxy: Proxy | None = None) -> dict[str, Any]:
    """Run settings on so many sites; return the run's summary."""
    names = [f"site-{i}" for i in range(sites)]
    folder = Path(tempfile.mkdtemp(prefix="intarsia-"))
    population = settings["population"]
    clients = list(intarsia.preview({**settings, "rounds": 1})["clients"])
    try:
        with Federation(folder, names) as federation:
            federation.start_link()
            node_port = proxy.start(federation.port) if proxy else federation.port
            config = {"folder": str(folder / "run"), "sites": sites, "deadline": 3600.0}
            federation.write_app(tomli_w.dumps(settings), config)
            for i, site in enumerate(names):
                share = [c["client"] for c in clients[i::sites]]
                table = {"population": population, "clients": share, "workers": workers, "device": "cpu"}
                federation.write_site(site, table)
                federation.start_site(site)
                federation.register(site)
                federation.start_node(site, port=node_port)
            federation.start_run()
            federation.wait(seconds=1800)
            run = intarsia.open_run(folder / "run")
            return {
                **run.summary,
                "counted": sum(row["bytes"] + row["envelope"] for row in run.traffic),
                "metrics": (run.path / "metrics.jsonl").read_bytes(),
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def on_local(settings: TABLE, workers: int) -> dict[str, Any]:
    """Run the same settings on this machine alone."""
    folder = Path(tempfile.mkdtemp(prefix="intarsia-"))
    try:
        engine = {"name": "local", "workers": workers, "device": "cpu"}
        run = intarsia.run({**settings, "engine": engine}, out=folder / "run")
        return {**run.summary, "metrics": (run.path / "metrics.jsonl").read_bytes()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Proxy:
    """A plain TCP proxy that counts what passes between nodes and SuperLink, TLS and HTTP included."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self._lock = threading.Lock()

    def start(self, target: int) -> int:
        """Listen on a free port, pass everything on to the target; return the port."""
        port = free_port()
        listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()
        return port

    def _accept(self, listener: socket.socket, target: int) -> None:
        while True:
            inside, _ = listener.accept()
            outside = socket.create_connection((HOST, target))
            for source, sink, way in ((inside, outside, "up"), (outside, inside, "down")):
                threading.Thread(target=self._pass, args=(source, sink, way), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


def digits(clients: int, **more: Any) -> dict[str, Any]:
    return {
        "method": "fedavg",
        "sharing": {"by": "device"},
        "population": {"name": "digits", "clients": clients},
        "model": {"name": "mlp", "hidden": [64, 32]},
        **more,
    }


def overhead() -> dict[str, Any]:
    rounds = 10
    settings = digits(40, rounds=rounds)
    there, here = on_flower(settings, 4, 1), on_local(settings, 2)
    exchanges = 2 * rounds
    return {
        "sites": 4,
        "exchanges": exchanges,
        "seconds an exchange on flower": there["seconds"]["total"] / exchanges,
        "seconds an exchange on local": here["seconds"]["total"] / exchanges,
        "overhead an exchange": (there["seconds"]["total"] - here["seconds"]["total"]) / exchanges,
        "same metrics": there["metrics"] == here["metrics"],
    }


def thousand(folder: Path) -> dict[str, Any]:
    """Write a thousand clients of 100 training samples each, as own files; return the population."""
    source = np.random.default_rng(0)
    teacher = source.normal(size=(32, 10))
    for i in range(1000):
        x = source.normal(size=(120, 32)).astype(np.float32)
        y = (x @ teacher + source.normal(size=10)).argmax(1)
        about = {"x_train": x[:100], "y_train": y[:100], "x_test": x[100:], "y_test": y[100:]}
        np.savez(folder / f"client-{i:04d}.npz", **about)
    return {"name": "files", "path": str(folder)}


def many() -> dict[str, Any]:
    """FedAvg rounds of a small model for a thousand clients, training (5 epochs, batches of 10) and evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "method": "fedavg",
            "rounds": 3,
            "population": thousand(Path(folder)),
            "model": {"name": "mlp", "hidden": [64, 32]},
            "training": {"epochs": 5, "batch_size": 10},
        }
        there, here = on_flower(settings, 2, 1), on_local(settings, 2)
    return {
        "clients": there["clients"],
        "seconds a round on flower": there["seconds"]["total"] / 3,
        "seconds a round on local": here["seconds"]["total"] / 3,
        "ratio": there["seconds"]["total"] / here["seconds"]["total"],
        "bytes up a round": there["bytes"]["up"] / 3,
        "same metrics": there["metrics"] == here["metrics"],
    }


def wire() -> dict[str, Any]:
    """Counted bytes beside bytes on the wire, with 5.3 million parameters."""
    proxy = Proxy()
    settings = {
        "method": "fedavg",
        "rounds": 2,
        "population": {"name": "digits", "clients": 2, "generations": ["8x8"]},
        "model": {"name": "mlp", "hidden": [2048, 2048, 512]},
    }
    done = on_flower(settings, 2, 1, proxy)
    wired = proxy.up + proxy.down
    return {"counted": done["counted"], "on the wire": wired, "wire / counted": wired / done["counted"]}


if __name__ == "__main__":
    chosen = {"overhead": overhead, "many": many, "wire": wire}
    for name in sys.argv[1:] or chosen:
        print(json.dumps({name: chosen[name]()}, indent=2), flush=True)
