"""Published experiments: what is run, read, written and gone on with."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

import intarsia
from intarsia.papers import STUDIES, carry_out, get
from intarsia.papers.modfl.studies import match
from intarsia.papers.runner import Results
from intarsia.papers.study import Cell, Scale, StudyRun, pooled, study
from intarsia.papers.study_page import spread, write_report
from tests.cli.called import call
from tests.conftest import SMALL

FIELDS = {"row", "column", "paper", "ours", "std", "seeds", "scale", "remark"}
DEBUG = {"engine": {"name": "debug", "device": "cpu"}}


@study(
    "on-digits",
    "A study on digits",
    "rounds",
    {"small": Scale(clients=8, rounds=2, seeds=2, every=1)},
    paper={("FedAvg 8x8", "2"): 50.0, ("FedAvg mars", "2"): 40.0},
)
def on_digits(scale, seed):
    """A study on the embedded data, and one run whose data set is nowhere."""
    settings = {**SMALL, "rounds": scale.rounds}
    elsewhere = {**settings, "population": {"name": "images", "dataset": "realworld"}}
    local = {**settings, "method": "local", "sharing": {}}
    yield StudyRun("FedAvg", settings, lambda run: {("FedAvg 8x8", "2"): pooled(run, "8x8")[scale.rounds]})
    yield StudyRun("Mars", elsewhere, lambda run: {("FedAvg mars", "2"): 0.0})
    yield StudyRun("Local", local, lambda run: {("Local, n", "2"): 1.0})


@pytest.fixture
def digits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, scale = on_digits.scale("small")
    return lambda seeds=2: carry_out(on_digits, words, scale, seeds, tmp_path / "out", tmp_path / "runs")


def table(folder):
    return {(c["row"], c["column"]): c for c in json.loads((folder / "table.json").read_text())}


def test_the_table_holds_paper_and_ours_and_what_is_missing(digits, tmp_path):
    results = digits()
    cells = table(tmp_path / "out")
    assert all(set(cell) == FIELDS for cell in cells.values())
    ours = cells["FedAvg 8x8", "2"]
    runs = [intarsia.open_run(p) for p in sorted((tmp_path / "runs").glob("fedavg-*"))]
    each = [pooled(run, "8x8")[2] for run in runs]
    assert ours["paper"] == 50.0
    assert ours["ours"] == pytest.approx(sum(each) / 2)
    assert ours["std"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)
    assert ours["seeds"] == 2
    assert ours["scale"] == "small: clients 8, rounds 2, seeds 2, every 1"
    assert cells["FedAvg mars", "2"]["ours"] is None
    assert "realworld" in results.left_out["Mars"]
    assert cells["Local, n", "2"]["paper"] is None
    page = write_report(results, tmp_path / "out").read_text()
    assert "Left out" in page
    assert "data:image/png" in page
    assert (tmp_path / "out" / "figure.png").stat().st_size > 5000


def test_accuracy_is_correct_over_total_of_a_device(digits, tmp_path):
    digits(1)
    run = intarsia.open_run(next((tmp_path / "runs").glob("fedavg-*")))
    eight = [c for c, about in run.population["clients"].items() if about["device"] == "8x8"]
    rows = [m for m in run.metrics if m["round"] == 2 and m["split"] == "test" and m["client"] in eight]
    assert pooled(run, "8x8")[2] == pytest.approx(
        100 * sum(m["correct"] for m in rows) / sum(m["n"] for m in rows)
    )


def test_finished_runs_are_not_run_again_and_stopped_ones_go_on(digits, tmp_path):
    digits()
    first = (tmp_path / "out" / "table.json").read_bytes()
    stopped, kept = sorted((tmp_path / "runs").glob("fedavg-*"))
    before = (kept / "summary.json").stat().st_mtime_ns
    (stopped / "summary.json").unlink()
    (stopped / "state" / "checkpoint-000002.json").unlink()
    digits()
    assert (kept / "summary.json").stat().st_mtime_ns == before
    assert (stopped / "summary.json").exists()
    assert (tmp_path / "out" / "table.json").read_bytes() == first


def test_scales_can_be_changed_and_say_so():
    words, scale = get("modfl-table1").scale("small", ["rounds=7", "cifar=[18, 9]"])
    assert (scale.rounds, scale.cifar) == (7, (18, 9))
    assert words.startswith("small, changed: clients 36, rounds 7")
    for change in ("round=7", "rounds", "rounds=many", "a.b=1"):
        with pytest.raises(intarsia.IntarsiaError, match=r"scale"):
            get("modfl-table1").scale("small", [change])
    with pytest.raises(intarsia.IntarsiaError, match="no scale 'smal'; did you mean 'small'"):
        get("modfl-table1").scale("smal")
    with pytest.raises(intarsia.IntarsiaError, match="no study 'modfl-table'"):
        get("modfl-table")


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_trial_of_every_scale_has_settings_that_load(name, seed):
    one = STUDIES[name]
    for scale in one.scales.values():
        trials = one.runs(scale, seed)
        assert len({t.name for t in trials}) == len(trials)
        for trial in trials:
            settings = intarsia.load({**trial.settings, "seed": seed})
            assert settings.rounds <= scale.rounds + getattr(scale, "pretraining", 0)


def test_table_one_is_the_papers_setting():
    """N=72, 200 rounds, Adam 1e-3, batch 16, one epoch; FedPer's head is ModFL's operation module."""
    trials = {t.name: t.settings for t in get("modfl-table1").runs(get("modfl-table1").scales["paper"], 0)}
    assert {"FedPer P=3", "FedPer P=6", "FedAvg P=9", "ModFL P=3", "ModFL P=6", "ModFL P=9"} <= trials.keys()
    fedper = trials["FedPer P=3"]
    assert fedper["rounds"] == 200
    assert fedper["training"] == {"optimizer": "adam", "lr": 0.001, "batch_size": 16, "epochs": 1}
    members = fedper["population"]["members"]
    assert sum(m["clients"] for m in members.values()) == 72
    assert members["stl"]["size"] == 96
    assert members["cifar"]["per_label"] == [975, 325]
    assert fedper["sharing"] == {"head": "operation1", "by": "device"}


def test_published_figures_are_those_of_the_paper():
    one, two = get("modfl-table1").paper, get("modfl-table2").paper
    assert (one["ModFL cifar", "3"], one["FedX stl", "6"], one["ModFL stl", "9"]) == (78.29, 54.17, 63.07)
    assert (two["FedX hapt", "2"], two["ModFL rwhar", "5"], two["FedX wisdm", "4"]) == (97.08, 90.5, 75.83)
    assert len(two) == 18
    assert get("modfl-fig6").paper["FedAvg cifar P=9", "200"] == 57.92
    assert get("modfl-fig7").paper["ModFL wisdm P=4", "2000"] == 82.08
    assert get("modfl-fig5").paper["ModFL stl", "72"] == 66.35


def test_all_of_table_one_on_real_images_in_little(shared_data, tmp_path):
    study = get("modfl-table1")
    tiny = ["clients=18", "rounds=1", "every=1", "cifar=[9, 9]", "stl=[9, 9]"]
    settings = {**DEBUG, "data_folder": str(shared_data)}
    controls = ['kinds=["Found cohorts", "Random cohorts", "Local"]', "groups=[3]"]
    words, scale = study.scale("small", [*tiny, *controls])
    carry_out(study, words, scale, 1, tmp_path / "controls", tmp_path / "runs", settings=settings)
    words, scale = study.scale("small", [*tiny, 'kinds=["FedX", "ModFL"]', "groups=[3, 9]"])
    results = carry_out(study, words, scale, 1, tmp_path / "out", tmp_path / "runs", settings=settings)
    assert not results.left_out
    cells = {**table(tmp_path / "controls"), **table(tmp_path / "out")}
    for row, column in study.paper:
        assert column == "6" or cells[row, column]["ours"] is not None
    assert cells["ModFL, distinct models", "3"]["ours"] == 18
    assert cells["ModFL, distinct models", "9"]["ours"] == 2
    assert -1 <= cells["Found cohorts, adjusted Rand index", "3"]["ours"] <= 1
    assert {"Local cifar", "Random cohorts stl"} <= {row for row, _ in cells}
    curves = get("modfl-fig6")
    before = len(list((tmp_path / "runs").iterdir()))
    again = carry_out(curves, words, scale, 1, tmp_path / "fig6", tmp_path / "runs", settings=settings)
    assert len(list((tmp_path / "runs").iterdir())) == before
    final = table(tmp_path / "fig6")["ModFL cifar P=3", "1"]["ours"]
    assert final == cells["ModFL cifar", "3"]["ours"]
    assert write_report(again, tmp_path / "fig6").exists()


def test_table_two_on_real_motion_in_little(shared_data, tmp_path):
    study = get("modfl-table2")
    words, scale = study.scale(
        "three",
        [
            "clients=12",
            "rounds=1",
            "every=1",
            "samples=[8, 8]",
            "groups=[2, 4]",
            'kinds=["FedX", "ModFL", "Local"]',
        ],
    )
    settings = {**DEBUG, "data_folder": str(shared_data)}
    carry_out(study, words, scale, 1, tmp_path / "out", tmp_path / "runs", settings=settings)
    cells = table(tmp_path / "out")
    assert cells["ModFL wisdm2019", "2"]["ours"] is not None
    assert cells["ModFL, distinct models", "2"]["ours"] == 12
    assert cells["FedX wisdm", "2"]["ours"] is None


def test_match_is_the_adjusted_rand_index():
    class Pretend:
        population: ClassVar = {"clients": {n: {"cohort": c} for n, c in zip("abcd", "xxyy", strict=True)}}
        groups: ClassVar = [{"client": n, "group": g} for n, g in zip("abcd", "2211", strict=True)]

    assert match(Pretend()) == 1.0
    Pretend.groups = [{"client": n, "group": g} for n, g in zip("abcd", "2121", strict=True)]
    assert match(Pretend()) == pytest.approx(-0.5)


def test_the_commands(tmp_path):
    listed = json.loads(call("papers", "list", "--json", cwd=tmp_path).stdout)
    assert {"modfl-table1", "modfl-table2", "modfl-fig5", "modfl-fig6", "modfl-fig7"} <= {
        r["name"] for r in listed
    }
    shown = call("papers", "show", "modfl-table1", "--scale", "paper", cwd=tmp_path)
    assert "clients 72, rounds 200" in shown.stdout
    shown = call("papers", "show", "modfl-table2", "--scale", "paper", cwd=tmp_path)
    assert "hapt, realworld, wisdm" in shown.stdout
    toml = call("papers", "show", "modfl-table1", "--run", "ModFL P=3", cwd=tmp_path).stdout
    (tmp_path / "settings.toml").write_text(toml)
    assert intarsia.load(tmp_path / "settings.toml").method == {"name": "modfl"}
    wrong = call("papers", "show", "modfl-table1", "--run", "ModFL P=4", cwd=tmp_path, code=2)
    assert "did you mean" in wrong.stderr


def test_without_the_data_the_table_says_what_is_missing(tmp_path):
    """RealWorld and WISDM v1.1 are nowhere: nothing runs, nothing is invented, every cell is there."""
    done = call("papers", "run", "modfl-table2", "--scale", "paper", "--out", "t", cwd=tmp_path, code=2)
    assert "no run of 'modfl-table2' could be done" in done.stderr
    assert "left out" in done.stdout
    assert "[hapt, realworld, wisdm]" in " ".join(done.stdout.split())
    cells = table(tmp_path / "t")
    assert set(cells) == set(get("modfl-table2").paper)
    assert all(cell["ours"] is None for cell in cells.values())
    wrong = call("papers", "run", "modfl-table1", "--data", "nowhere", cwd=tmp_path, code=2)
    assert "does not exist" in wrong.stderr


def test_the_payload_of_adapters_beside_the_papers(shared_data, tmp_path):
    """22.2, 24.7 and 2.58 MiB as saved states; our tensors to the byte."""
    study = get("adapters-payload")
    words, scale = study.scale("small")
    settings = {**DEBUG, "data_folder": str(shared_data)}
    carry_out(study, words, scale, 1, tmp_path / "out", tmp_path / "runs", settings=settings)
    cells = table(tmp_path / "out")
    for place, published in study.paper.items():
        assert cells[place]["ours"] == pytest.approx(published, rel=0.005)
    buffers = 4 * 2 * 3872 + 8 * 26
    assert cells["finetuning, what travels", "tensors on the wire"]["ours"] * 2**20 == 4 * 5_817_258 + buffers
    assert cells["adapters, what travels", "tensors on the wire"]["ours"] * 2**20 == 4 * 655_530 + buffers


def test_adapters_in_little_and_who_holds_what(shared_data, tmp_path):
    study = get("adapters-table1")
    changes = ["rounds=1", "fraction=0.02", "channels=[4]", "blocks=1", "size=8", "every=1", "clients=10"]
    words, scale = study.scale("small", changes)
    settings = {**DEBUG, "data_folder": str(shared_data)}
    carry_out(study, words, scale, 1, tmp_path / "out", tmp_path / "runs", settings=settings)
    cells = table(tmp_path / "out")
    assert cells["Cross-Silo Cifar10 Dir(0.5)", "FedAvg w/ adapter"]["ours"] is not None
    assert cells["Cross-Silo SVHN Dir(0.5)", "FedAvg w/ adapter"]["ours"] is None
    assert all(cell["remark"] == ("random base" if cell["seeds"] else "") for cell in cells.values())
    who = get("adapters-fig3")
    carry_out(who, *who.scale("small"), 1, tmp_path / "who", tmp_path / "runs", settings=settings)
    assert sum(c["ours"] for c in table(tmp_path / "who").values()) == 20_000


@pytest.mark.parametrize("name", ["adapters-table1", "adapters-fig4", "adapters-fig5", "adapters-bytes"])
def test_every_figure_beside_adapters_says_what_its_base_is(name, tmp_path):
    study = get(name)
    random, named = study.scale("small")[1], study.scale("small", ["base=folder/base.safetensors"])[1]
    assert study.remark(random) == "random base"
    assert study.remark(named) == "base base.safetensors"
    results = Results(study, "small", remark=study.remark(random))
    results.add({("a row", "5"): 12.345, ("another", "5"): 6.0})
    own = [cell for cell in results.cells() if cell.ours is not None]
    assert [spread(cell) for cell in own] == ["12.35 (random base)", "6.00 (random base)"]
    assert write_report(results, tmp_path).read_text().count("(random base)") == 2
    assert spread(Cell("r", "c", 1.0, None, None, 0, "small")) == "-"


def settings_of(name, scale, *changes):
    study = get(name)
    return {trial.name: trial.settings for trial in study.runs(study.scale(scale, changes)[1], 0)}


def test_adapters_at_scale_paper_are_as_published():
    """SVHN's own split, and clients drawn with replacement; other scales do neither."""
    paper = settings_of("adapters-table1", "paper")
    assert {s["population"]["split"] for s in paper.values()} == {"published"}
    many = {s["sampling"].get("replacement", False) for n, s in paper.items() if n.startswith("Cross-Device")}
    assert many == {True}
    both = ["settings=['Cross-Silo', 'Cross-Device']", "sets=['SVHN']"]
    small = settings_of("adapters-table1", "small", *both)
    assert {s["population"]["split"] for s in small.values()} == {"own"}
    assert not any("replacement" in s["sampling"] for s in small.values())


