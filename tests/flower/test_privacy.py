"""What leaves a site: blocks, metrics and counts. A gate between the agent and Flower's relay reads all of it."""

from __future__ import annotations

import io
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

import intarsia
from intarsia.flower.messages import MAGIC, SiteMessage

pytestmark = pytest.mark.flower_slow

CLIENTS = {"north": ["ann", "bob", "cem"], "south": ["dan"]}
LABELS = ["unwell-secret", "well-secret"]


class Gate:
    """Stands between relay and agent, passes everything on, and keeps what leaves the site."""

    def __init__(self, path: Path, agent: Path) -> None:
        self.left: list[bytes] = []
        self.agent = str(agent)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            inside, _ = self.listener.accept()
            outside = socket.socket(socket.AF_UNIX)
            outside.connect(self.agent)
            threading.Thread(target=_pass, args=(inside, outside), daemon=True).start()
            threading.Thread(target=self._keep, args=(outside, inside), daemon=True).start()

    def _keep(self, source: socket.socket, sink: socket.socket) -> None:
        self.left.append(_pass(source, sink))


def _pass(source: socket.socket, sink: socket.socket) -> bytes:
    kept = b""
    try:
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    return kept


def write_data(folder: Path, names: list[str], seed: int) -> np.ndarray:
    """Write a table a client of numbers that are easy to find again; return all of them."""
    folder.mkdir()
    source = np.random.default_rng(seed)
    every = []
    for name in names:
        x = source.normal(size=(40, 5)).astype(np.float32)
        rows = [",".join([*map(repr, map(float, row)), LABELS[int(row[0] > 0)]]) for row in x]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,c,d,e,label", *rows]))
        every.append(x)
    return np.concatenate(every)


ALLOWED = {
    "here": {"kind", "site", "version", "clients", "goals"},
    "done": {"kind", "site", "replies", "sums"},
    "needs": {"kind", "site", "setup", "blocks", "initial"},
}
REPLY = {"client", "failure", "update", "state", "seconds"}
UPDATE = {"run", "round", "exchange", "purpose", "client", "state", "records", "values", "samples"}
VALUES = {"n", "correct", "loss", "steps", "step_weight", "scores", "facts"}


@pytest.mark.parametrize("method", ["fedper", "modfl"])
def test_only_blocks_metrics_and_counts_leave_a_site(trial, method):
    data, gates = {}, {}
    for i, (site, names) in enumerate(CLIENTS.items()):
        data[site] = write_data(trial.folder / f"{site}-data", names, i)
        about = {"population": {"name": "files", "path": f"{site}-data"}, "workers": 1, "device": "cpu"}
        trial.write_site(site, about)
        trial.start_site(site)
        gates[site] = Gate(trial.folder / f"{site}.gate", trial.folder / f"{site}.state" / "agent.sock")
        trial.register(site)
        trial.start_node(site, agent=str(trial.folder / f"{site}.gate"))
    folder = trial.prepare(
        "run", {"method": method, "population": {"name": "files", "path": "x"}, "sharing": {}}
    )
    trial.start_run("run")
    trial.wait("run", 240)
    run = intarsia.open_run(folder)
    assert run.summary["evaluated"] == 4
    assert run.summary["failed"] == run.summary["refused"] == 0
    for site, gate in gates.items():
        messages = [
            SiteMessage.read(io.BytesIO(frame).read) for frame in gate.left if frame.startswith(MAGIC)
        ]
        assert sum(p.header["kind"] == "done" for p in messages) == 4
        for message in messages:
            check_header(message)
            check_blocks(message, site, method)
        holds_nothing_of(b"".join(gate.left), data[site])


def check_header(message: SiteMessage) -> None:
    header = message.header
    assert set(header) == ALLOWED[header["kind"]]
    for reply in header.get("replies", ()):
        assert set(reply) == REPLY
        assert set(reply["state"]) <= {"site"}
        assert set(reply["update"]) == UPDATE
        assert set(reply["update"]["values"]) <= VALUES


def check_blocks(message: SiteMessage, site: str, method: str) -> None:
    """Every tensor is one of a block that is shared; with FedPer, no head."""
    shared = {"fedper": {"base"}, "modfl": {"configuration", "operation"}}[method]
    for name, block in message.blocks.items():
        addresses = message.header["sums"] if name == "sums" else [name.split("/")[1]]
        assert {address.split("@")[0] for address in addresses} <= shared
        tensors = {tensor.split("/")[-1] for tensor in block.tensors}
        assert tensors <= {f"{layer}.{kind}" for layer in ("hidden1", "head") for kind in ("weight", "bias")}
        assert method == "modfl" or not any(tensor.startswith("head") for tensor in tensors)


def holds_nothing_of(left: bytes, data: np.ndarray) -> None:
    """No number of the data leaves, neither as it is stored nor as text; nor does the name of a label.

    Two neighbours of four bytes each are looked for: a weight may be like a single one by chance.
    """
    for label in LABELS:
        assert label.encode() not in left
    for value in data.flatten():
        assert struct.pack("<d", float(value)) not in left
        assert repr(float(value)).encode() not in left
    for pair in np.lib.stride_tricks.sliding_window_view(data.flatten(), 2):
        assert struct.pack("<ff", *pair) not in left
