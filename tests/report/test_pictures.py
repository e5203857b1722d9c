"""PNG pictures: the colours of pages, legends beside what is drawn, whole rounds, many things told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import intarsia
from intarsia.report import pictures, views_of
from intarsia.report.canvas import save_canvas
from intarsia.report.mosaic_picture import PLAIN, TILES
from intarsia.report.pictures import Point
from intarsia.report.run_pictures import run_pictures
from intarsia.report.styles import method_style
from tests.report.sample import found_and_alone

METHODS = {"FedAvg": "fedavg", "ModFL stl": "modfl", "FedPer": "fedper"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved while a test runs, laid out."""
    found: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        save_canvas(figure, path)
        found.append(figure)

    for module in ("pictures", "curve_picture", "mosaic_picture"):
        monkeypatch.setattr(f"intarsia.report.{module}.save_canvas", keep)
    return found


def rows(columns: list[str]) -> dict[str, list[Point]]:
    return {
        name: [Point(column, 50.0 + n, 1.0, 52.0) for column in columns] for n, name in enumerate(METHODS)
    }


def beside(figure: Figure) -> bool:
    """Return whether the legend is within the picture, and not upon what is drawn."""
    (axes,) = figure.axes
    legend, drawn = axes.get_legend().get_window_extent(), axes.get_window_extent()
    return bool(legend.x0 >= drawn.x1 and legend.x1 <= figure.bbox.x1)


def test_methods_have_the_colours_of_pages(drawn, tmp_path):
    pictures.bars(rows(["1", "2"]), "t", "labels", "accuracy, %", tmp_path / "bars.png")
    pictures.lines(rows(["1", "2", "4"]), "t", "round", "accuracy, %", tmp_path / "lines.png")
    pictures.points(rows(["bytes", "accuracy"]), "t", "", "", tmp_path / "points.png")
    colours = [method_style(name).hex for name in METHODS.values()]
    bars, lines, points = drawn
    assert [to_hex(own[0].get_facecolor()) for own in bars.axes[0].containers if len(own) == 2][
        ::1
    ] == colours
    assert [to_hex(own.get_color()) for own in lines.axes[0].lines if len(own.get_xdata()) == 3] == colours
    assert [to_hex(own[0].get_color()) for own in points.axes[0].containers] == colours
    assert all(beside(figure) for figure in drawn)
    assert all(float(tick).is_integer() for tick in lines.axes[0].get_xticks())


def test_more_bars_than_can_be_read_are_fields_with_their_figures(drawn, tmp_path):
    many = {f"row {n}": [Point(str(c), 10.0 * n + c, None, 99.0) for c in range(7)] for n in range(8)}
    pictures.bars(many, "t", "column", "%", tmp_path / "many.png")
    axes, _ = drawn[0].axes
    assert np.array_equal(axes.images[0].get_array(), [[10.0 * n + c for c in range(7)] for n in range(8)])
    assert [text.get_text() for text in axes.texts[:2]] == ["0\n(99)", "1\n(99)"]


def test_who_holds_what_is_a_heat_map_from_40_clients_on(drawn, tmp_path):
    def about(number: int) -> dict[str, Any]:
        own = {"labels": {"train": [3, 1], "test": [1, 0]}, "cohort": "x"}
        return {"labels": ["cat", "dog"], "clients": {f"c$_{n}": own for n in range(number)}}

    for number in (39, 40):
        pictures.partition_picture(about(number), "t", tmp_path / f"{number}.png")
    bars, heat = drawn
    assert beside(bars)
    assert [len(own) for own in bars.axes[0].containers] == [39, 39]
    assert np.array_equal(heat.axes[0].images[0].get_array(), [[4] * 40, [1] * 40])


def test_a_profile_counts_whole_rounds(drawn, tmp_path):
    seconds = {1: {"train": 1.0, "clients": 0.5}, 2: {"train": 2.0, "clients": 0.5}}
    pictures.profile(seconds, ("train", "merge"), tmp_path / "p.png")
    assert beside(drawn[0])
    assert all(float(tick).is_integer() for tick in drawn[0].axes[0].get_xticks())


def test_pictures_of_runs_have_their_curves_and_mosaics(drawn, tmp_path):
    runs: list[intarsia.Run] = found_and_alone(tmp_path)
    paths = run_pictures(views_of(runs), tmp_path / "out")
    assert [path.name for path in paths] == ["curves.png", "modfl-mosaic.png", "local-mosaic.png"]
    curves, found, alone = drawn
    assert [to_hex(line.get_color()) for line in curves.axes[0].lines] == [
        method_style(name).hex for name in ("modfl", "local")
    ]
    assert beside(curves)
    assert list(curves.axes[0].lines[0].get_xdata()) == [1, 2, 3]
    after = {move["client"]: move["group"] for move in runs[0].groups}
    devices = {name: own["device"] for name, own in runs[0].population["clients"].items()}
    patches = [to_hex(patch.get_facecolor()) for patch in found.axes[0].patches]
    assert set(patches) <= {*TILES, *PLAIN.values()}
    assert len(set(patches)) == len(set(devices.values())) + len(set(after.values()))
    assert {to_hex(patch.get_facecolor()) for patch in alone.axes[0].patches} == {"#ffffff"}
