"""All PNG pictures of some runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intarsia.report.assemblies import assemblies_of, left_out_by
from intarsia.report.curve_picture import curve_picture
from intarsia.report.mosaic import mosaic_of
from intarsia.report.mosaic_picture import draw_mosaic
from intarsia.report.pictures import file_stem
from intarsia.report.run_view import RunView
from intarsia.report.series import series_of

CURVES, MOSAIC = "curves", "mosaic"
"""How files are named: the curves of all runs; the mosaic of one, after its label."""


def run_pictures(views: Sequence[RunView], folder: Path) -> list[Path]:
    """Draw the curves of runs, and of each experiment's first seed the mosaic and what its method has to show."""
    curves = folder / f"{CURVES}.png"
    curve_picture(views, curves)
    first = (own.views[0] for own in series_of(views))
    return [curves, *(path for view in first for path in _of_one(view, folder))]


def _of_one(view: RunView, folder: Path) -> list[Path]:
    drawn = [path for section in view.sections for path in section.pictures(view.label, folder)]
    found = assemblies_of(view.run, left_out_by(view.sections))
    if found is None:
        return drawn
    path = folder / f"{file_stem(view.label)}-{MOSAIC}.png"
    draw_mosaic(mosaic_of(found), path, f"{view.label}: who shares what")
    return [path, *drawn]
