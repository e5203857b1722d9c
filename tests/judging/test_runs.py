"""Runs are judged at their end: the same on every engine, refused if a client lies, beside baselines."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn import metrics as reference

import intarsia
from intarsia.clients import scoring
from intarsia.core import DataError, SettingsError
from intarsia.judging import tallies
from tests.conftest import NEEDS, SMALL

ENGINES = {"debug": ["engine.name=debug"], "local": ["engine.name=local", "engine.workers=2"]}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedem", "fedmn", "heterofl"])
def test_engines_judge_alike(method, small_run):
    changes = [f"method={method}", "population.validation=0.2", *NEEDS.get(method, ())]
    runs = [small_run(*changes, *engine, out=name) for name, engine in ENGINES.items()]
    first, second = ((run.path / "judged.jsonl").read_bytes() for run in runs)
    assert first == second
    rows = runs[0].judged
    assert {row["split"] for row in rows} == {"test", "validation"}
    assert len(rows) == 16
    accuracy = {(r["client"], r["split"]): r["accuracy"] for r in runs[0].metrics if r["round"] == 3}
    for row in rows:
        assert row["metrics"]["accuracy"] == accuracy[row["client"], row["split"]]


def test_a_client_is_judged_as_its_model_says(small_run):
    run = small_run("method=fedper")
    own = run.client("client-03").judged()
    examples = run.experiment.setup.population.clients["client-03"].data["test"]
    with torch.inference_mode():
        (x, y) = next(iter(scoring_batches(run, "client-03")))
        said = run.client("client-03").model()(x).argmax(1)
    assert own["n"] == len(examples)
    assert own["confusion"] == reference.confusion_matrix(y, said, labels=range(10)).tolist()
    assert own["metrics"]["f1"] == pytest.approx(reference.f1_score(y, said, average="macro"))
    low, high = own["interval"]["accuracy"]
    assert low < own["metrics"]["accuracy"] < high or own["metrics"]["accuracy"] in (0, 1)
    json.dumps(own)


def scoring_batches(run: intarsia.Run, client: str) -> Any:
    from intarsia.training import in_order

    return in_order(run.client(client).model(), run.experiment.setup.population.clients[client].data["test"])


def test_results_do_not_depend_on_being_judged(small_run):
    judged, plain = small_run(out="judged"), small_run("evaluation.metrics=[]", out="plain")
    assert judged.metrics == plain.metrics
    assert plain.judged == []
    assert "judged" not in plain.summary
    unlike = [(a, b) for a, b in zip(judged.traffic, plain.traffic, strict=True) if a != b]
    assert unlike
    assert all(a["purpose"] == "evaluate" and a["round"] == 3 for a, _ in unlike)


def test_numbers_are_judged_too(small_run):
    source = torch.Generator().manual_seed(0)
    data = {}
    for name in ("a", "b", "c"):
        x = torch.randn(40, 2, generator=source)
        y = x.sum(1) + 0.1 * torch.randn(40, generator=source)
        data[name] = {"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 1))
    run = small_run("sharing={}", "rounds=20", "training.loss=mse", data=data, model=model)
    found = run.summary["judged"]
    assert found["metrics"].keys() == {"mae", "rmse", "r2"}
    assert found["metrics"]["r2"]["pooled"] > 0.9
    assert found["usual"]["rmse"]["pooled"] > found["metrics"]["rmse"]["pooled"]
    low, high = found["interval"]["mae"]
    assert low < found["metrics"]["mae"]["pooled"] < high
    assert found["warnings"] == []


def heat_table(path: Path) -> Path:
    source = torch.Generator().manual_seed(0)
    rows = ["client,x,heat"]
    for name in ("a", "b", "c"):
        for x, noise in torch.randn(40, 2, generator=source).tolist():
            rows.append(f"{name},{x:.4f},{5000 + 300 * x + 20 * noise:.2f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def heat_settings(path: Path, **more: str) -> dict[str, Any]:
    files = {"name": "files", "path": str(path), "target": "heat", "problem": "regression"}
    population = {**files, "scale": "standard", **more}
    training = {"lr": 0.05, "epochs": 2, "batch_size": 8, "loss": "mse"}
    model = {"name": "mlp", "hidden": [8]}
    return {"rounds": 5, "method": "fedavg", "population": population, "training": training, "model": model}


def test_errors_are_in_units_of_the_target(tmp_path):
    path = heat_table(tmp_path / "heat.csv")
    run = intarsia.run(heat_settings(path, target_scale="standard"), out=tmp_path / "run")
    (target,) = run.client("a").preparation.targets
    assert 200 < target.scale < 400
    examples = run.experiment.setup.population.clients["a"].data["test"]
    with torch.inference_mode():
        said = run.client("a").model()(examples.x)
    truth = examples.y.double() * target.scale + target.offset
    errors = said.double() * target.scale + target.offset - truth
    own = run.client("a").judged()
    assert own["metrics"]["mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-6)
    assert own["metrics"]["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-6)
    assert own["metrics"]["r2"] == pytest.approx(
        float(1 - errors.square().mean() / truth.var(correction=0)), abs=1e-6
    )
    low, high = own["interval"]["mae"]
    assert low < own["metrics"]["mae"] < high
    assert own["usual"]["rmse"] == pytest.approx(float(truth.std(correction=0)), rel=0.3)
    row = next(r for r in run.judged if r["client"] == "a" and r["split"] == "test")
    assert row["tally"]["mean"] == [pytest.approx(float(truth.mean()))]
    loss = next(r["loss"] for r in run.metrics if (r["round"], r["client"], r["split"]) == (5, "a", "test"))
    assert loss * target.scale**2 == pytest.approx(own["metrics"]["rmse"] ** 2, rel=1e-4)
    plain = heat_table(tmp_path / "new.csv")
    plain.write_text("".join(line for line in plain.open() if line[:2] in ("cl", "a,")))
    found = run.adapt(plain, name="d").row()
    assert 50 < found["usual"]["rmse"] < 1000


def test_errors_too_large_in_units_are_not_finite():
    y, far = torch.zeros(2, 1), torch.full((2, 1), 1e37)
    assert tallies.of_values(far, y, [(0.0, 1000.0)])["mae"] is None
    assert tallies.of_values(far, y)["mae"] == [pytest.approx(1e37)]


def test_newcomers_are_judged_after_their_tuning_and_apart(small_run):
    run = small_run("sampling.newcomers=2")
    assert [row["stage"] for row in run.judged].count("tuned") == 2
    assert run.summary["judged"]["clients"] == 6
    assert run.client("client-07").judged()["stage"] == "tuned"


def test_every_task_is_judged_by_itself(small_run):
    run = small_run("method=modfl", "population.tasks=['digit', 'loops']")
    tasks = run.summary["judged"]["tasks"]
    assert tasks.keys() == {"digit", "loops"}
    assert "pooled" not in run.summary["judged"]["metrics"]["accuracy"]
    assert len(tasks["digit"]["labels"]) == 10
    assert "none" in tasks["loops"]["by_class"]["recall"]


def lying(change: dict[str, Any]) -> Any:
    """Return what a client counts, in place of which client-02 says something else."""
    honest = scoring._judged

    def judged(local: Any, *rest: Any) -> dict[str, Any]:
        own = honest(local, *rest)
        return own | change if local.info.name == "client-02" else own

    return judged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tally": {"confusion": [[0, 0, 46]], "auc": 1.0, "bins": None, "brier": 0.0}}, "right, but"),
        ({"unseen": 10**6}, "unseen"),
        ({"usual": {"confusion": [[0, 0, 1]], "auc": None, "bins": None, "brier": None}}, "of 1 samples"),
    ],
)
def test_a_client_that_lies_about_its_counts_is_refused(small_run, monkeypatch, change, message):
    monkeypatch.setattr(scoring, "_judged", lying(change))
    run = small_run()
    (event,) = [event for event in run.events if event["kind"] == "refused"]
    assert event["client"] == "client-02"
    assert message in event["message"]
    assert {row["client"] for row in run.judged} == set(run.clients) - {"client-02"}


def test_models_that_diverge_are_judged_without_probabilities(small_run):
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.head(x.flatten(1))
            return scores if self.training else scores * math.nan

    run = small_run("population.generations=['8x8']", "sharing={}", model=Broken())
    assert run.summary["judged"]["metrics"].keys().isdisjoint({"auc", "brier", "ece"})
    assert "outlying loss" in {event["stage"] for event in run.events}


def test_a_stopped_run_is_judged_as_one_that_was_not(small_run, tmp_path):
    class Stop(intarsia.Observer):
        def round_done(self, report: intarsia.RoundReport) -> None:
            if report.round == 2 and not (tmp_path / "stopped" / "baseline-local").exists():
                raise KeyboardInterrupt

    whole = small_run(out="whole")
    with pytest.raises(KeyboardInterrupt):
        small_run(out="stopped", observer=Stop())
    assert intarsia.open_run(tmp_path / "stopped").judged == []
    again = intarsia.resume(tmp_path / "stopped")
    assert (again.judged, again.events) == (whole.judged, whole.events)
    assert again.summary["judged"] == whole.summary["judged"]


def test_a_baseline_that_was_stopped_goes_on(small_run, tmp_path):
    class StopInBaseline(intarsia.Observer):
        what = ""

        def playing(self, what: str) -> None:
            self.what = what

        def round_done(self, report: intarsia.RoundReport) -> None:
            if self.what:
                raise KeyboardInterrupt

    whole = small_run("evaluation.baseline=local", out="whole")
    with pytest.raises(KeyboardInterrupt, match=r"intarsia resume .*/stopped"):
        small_run("evaluation.baseline=local", out="stopped", observer=StopInBaseline())
    again = intarsia.resume(tmp_path / "stopped")
    assert again.judged == whole.judged
    assert again.summary["judged"] == whole.summary["judged"]


def test_what_cannot_be_judged_is_said(small_run):
    for changes, message in {
        ("evaluation.metrics=['acuracy']",): "did you mean 'accuracy'",
        ("evaluation.metrics=['rmse']",): "is for regression",
        ("evaluation.metrics=[]", "evaluation.baseline=local"): "evaluation.metrics is empty",
        ("evaluation.baseline=fedavg",): "evaluation.baseline",
    }.items():
        with pytest.raises(SettingsError, match=message):
            intarsia.run(SMALL, changes=changes)
    run = small_run("evaluation.metrics=['auc']")
    assert run.judged[0]["metrics"].keys() == {"accuracy", "auc"}
    with pytest.raises(DataError, match="was not judged on validation data"):
        run.client("client-00").judged("validation")


def test_the_page_and_the_terminal_have_the_verdict(small_run):
    from intarsia.report import page, view
    from intarsia.report.verdict import verdict_lines

    run = small_run("evaluation.baseline=local")
    found = run.summary["judged"]
    shown = page("title", "lead", [view(run)])
    assert "Balanced accuracy" in shown
    for warned in found["warnings"]:
        assert html.escape(warned["message"]) in shown
    lines = "\n".join(verdict_lines(run.summary))
    assert f"accuracy, pooled: {100 * found['metrics']['accuracy']['pooled']:.1f} % (" in lines
    assert f"gain over training alone: {100 * found['gain']['mean']:+.1f} points" in lines
    assert f"worst: {found['worst'][0]['client']} " in lines
    assert verdict_lines(small_run("evaluation.metrics=[]", out="plain").summary) == []
