"""Every warning: a run or evidence that calls for it, and one that does not."""

from __future__ import annotations

import warnings as python_warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

import intarsia
from intarsia.judging import warnings
from intarsia.judging.tallies import of_labels, of_values
from intarsia.judging.verdict import judged_rows
from intarsia.judging.warnings import After, Before
from tests.conftest import SMALL

BEFORE = Before({"a": 20, "b": 30}, 16, "fedavg")


def row(client: str, said: list[int], y: list[int], **facts: Any) -> dict[str, Any]:
    """Return what a client counted whose model said this; usually it would have said 0."""
    outputs, truth = torch.eye(2)[said], torch.tensor(y)
    counted = {
        "tally": of_labels(outputs, truth, []),
        "usual_tally": of_labels(torch.eye(2)[[0] * len(y)], truth, []),
    }
    own = {"client": client, "task": "", "split": "test", "stage": "own", "n": len(y), **counted}
    return {**own, "unseen": 0, "labels": 2, "unscaled": False, **facts}


def after(*rows: dict[str, Any], alone: dict[str, float] | None = None, **known: Any) -> After:
    lone = {(name, "test"): {"metrics": {"accuracy": value}} for name, value in (alone or {}).items()}
    judged = judged_rows(rows, ["accuracy"], lone)
    return After(
        judged, known.pop("losses", {}), known.pop("training", [2.0, 1.0]), 0.1, {"": ["ok", "bad"]}, **known
    )


GOOD = row("a", [0, 0, 1, 0], [0, 0, 1, 0]), row("b", [0, 1, 0, 1], [0, 1, 0, 1])


def kinds(known: Before | After) -> list[str]:
    check = warnings.before if isinstance(known, Before) else warnings.after
    return [warned.kind for warned in check(known)]  # type: ignore[operator]


def test_good_runs_are_not_warned_of():
    assert kinds(BEFORE) == []
    assert kinds(after(*GOOD, losses={"a": 0.1, "b": 0.2}, alone={"a": 0.9, "b": 1.0})) == []


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("one client", {"samples": {"a": 20}}, "nothing is federated"),
        ("hardly meant", {"doubt": 'let them be found (sharing.cohorts = "found")'}, "cohorts"),
        ("large batch", {"batch_size": 31}, "no client has more than 30"),
        ("unscaled inputs", {"unscaled": ["b"]}, "1 of 2 clients (b)"),
    ],
)
def test_what_is_told_before(kind, change, words):
    (warned,) = warnings.before(replace(BEFORE, **change))
    assert warned.kind == kind
    assert words in warned.message


@pytest.mark.parametrize(
    ("kind", "known", "words"),
    [
        (
            "one label said",
            after(row("a", [0] * 4, [0, 0, 0, 1]), GOOD[1]),
            "the model of 1 of 2 clients (a) says 'ok'",
        ),
        (
            "no better than usual",
            after(row("a", [0, 1, 0, 0], [0, 0, 0, 1])),
            "accuracy 50.0 %, that has 75.0 %",
        ),
        ("unscaled inputs", after(*(r | {"unscaled": True} for r in GOOD)), "all 2 clients"),
        ("unseen labels", after(GOOD[0], GOOD[1] | {"unseen": 2}), "2 test samples of 1 of 2 clients (b)"),
        ("one class", after(GOOD[0], GOOD[1] | {"labels": 1}), "1 of 2 clients (b) train on a single label"),
        ("diverging", after(*GOOD, training=[1.0, 0.5, 3.0]), "lower training.lr (now 0.1)"),
        ("diverging", after(*GOOD, training=[1.0, None]), "is not finite"),
        ("outlying loss", after(*GOOD, losses={"a": 0.1, "b": 0.1, "c": 10.1}), "c (10.1)"),
        ("outlying loss", after(*GOOD, losses={"a": 0.1, "b": None}), "b (not finite)"),
        ("federating hurts", after(*GOOD, alone={"a": 1.0, "b": 1.0}), ""),
    ],
)
def test_what_is_told_after(kind, known, words):
    if kind == "federating hurts":
        worse = after(row("a", [0, 0, 1, 1], [0, 0, 1, 0]), GOOD[1], alone={"a": 1.0, "b": 1.0})
        assert kinds(known) == []
        known, words = worse, "by -12.5 points on average"
    found = {warned.kind: warned for warned in warnings.after(known)}
    assert kind in found
    assert words in found[kind].message


def test_one_label_is_no_fault_where_there_is_one():
    assert kinds(after(row("a", [0, 0], [0, 0]), GOOD[1])) == []


def test_numbers_no_better_than_their_mean():
    y = torch.tensor([0.0, 2.0])
    poor, usual = of_values(torch.tensor([5.0, 5.0]), y), of_values(torch.tensor([1.0, 1.0]), y)
    own = {
        "client": "a",
        "task": "",
        "split": "test",
        "stage": "own",
        "n": 2,
        "tally": poor,
        "usual_tally": usual,
    }
    facts = {"unseen": 0, "labels": 0, "unscaled": False}
    known = After(judged_rows([own | facts], ["rmse"]), {}, [], 0.1)
    assert kinds(known) == ["no better than usual"]
    assert "the mean of the training data" in warnings.after(known)[0].message


@pytest.fixture
def told(tmp_path):
    """Run a small federation; return it and what Python was warned of."""

    def start(*changes: str, **given: Any) -> tuple[intarsia.Run, list[str]]:
        with python_warnings.catch_warnings(record=True) as caught:
            python_warnings.simplefilter("always")
            run = intarsia.run(SMALL, changes=changes, out=tmp_path / "run", **given)
        return run, [str(w.message) for w in caught if issubclass(w.category, intarsia.IntarsiaWarning)]

    return start


