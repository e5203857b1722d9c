"""The harness of `make bench`: its statistics by hand, its protocol with real processes, its table and page."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.speed import __main__ as command
from benchmarks.speed import entries, federated, page, protocol, reference
from benchmarks.speed.__main__ import arguments, main, measure_all, plan_of, quicker
from benchmarks.speed.contestants import flower_peer
from benchmarks.speed.entries import Unavailable, entry
from benchmarks.speed.federated import Plan
from benchmarks.speed.measuring import Measurement, Watch, tree
from benchmarks.speed.protocol import Broken, Entry, bootstrap, compare, play
from benchmarks.speed.results import FIELDS, Results
from benchmarks.speed.studies import STUDIES
from benchmarks.speed.task import Task
from benchmarks.speed.workloads import FEDERATED, LOOPS, PEERS, Workload
from safetensors.torch import save_file

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

TINY = Workload(
    "tiny", "a tiny MLP", "mlp", (6,), clients=5, samples=8, batch=4, cohort=2, rounds=1, outputs=3, hidden=(4,),
    model={"name": "mlp", "hidden": [4]}, lr=0.1, check=2, against=("plain-1", "by-hand", "fedlab"),
)  # fmt: skip


def measured(wall: float, cpu: float = 1.0, foreign: float = 0.0) -> Measurement:
    return Measurement(wall, cpu, foreign)


def row(**more: Any) -> dict[str, Any]:
    plain = {"ratio": 2.0, "low": 1.5, "high": 2.5, "cpu_ratio": 1.8, "pairs": 9}
    return {"workload": "cifar-b20", "against": "plain", **plain, **more}


def test_the_ratio_is_the_median_of_paired_ratios_and_not_a_ratio_of_medians():
    pairs = [(1.0, 2.0), (2.0, 6.0), (5.0, 5.0)]
    blocks = [{"ours": measured(a, cpu=1.0), "plain": measured(b, cpu=1.5)} for a, b in pairs]
    found = compare(blocks, "ours", "plain", pairs=3)
    assert found["ratio"] == 2.0  # of 2, 3 and 1; the medians of the sides would give 5 / 2
    assert found["cpu_ratio"] == 1.5
    assert found["seconds"] == [2.0, 5.0]
    assert found["pairs"] == 3
    assert 1.0 <= found["low"] <= 2.0 <= found["high"] <= 3.0


def test_the_least_disturbed_pairs_count_and_the_rest_is_said():
    blocks = [
        {"ours": measured(1.0, foreign=f), "plain": measured(ratio)}
        for f, ratio in ((0.0, 2.0), (1.5, 9.0), (0.1, 4.0), (0.9, 8.0))
    ]
    assert compare(blocks, "ours", "plain", pairs=2) | {"low": 0, "high": 0} == {
        "ratio": 3.0,
        "low": 0,
        "high": 0,
        "cpu_ratio": 1.0,
        "pairs": 2,
        "seconds": [1.0, 3.0],
        "cpu_seconds": [1.0, 1.0],
        "foreign": pytest.approx(0.05),
        "disturbed": 0,
    }
    assert compare(blocks, "ours", "plain", pairs=3)["disturbed"] == 1


def test_the_bootstrap_of_two_values_is_known():
    # The median of two draws from {1, 3} is 1, 2 or 3, with probabilities 1/4, 1/2 and 1/4.
    assert bootstrap([1.0, 3.0]) == (1.0, 3.0)
    assert bootstrap([2.0] * 9) == (2.0, 2.0)
    low, high = bootstrap([1.0, *[2.0] * 7, 3.0])
    assert (low, high) == (2.0, 2.0)  # that five of nine draws are the one outlier is rarer than 1 in 500
    assert bootstrap([1.0, 2.0, 4.0]) == bootstrap([1.0, 2.0, 4.0])


def test_everyone_plays_once_a_block_and_the_order_rotates():
    played: list[str] = []

    def measure(name: str) -> Measurement:
        played.append(name)
        return measured(1.0)

    assert len(play(["a", "b", "c"], measure, pairs=3, repeats=2)) == 3
    assert "".join(played) == "abcbcacab"


def test_disturbed_blocks_are_repeated_but_not_forever():
    loads = iter([0.0, 1.0, 0.0, 0.0])
    assert len(play(["a"], lambda _: measured(1.0, foreign=next(loads)), pairs=3, repeats=2)) == 4
    assert len(play(["a"], lambda _: measured(1.0, foreign=1.0), pairs=3, repeats=2)) == 5


def test_ours_and_loops_end_with_the_references_weights_through_the_real_protocol(capsys):
    rows, skipped = federated.run(TINY, Plan(pairs=2, repeats=0))
    assert [r["against"] for r in rows] == ["plain-1", "by-hand"]
    assert list(skipped) == ["fedlab"]
    for r in rows:
        assert set(FIELDS) <= r.keys()
        assert r["difference"] < 1e-6
        assert r["low"] <= r["ratio"] <= r["high"]
        assert (r["pairs"], r["samples"]) == (2, 16)
    assert "ours: weights differ from the reference by" in capsys.readouterr().out


def test_wrong_weights_are_found(tmp_path):
    TINY.write(tmp_path, 3)
    truth = reference.weights_after(Task(tmp_path), 2)
    moved = {name: tensor.float() for name, tensor in truth.items()}
    start = Task(tmp_path).weights
    save_file(moved, tmp_path / "same")
    assert reference.difference(tmp_path / "same", truth, start).tolerable()
    moved["head.bias"] = moved["head.bias"] + 0.25
    save_file(moved, tmp_path / "moved")
    found = reference.difference(tmp_path / "moved", truth, start)
    assert found.largest == pytest.approx(0.25)
    assert not found.tolerable()
    save_file(start, tmp_path / "start")
    assert reference.difference(tmp_path / "start", truth, start).share == pytest.approx(1.0)
    save_file({"other": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match="other names"):
        reference.difference(tmp_path / "other", truth, start)


def test_a_contestant_that_ends_is_named_with_its_last_words(tmp_path):
    lost = Entry("lost", "", ("sh", "-c", "echo out of luck >&2; exit 3")).start(tmp_path, tmp_path / "log")
    try:
        with pytest.raises(Broken, match="lost ended: out of luck"):
            lost.ready()
    finally:
        lost.stop()


def test_peers_that_need_a_checkout_are_left_out_by_name():
    with pytest.raises(Unavailable, match="--pfllib PATH"):
        entry("pfllib", {})
    assert entry("pfllib", {"pfllib": Path("x")}).command[-1].endswith("x")


def test_a_tree_holds_all_that_descend():
    known = {1: (0, 0.0), 5: (1, 0.0), 6: (5, 0.0), 7: (2, 0.0), 8: (6, 0.0)}
    assert sorted(tree(5, known)) == [5, 6, 8]


def test_results_have_one_row_a_comparison_and_are_updated_in_place(tmp_path):
    results = Results(tmp_path)
    results.put([row(), row(against="pfl")])
    results.put([row(ratio=3.0), row(workload="job")])
    read = json.loads((tmp_path / "results.json").read_text())
    assert [(r["workload"], r["against"], r["ratio"]) for r in read] == [
        ("cifar-b20", "plain", 3.0),
        ("cifar-b20", "pfl", 2.0),
        ("job", "plain", 2.0),
    ]
    with pytest.raises(ValueError, match="no cpu_ratio"):
        results.put([{k: v for k, v in row().items() if k != "cpu_ratio"}])


def test_the_page_shows_ratios_costs_and_who_was_left_out(tmp_path):
    results = Results(tmp_path)
    assert "Nothing was measured yet" in page.render(results)
    sides = {"seconds": [1.5, 3.0], "cpu_seconds": [2.4, 4.32], "samples": 3000, "disturbed": 1}
    results.put([row(**sides), row(workload="growth 1,000 clients", against="100 clients", cpu_ratio=None)])
    results.note("cifar-b20", {"flower": "no unshare", "pfl": "cannot get https://host/x into /home/me/y"})
    text = page.render(results)
    assert (
        "| plain | **2.00** | 1.50 - 2.50 | 1.80 | 9 | 500 us a sample (800 CPU); 1.50 s (2.40 CPU) |" in text
    )
    assert "| 1,000 clients against 100 clients | **2.00** | 1.50 - 2.50 |  | 9 |" in text
    assert "- **flower** in cifar-b20: no unshare" in text
    assert "- **pfl** in cifar-b20: cannot get ... into ..." in text
    assert f"PyTorch {torch.__version__.partition('+')[0]}" in text
    assert "All of it takes" not in text
    for name in (*FEDERATED, *STUDIES):
        results.note(name, {}, 60.0)
    assert f"All of it takes {len(FEDERATED) + len(STUDIES)} minutes." in page.render(results)


def test_a_reason_to_leave_someone_out_stands_until_there_is_a_figure(tmp_path):
    results = Results(tmp_path)
    results.note("job", {"flower": "no unshare", "pfl": "no network"}, 100.4)
    results.put([row(workload="job", against="pfl")])
    results.note("job", {})
    assert results.circumstances["skipped"] == {"job": {"flower": "no unshare"}}
    assert results.circumstances["seconds"] == {"job": 100}


def test_every_workload_has_a_quick_form_and_known_opponents():
    for workload in FEDERATED.values():
        assert set(workload.against) <= {*LOOPS, *PEERS}
        assert quicker(workload).samples_a_round <= 200


def test_fewer_pairs_than_are_published_are_a_trial(monkeypatch, tmp_path):
    given = arguments(["--workloads", "job", "cka", "--against", "plain", "pfl"])
    assert given.workloads == ["job", "cka"]
    assert plan_of(given) == Plan(pairs=9, repeats=3, against=("plain", "pfl"))
    assert plan_of(arguments(["--pairs", "2"])).repeats == 0
    assert plan_of(arguments(["--quick"])) == Plan(3, 0, (*LOOPS, *PEERS), quick=True)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "measure", lambda name, plan, results: results.put([row(workload=name)]))
    (tmp_path / "docs").mkdir()
    for pairs, folder in (("8", "benchmarks/.trials"), ("9", "benchmarks")):
        monkeypatch.setattr(sys, "argv", ["speed", "--workloads", "job", "--pairs", pairs])
        main()
        assert [r["workload"] for r in Results(tmp_path / folder).rows] == ["job"]
    assert "## job" in (tmp_path / "docs" / "benchmarks.md").read_text()


def test_one_workload_that_fails_or_an_interruption_loses_nothing(monkeypatch, tmp_path, capsys):
    def measure(name: str, plan: Plan, results: Results) -> None:
        if name == "lstm-b8":
            raise Broken("ours ended: out of luck")
        if name == "cka":
            raise KeyboardInterrupt
        results.put([row(workload=name)])

    monkeypatch.setattr(command, "measure", measure)
    results, target = Results(tmp_path), tmp_path / "page.md"
    assert measure_all(["job", "lstm-b8", "mlp-b10"], Plan(), results, target) == ["lstm-b8"]
    assert "lstm-b8 failed: ours ended: out of luck" in capsys.readouterr().out
    assert [r["workload"] for r in results.rows] == ["job", "mlp-b10"]
    with pytest.raises(SystemExit, match='make bench WORKLOADS="lstm-b8 cka growth"'):
        measure_all(["lstm-b8", "cka", "growth"], Plan(), results, target)
    assert "## mlp-b10" in target.read_text()


def test_a_job_is_measured_from_start_to_its_own_end():
    job = replace(TINY, rounds=3, check=1, job=True, evaluate_every=3, against=("plain-1",))
    rows, skipped = federated.run(job, Plan(pairs=1, repeats=0))
    assert [r["against"] for r in rows] == ["plain-1"]
    assert not skipped
    assert min(rows[0]["seconds"]) > 0.3  # Python and torch alone take longer to load


def test_the_last_rounds_let_a_contestant_end_by_itself(tmp_path):
    TINY.write(tmp_path, 3)
    plain = entry("plain-1", {}).start(tmp_path, tmp_path / "log")
    try:
        plain.ready()
        assert plain.ask(rounds=3, last=True)["wall"] > 0
        assert plain.process.wait(timeout=60) == 0
    finally:
        plain.stop()


def test_an_environment_is_made_once_and_again_for_other_packages(monkeypatch, tmp_path):
    ran: list[tuple[str, ...]] = []

    def run(what: str, *words: str) -> None:
        ran.append(words)
        (tmp_path / "pfl").mkdir(exist_ok=True)

    monkeypatch.setattr(entries, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(entries, "_run", run)
    assert entries.environment("pfl") == tmp_path / "pfl" / "bin" / "python"
    assert entries.environment("pfl") == tmp_path / "pfl" / "bin" / "python"
    assert [words[1:3] for words in ran] == [("-m", "venv"), ("-m", "pip")]
    assert f"torch=={torch.__version__.partition('+')[0]}" in ran[1]
    monkeypatch.setitem(entries.PACKAGES, "pfl", "pfl>=0.7")
    entries.environment("pfl")
    assert ran[-1][-1] == "pfl>=0.7"


def test_ray_is_not_started_where_there_is_a_network(monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    with pytest.raises(SystemExit, match=r"other interfaces than lo \(eth0\)"):
        flower_peer.isolate()


def test_what_this_process_uses_is_not_foreign_when_it_is_watched():
    watch = Watch(os.getpid())
    start = time.process_time()
    while time.process_time() - start < 0.3:
        pass
    used = watch.stop()
    assert used.cpu == pytest.approx(0.3, abs=0.1)
    assert used.foreign <= len(os.sched_getaffinity(0)) - used.cpu / used.wall + 0.2


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_bench_passes_its_choices_on():
    words = ["make", "-n", "bench", "QUICK=1", "WORKLOADS=job cka", "AGAINST=pfl"]
    shown = subprocess.run(words, cwd=protocol.ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m benchmarks.speed --quick --workloads job cka" in shown
    assert "--against pfl" in shown
