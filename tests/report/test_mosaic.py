"""Who shares what, with whom, and how it changed: assemblies of four clients made by hand."""

from __future__ import annotations

import pytest

from intarsia.blocks import ALL, ME
from intarsia.report.assemblies import LEFT_OUT, Assemblies, Moment, _moments
from intarsia.report.groups import _move_table, flow_of, members
from intarsia.report.mosaic import (
    ALONE,
    EVERYONE,
    NONE,
    OUT,
    OWN,
    WORDS,
    Palette,
    _patches,
    _within,
    in_patches,
    mosaic_of,
)

FIRST = len(WORDS)
START = {
    "a": {"base": "old", "middle": ALL, "head": ME},
    "b": {"base": "new", "middle": ALL, "head": ME},
    "c": {"base": "old", "middle": ALL, "head": ME},
    "d": {"base": "new", "middle": ALL},
}
MOVES = [
    {"round": 2, "client": "a", "block": "middle", "before": ALL, "group": "left"},
    {"round": 2, "client": "b", "block": "middle", "before": ALL, "group": "left"},
    {"round": 2, "client": "c", "block": "middle", "before": ALL, "group": "right"},
    {"round": 2, "client": "d", "block": "middle", "before": ALL, "group": "right"},
    {"round": 5, "client": "b", "block": "middle", "before": "left", "group": "right"},
]


@pytest.fixture
def assemblies() -> Assemblies:
    return Assemblies(
        _moments(START, MOVES, {3: {"d": ["base"]}}), {"a": {"base": 8, "middle": 4, "head": 2}}
    )


def test_a_moment_is_when_something_changed(assemblies):
    assert [moment.round for moment in assemblies.moments] == [0, 2, 3, 5]
    assert [moment.groups["b"]["middle"] for moment in assemblies.moments] == [ALL, "left", "left", "right"]
    assert [moment.groups["d"]["base"] for moment in assemblies.moments] == ["new", "new", LEFT_OUT, LEFT_OUT]
    assert START["a"]["middle"] == ALL


def test_blocks_stand_in_the_order_of_models():
    own = {"x": {"stem": ALL, "head": ALL}, "y": {"stem": ALL, "wide": ALL, "deep": ALL, "head": ALL}}
    assert Assemblies([Moment(0, own)]).blocks == ["stem", "wide", "deep", "head"]


def test_tiles_say_who_shares_what(assemblies):
    """Groups get colours block by block; what one client holds, nobody uses or stays at home has none."""
    palette = Palette.of(assemblies)
    assert palette.groups == ["new", "old", "left", "right"]
    new, old, left, right = range(FIRST, FIRST + 4)
    tiles = [palette.tiles(moment, assemblies) for moment in assemblies.moments]
    assert tiles[0] == [[old, new, old, new], [EVERYONE] * 4, [OWN, OWN, OWN, NONE]]
    assert tiles[1][1] == [left, left, right, right]
    assert tiles[2][0] == [old, ALONE, old, OUT]
    assert tiles[3][1] == [ALONE, right, right, right]


def test_the_mosaic_lays_those_together_who_share(assemblies):
    mosaic = mosaic_of(assemblies)
    assert [row.name for row in mosaic.rows] == ["base", "middle", "head"]
    assert [row.bytes for row in mosaic.rows] == [8, 4, 2]
    assert sorted(mosaic.clients) == ["a", "b", "c", "d"]
    for round, tiles in mosaic.moments:
        moment = next(m for m in assemblies.moments if m.round == round)
        for block, row in zip(("base", "middle", "head"), tiles, strict=True):
            for one, mine in zip(mosaic.clients, row, strict=True):
                for other, its in zip(mosaic.clients, row, strict=True):
                    groups = [moment.groups[client].get(block) for client in (one, other)]
                    if groups[0] == groups[1]:
                        assert mine == its
                    elif mine == its:
                        assert mine == ALONE


def test_columns_go_to_and_fro_so_that_patches_meet():
    tiles = [[1, 2, 1, 2, 1, 2], [5, 5, 6, 6, 7, 7]]
    order = in_patches(range(6), tiles)
    assert [[row[place] for place in order] for row in tiles] == [[1, 1, 1, 2, 2, 2], [5, 6, 7, 7, 6, 5]]


def test_many_alike_blocks_are_one_row():
    own = {client: {f"layer{n:02d}": ALL if n < 20 else ME for n in range(30)} for client in "ab"}
    mosaic = mosaic_of(Assemblies([Moment(0, own)], {"a": dict.fromkeys(own["a"], 3)}))
    assert [(row.name, row.bytes) for row in mosaic.rows] == [
        ("layer00 to layer19", 60),
        ("layer20 to layer29", 30),
    ]
    assert mosaic.tiles == [[EVERYONE] * 2, [OWN] * 2]


def test_a_page_carries_as_many_rounds_as_it_has_room_for():
    assert _patches([5, 5, 6, 5]) == [5, 2, 6, 1, 5, 1]
    moments = [(round, [[round % 3, 1, 2, 3]]) for round in range(100)]
    kept = _within(moments, 40)
    assert (kept[0][0], kept[-1][0]) == (0, 99)
    assert len(kept) == pytest.approx(10, abs=1)
    assert _within(moments, 10_000) == moments


def test_flows_count_who_went_where(assemblies):
    flow = flow_of(assemblies, "middle")
    assert flow["rounds"] == [0, 2, 5]
    assert [[(size, name) for _, size, name in own] for own in flow["columns"]] == [
        [(4, ALL)],
        [(2, "left"), (2, "right")],
        [(1, "left"), (3, "right")],
    ]
    assert flow["flows"] == [[[0, 0, 2], [0, 1, 2]], [[0, 0, 1], [0, 1, 1], [1, 1, 2]]]
    assert members(assemblies.last, "base") == {"a": "old", "b": "new", "c": "old"}


def test_moves_are_told_newest_first():
    told = _move_table(MOVES)
    assert "Who changed groups: 3 changes" in told
    cells = [line.split("</tr>")[0] for line in told.split("<tr>")[2:]]
    assert ["5" in own.split("</th>")[0] for own in cells] == [True, False, False]
    assert "left</td>" in cells[0]
    assert "right</td>" in cells[0]
    assert "c, d" in cells[2]
