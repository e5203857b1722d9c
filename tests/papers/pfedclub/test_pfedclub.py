"""pFedClub's studies: published figures, settings, and all that is read, in little."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import intarsia
from intarsia.core import SettingsError
from intarsia.papers import STUDIES, carry_out, get
from intarsia.papers.pfedclub.figures import growth, seconds_to
from intarsia.papers.pfedclub.plus import server_share
from intarsia.papers.pfedclub.runs import CONTROLS, HETEROGENEOUS, SLICED
from intarsia.papers.study_page import write_report

MINE = [name for name in STUDIES if name.startswith("pfedclub-")]
TINY = [
    'sets=["MNIST"]',
    'splits=["Non-IID"]',
    "clients=5",
    "active=3",
    "samples=24",
    "share=0.2",
    "epochs=1",
    "server_epochs=1",
    "most=1",
    "width=0.125",
    "rounds=1",
    "every=1",
]


def trials(name, scale="paper"):
    study = get(name)
    return {trial.name: trial.settings for trial in study.runs(study.scales[scale], 0)}


def in_little(name, folder, tmp_path, *changes):
    """Run a study with next to nothing; return its cells by place."""
    study = get(name)
    words, scale = study.scale("small", [*TINY, *changes])
    settings = {"engine": {"name": "debug", "device": "cpu"}, "data_folder": str(folder)}
    results = carry_out(study, words, scale, 1, tmp_path / name, tmp_path / "runs", settings=settings)
    assert not results.left_out
    assert write_report(results, tmp_path / name).exists()
    cells = json.loads((tmp_path / name / "table.json").read_text())
    return {(cell["row"], cell["column"]): cell["ours"] for cell in cells if cell["ours"] is not None}


def test_published_figures_are_those_of_the_paper():
    one, two = get("pfedclub-table1").paper, get("pfedclub-table2").paper
    assert (len(one), len(two)) == (156, 42)
    assert one["zoo I MNIST IID", "pFedHR, labelled"] == 94.67
    assert one["zoo II SVHN Non-IID", "FCCL"] == 77.32
    assert one["zoo III CIFAR-10 Non-IID", "HeteroFL"] == 67.87
    assert one["zoo III CIFAR-10 IID", "pFedClub, unlabelled"] == 74.71
    assert two["CNN2 CIFAR-10", "pFedClub"] == 64.25
    assert two["MobileNetV2 SVHN", "PFedBayes"] == 83.05
    assert get("pfedclub-table3").paper["nbc", "CIFAR-10 Non-IID"] == 56.02
    assert get("pfedclub-table4").paper["Non-IID N = 100", "20 %"] == 79.43
    assert get("pfedclub-table5").paper["labelled, K = 5", "SVHN Non-IID"] == 81.35
    assert get("pfedclub-fig3").paper["pFedClub+, all", "accuracy, %"] == 82.51
    counts = [len(get(f"pfedclub-table{n}").paper) for n in (3, 4, 5)]
    assert counts == [20, 18, 24]


def test_what_the_tables_have_in_common_is_the_same_figure():
    one = get("pfedclub-table1").paper
    for dataset in ("SVHN", "CIFAR-10"):
        for split in ("IID", "Non-IID"):
            place = f"{dataset} {split}"
            figure = one[f"zoo III {place}", "pFedClub, unlabelled"]
            assert get("pfedclub-table3").paper["pFedClub", place] == figure
            assert get("pfedclub-table5").paper["unlabelled, K = 4", place] == figure
            labelled = get("pfedclub-table5").paper["labelled, K = 4", place]
            assert labelled == one[f"zoo III {place}", "pFedClub, labelled"]


def test_the_papers_setting():
    """N=50, M=5, 10 local and 3 server epochs, Adam 1e-3, 100 rounds; 72 % to train on, 20 % to test, 8 % public."""
    own = trials("pfedclub-table1")["zoo III CIFAR-10 Non-IID pFedClub unlabelled"]
    assert own["rounds"] == 100
    assert own["sampling"] == {"clients": 5}
    assert own["training"] == {"optimizer": "adam", "lr": 0.001, "epochs": 10, "batch_size": 64}
    assert own["method"]["tailoring"] == {"epochs": 3, "lr": 0.001, "samples": 0}
    assert own["method"]["labelled"] is False
    people = own["population"]
    assert people["clients"] == 50
    assert people["zoo"] == "III"
    assert people["partition"] == {"name": "two_classes", "per_client": 2}
    assert (1 - people["public"]) * (1 - people["test"]) == pytest.approx(0.72, abs=1e-4)
    assert people["limit"] == 0
    assert "models" not in own


def test_heterofl_has_four_widths_and_sliced_methods_have_zoo_three_alone():
    own = trials("pfedclub-table1")
    sliced = {name for name in own if any(method in name for method in SLICED)}
    assert sliced
    assert all(name.startswith("zoo III ") for name in sliced)
    wide = own["zoo III SVHN IID HeteroFL"]
    assert wide["population"]["capacities"] == [1.0, 0.5, 0.25, 0.125] == wide["method"]["widths"]
    assert "zoo" not in wide["population"]
    assert wide["model"] == {"name": "club_cnn", "number": 4, "width": 1.0}


@pytest.mark.parametrize(
    "name", [name for name in MINE if name not in ("pfedclub-fig1", "pfedclub-fig4", "pfedclub-fig6")]
)
def test_local_stands_in_every_table(name):
    for scale in get(name).scales:
        assert any("Local" in trial for trial in trials(name, scale))


@pytest.mark.parametrize("name", [f"pfedclub-table{n}" for n in range(1, 6)])
def test_controls_stand_in_every_table(name):
    for scale in get(name).scales:
        names = trials(name, scale)
        assert all(any(f" {control}" in trial for trial in names) for control in CONTROLS)


def test_controls_are_our_method_without_what_its_teachers_know():
    own = trials("pfedclub-plus", "medium")
    start = "zoo III SVHN IID"
    ours = own[f"{start} pFedClub+ (ours) labelled"]
    assert ours["method"] == {"name": "pfedclub+", "labelled": True, "search": {"most": 4}}
    for name, teacher in (
        ("Local + public data", "none"),
        ("Local + public data and mixup", "labels"),
        ("Uniform teacher labelled", "uniform"),
        ("Own model as teacher labelled", "itself"),
    ):
        control = own[f"{start} {name}"]
        assert control["method"] == {**ours["method"], "teacher": teacher}
        assert {k: v for k, v in control.items() if k != "method"} == {
            k: v for k, v in ours.items() if k != "method"
        }
    assert own[f"{start} Uniform teacher unlabelled"]["method"]["labelled"] is False
    assert own[f"{start} pFedClub labelled"]["method"]["name"] == "pfedclub"
    assert ours["population"]["size"] == 16
    published = trials("pfedclub-fig3", "medium")["zoo I SVHN Non-IID pFedClub+ unlabelled"]["method"]
    assert (published["name"], published["eta"]) == ("pfedclub", 0.1)


def test_rates_are_those_of_the_method():
    study = get("pfedclub-plus")
    _, scale = study.scale("small", ["rates={Local=0.5}"])
    rates = {run.name: run.settings["training"]["lr"] for run in study.runs(scale, 0)}
    assert {rate for name, rate in rates.items() if name.endswith(" Local")} == {0.5}
    assert {rate for name, rate in rates.items() if not name.endswith(" Local")} == {0.001}


def test_our_study_in_little(mnist_folder, tmp_path):
    few = ('methods=["Local", "pFedClub+ (ours)"]', 'public=["labelled"]', "test=0.2", "pixels=0", "rounds=2")
    ours = in_little("pfedclub-plus", mnist_folder, tmp_path, *few)
    assert set(ours) == {
        ("MNIST Non-IID", "Local"),
        ("MNIST Non-IID", "pFedClub+ (ours), labelled"),
        ("MNIST Non-IID: server's seconds for each of its clients'", "pFedClub+ (ours), labelled"),
    }


def test_the_servers_share_of_seconds():
    rows = [{"server": 1.0, "train": 4.0}, {"server": 0.5, "train": 1.0, "merge": 9.0}, {"evaluate": 3.0}]
    assert server_share(SimpleNamespace(seconds=rows)) == pytest.approx(0.3)


def test_studies_share_their_runs():
    one = trials("pfedclub-table1", "medium")
    for other in ("table3", "table5", "fig4", "fig5"):
        same = one.keys() & trials(f"pfedclub-{other}", "medium").keys()
        assert same, other
        assert all(one[name] == trials(f"pfedclub-{other}", "medium")[name] for name in same)


def test_batch_norms_have_no_gaussian_form():
    own = trials("pfedclub-table2")
    assert "CNN2 SVHN Non-IID PFedBayes" in own
    assert "MobileNetV2 SVHN Non-IID PFedBayes" not in own
    assert own["MobileNetV2 SVHN Non-IID PFedMe"]["population"]["model"] == "mobilenet_v2"


def test_ablations_change_what_they_say():
    own = trials("pfedclub-table3")
    start = "zoo III SVHN IID pFedClub unlabelled"
    assert own[start]["method"]["search"] == {"most": 8}
    assert own[f"{start} max"]["method"]["search"] == {"most": 8, "anchor": "max"}
    assert own[f"{start} nbc"]["method"]["search"] == {"most": 8, "nbc": True}
    groups = trials("pfedclub-table5")["zoo III SVHN IID pFedClub labelled K 5"]
    assert groups["method"]["k"] == 5
    crowd = trials("pfedclub-table4")["zoo III SVHN IID pFedClub unlabelled N 30 20 percent"]
    assert (crowd["population"]["clients"], crowd["sampling"]["clients"]) == (30, 6)


@pytest.mark.parametrize("change", ['methods=["FedX"]', 'sets=["Mars"]'])
def test_wrong_names_are_refused(change):
    study = get("pfedclub-table1")
    _, scale = study.scale("small", [change])
    with pytest.raises(intarsia.IntarsiaError, match=f"scale.{change.partition('=')[0]}: there is no"):
        study.runs(scale, 0)


def test_all_methods_on_zoo_three_in_little(mnist_folder, tmp_path):
    ours = in_little("pfedclub-table1", mnist_folder, tmp_path)
    assert {row for row, _ in ours} == {"zoo III MNIST Non-IID"}
    assert {column.partition(",")[0] for _, column in ours} == set(HETEROGENEOUS)
    assert len(ours) == 16  # 12 methods, 4 of them with and without labels
    assert all(0 <= value <= 100 for value in ours.values())


def test_figures_read_sizes_and_seconds(mnist_folder, tmp_path):
    few = ('zoos=["III"]', "active=5", "rounds=2", 'methods=["Local", "pFedHR", "pFedClub+"]')
    three = in_little("pfedclub-fig3", mnist_folder, tmp_path, *few)
    for row in ("Local, all", "pFedHR, all", "pFedClub+, all"):
        assert 0 <= three[row, "accuracy, %"] <= 100
    assert three["pFedClub+, all", "largest phi"] <= 0.1
    assert 0 <= three["pFedClub+, all", "taught by its own model, %"] <= 100
    notes = [n for p in (tmp_path / "runs").glob("*pfedhr*") for n in intarsia.open_run(p).notes]
    sizes = [growth(note) for note in notes if note["kind"] == "teacher"]
    assert len(sizes) == 10
    assert three["pFedHR, all", "largest phi"] == pytest.approx(max(sizes))
    one = in_little("pfedclub-fig1", mnist_folder, tmp_path, *few)
    assert one["own model", "cnn2"] == pytest.approx(0.591018)
    six = in_little("pfedclub-fig6", mnist_folder, tmp_path, *few)
    assert max(six["pFedClub+ cnn2", r] for r in ("1", "2")) <= 0.1
    mean = (six["pFedHR cnn2", "1"] + six["pFedHR cnn2", "2"]) / 2
    assert three["pFedHR", "cnn2"] == pytest.approx(mean)
    assert one["pFedHR, teachers, mean", "cnn2"] == pytest.approx(0.591018 * (1 + mean))
    four = in_little("pfedclub-fig4", mnist_folder, tmp_path, *few, 'public=["unlabelled"]')
    rows = ("Local", "pFedHR, unlabelled", "pFedClub+, unlabelled")
    assert set(four) == {(row, number) for row in rows for number in ("1", "2")}
    assert four["Local", "1"] < four["pFedHR, unlabelled", "1"]
    assert len(list((tmp_path / "runs").iterdir())) == 3, "four figures, the same runs"


def test_seconds_to_an_accuracy():
    def row(round, accuracy, stage="own"):
        return {"round": round, "split": "test", "stage": stage, "accuracy": accuracy}

    run = SimpleNamespace(
        metrics=[row(2, 0.3), row(2, 0.5), row(4, 0.5), row(4, 0.7), row(4, 0.0, "before")],
        seconds=[
            {"round": n, "train": 1.0, "server": 0.5, "merge": 0.25, "evaluate": 9.0} for n in range(1, 5)
        ],
    )
    assert seconds_to(run, 40) == pytest.approx(3.5)
    assert seconds_to(run, 60) == pytest.approx(7.0)
    assert seconds_to(run, 61) is None


def test_the_map_shows_gains_seed_by_seed():
    study = get("pfedclub-map")
    row = "2 labels, 30 public"
    readings = {(f"{row}, Local", "100"): [50.0, 60.0], (f"{row}, pFedClub", "100"): [53.0, 58.0]}
    assert study.derived(readings) == {(row, "100"): [3.0, -2.0]}
    assert not study.beside(row)
    assert study.beside(f"{row}, Local")
    alone = {(f"{row}, pFedClub", "100"): [53.0]}
    assert study.derived(alone) == {}


def test_the_map_in_little(mnist_folder, tmp_path):
    few = ("sizes=[24]", "tested=12", "classes=[2]", "publics=[30]")
    (local, _) = get("pfedclub-map").runs(get("pfedclub-map").scale("small", [*TINY, *few])[1], 0)
    people = intarsia.load({**local.settings, "data_folder": str(mnist_folder)})
    held = intarsia.experiment.populations.population_of(people)
    counts = [sum(len(c.data[split]) for c in held.clients.values()) for split in ("train", "test")]
    assert counts == pytest.approx([5 * 24, 5 * 12], abs=2)
    assert held.public is not None
    assert len(held.public) == 30
    ours = in_little("pfedclub-map", mnist_folder, tmp_path, *few)
    row = "2 labels, 30 public"
    gain = ours[f"{row}, pFedClub", "24"] - ours[f"{row}, Local", "24"]
    assert ours[row, "24"] == pytest.approx(gain)


@pytest.mark.parametrize(
    ("study", "change", "words"),
    [
        ("pfedclub-table1", 'splits=["iid"]', "scale.splits: there is no 'iid'"),
        (
            "pfedclub-table1",
            'public=["unlabeled"]',
            "scale.public: there is no 'unlabeled'; did you mean 'unlabelled'",
        ),
        ("pfedclub-table1", 'zoos=["IV"]', "scale.zoos: there is no 'IV'"),
        (
            "pfedclub-table3",
            'public=["labelled", "unlabelled"]',
            "scale.public: 'pfedclub-table3' shows one at a time",
        ),
        ("pfedclub-table4", 'sets=["SVHN", "MNIST"]', "scale.sets"),
        ("pfedclub-table5", 'zoos=["II", "III"]', "scale.zoos"),
        ("pfedclub-map", 'sets=["SVHN", "MNIST"]', "scale.sets"),
        ("pfedclub-fig1", 'splits=["IID", "Non-IID"]', "scale.splits"),
        ("pfedclub-fig3", 'public=["labelled", "unlabelled"]', "scale.public"),
        ("pfedclub-fig4", 'sets=["SVHN", "MNIST"]', "scale.sets"),
        ("pfedclub-fig5", 'zoos=["I", "III"]', "scale.zoos"),
        ("pfedclub-fig6", "sets=[]", "scale.sets: 'pfedclub-fig6' shows one at a time, not none"),
    ],
)
def test_a_scale_that_would_mix_or_mistake_runs_is_refused(study, change, words):
    _, scale = get(study).scale("small", [change])
    with pytest.raises(SettingsError, match=words):
        get(study).runs(scale, 0)


def test_the_published_scale_tunes_on_all_public_samples():
    every = {name: get("pfedclub-table1").scale(name)[1] for name in ("small", "paper")}
    samples = {}
    for name, scale in every.items():
        methods = [t.settings["method"] for t in get("pfedclub-table1").runs(scale, 0)]
        samples[name] = {m["tailoring"].get("samples") for m in methods if "tailoring" in m}
    assert samples == {"small": {None}, "paper": {0}}
