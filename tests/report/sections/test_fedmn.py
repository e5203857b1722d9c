"""What the page shows of FedMN's decisions: hand-made ones, and those of a small run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core.text import size
from intarsia.judging.agreement import adjusted_rand
from intarsia.methods.fedmn.links import count_links, effective_links, link_ends, matrices
from intarsia.methods.modfl.cohorts import group_decisions
from intarsia.report import page, view
from intarsia.report.elements import evenly
from intarsia.report.sections.fedmn import AssembledNetworks
from intarsia.report.sections.fedmn.decisions import (
    Decisions,
    Sent,
    contingency,
    implicit_clusters,
    matches,
    payload,
    read_decisions,
)
from intarsia.report.sections.fedmn.networks import MOST_SHOWN, network, network_sheet
from intarsia.report.sections.fedmn.page import _clusters, _losses, _networks, _use, payload_table
from tests.conftest import SMALL

LAYERS = (1, 2, 2)
POOL = {
    "method": {"name": "fedmn", "standardise": "population"},
    "sharing": {},
    "population": {"name": "digits", "clients": 8, "cohorts": 2, "generations": ["8x8"]},
    "model": {"name": "module_pool", "layers": list(LAYERS), "features": 16, "hidden": 16},
}
TITLES = ("Assembled networks", "Use of blocks", "Clusters and cohorts", "Global loss", "What travelled")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    return intarsia.run(SMALL | POOL, out=tmp_path_factory.mktemp("fedmn") / "run")


@pytest.fixture(scope="module")
def decisions(run: intarsia.Run) -> Decisions:
    found = read_decisions(run)
    assert found is not None
    return found


def row(client, gates, round=1, stage="own", blocks=(), fallback=False):
    about = {"client": client, "round": round, "stage": stage, "gates": gates}
    return about | {"blocks": list(blocks), "fallback": fallback}


def made(rows, cohorts, layers=LAYERS):
    return Decisions(layers, rows, {}, cohorts, payload([]))


# Links of (1, 2, 2): e-a, e-b; a-1, a-2, b-1, b-2; 1-out, 2-out.
UPPER = [1, 0, 1, 0, 0, 0, 1, 0]
LOWER = [0, 1, 0, 0, 0, 1, 0, 1]
LOWER_AND_IDLE = [0, 1, 1, 0, 0, 1, 1, 1]
"""The same network: `block2-1` is not reached, so that its link to `head1` counts for nothing."""


def test_links_are_numbered_as_the_pool_reads_them():
    for layers in (LAYERS, (2, 3), (1, 4, 3), (2, 2, 2, 1)):
        ways = matrices(layers, torch.arange(count_links(layers)))
        numbers = [int(ways[layer][j, k]) for (layer, j), (_, k) in link_ends(layers)]
        assert numbers == list(range(count_links(layers)))


def test_only_links_between_active_blocks_are_effective():
    assert effective_links(LAYERS, LOWER_AND_IDLE) == [bool(gate) for gate in LOWER]
    assert sum(effective_links(LAYERS, LOWER_AND_IDLE)) == 3
    assert effective_links(LAYERS, [1, 1, 1, 1, 1, 1, 0, 0]) == [False] * 8
    assert effective_links(LAYERS, [1.0] * 8) == [True] * 8


def test_a_network_has_its_active_blocks_and_used_links():
    net = network(LAYERS, effective_links(LAYERS, LOWER_AND_IDLE))
    assert net.links == [("encoder1", "block2-2"), ("block2-2", "head2"), ("head2", "output")]
    assert net.active == {"encoder1", "block2-2", "head2"}
    assert {name: (spot.x, spot.y) for name, spot in net.spots.items()} == {
        "encoder1": (0, 0),
        "block2-1": (1, 0.5),
        "block2-2": (1, -0.5),
        "head1": (2, 0.5),
        "head2": (2, -0.5),
        "output": (3, 0),
    }


def test_clients_with_equal_effective_links_form_a_cluster():
    gates = {"a": UPPER, "b": LOWER, "c": LOWER_AND_IDLE}
    own = made([row(name, own) for name, own in gates.items()], dict.fromkeys(gates, "x"))
    assert own.clusters == {"a": 2, "b": 1, "c": 1}
    assert implicit_clusters({}) == {}


def test_clients_are_ordered_by_cohort_then_cluster():
    gates = {"a": UPPER, "b": LOWER, "c": LOWER, "d": UPPER, "e": LOWER}
    cohorts = {"a": "y", "b": "x", "c": "y", "d": "x", "e": "x"}
    own = made([row(name, gate) for name, gate in gates.items()], cohorts)
    assert own.clients == ["b", "e", "d", "c", "a"]


def test_only_the_last_own_decisions_count_as_final():
    rows = [row("a", UPPER), row("a", LOWER, round=2), row("a", UPPER, round=2, stage="train")]
    own = made(rows, {"a": "x"})
    assert own.rounds == [1, 2]
    assert own.final == {"a": [bool(gate) for gate in LOWER]}


def test_use_is_the_share_of_rounds_so_far():
    rows = [
        row("a", UPPER, 1, blocks=["encoder1", "block2-1", "head1"]),
        row("a", LOWER, 2, blocks=["encoder1", "block2-2", "head2"]),
        row("a", UPPER, 2, stage="train", blocks=["encoder1"]),
        row("a", LOWER, 4, blocks=["encoder1", "block2-2", "head1", "head2"]),
    ]
    own = made(rows, {"a": "x"})
    assert own.blocks == ["encoder1", "block2-1", "block2-2", "head1", "head2"]
    assert own.use(1) == [[1, 1, 0, 1, 0]]
    assert own.use(2) == [[1, 0.5, 0.5, 0.5, 0.5]]
    assert own.use(4) == [
        [1, pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3)]
    ]


def test_fallbacks_are_counted_by_round_and_stage():
    rows = [
        row("a", UPPER, 1, fallback=True),
        row("b", UPPER, 1, fallback=True),
        row("a", UPPER, 2),
        row("a", UPPER, 1, stage="train", fallback=True),
    ]
    own = made(rows, {"a": "x", "b": "x"})
    assert own.fallbacks("own") == {1: 2, 2: 0}
    assert own.fallbacks("train") == {1: 1}


def test_groups_of_decisions():
    gates = [[1, 1, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 0]]
    found = group_decisions(gates, 2)
    assert adjusted_rand(found, [0, 1, 0, 1, 0]) == 1
    assert adjusted_rand(group_decisions(gates, 9), [0, 1, 2, 1, 0]) == 1
    assert group_decisions(gates, 1) == [0] * 5
    assert group_decisions([[1, 0]] * 4, 3) == [0] * 4
    backwards = group_decisions(gates[::-1], 2)[::-1]
    assert backwards == found


def test_adjusted_rand_index_of_a_known_case():
    """4 of 15 pairs are together in one, 7 in the other, 3 in both (Hubert and Arabie 1985)."""
    given, found = ["x", "x", "x", "y", "y", "z"], [1, 1, 1, 1, 2, 2]
    both, expected, most = 3, 4 * 7 / 15, (4 + 7) / 2
    assert adjusted_rand(given, found) == pytest.approx((both - expected) / (most - expected))
    assert adjusted_rand(["x", "x", "y"], [5, 5, 1]) == 1


def test_matches_compare_clusters_and_groups_with_cohorts():
    """Three clusters, of which linkage joins the two that differ by one link."""
    near = [1, 1, 1, 0, 1, 0, 1, 0]
    gates = {"a": UPPER, "b": UPPER, "c": near, "d": LOWER, "e": LOWER}
    cohorts = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"}
    equal, alike = matches(made([row(name, gate) for name, gate in gates.items()], cohorts))
    assert len(set(equal.groups.values())) == 3
    assert equal.rand == pytest.approx(adjusted_rand_score([0, 0, 0, 1, 1], [0, 0, 1, 2, 2]))
    assert alike.groups == {"a": 1, "b": 1, "c": 1, "d": 2, "e": 2}
    assert alike.rand == 1
    assert contingency(cohorts, alike.groups) == [[3, 0], [0, 2]]
    one = made([row(name, gate) for name, gate in gates.items()], dict.fromkeys(gates, ""))
    assert [match.rand for match in matches(one)] == [None, None]


def test_evenly():
    assert evenly([1, 2, 3], 5) == [1, 2, 3]
    assert evenly(range(1, 10), 5) == [1, 3, 5, 7, 9]
    assert evenly(range(100), 24)[0] == 0
    assert evenly(range(100), 24)[-1] == 99
    assert len(set(evenly(range(25), 24))) == 24


def test_payload_counts_training_only_and_by_kind():
    def sent(block, direction, count, purpose="train"):
        return {"block": block, "direction": direction, "bytes": count, "purpose": purpose}

    rows = [sent("block2-1", "up", 5), sent("block3-1", "up", 6), sent("head1", "down", 7), sent("", "up", 0)]
    rows += [sent("encoder1", "down", 100), sent("router", "up", 1000), sent("head1", "down", 9, "evaluate")]
    found = payload(rows)
    assert found["blocks"] == {"down": Sent(0, 0), "up": Sent(2, 11)}
    assert found["heads"] == {"down": Sent(1, 7), "up": Sent(0, 0)}
    table = payload_table(found)
    assert cells(table, "all") == ["2", "107 B", "3", "1.01 kB"]
    assert cells(table, "without router") == ["2", "107 B", "2", "11 B"]
    assert cells(table, "without encoders and router") == ["1", "7 B", "2", "11 B"]
    assert payload([sent("gates", "up", 3)])["other"]["up"] == Sent(1, 3)


def cells(table: str, name: str) -> list[str]:
    """Return the cells of a table's row."""
    line = table.split(f">{name}</th>")[1].split("</tr>")[0]
    return [cell.removesuffix("</td>") for cell in line.split("<td>")[1:]]


