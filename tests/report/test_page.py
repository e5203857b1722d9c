from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import intarsia
import intarsia.report
from intarsia.core.text import duration, mean_and_std, percent, size
from intarsia.methods import METHODS
from intarsia.report import SECTIONS, charts, page, view, views_of
from tests.conftest import SMALL


def test_the_page_holds_every_run_and_needs_no_network(small_run):
    runs = [small_run(f"method={m}", out=m) for m in ("fedavg", "fedper")]
    views = views_of(runs)
    text = page("A <title>", "lead", views)
    assert "A &lt;title&gt;" in text
    assert "FedAvg" in text
    assert "per device" in text
    assert len(text.encode()) < 2_000_000
    body = text[text.index("<main>") :]
    assert not re.findall(r"(?:src|href)=[\"']|@import|url\(", body + text[: text.index("<script>")])
    assert re.findall("<section [^>]*><h2>(.*?)</h2>", body) == [
        "Warnings",
        "Result",
        "Is it any good?",
        "Accuracy by round",
        "Spread over clients",
        "Accuracy against bytes",
        "Accuracy against time",
        "Clients",
        "Mosaic",
        "Groups",
        "Traffic by block",
        "Who holds what",
        "Methods, and where they deviate from the papers",
        "Settings",
        "Versions",
    ]
    assert percent(views[1].summary["accuracy"]["mean"]) in body


def test_pages_carry_the_published_chart_library(monkeypatch):
    assert f"v{charts.VERSION}" in charts.chart_library()[:100]
    monkeypatch.setattr(charts, "SHA256", "0" * 64)
    with pytest.raises(intarsia.IntarsiaError, match="is not plotly"):
        charts.chart_library()


def test_names_of_clients_are_text_on_the_page(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    own = {"train": (x, y), "test": (x, y)}
    clients = {evil: {**own, "cohort": evil, "device": evil}, "b": {**own, "cohort": "c", "device": "d"}}
    changes = {**SMALL, "method": "modfl", "model": {"name": "mlp", "hidden": [4]}}
    changes = {key: value for key, value in changes.items() if key != "population"}
    run = intarsia.run(changes, data=intarsia.from_dict(clients), out=tmp_path / "run")
    text = page("x", "x", [view(run)])
    body = text[text.index("<main>") :]
    assert "alert(1)" in body
    assert evil not in body
    assert "<script>alert" not in body
    assert body.count("<script") == body.count('<script type="application/json">') == body.count("</script>")
    assert "<img src=x" not in body


def test_a_view_has_the_runs_own_figures(small_run):
    run = small_run("method=fedavg")
    shown = view(run)
    assert shown.rounds == [1, 2, 3]
    assert shown.accuracy[-1] == run.summary["accuracy"]["mean"]
    assert shown.sent_by[-1] == sum(run.summary["bytes"].values())
    assert min(shown.clients.values()) == run.summary["accuracy"]["worst"]


def test_words():
    assert [size(n) for n in (0, 999, 1500, 2_340_000, 5e9, 7e12)] == [
        "0 B",
        "999 B",
        "1.50 kB",
        "2.34 MB",
        "5.00 GB",
        "7.00 TB",
    ]
    assert percent(0.1234) == "12.3 %"
    assert percent(None) == "-"
    assert [duration(s) for s in (0.4, 40, 150, 9000)] == ["0 s", "40 s", "2 min", "2.5 h"]
    assert mean_and_std(0.931, 0.004, "accuracy") == "93.1 ± 0.4 %"


def test_sections_are_found_by_folder_and_general_files_name_no_method():
    """A method's section is its own folder's business: what is general asks every section whether it has something."""
    room = Path(intarsia.report.__file__).parent
    there = {
        path.stem
        for path in (room / "sections").iterdir()
        if path.stem not in ("__init__", "base", "__pycache__")
    }
    assert {kind.__module__.split(".")[-1] for kind in SECTIONS} == there
    cli = room.parent / "cli"
    general = [*room.glob("*.py"), room / "sections/base.py", cli / "shown.py"]
    methods = re.compile(
        "|".join(rf"\b{re.escape(kind.title)}\b" for kind in METHODS.values()), re.IGNORECASE
    )
    named = {
        str(path): found
        for path in general
        if (found := [w for w in methods.findall(path.read_text()) if w.lower() != "local"])
    }
    assert not named


def test_tasks_have_a_table_of_their_own(tmp_path):
    changes = ["method=modfl", "sharing={}", 'population.tasks=["digit","slant"]']
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    html = page("t", "l", [view(run)])
    assert "By task" in html
    assert f"{run.summary['tasks']['slant']['loss']['mean']:.4f}" in html


def test_a_run_that_has_not_ended_is_shown_as_far_as_it_has_come(small_run, tmp_path):
    """Without its summary, and with a round that is half written, a run tells of the rounds that are done."""
    run = small_run("method=fedavg", "rounds=2")
    told = run.summary
    (run.path / "summary.json").unlink()
    last = run.metrics[-1]
    with (run.path / "metrics.jsonl").open("a") as table:
        table.write(json.dumps({**last, "round": 3}) + "\n" + '{"round": 3, "cli')
    shown = view(intarsia.open_run(run.path))
    assert shown.rounds == [1, 2]
    assert not shown.summary["finished"]
    for name in (
        "method",
        "rounds",
        "clients",
        "seed",
        "accuracy",
        "loss",
        "evaluated",
        "bytes",
        "failed",
        "refused",
    ):
        assert shown.summary[name] == told[name], name
    assert 0 < shown.summary["seconds"]["total"] <= told["seconds"]["total"]
    assert "Accuracy by round" in page("t", "l", [shown])
    for table in ("metrics", "traffic", "seconds", "judged", "events"):
        (run.path / f"{table}.jsonl").unlink()
    begun = view(intarsia.open_run(run.path))
    assert (begun.rounds, begun.summary["rounds"], begun.summary["clients"]) == ([], 0, told["clients"])
    assert page("t", "l", [begun])


def test_letters_that_no_file_can_hold_are_replaced(small_run, tmp_path):
    """An event may quote half a letter, as JSON can write one: the page is written all the same."""
    run = small_run("method=fedavg", "rounds=1")
    event = {
        "round": 1,
        "kind": "warning",
        "client": "",
        "stage": "",
        "block": "",
        "details": "",
        "exchange": "",
    }
    with (run.path / "events.jsonl").open("a") as table:
        table.write(json.dumps({**event, "message": "half \ud800 a letter"}) + "\n")
    path = intarsia.write_page(run.path)
    assert "half ? a letter" in path.read_text()
