"""What the tests share."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import intarsia

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    # Runs wait for the disk: a fifth of the tests' time.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

SHARED_DATA = Path(__file__).parents[1].parent / "shared" / "data"

SMALL = {
    "name": "small",
    "rounds": 3,
    "method": "fedavg",
    "sharing": {"by": "device"},
    "population": {"name": "digits", "clients": 8, "cohorts": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "batch_size": 16},
    "engine": {"name": "debug", "device": "cpu"},
}


REASSEMBLED = [
    "population.generations=['8x8']",
    "population.public=0.05",
    "population.models=['short', 'long']",
    "models.short={name='mlp', hidden=[16]}",
    "models.long={name='mlp', hidden=[20, 12]}",
    "method.tailoring.epochs=1",
]
NEEDS = {
    "fedmn": ["model={name='module_pool', features=16, hidden=16}"],
    "fedmn+": ["model={name='module_pool', features=16, hidden=16}", "method.whole=1"],
    **{name: [*REASSEMBLED, "method.search.most=2"] for name in ("pfedclub", "pfedclub+")},
    "heterofl": ["method.by=lot", "method.widths=[1.0, 0.5]"],
    "pfedhr": [*REASSEMBLED, "method.most=2"],
    **{
        name: ["population.public=0.2", 'population.generations=["8x8"]']
        for name in ("fedmd", "fccl", "fedkemf")
    },
}
"""What a method needs beside its name, in a small run."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["INTARSIA_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.pop("INTARSIA_DATA", None)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets; without it the test is skipped, or fails where it is required."""
    if SHARED_DATA.is_dir():
        return SHARED_DATA
    message = f"needs the data sets in {SHARED_DATA}"
    if os.environ.get("REQUIRE_DATA") == "1":
        pytest.fail(f"REQUIRE_DATA=1, but this test {message}")
    pytest.skip(message)


@pytest.fixture(scope="session")
def mnist_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scikit-learn's digits in MNIST's files: 1,200 to train on, 597 to test on, 28x28."""
    folder = tmp_path_factory.mktemp("mnist")
    images, labels = load_digits(return_X_y=True)
    large = np.kron(images.reshape(-1, 8, 8) * 15, np.ones((3, 3)))
    pixels = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    for name, rows in {"train": slice(0, 1200), "t10k": slice(1200, None)}.items():
        _write_idx(folder / f"{name}-images-idx3-ubyte", pixels[rows])
        _write_idx(folder / f"{name}-labels-idx1-ubyte", labels[rows].astype(np.uint8))
    return folder


def _write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())


@pytest.fixture
def small_run(tmp_path: Path) -> Callable[..., intarsia.Run]:
    """Run a small federation in a folder of its own."""

    def start(*changes: str, out: str = "run", **given: Any) -> intarsia.Run:
        run: intarsia.Run = intarsia.run(SMALL, changes=changes, out=tmp_path / out, **given)
        return run

    return start


def failures(run: intarsia.Run) -> list[dict[str, Any]]:
    """Return what failed or was refused: the events that are no warnings."""
    return [event for event in run.events if event["kind"] != "warning"]
