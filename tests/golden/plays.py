"""The small runs of the golden record, and what of each is recorded."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import intarsia
from intarsia.methods import METHODS
from tests.conftest import NEEDS

RECORD = Path(__file__).with_name("record.json")
TABLES = ("metrics", "traffic", "events", "groups", "notes")

FOUND = ["method=modfl", "sharing.cohorts=found", "sharing.number=2", "sharing.after=2"]
POOL = [
    "method=fedmn",
    "method.form=tensor",
    "method.standardise=population",
    "method.router_clip=1000",
    *NEEDS["fedmn"],
]
PLAYS: Mapping[str, list[str]] = {
    **{f"{method}": [f"method={method}", "sampling.clients=5", *NEEDS.get(method, ())] for method in METHODS},
    **{
        f"{method} with {codec}": [
            f"method={method}",
            f"codec={{name='{codec}', down=true}}",
            *NEEDS.get(method, ()),
        ]
        for method, codec in {
            "fedavg": "int8",
            "fedper": "topk",
            "modfl": "fp16",
            "fedkemf": "int8",
            "fedgh": "int8",
            "fedmn": "int8",
            "heterofl": "topk",
            "clustered_fl": "int8",
        }.items()
    },
    "found cohorts": FOUND,
    "found cohorts with newcomers": [*FOUND, "sampling.newcomers=2"],
    "found cohorts with int8": [*FOUND, "codec={name='int8', down=true}"],
    "newcomers": ["method=fedavg", "sampling.newcomers=2"],
    "newcomers of a pool": [*POOL, "sampling.newcomers=1", "sampling.clients=3"],
    "drawn twice": ["method=fedavg", "sampling.replacement=true", "sampling.clients=6"],
    "proximal nova": ["method=fednova", "objective={name='proximal', mu=0.1}", "training.momentum=0.9"],
    "adapters": ["method=fedper", "adapters={name='parallel', rank=2}"],
    "adapters under ModFL": ["method=modfl", "adapters={name='series', rank=2}", "sharing.operation=head"],
    "norms at home": [
        "method=fedavg",
        "sharing.norms=home",
        "population.generations=['8x8']",
        "model={name='resnet', stem=4, channels=[8], blocks=1}",
    ],
    "Adam": ["method=fedavg", "training.optimizer=adam", "training.lr=0.01"],
    "two tasks": ["method=modfl", "population.tasks=['digit', 'loops']"],
    "public data without labels": ["method=pfedclub", *NEEDS["pfedclub"], "method.labelled=false"],
    "validation": ["method=fedavg", "population.validation=0.2"],
}
"""Changes to the small settings, by the name of the play."""

RESUMED = ("fedavg", "fedper", "fedmn+", "pfedclub", "fedem", "clustered_fl with int8", "found cohorts")
"""Plays that are also stopped after their first round, and go on."""


def platform_words() -> dict[str, str]:
    """Return what decides the last bits of a sum beside the program."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def digests(run: intarsia.Run) -> dict[str, str]:
    """Return what a run was, as digests: its tables, the shared blocks, what clients keep."""
    state = run.state()
    pool = {str(address): state.pool.get(address).version for address in sorted(state.pool)}
    clients = {name: record.to_json() for name, record in sorted(state.clients.items())}
    tables = {name: getattr(run, name) for name in TABLES}
    told = ("warning", "died")  # words, no results
    tables["events"] = [event for event in run.events if event["kind"] not in told]
    return {name: _digest(value) for name, value in {**tables, "pool": pool, "clients": clients}.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
