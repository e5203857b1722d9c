"""One lying site stops nobody: every lie is refused, named and counted, and the others' run is as if it had failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

import intarsia
from intarsia.flower.server import app as server
from intarsia.flower.site.agent import Agent
from tests.conftest import failures
from tests.flower.lies import FIRST, GROUPS, Group
from tests.flower.loopback import Answer, Lies, Loop, fail, make_agent, play

NORTH = {"ann": 30, "bob": 36, "cem": 33}
SOUTH = {"dan": 30, "eve": 33, "fay": 36, "gus": 39}
SMALL = {"model": {"name": "mlp", "hidden": [8]}, "training": {"batch_size": 8}}
CASES = [(group, lie) for group, about in GROUPS.items() for lie in about.lies]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lies")


@pytest.fixture(scope="module")
def agents(home: Path) -> Iterator[dict[int, tuple[Agent, Agent]]]:
    """The honest site, and a lying one with so many clients."""
    made = {}
    for count in sorted({group.clients for group in GROUPS.values()}):
        place = home / f"sites-{count}"
        own = dict(list(SOUTH.items())[:count])
        made[count] = (make_agent(place, "north", NORTH), make_agent(place, "south", own))
    yield made
    for pair in made.values():
        for agent in pair:
            agent.close()


def public(folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32)
    np.savez(folder / "images.npz", x=x, y=np.arange(12) % 3)
    return {"name": "files", "path": str(folder)}


def tell(group: Group, lies: list[Any]) -> Lies:
    """Tell one lie a round, when the site is asked what the group is about."""

    def choose(asked: Mapping[str, Any]) -> Any:
        about = (asked.get("exchange"), asked.get("purpose"))
        told = about == (group.step, group.purpose) and asked["round"] <= len(lies)
        return lies[asked["round"] - 1] if told else None

    return choose


def run_group(home: Path, pair: tuple[Agent, Agent], group: Group, lies: list[Any]) -> intarsia.Run:
    home.mkdir()
    settings = {**SMALL, **group.settings, "rounds": len(lies) + 1}
    if "public" in settings:
        settings["public"] = public(home / "public")
    if group.purpose == "train":
        settings["evaluation"] = {"every": len(lies) + 1}
    loop = Loop()
    loop.add(pair[0])
    loop.add(pair[1], tell(group, lies))
    return play(loop, home, settings, sites=2)


@pytest.fixture(scope="module")
def played(home, agents):
    """Every group's run, and the run in which the site fails instead; made when first asked for."""
    runs: dict[str, tuple[intarsia.Run, intarsia.Run]] = {}

    def get(name: str) -> tuple[intarsia.Run, intarsia.Run]:
        if name not in runs:
            group, place = GROUPS[name], home / name.replace(" ", "-")
            place.mkdir()
            lies = list(group.lies.values())
            pair = agents[group.clients]
            told = run_group(place / "lies", pair, group, lies)
            runs[name] = told, run_group(place / "failures", pair, group, [fail] * len(lies))
        return runs[name]

    return get


def test_there_are_at_least_111_lies():
    assert len(CASES) + len(FIRST) >= 111


@pytest.mark.parametrize(("group", "lie"), CASES)
def test_a_lie_is_refused_and_named(played, group, lie):
    run, _ = played(group)
    round = 1 + list(GROUPS[group].lies).index(lie)
    events = [e for e in failures(run) if e["round"] == round]
    liars = set(list(SOUTH)[: GROUPS[group].clients])
    assert {e["client"] for e in events} <= liars
    assert events
    assert all(e["message"] and "south" in e["message"] for e in events)
    assert {e["kind"] for e in events} == {"refused"}
    assert "Traceback" not in str(events)


@pytest.mark.parametrize("group", GROUPS)
def test_the_others_go_on_as_if_the_liar_had_failed(played, group):
    run, failed = played(group)
    assert run.summary["finished"]
    assert run.metrics == failed.metrics
    assert run.summary["refused"] == failed.summary["failed"]
    mine, theirs = (r.state().pool for r in (run, failed))
    assert [(a, mine.version(a)) for a in mine] == [(a, theirs.version(a)) for a in theirs]
    last = [e for e in failures(run) if e["round"] == run.summary["rounds"]]
    assert not last  # the last round was honest


@pytest.fixture(scope="module")
def joined(home, agents):
    """A run at which many sites ask to take part, each with a lie; and the run without them."""
    said: list[str] = []
    north, south = agents[1]
    nodes, runs = {}, []
    for place, lies in (("with", FIRST), ("without", {})):
        (home / place).mkdir()
        loop = Loop()
        loop.add(north)
        for number, (name, lie) in enumerate(lies.items()):
            nodes[name] = loop.add(south, lambda asked, lie=lie, number=number: apart(lie, number))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "say", said.append)
            runs.append(play(loop, home / place, {**SMALL, "rounds": 2}))
    return nodes, said, runs


def apart(lie, number: int):
    """Let the site be one of its own, then lie."""

    def told(answer: Answer) -> None:
        answer.header["site"] = f"south-{number}"
        answer.header["clients"][0]["name"] = f"dan-{number}"
        lie(answer)

    return told


@pytest.mark.parametrize("lie", FIRST)
def test_a_lie_in_the_first_answer_is_refused_and_named(joined, lie):
    nodes, said, _ = joined
    number = list(FIRST).index(lie)
    names = (f"node {nodes[lie]} is not used: ", f"site 'south-{number}' is not used")
    assert any(line.startswith(names) for line in said), said


def test_the_others_go_on_as_if_no_liar_had_come(joined):
    with_them, without = joined[2]
    assert with_them.summary["finished"]
    assert with_them.metrics == without.metrics
    assert with_them.summary["clients"] == without.summary["clients"] == len(NORTH)