def test_the_test_bed_at_scale_medium_is_the_documented_table():
    """docs/papers.md: 0.02 for Local, FedProx and FedAvg+, 0.05 for all others; pFedMe with lambda 5 and no momentum."""
    runs = settings_of("fedmn-table2", "medium")
    for name, settings in runs.items():
        slow = name.endswith((" Local", " FedProx", " FedAvg+"))
        assert settings["training"]["lr"] == (0.02 if slow else 0.05), name
        assert settings["training"]["momentum"] == (0.0 if " pFedMe" in name else 0.9), name
        assert settings["training"]["weight_decay"] == 5e-4
    assert runs["MNIST pFedMe"]["method"] == {"name": "pfedme", "lam": 5.0}
    assert runs["MNIST pFedMe, kept models"]["method"] == {"name": "pfedme", "form": "kept", "lam": 5.0}
    assert runs["MNIST FedMN"]["method"] == {"name": "fedmn", "pretraining": 4}


def test_whoever_has_a_pool_trains_as_long_and_one_control_is_as_deep_as_a_path():
    runs = settings_of("fedmn-table2", "medium", 'sets=["MNIST", "Chars74K, 5 writers"]')
    longer = {
        name.partition(" ")[2] for name, s in runs.items() if name.startswith("MNIST") and s["rounds"] == 24
    }
    pool = {name.partition(" ")[2] for name, s in runs.items() if s["model"]["name"] == "module_pool"}
    plain = {"FedAvg, rounds of a pool", "FedEM, rounds of a pool"}
    assert longer == {name for name in pool if "writers" not in name} | plain
    assert runs["MNIST FedEM, rounds of a pool"]["method"] == {"name": "fedem", "components": 3}
    assert runs["MNIST FedAvg, one path of a pool"]["model"]["layers"] == [1, 1, 1]
    grouped = runs["Chars74K, 5 writers Local"]["population"]
    assert (grouped["partition"], grouped["clients"]) == ({"name": "natural", "together": 5}, 11)
    assert "fraction" not in grouped


