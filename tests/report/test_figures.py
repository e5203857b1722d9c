"""Figures that pages show, worked out by hand or read from the run folder in another way."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import intarsia
from intarsia.report import html_section, html_table, page, view, views_of
from intarsia.report.clients import (
    ClientScores,
    alone_in,
    columns_of,
    confusions_of,
    failures_of,
    history_of,
)
from intarsia.report.curves import client_means, curves_of, over_seeds
from intarsia.report.figures import MOST_SERIES, Figure, Line
from intarsia.report.people import best_of
from intarsia.report.quality import _by_bytes, _levelled, _ranked
from intarsia.report.reading import Reading
from intarsia.report.series import series_of
from intarsia.report.styles import (
    METHODS,
    Style,
    label_colour,
    method_style,
    styles_of,
    styles_of_names,
    theme,
)
from intarsia.report.traffic import _folded, sent_by_block
from tests.conftest import SMALL
from tests.report.sample import found_and_alone


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[intarsia.Run]:
    return found_and_alone(tmp_path_factory.mktemp("runs"))


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"{table}.jsonl").read_text().splitlines()]


def scored(client: str, accuracy: float | None, loss: float = 1.0) -> dict[str, Any]:
    return {"client": client, "accuracy": accuracy, "loss": loss}


def test_percentiles_over_clients():
    """Of 0, 10, ..., 100 % the 10th percentile is 10 %, the 90th 90 %; between two clients it is interpolated."""
    rounds = {1: [scored(str(n), n / 10) for n in range(11)], 2: [scored("0", 0.2), scored("1", 0.7)]}
    (curve,) = curves_of(rounds, {})
    assert (curve.task, curve.measure, curve.rounds) == ("", "accuracy", [1, 2])
    assert curve.mean == pytest.approx([0.5, 0.45])
    assert curve.low == pytest.approx([0.1, 0.25])
    assert curve.high == pytest.approx([0.9, 0.65])
    assert curve.clients == {"0": 0.2, "1": 0.7}


def test_tasks_have_curves_of_their_own_and_a_loss_where_there_is_no_accuracy():
    about = {"clients": {"a": {"task": "name"}, "b": {"task": "far"}}}
    rounds = {1: [scored("a", 0.5), scored("b", None, 3.0)], 4: [scored("b", None, 2.0)]}
    far, name = curves_of(rounds, about)
    assert (far.task, far.measure, far.rounds, far.mean) == ("far", "loss", [1, 4], [3.0, 2.0])
    assert (name.task, name.measure, name.rounds, name.mean) == ("name", "accuracy", [1], [0.5])


def test_the_spread_over_seeds():
    seeds = [
        curves_of({1: [scored("a", 0.2), scored("b", 0.4)], 2: [scored("a", 0.6), scored("b", 0.6)]}, {})[0],
        curves_of({1: [scored("a", 0.4), scored("b", 0.8)]}, {})[0],
    ]
    said = over_seeds(seeds)
    assert said.rounds == [1]
    assert (said.mean, said.lowest, said.highest) == tuple(pytest.approx([v]) for v in (0.45, 0.3, 0.6))
    assert said.low == pytest.approx([fmean((0.22, 0.44))])
    assert said.high == pytest.approx([fmean((0.38, 0.76))])
    assert client_means(seeds) == {"a": pytest.approx(0.5), "b": pytest.approx(0.7)}


def column(scores: ClientScores, alone: Any, key: str) -> dict[str, Any]:
    (own,) = [c for c in columns_of(scores, alone) if c.key == key]
    return dict(zip(scores.clients, own.values, strict=True))


def test_what_clients_gain_over_training_alone_is_the_difference_to_a_run_of_local(runs):
    own, alone = (
        {
            r["client"]: r["accuracy"]
            for r in rows(run.path, "metrics")
            if (r["round"], r["split"], r["stage"]) == (3, "test", "own")
        }
        for run in runs
    )
    scores = [ClientScores(Reading(run._folder)) for run in runs]
    gain = column(scores[0], alone_in(scores[0], scores), "gain-accuracy")
    assert gain == {name: pytest.approx(own[name] - alone[name]) for name in own}
    assert alone_in(scores[1], scores) == {}
    assert not any(c.key.startswith("gain") for c in columns_of(scores[0], {}))
    assert [own[name] for name in scores[0].clients] == sorted(own.values())


def test_what_the_majority_label_reaches(runs):
    """Judged rows tell it; without them it follows from the counts of labels."""
    about = json.loads((runs[0].path / "population.json").read_text())["clients"]
    expected = {}
    for name, own in about.items():
        train, test = own["labels"]["train"], own["labels"]["test"]
        expected[name] = pytest.approx(test[train.index(max(train))] / sum(test))
    judged = ClientScores(Reading(runs[0]._folder))
    assert column(judged, {}, "usual-accuracy") == expected
    unjudged = ClientScores(Reading(runs[0]._folder))
    unjudged.run.__dict__["judged"] = []
    assert column(unjudged, {}, "usual-accuracy") == expected


def test_courses_and_counts_of_clients_stay_within_their_room(runs):
    scores = ClientScores(Reading(runs[0]._folder))
    whole = history_of(scores, 1000)
    assert (whole.rounds, whole.errors) == ([1, 2, 3], [])
    at = {
        (r["client"], r["round"]): r["accuracy"]
        for r in rows(runs[0].path, "metrics")
        if r["split"] == "test" and r["stage"] == "own"
    }
    assert whole.values == [[at[client, round] for round in (1, 2, 3)] for client in scores.clients]
    assert history_of(scores, 16).rounds == [1, 3]
    all_of_them = confusions_of(scores, 10_000)
    assert list(all_of_them) == list(range(8))
    assert list(confusions_of(scores, len(all_of_them[0]) // 3 + 1)) == [0]


def test_failures_are_counted_and_the_last_are_told(runs):
    scores = ClientScores(Reading(runs[0]._folder))
    name = scores.clients[2]
    event = {"kind": "failed", "client": name, "message": "off the scale"}
    lost = [{**event, "round": round} for round in range(1, 7)] + [{**event, "kind": "refused", "round": 7}]
    scores.run.__dict__["events"] = [*lost, {**event, "kind": "warning", "round": 8}]
    assert column(scores, {}, "failures") == {client: 7 * (client == name) for client in scores.clients}
    assert failures_of(scores) == {
        2: [
            [round, kind, "off the scale"]
            for round, kind in [(7, "refused"), (6, "failed"), (5, "failed"), (4, "failed")]
        ]
    }


def test_traffic_by_block_adds_up(runs):
    counted = Counter[tuple[str, str]]()
    for row in rows(runs[0].path, "traffic"):
        if row["purpose"] == "train":
            counted[row["block"] or "values", row["direction"]] += row["bytes"]
    (own,) = series_of(views_of(runs[:1]))
    sent = sent_by_block(own)
    assert {(block, way): n for block, ways in sent.items() for way, n in ways.items()} == {
        key: n for key, n in counted.items() if n
    }
    assert sum(sum(ways.values()) for ways in sent.values()) == own.views[0].sent
    sums = [sum(ways.values()) for ways in sent.values()]
    assert sums == sorted(sums, reverse=True)
    many = {f"b{n}": {"down": 100.0 - n, "up": 1.0} for n in range(20)}
    folded = _folded(many)
    assert list(folded)[-1] == "9 others"
    assert folded["9 others"] == {"down": sum(100.0 - n for n in range(11, 20)), "up": 9.0}
    assert sum(ways["down"] for ways in folded.values()) == sum(ways["down"] for ways in many.values())


def test_bytes_are_told_on_a_log_axis_where_one_run_is_far_dearer(runs):
    (dear,) = series_of(views_of(runs[:1]))
    assert "type" not in _by_bytes([dear], ("", "accuracy")).layout["xaxis"]
    views = views_of(runs[:1])
    views[0].__dict__["sent_by"] = [n / 100 for n in views[0].sent_by]
    (cheap,) = series_of(views)
    assert _by_bytes([dear, cheap], ("", "accuracy")).layout["xaxis"]["type"] == "log"


def line(name: str, x: list[float], y: list[float]) -> Line:
    return Line(name, x, y, Style(1), rounds=list(range(1, len(x) + 1)))


def test_what_sends_nothing_is_level_with_where_it_ended():
    costly, free = _levelled([line("a", [10, 20], [0.1, 0.2]), line("b", [0, 0], [0.3, 0.4])], 20)
    assert (list(costly.x), list(costly.y)) == ([10, 20], [0.1, 0.2])
    assert (list(free.x), list(free.y)) == ([10, 20], [0.4, 0.4])


def test_of_many_lines_the_best_have_colours():
    lines = [line(str(n), [1.0], [n / 20]) for n in range(12)]
    assert [own.name for own in _ranked(lines, "accuracy")][:2] == ["11", "10"]
    assert [own.name for own in _ranked(lines, "loss")][:2] == ["0", "1"]
    few = lines[:MOST_SERIES]
    assert _ranked(few, "accuracy") == few


def test_the_best_run_is_shown_first(runs):
    views = views_of(runs)
    means = {v.label: v.summary["accuracy"]["mean"] for v in views}
    assert best_of(views) == max(means, key=lambda label: means[label])
    assert best_of([]) == ""
    views[0].__dict__["summary"] = {**views[0].summary, "accuracy": {}}
    assert best_of(views) == "Local"


def test_every_method_has_one_look_that_no_other_has():
    looks = [method_style(name) for name in METHODS]
    assert len({(own.colour, own.dash) for own in looks}) == len(METHODS)
    assert {own.hex for own in looks} <= set(theme("light")["series"])
    for names in (["FedAvg", "ModFL"], ["ModFL, 3 seeds", "Local", "FedAvg (training.lr=0.1)"]):
        for name, own in styles_of_names(names).items():
            method = next(key for key, kind in METHODS.items() if kind.title == re.split("[ ,]", name)[0])
            assert own == method_style(method)
    assert styles_of_names(["FedAvg+"])["FedAvg+"] == method_style("fedavg+")
    twice = styles_of(["fedavg", "fedavg", "fedprox"])
    assert twice[0].colour == twice[1].colour
    assert len({(own.colour, own.dash) for own in twice}) == 3


def test_labels_are_told_apart_by_places_on_the_ramp():
    places = [float(label_colour(n, 4).split("@")[1]) for n in range(4)]
    assert places == [0.125, 0.375, 0.625, 0.875]


def test_columns_of_figures_stand_right_and_words_left():
    table = html_table(
        ("a", "share", "who", "size"), [("x", "5.0 %", "4x4", "1.20 kB"), ("y", "-", "b", "86.8 ± 1.7 %")]
    )
    assert [bool(look) for look in re.findall(r"<th scope='col'( class='words')?>", table)] == [
        True,
        False,
        True,
        False,
    ]
    assert table.count("<td class='words'>") == 2


def test_verdicts_stand_side_by_side(runs):
    """One run: a row a metric. Several: a row each, with the worst client; what is usual is told once."""
    verdict = runs[0].summary["judged"]
    alone = page("t", "l", [view(runs[0])])
    f1 = verdict["metrics"]["f1"]
    assert f"<th scope='row'>F1 (macro)</th><td>{f1['mean']:.3g}</td><td>{f1['worst']:.3g}</td>" in alone
    text = page("t", "l", views_of(runs))
    section = text[text.index('<section id="is-it-any-good"') :]
    section = section[: section.index("</section>")]
    assert section.count("<tr>") == 1 + 2 + 1
    for run in runs:
        own = run.summary["judged"]["metrics"]["accuracy"]
        cell = f"<td>{100 * own['mean']:.1f} %<small>worst {100 * own['worst']:.1f} %</small></td>"
        assert cell in section
    usual = f"usual answer</th><td>{100 * verdict['usual']['accuracy']['mean']:.1f} %</td>"
    assert section.count(usual) == 1


def test_amounts_are_told_by_colour_from_40_clients_on():
    from intarsia.report.holdings import _figure

    def about(number: int) -> dict[str, Any]:
        own = {"labels": {"train": [3, 1], "test": [1, 0]}, "cohort": "x"}
        return {"labels": ["cat", "dog"], "clients": {f"c{n:02d}": own for n in range(number)}}

    bars, _ = _figure(about(39))
    heat, _ = _figure(about(40))
    assert [(trace["type"], trace["y"][0]) for trace in bars.traces] == [("bar", 4), ("bar", 1)]
    assert (heat.traces[0]["type"], heat.traces[0]["z"]) == ("heatmap", [[4] * 40, [1] * 40])


def test_runs_of_several_seeds_are_one_line_with_their_spread(tmp_path):
    seeds = intarsia.run(SMALL, changes=["rounds=2"], out=tmp_path / "s", seeds=2)
    (own,) = series_of(views_of(list(seeds.runs)))
    means = []
    for run in seeds.runs:
        last = [
            r["accuracy"]
            for r in rows(run.path, "metrics")
            if (r["round"], r["split"], r["stage"]) == (2, "test", "own")
        ]
        means.append(fmean(last))
    from intarsia.report.quality import CLIENTS, SEEDS, _by_round

    drawn: Figure = _by_round([own], ("", "accuracy"))
    assert set(drawn.bands) == {SEEDS, CLIENTS}
    (band,) = [trace for trace in drawn.traces if trace["meta"].get("band") == SEEDS]
    assert band["x"] == [1, 2, 2, 1]
    assert [band["y"][1], band["y"][2]] == pytest.approx([max(means), min(means)])
    (curve,) = [trace for trace in drawn.traces if "band" not in trace["meta"]]
    assert curve["y"][-1] == pytest.approx(fmean(means))
    assert f"{100 * fmean(means):.1f} ± " in page("t", "l", views_of(list(seeds.runs)))


def test_sections_of_unlike_headings_have_unlike_names():
    """What a live page replaces is found by these names."""
    names = [
        re.findall('id="(.*?)"', html_section(heading, ""))[0]
        for heading in (
            "Teachers: FedMN (ours)",
            "Teachers: FedMN+ (ours)",
            "Privacy: ä",
            "Privacy: ö",
            "",
            "Clients",
        )
    ]
    assert len(set(names)) == len(names)
    assert names[0] == "teachers-fedmn-ours"
    assert names[-1] == "clients"
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in names)
