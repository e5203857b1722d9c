"""What tests of exports share: runs that are moved away from their data, and a table of machines."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import intarsia
from intarsia.core import DataError


def _gone(*_: object) -> None:
    raise DataError("the data is gone")


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., intarsia.Run]:
    """Move a run to another folder, and open it there; nobody finds the data that its settings name any more."""

    def move(run: intarsia.Run, **given: object) -> intarsia.Run:
        place = tmp_path / "elsewhere" / run.path.name
        place.parent.mkdir(exist_ok=True)
        shutil.move(run.path, place)
        for user in ("build", "opened"):
            monkeypatch.setattr(f"intarsia.experiment.{user}.population_of", _gone)
        return intarsia.open_run(place, **given)

    return move


def write_fleet(path: Path) -> None:
    """Write a table of six machines: the last three have a sensor more; scales differ, cells are missing."""
    draw = np.random.default_rng(5)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "client", "device", "temp", "vibration", "mode", "label"])
        for machine in range(6):
            for row in range(40):
                temp, shake = draw.normal(300 + 10 * machine, 25), draw.normal(0.004, 0.002)
                mode = ["idle", "run", "test"][draw.integers(3)]
                label = "faulty" if temp > 310 + 10 * machine else "ok"
                out.writerow(
                    [
                        f"{machine}-{row}",
                        f"m{machine}",
                        "old" if machine < 3 else "new",
                        "" if draw.random() < 0.1 else f"{temp:.3f}",
                        "" if machine < 3 else f"{shake:.6f}",
                        mode,
                        label,
                    ]
                )


FLEET = {
    "name": "fleet",
    "rounds": 2,
    "method": "fedper",
    "sharing": {"by": "device"},
    "population": {
        "name": "files",
        "missing": "mean",
        "scale": "standard",
        "ignore": ["id"],
    },
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.3, "batch_size": 8, "epochs": 3},
    "engine": {"name": "debug", "device": "cpu"},
}


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    """A run on that table."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder / "fleet.csv")
    return intarsia.run(FLEET, changes=[f"population.path={folder / 'fleet.csv'}"], out=folder / "run")


@pytest.fixture
def rows_of(fleet: intarsia.Run, tmp_path: Path) -> Callable[[str], Path]:
    """Write the lines of one machine into a table of their own."""

    def write(client: str) -> Path:
        lines = Path(fleet.settings.population["path"]).read_text().splitlines()
        path = tmp_path / f"{client}.csv"
        path.write_text("\n".join([lines[0], *(line for line in lines if f",{client}," in line)]) + "\n")
        return path

    return write