def test_the_page_has_the_sections_of_a_run(run):
    text = page("t", "l", [view(run)])
    for title in TITLES:
        assert f"<h2>{title}" in text


def test_a_run_without_notes_shows_none_of_it(small_run):
    shown = view(small_run())
    assert shown.sections == []
    assert not any(title in page("t", "l", [shown]) for title in TITLES)


def test_a_run_that_never_decided_shows_none_of_it(tmp_path):
    """All rounds are pretraining: there is a pool, but no decision."""
    changes = ["method.pretraining=1", "rounds=1"]
    assert read_decisions(intarsia.run(SMALL | POOL, changes=changes, out=tmp_path / "r")) is None


def test_drawn_networks_are_those_of_the_notes(run, decisions):
    sheet = network_sheet(decisions)
    last = [n for n in run.notes if n["kind"] == "decision" and (n["round"], n["stage"]) == (3, "own")]
    assert Counter(spot.name for spot in sheet.active) == Counter(b for n in last for b in n["blocks"])
    assert len(sheet.active) + len(sheet.idle) == 8 * sum(LAYERS)
    assert len(sheet.lines) == sum(sum(effective_links(LAYERS, n["gates"])) for n in last)
    figure = _networks(decisions)
    assert len(figure.traces[0]["x"]) == 3 * len(sheet.lines)
    assert [len(trace["x"]) for trace in figure.traces[1:]] == [len(sheet.idle), len(sheet.active), 8, 8]


