"""Who takes part: the product, loops, and peers in environments of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from benchmarks.speed.protocol import ROOT, Entry

ENVIRONMENTS = ROOT / "benchmarks" / ".envs"
CONTESTANTS = "benchmarks.speed.contestants"
COMMON = (f"torch=={torch.__version__.partition('+')[0]}", "numpy>=1.26", "safetensors>=0.5")
"""What every contestant needs; the same torch for all, named beside the peer, which alone would draw in the newest."""
PACKAGES = {"pfl": "pfl[pytorch]>=0.6,<0.7", "flower": "flwr[simulation]>=1.41,<1.42"}

TITLES = {
    "ours": "Intarsia: `intarsia.run`, engine `local`, one worker process a core; records and a checkpoint every round",
    "again": "the A/A control: Intarsia against itself",
    "fp32": "Intarsia itself in single precision, where `ours` is in bf16",
    "plain": "a plain PyTorch loop: one process, torch's own number of threads, nn.Module in the usual layout, "
    "DataLoader over a TensorDataset, torch.optim.SGD, deepcopy of state dicts, weighted average by stacking",
    "plain-1": "the same loop with one thread: its CPU time is the fair one, as threads wait for each other busily",
    "by-hand": "the best loop we know by hand: one forked process a core, channels_last, pooling before ReLU, "
    "index_select, foreach updates, mallopt, one model filled in place, streaming sums in shared memory; clients are "
    "trained one by one; no wire, no checks, no records",
    "pfl": "pfl-research (`pfl` 0.6): FederatedAveraging on SimulatedBackend, one process a core joined by "
    "torch.distributed, one thread each",
    "flower": "Flower's simulation (`flwr[simulation]` 1.41): ServerApp with its FedAvg and ClientApp on Ray, one CPU "
    "a client, one thread each",
    "pfllib": "PFLlib: its FedAvg server and client classes, one process, torch's own number of threads",
    "fedlab": "FedLab: SyncServerHandler and SGDSerialClientTrainer in its standalone loop, one process, torch's own "
    "number of threads",
}


class Unavailable(RuntimeError):  # noqa: N818
    """A contestant that cannot take part here."""


def entry(name: str, paths: Mapping[str, Path]) -> Entry:
    """Return how a contestant is started; `paths` are checkouts of peers that pip does not install."""
    module = {"ours": "ours", "again": "ours", "plain": "plain", "plain-1": "plain", "by-hand": "by_hand"}
    if name == "fp32":
        return Entry(name, TITLES[name], (sys.executable, "-m", f"{CONTESTANTS}.ours", "--fp32"))
    if name == "plain-1":
        return Entry(name, TITLES[name], (sys.executable, "-m", f"{CONTESTANTS}.plain", "--one-thread"))
    if name in module:
        return Entry(name, TITLES[name], (sys.executable, "-m", f"{CONTESTANTS}.{module[name]}"))
    if name in PACKAGES:
        prefix = lonely() if name == "flower" else ()
        command = (*prefix, str(environment(name)), "-m", f"{CONTESTANTS}.{name}_peer")
        return Entry(name, TITLES[name], command)
    if name not in paths:
        raise Unavailable(f"no checkout was given (--{name} PATH)")
    command = (sys.executable, "-m", f"{CONTESTANTS}.{name}_peer", str(paths[name].resolve()))
    return Entry(name, TITLES[name], command)


def environment(name: str) -> Path:
    """Return the Python of a peer's own environment, made and filled if it is not there yet."""
    folder = (ENVIRONMENTS / name).resolve()
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join([*COMMON, PACKAGES[name]])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {PACKAGES[name]} into an environment of its own", flush=True)
        _run("cannot make an environment", sys.executable, "-m", "venv", str(folder))
        _run("cannot be installed", str(python), "-m", "pip", "install", "-q", *COMMON, PACKAGES[name])
        stamp.write_text(wanted)
    return python


def lonely() -> tuple[str, ...]:
    """Return the command that starts another in a network namespace of its own, with nothing but `lo`.

    Ray looks for outside addresses when it starts; there, it finds none.
    """
    if shutil.which("unshare") is None:
        raise Unavailable(
            "Ray is started only in a network namespace with nothing but `lo`, and there is no unshare"
        )
    for options in ("-n", "-rn"):
        tried = subprocess.run(["unshare", options, "true"], capture_output=True)
        if tried.returncode == 0:
            return ("unshare", options)
    raise Unavailable(
        "Ray is started only in a network namespace with nothing but `lo`, and none can be made here"
    )


def _run(what: str, *command: str) -> None:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=clean)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise Unavailable(f"{what}: {last[0][:300]}")
