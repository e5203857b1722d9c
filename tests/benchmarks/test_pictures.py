"""The README's picture: clients in one order for all methods, what each is worth beside its tiles."""

from __future__ import annotations

from benchmarks import pictures

from intarsia.report import view
from tests.report.sample import found_and_alone


def test_the_picture_shows_methods_one_below_the_other(tmp_path):
    views = {run.path.name: view(run) for run in found_and_alone(tmp_path)}
    modfl, local = pictures.shown_of(views)
    assert modfl.mosaic.clients == local.mosaic.clients
    groups = {move["client"]: move["group"] for move in views["modfl"].run.groups}
    row = modfl.mosaic.tiles[1]
    for one, mine in zip(modfl.mosaic.clients, row, strict=True):
        for other, its in zip(modfl.mosaic.clients, row, strict=True):
            assert (mine == its) == (groups[one] == groups[other])
    pictures.draw([modfl, local], tmp_path / "hero.png")
    assert 10_000 < (tmp_path / "hero.png").stat().st_size < 200_000