def test_at_most_24_networks_are_drawn_and_the_rest_is_counted():
    names = [f"c{number:02d}" for number in range(30)]
    own = made([row(name, UPPER) for name in names], dict.fromkeys(names, "x"))
    sheet = network_sheet(own)
    assert len(sheet.titles) == MOST_SHOWN
    assert sheet.titles[0].name.startswith("c00, x, cluster 1")
    assert sheet.titles[-1].name.startswith("c29")
    few = replace(own, rows=own.rows[:24])
    shown = ["".join(text for _, text in AssembledNetworks(d).parts("FedMN")) for d in (own, few)]
    assert "24 clients are shown, taken evenly; 6 are left out." in shown[0]
    assert "left out" not in shown[1]


def test_heat_maps_show_the_use_of_blocks(run, decisions):
    panels = _use(decisions)
    assert [title for title, _ in panels] == ["to round 1", "to round 2", "to round 3"]
    own = [n for n in run.notes if n["kind"] == "decision" and n["stage"] == "own"]
    for (_, figure), moment in zip(panels, (1, 2, 3), strict=True):
        for name, line in zip(decisions.clients, figure.traces[0]["z"], strict=True):
            rounds = [n["blocks"] for n in own if n["client"] == name and n["round"] <= moment]
            assert list(line) == [sum(b in r for r in rounds) / moment for b in decisions.blocks]
    about = run.population["clients"]
    assert panels[0][1].traces[0]["y"] == [f"{name} ({about[name]['cohort']})" for name in decisions.clients]


