"""Some thousand mutated frames in every test run; `python -m benchmarks.fuzz --frames 1000000` throws more."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from benchmarks import fuzz


def test_only_our_errors_come_out_of_the_decoders():
    outcomes = fuzz.run(3000, seed=1, show=lambda text: None)
    assert {name: outcome.foreign for name, outcome in outcomes.items() if outcome.foreign} == {}
    assert all(outcome.frames > 20 for outcome in outcomes.values())
    assert sum(outcome.refused for outcome in outcomes.values()) > 1500


def test_a_foreign_error_would_be_seen():
    outcome = fuzz.Outcome()
    fuzz.throw(lambda: {}["x"], outcome)
    assert sum(outcome.foreign.values()) == 1
