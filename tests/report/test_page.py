from __future__ import annotations

import re

from intarsia.report import name_apart, page, percent, size, view


def test_the_page_holds_every_run_and_needs_no_network(small_run):
    runs = [small_run(f"method={m}", out=m) for m in ("fedavg", "fedper")]
    views = name_apart([view(run) for run in runs], runs)
    text = page("A <title>", "lead", views)
    assert "A &lt;title&gt;" in text
    assert "FedAvg" in text
    assert "per device" in text
    body = text[text.index("<main>") :]
    assert not re.findall(r"(?:src|href)=[\"']|@import|url\(", body + text[: text.index("<script>")])
    assert body.count("<section>") == 5
    assert percent(views[1].summary["accuracy"]["mean"]) in body


def test_a_view_has_the_runs_own_figures(small_run):
    run = small_run("method=fedavg")
    shown = view(run)
    assert shown.rounds == [1, 2, 3]
    assert shown.accuracy[-1] == run.summary["accuracy"]["mean"]
    assert shown.megabytes[-1] * 1e6 == sum(run.summary["bytes"].values())
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