def test_the_table_of_clusters_has_the_indices_of_the_notes(run, decisions):
    last = [n for n in run.notes if n["kind"] == "decision" and (n["round"], n["stage"]) == (3, "own")]
    given = [run.population["clients"][n["client"]]["cohort"] for n in last]
    links = [tuple(effective_links(LAYERS, n["gates"])) for n in last]
    clusters = [links.index(own) for own in links]
    groups = group_decisions(links, 2)
    text = page("t", "l", [view(run)])
    assert cells(text, "Groups by equal decisions") == [
        str(len(set(links))),
        f"{adjusted_rand_score(given, clusters):.3f}",
    ]
    assert cells(text, "Groups by average linkage, Hamming distance") == [
        str(len(set(groups))),
        f"{adjusted_rand_score(given, groups):.3f}",
    ]
    heats = [figure.traces[0]["z"] for _, figure in _clusters(decisions, matches(decisions))]
    assert [sum(map(sum, heat)) for heat in heats] == [8, 8]
    assert sorted(n for line in heats[0] for n in line if n) == sorted(
        Counter(zip(given, links, strict=True)).values()
    )


def test_lines_are_the_global_loss_and_the_fallbacks(run, decisions):
    loss, train, own = (trace for _, figure in _losses(decisions) for trace in figure.traces)
    assert loss["y"] == [n["value"] for n in run.notes if n["kind"] == "global loss"]
    assert loss["x"] == [1, 2, 3]
    for line, stage in ((train, "train"), (own, "own")):
        counted = Counter(n["round"] for n in run.notes if n.get("stage") == stage and n["fallback"])
        assert line["y"] == [counted[round] for round in (1, 2, 3)]


def test_the_table_of_what_travelled_adds_up(run):
    text = page("t", "l", [view(run)])
    down, up = run.summary["bytes"]["down"], run.summary["bytes"]["up"]
    assert cells(text, "all")[1::2] == [size(down), size(up)]
    rows = [r for r in run.traffic if r["purpose"] == "train" and r["direction"] == "up"]
    modules = [r for r in rows if r["block"].startswith(("block", "head"))]
    assert cells(text, "without encoders and router")[2:] == [
        str(len(modules)),
        size(sum(r["bytes"] for r in modules)),
    ]


def test_pictures_are_written(run, tmp_path):
    folder = tmp_path / "new"
    wanted = ["compare", str(run.path), "--out", str(tmp_path / "page.html"), "--pictures", str(folder)]
    done = CliRunner().invoke(app, wanted)
    assert done.exit_code == 0, done.output
    paths = sorted(folder.iterdir())
    kinds = ("clusters", "mosaic", "networks", "use")
    assert [path.name for path in paths] == ["curves.png", *(f"fedmn-{kind}.png" for kind in kinds)]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
