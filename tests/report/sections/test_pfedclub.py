"""What pages and pictures show of teachers: hand-made notes, and those of a small run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.report import page, view
from intarsia.report.sections.pfedclub.page import _groups, _phi, _scores, _strips
from intarsia.report.sections.pfedclub.teachers import Piece, Reassembly, embed, pieces, read_reassembly
from tests.conftest import NEEDS, SMALL

TITLES = ("Functional groups", "Teachers", "Size of teachers", "What teachers know")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    changes = ["method=pfedclub", "sharing={}", "population.clients=4", "rounds=2", *NEEDS["pfedclub"]]
    return intarsia.run(SMALL, changes=changes, out=tmp_path_factory.mktemp("club") / "run")


def note(client, round, blocks, size, phi=0.0, itself=False, stitched=()):
    about = {"kind": "teacher", "client": client, "round": round, "blocks": blocks, "itself": itself}
    return about | {"parameters": size, "own_parameters": 100, "phi": phi, "stitched": list(stitched)}


def made(*notes, blocks=(("a", 0, 0), ("b", 0, 1)), similarity=((2.0, 1.0), (1.0, 2.0))):
    groups = {"round": 3, "blocks": [list(b) for b in blocks], "similarity": [list(r) for r in similarity]}
    return Reassembly(groups, notes, {"a": "cnn1", "b": ""})


def test_points_are_as_far_apart_as_blocks_are_unlike():
    # Squared distances of s_ii + s_jj - 2 s_ij: 2 between the first two, 4 from both to the third.
    similarity = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    points = embed(similarity)
    between = np.linalg.norm(points[:, None] - points[None], axis=2) ** 2
    assert between[0, 1] == pytest.approx(2)
    assert [between[0, 2], between[1, 2]] == pytest.approx([4, 4])
    assert embed(np.array([[2.0]])).tolist() == [[0.0, 0.0]]


def test_a_seam_is_where_pieces_do_not_follow_each_other():
    strip = pieces([("a", 0), ("a", 1), ("b", 2), ("a", 3), ("a", 5)])
    assert [piece.seam for piece in strip] == [False, False, True, True, True]
    assert strip[2] == Piece("b", 3, True)


def test_last_teachers_growth_and_phi():
    own = made(
        note("b", 1, [["b", 0]], 100, itself=True),
        note("a", 1, [["a", 0]], 150, 0.5),
        note("a", 2, [["b", 0]], 130, 0.4),
    )
    assert [(t.client, t.round, t.itself) for t in own.teachers] == [("a", 2, False), ("b", 1, True)]
    assert own.teachers[0].growth == pytest.approx(0.3)
    assert own.donors == ["b"]
    assert own.phi == {"a": [(1, 0.5), (2, 0.4)], "b": [(1, 0.0)]}
    assert own.own == pytest.approx(1 / 3)
    assert own.words("a") == "a (cnn1)"
    assert own.words("b") == "b"


def test_figures_of_the_page():
    stitched = note("a", 1, [["a", 0], ["b", 1]], 150, 0.5, stitched=[1, 2])
    own = made(stitched, note("b", 1, [["b", 0], ["b", 1]], 100))
    dots = _groups(own).traces
    assert [trace["name"] for trace in dots] == ["a (cnn1)", "b"]
    *bars, seams, stitches = _strips(own).traces
    assert {trace["name"]: len(trace["x"]) for trace in bars} == {"a (cnn1)": 1, "b": 3}
    assert seams["x"] == [1.0]
    assert stitches["x"] == [1.0, 2.0]
    assert set(stitches["y"]) == {"a (cnn1)"}
    assert [trace["y"] for trace in _phi(own).traces] == [[0.5], [0.0]]


def test_what_teachers_know_is_the_mean_of_the_clients_they_taught():
    score = lambda round, client, right, held: {  # noqa: E731
        "round": round, "client": client, "teacher_right": right, "teacher_right_among_held": held
    }  # fmt: skip
    rows = [(1, "a", 0.9), (2, "a", 0.5), (2, "b", 0.7), (2, "c", 0.1)]
    own = dataclasses.replace(
        made(note("a", 1, [["a", 0]], 100)),
        scored=[score(2, "a", 0.1, 0.4), score(2, "b", 0.3, 0.8)],
        training=[{"round": round, "client": client, "accuracy": value} for round, client, value in rows],
    )
    values = [[value for _, value in points] for points in own.teacher_scores.values()]
    assert values == [pytest.approx([0.2]), pytest.approx([0.6]), pytest.approx([0.6])]
    assert [trace["x"] for trace in _scores(own).traces] == [[2]] * 3


def test_a_run_of_another_method_has_none(small_run):
    run = small_run("rounds=1")
    assert read_reassembly(run) is None
    assert view(run).sections == []


def test_page_and_pictures_of_a_run(run, tmp_path):
    found = read_reassembly(run)
    assert found is not None
    assert {spot.client for spot in found.spots} == set(run.clients)
    assert set(found.models.values()) == {"short", "long"}
    assert all(0 <= place <= len(t.pieces) for t in found.teachers for place in t.stitched)
    text = page("title", "lead", [view(run)])
    assert all(f"<h2>{title}: pFedClub</h2>" in text for title in TITLES)
    arguments = [
        "compare",
        str(run.path),
        "--out",
        str(tmp_path / "c.html"),
        "--pictures",
        str(tmp_path / "p"),
    ]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    files = {path.name: path.stat().st_size for path in (tmp_path / "p").iterdir()}
    kinds = ("groups", "teachers", "phi", "knowledge", "mosaic")
    assert set(files) == {"curves.png", *(f"pfedclub-{kind}.png" for kind in kinds)}
    assert min(files.values()) > 5000
