"""Every method plays as it did when the golden record was made, bit for bit."""

from __future__ import annotations

import json

import pytest

import intarsia
from tests.conftest import SMALL
from tests.golden.plays import PLAYS, RECORD, RESUMED, digests, platform_words

ENGINES = {"debug": ["engine.name=debug"], "local": ["engine.name=local", "engine.workers=2"]}
record = json.loads(RECORD.read_text())


class StopAfterFirst(intarsia.Observer):
    """Stops a run as Ctrl-C does."""

    def round_done(self, report):
        raise KeyboardInterrupt


def compare(name: str, run: intarsia.Run) -> None:
    if record["platform"] != platform_words():
        pytest.skip(f"the golden record was made on another platform: {record['platform']}")
    assert name in record["plays"], f'there is no record of {name} yet: make golden REASON="{name} is new"'
    assert digests(run) == record["plays"][name]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PLAYS)
def test_a_play_is_as_recorded(name, engine, tmp_path):
    compare(name, intarsia.run(SMALL, changes=[*PLAYS[name], *ENGINES[engine]], out=tmp_path / "run"))


@pytest.mark.parametrize("name", RESUMED)
def test_a_play_that_was_stopped_and_went_on_is_as_recorded(name, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        intarsia.run(SMALL, changes=PLAYS[name], out=tmp_path / "run", observer=StopAfterFirst())
    compare(name, intarsia.resume(tmp_path / "run"))


def test_the_record_has_every_play_and_says_why_it_was_renewed():
    assert record["plays"].keys() == PLAYS.keys()
    changelog = (RECORD.parents[2] / "CHANGELOG.md").read_text()
    assert record["reason"] in " ".join(changelog.split())