def fleet(say: int | None = None, clients: int = 3, scale: float = 1.0) -> dict[str, dict[str, Any]]:
    """Clients with two columns; label 1 is rare, and hard to tell."""
    source = torch.Generator().manual_seed(3)
    data = {}
    for number in range(clients):
        x = torch.randn(60, 2, generator=source)
        y = (torch.arange(60) % 7 == 0).long() if say is None else torch.full((60,), say)
        data[f"m{number}"] = {
            "train": (x[:40] * torch.tensor([1.0, scale]), y[:40]),
            "test": (x[40:], y[40:]),
        }
    return data


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2))


def test_a_model_that_says_ok_to_everything_is_told_of(told):
    run, said = told("sharing={}", "rounds=20", data=fleet(), model=network())
    assert any("every model says '0' to everything" in text for text in said)
    assert any(
        "no better than always saying the majority label: accuracy 85.0 %, that has 85.0 %" in t for t in said
    )
    events = [event for event in run.events if event["kind"] == "warning"]
    assert [event["stage"] for event in events] == ["one label said", "no better than usual"]
    assert run.summary["judged"]["warnings"] == [
        {"kind": e["stage"], "message": e["message"]} for e in events
    ]
    assert run.summary["failed"] == run.summary["refused"] == 0


@pytest.mark.parametrize(
    ("kind", "changes", "given"),
    [
        ("one client", ["sharing={}"], {"data": fleet(clients=1)}),
        ("large batch", ["sharing={}", "training.batch_size=64"], {"data": fleet()}),
        ("one class", ["sharing={}"], {"data": fleet(say=1)}),
        ("unscaled inputs", ["sharing={}", "training.lr=1e-6"], {"data": fleet(scale=1000.0)}),
    ],
)
def test_runs_that_call_for_a_warning(told, kind, changes, given):
    run, said = told(*changes, model=network(), **given)
    events = {event["stage"]: event["message"] for event in run.events}
    assert kind in events
    assert events[kind] in said


def test_one_cohort_is_told_of_at_the_end_too(told):
    run, _ = told("method=modfl", "sharing={}", "population.cohorts=1", "population.generations=['8x8']")
    (event,) = [event for event in run.events if event["stage"] == "hardly meant"]
    assert 'sharing.cohorts = "found"' in event["message"]


def test_federating_that_hurts_is_told_of(told):
    run, said = told("evaluation.baseline=local")
    gain = run.summary["judged"]["gain"]
    assert gain["mean"] < 0 < gain["lost"]
    assert any("clients that train alone do better" in text for text in said)
    lone = intarsia.open_run(run.path / "baseline-local")
    assert lone.summary["method"] == "local"
    assert lone.summary["rounds"] == run.summary["rounds"]
    for name in run.clients:
        own = run.client(name).judged()
        assert own["alone"] == lone.client(name).judged()["metrics"]
        assert own["gain"] == own["metrics"]["accuracy"] - own["alone"]["accuracy"]


def test_single_clients_that_are_harmed_are_named():
    harmed = row("m6", [1] * 26 + [0] * 4, [0] * 20 + [1] * 10)
    alone = {"m6": 0.73, "a": 1.0, "b": 1.0}
    found = {w.kind: w for w in warnings.after(after(harmed, *GOOD, alone=alone))}
    assert list(found["harmed clients"].clients) == ["m6"]
    assert "1 of 3 clients" in found["harmed clients"].message
    assert "m6 (20.0 %, majority label 66.7 %, 73.0 % alone)" in found["harmed clients"].message
    for cure in ('population.scale_by = "client"', "more of it", 'sharing.cohorts = "found"', "fedper"):
        assert cure in found["harmed clients"].message
    assert "harmed clients" in kinds(after(harmed, *GOOD))
    assert "harmed clients" not in kinds(after(harmed, *GOOD, alone={**alone, "m6": 0.1}))


def test_few_samples_prove_no_harm():
    assert "harmed clients" not in kinds(after(row("a", [0, 1, 0, 0], [0, 0, 0, 1])))


STUCK = row("a", [0] * 4, [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("known", "there", "absent"),
    [
        ({}, ["scale the inputs", "train longer", "class_weights"], ["before anything else"]),
        ({"balanced": True}, ["scale the inputs"], ["class_weights"]),
        ({"scaled": True}, ["train longer", "class_weights"], ["scale the inputs"]),
        ({"not_finite": 3}, ["lower training.lr (now 0.1)"], ["train longer", "scale the inputs"]),
        ({"training": [1.0, 9.0]}, ["lower training.lr (now 0.1)"], ["train longer", "class_weights"]),
    ],
)
def test_advice_is_what_is_not_done_yet(known, there, absent):
    found = {warned.kind: warned.message for warned in warnings.after(after(STUCK, **known))}
    assert all(words in found["one label said"] for words in there)
    for kind in ("one label said", "no better than usual"):
        assert not any(words in found[kind] for words in absent)


def test_updates_that_are_no_numbers_are_told_of(told):
    changes = ("method=local", "sharing={}", "population.clients=6", "population.generations=['8x8']")
    run, said = told(*changes, "model=mlp", "training={lr=5000.0}")
    lost = [event for event in run.events if event["kind"] == "failed"]
    assert lost
    assert any(f"{len(lost)} updates of clients held a NaN" in text for text in said)
    assert not any("train longer" in text for text in said)
