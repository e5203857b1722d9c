"""What Intarsia brings along and reaches for: no code from data, no network unless asked, known licences."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import supply

import intarsia

SOURCE = Path(intarsia.__file__).parent
UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "__import__", "torch.load", "yaml.load", "yaml.unsafe_load", "torch.jit.load"}
KNOWN = {
    "data/published/restricted.py": {"pickle"},
    "engines/local/helpers.py": {"pickle"},
    "engines/cluster/jobs.py": {"pickle"},
    "engines/cluster/lines.py": {"pickle"},
    "engines/cluster/members.py": {"pickle"},
    "engines/cluster/pickled.py": {"cloudpickle"},
    "engines/cluster/worker.py": {"pickle"},
}
"""CIFAR comes as pickles: this reader gives every name in them a stand-in, or refuses it. Helpers are forks of the
server that hand their results back to it. A cluster of dask runs what it is sent, whoever sends it: it is for clusters
that one trusts, and only settings that name a scheduler lead there."""


def unsafe(tree: ast.AST) -> set[str]:
    """Return what of a module could run code that data names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & UNSAFE_MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & UNSAFE_MODULES
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found |= {called.removeprefix("builtins.")} & UNSAFE_CALLS
            found |= {"allow_pickle" for k in node.keywords if k.arg == "allow_pickle" and _true(k.value)}
            found |= {"weights_only" for k in node.keywords if k.arg == "weights_only" and not _true(k.value)}
    return found


def _true(value: ast.expr) -> bool:
    return not (isinstance(value, ast.Constant) and not value.value)


def test_nothing_in_the_source_runs_what_data_names():
    found = {
        path.relative_to(SOURCE).as_posix(): names
        for path in sorted(SOURCE.rglob("*.py"))
        if (names := unsafe(ast.parse(path.read_text())))
    }
    assert found == KNOWN


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from pickle import loads", "import marshal as m", "eval(text)", "exec(text)"),
        *("torch.load(f)", "np.load(f, allow_pickle=True)", "x.load(f, weights_only=False)"),
    ],
)
def test_it_would_be_seen(code):
    assert unsafe(ast.parse(code))


def test_no_pickle_is_read_on_the_way_of_the_wire(tmp_path, monkeypatch):
    """A server and a site exchange tasks and updates, with workers, while nothing can be unpickled."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")
    from benchmarks import fuzz

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for owner, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr("multiprocessing.connection._ForkingPickler.loads", refuse)
    monkeypatch.setattr(fuzz, "METHODS", fuzz.METHODS[:2])
    with fuzz.benches(tmp_path) as benches:
        assert all(reply.failure is None for bench in benches for reply in bench.exchange(keep=True))


OFFLINE = """
import os, sys, pkgutil, importlib
def guard(event, about):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        if event == "socket.connect" and isinstance(about[1], (str, bytes)):
            return  # between processes of this machine
        sys.stderr.write(f"{event} {about}")
        sys.stderr.flush()
        os._exit(99)
sys.addaudithook(guard)
import intarsia
for module in pkgutil.walk_packages(intarsia.__path__, "intarsia."):
    if "flower" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from intarsia.cli import main
def command(*words):
    sys.argv = ["intarsia", *words]
    try:
        main()
    except SystemExit as done:
        assert not done.code, (words, done.code)
command("--help")
command("list", "methods")
command("explain", "modfl")
command("run", "quickstart", "--set", "rounds=1", "--set", "engine.workers=1", "--out", "run", "-q")
command("compare", "run")
print("offline and well")
"""


def offline(tmp_path: Path, *before: str) -> None:
    environment = {**os.environ, "INTARSIA_CACHE": str(tmp_path / "cache"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*before, sys.executable, "-c", OFFLINE],
        **{"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": False},
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    assert "offline and well" in done.stdout


def has_namespaces() -> bool:
    tool = shutil.which("unshare")
    return bool(tool) and subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="needs network namespaces: unshare -rn")
def test_everything_works_without_a_network(tmp_path):
    """Not even with the machine itself (no loopback); and nobody tries."""
    offline(tmp_path, "unshare", "-rn")


@pytest.mark.skipif(has_namespaces(), reason="done without a network at all")
def test_nobody_reaches_for_the_network(tmp_path):
    offline(tmp_path)


def test_every_dependency_has_a_licence_that_is_listed_and_binds_nobody():
    listed = supply.LICENCES.read_text()
    names = {
        line.split(" | ")[0].removeprefix("| ").lower().replace("_", "-") for line in listed.splitlines()
    }
    missing = [r.name for r in supply.direct() if r.name.lower() not in names]
    assert not missing, "python -m benchmarks.supply licences"
    assert "not declared" not in listed
    assert list(supply.binding()) == []


def test_the_lowest_versions_are_those_of_the_project():
    lowest = supply.lowest()
    assert {"torch==2.6", "numpy==1.26", "tomli-w==1.0"} <= set(lowest)
    assert len(lowest) == len(supply.direct())


def test_a_release_is_the_same_every_time_with_hashes_and_a_bill_of_materials(tmp_path):
    source = tmp_path / "source"
    (source / "src" / "intarsia").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(supply.ROOT / name, source)
    for name in ("__init__.py", "_version.py", "py.typed"):
        shutil.copy(SOURCE / name, source / "src" / "intarsia")
    made = []
    for number in range(2):
        out = tmp_path / f"dist-{number}"
        supply.release(out, source)
        os.utime(source / "README.md", (1e9, 1e9))
        made.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert made[0] == made[1]
    kinds = {name.rpartition(".")[2] for name in made[0]}
    assert kinds == {"whl", "gz", "json", "SHA256SUMS"}
    for line in made[0]["SHA256SUMS"].decode().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256(made[0][name]).hexdigest() == digest
    bill = json.loads(made[0]["sbom.cdx.json"])
    named = {component["name"].lower() for component in bill["components"]}
    assert {"torch", "numpy", "safetensors", "pydantic"} <= named
    assert bill["metadata"]["component"]["name"] == "intarsia"