def test_pictures_may_start_from_weights_of_a_file():
    changes = ["base=mobile.safetensors", "width=0.35", 'sets=["CIFAR10", "MNIST"]']
    runs = settings_of("fedmn-table2", "paper", *changes)
    assert runs["CIFAR10 FedMN"]["weights"] == runs["CIFAR10 Local"]["weights"] == "mobile.safetensors"
    assert runs["CIFAR10 FedMN"]["model"]["encoder"]["width"] == 0.35
    assert "weights" not in runs["MNIST FedMN"]


def test_adapters_have_rates_ranks_statistics_and_noise_of_their_own():
    changes = [
        'rates={"w/ adapter"=0.02}',
        "rank=8",
        "statistics=refitted",
        "norms=statistics",
        "redrawn=true",
    ]
    runs = settings_of("adapters-table1", "small", *changes)
    noisy, full = (runs[f"Cross-Silo Cifar10 Gau0.1 FedAvg {kind} adapter"] for kind in ("with", "without"))
    assert (noisy["training"]["lr"], full["training"]["lr"]) == (0.02, 0.1)
    assert (noisy["adapters"], full["adapters"]) == ({"name": "parallel", "rank": 8}, {"name": "none"})
    assert {s["training"]["statistics"] for s in runs.values()} == {"refitted"}
    assert {s["sharing"]["norms"] for s in runs.values()} == {"statistics"}
    assert noisy["population"]["partition"] == {"name": "noise", "sigma": 0.1, "redrawn": True}
    assert (
        runs["Cross-Silo Cifar10 Dir0.5 FedAvg with adapter"]["population"]["partition"]["name"]
        == "dirichlet"
    )


def test_rows_and_columns_of_modfl_can_be_chosen():
    chosen = settings_of("modfl-table1", "small", "groups=[3, 9]", 'kinds=["FedX", "Found each round"]')
    assert list(chosen) == ["FedPer P=3", "FedAvg P=9", "Found each round P=3"]
    found = chosen["Found each round P=3"]["sharing"]
    assert found == {"cohorts": "found", "number": 9, "every": 1, "settle": False}
