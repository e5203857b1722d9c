"""A whole federation in this process: the real ServerApp and real agents; only Flower's transport is a loop here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from benchmarks.fuzz import Line
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import intarsia
from intarsia.flower.message_records import to_records
from intarsia.flower.message_schema import PROBLEM
from intarsia.flower.messages import SiteMessage
from intarsia.flower.server import app as server
from intarsia.flower.site import relay
from intarsia.flower.site.agent import Agent
from intarsia.flower.site.site_file import Site

LABELS = ["a", "b", "c"]


@dataclass
class Answer:
    """What a site sends, in all its parts, for a lie to change."""

    header: dict[str, Any]
    records: dict[str, bytes]
    text: str | None = None
    """The header as it travels, where it is to be no JSON of a table."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Flower's records beside it, by name."""

    def content(self) -> RecordDict:
        text = json.dumps({**self.header, "protocol": 1}) if self.text is None else self.text
        content = RecordDict({"intarsia": ConfigRecord({"json": text})})
        for name, data in self.records.items():
            content[name] = ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})
        for name, record in self.extra.items():
            content[name] = record
        return content


Lie = Callable[[Answer], None]
Lies = Callable[[Mapping[str, Any]], Lie | None]
"""Gives what a site lies when it is asked this."""


def honest(asked: Mapping[str, Any]) -> None:
    return None


def fail(answer: Answer) -> None:
    """Say that something went wrong: what a lie must not be worse than."""
    site = answer.header.get("site", "")
    answer.header = {"kind": PROBLEM, "site": site, "message": "failed", "details": ""}
    answer.records = {}


class Loop(Line):
    """Flower's Grid, to agents in this process."""

    def __init__(self) -> None:
        super().__init__(self.ask)
        self.sites: dict[int, tuple[Agent, Lies]] = {}
        self.keys = {}

    def add(self, agent: Agent, lies: Lies = honest, key: bytes = b"") -> int:
        number = len(self.sites) + 1
        self.sites[number] = (agent, lies)
        self.keys[number] = key or b"key %d" % number
        return number

    def ask(self, node: int, asked: SiteMessage) -> RecordDict:
        agent, lies = self.sites[node]
        framed = b"".join(relay.frame(to_records(asked)))
        said = agent.answer(SiteMessage.read(io.BytesIO(framed).read))
        answer = Answer(json.loads(json.dumps(dict(said.header))), dict(said.records()))
        lie = lies(asked.header)
        if lie is not None:
            lie(answer)
        return answer.content()


def make_agent(home: Path, name: str, clients: Mapping[str, int], **more: Any) -> Agent:
    """Return the agent of a site whose clients have so many images of three kinds."""
    folder = home / f"{name}-data"
    folder.mkdir(parents=True)
    for client, count in clients.items():
        random = np.random.default_rng(sum(client.encode()))
        y = np.arange(count) % 3
        x = random.random((count, 1, 8, 8), dtype=np.float32) / 2 + y[:, None, None, None] / 4
        np.savez(folder / f"{client}.npz", x=x.astype(np.float32), y=np.array(LABELS)[y])
    population = {"name": "files", "path": f"{name}-data"}
    about = {"name": name, "workers": 1, "device": "cpu", "labels": LABELS, "population": population}
    (home / f"{name}.toml").write_text(tomli_w.dumps({**about, **more}))
    return Agent(Site.load(home / f"{name}.toml"), lambda text: None)


def play(loop: Loop, home: Path, settings: Mapping[str, Any], **options: Any) -> intarsia.Run:
    """Run a federation over the loop to its end."""
    (home / "settings.toml").write_text(tomli_w.dumps(dict(settings)))
    config = {"folder": str(home / "run"), "sites": 1, "wait": 5.0, "deadline": 60.0, **options}
    server.run(loop, server.Options.read(config), home)
    return intarsia.open_run(home / "run")
