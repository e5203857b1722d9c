"""Small runs whose pages are looked at: cohorts that are found, the same clients alone, hostile names."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import intarsia
from tests.conftest import SMALL

FOUND = ("sharing={}", "sharing.cohorts=found", "sharing.number=2", "sharing.after=2")
HOSTILE = "</script><script>hacked=1</script><img src=x onerror=hacked=2>"
NAMES = (
    HOSTILE,
    "\"quotes'`${hacked=3}",
    "long" * 40,
    "Grüße 東京 \N{GRINNING FACE}",
    "%{hacked}",
    "--nothing@0.5",
)


def found_and_alone(folder: Path) -> list[intarsia.Run]:
    """Return a run that finds cohorts after its second round, and the same clients alone."""
    changes = {"modfl": ("method=modfl", *FOUND), "local": ("method=local", "sharing={}")}
    return [intarsia.run(SMALL, changes=own, out=folder / name) for name, own in changes.items()]


def hostile(folder: Path) -> intarsia.Run:
    """Return a run whose clients, devices, cohorts, labels and folder have names that want to be markup."""
    chance = torch.Generator().manual_seed(0)
    clients = {}
    for number, name in enumerate(NAMES):
        data = [(torch.randn(12, 4, generator=chance), torch.arange(12) % 2) for _ in range(2)]
        own = {"cohort": NAMES[number % 3], "device": NAMES[number // 3]}
        clients[name] = {"train": data[0], "test": data[1], **own}
    settings = {key: value for key, value in SMALL.items() if key not in ("population", "sharing")}
    settings |= {"method": "modfl", "model": {"name": "mlp", "hidden": [4]}, "rounds": 2}
    run = intarsia.run(
        settings, data=intarsia.from_dict(clients), out=folder / "evil <img src=x onerror=hacked=4>"
    )
    about = run.population | {"labels": [HOSTILE, NAMES[2]]}
    (run.path / "population.json").write_text(json.dumps(about))
    return run
