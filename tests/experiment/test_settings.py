"""Settings: layers, completeness, and errors that name the place and suggest the word."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from intarsia.core import DataError, SettingsError
from intarsia.experiment import Experiment, load, recipes, with_values
from tests.conftest import SMALL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.lrr=0.1"], "training.lrr: unknown setting; did you mean 'lr'?"),
        (["rouns=3"], "rouns: unknown setting; did you mean 'rounds'?"),
        (["rounds=0"], "rounds: input should be greater than or equal to 1 (got 0)"),
        (["rounds=many"], "rounds: input should be a valid integer"),
        (["training.lr=0,05"], "(got '0,05'): write 0.05"),
        (["training.lr=-1"], "training.lr: input should be greater than 0 (got -1)"),
        (["method=fedpr"], "method: there is no 'fedpr'; did you mean 'fed"),
        (["method=zzz"], "method: there is no 'zzz'; there are: clustered_fl, fccl, fedavg, fedavg+"),
        (["method=fedavg+", "method.tuning_epoch=2"], "did you mean 'tuning_epochs'?"),
        (["method.sharing=all"], "method.sharing: write it as a setting of its own"),
        (["objective.mu=0.1"], "objective.mu: unknown setting"),
        (
            ["objective=proximal", "objective.mu=-1"],
            "objective.mu: input should be greater than or equal to 0",
        ),
        (["merge=meen"], "merge: there is no 'meen'; did you mean 'mean'?"),
        (["population=digts"], "population: there is no 'digts'; did you mean 'digits'?"),
        (["population.client=3"], "population.client: unknown setting; did you mean 'clients'?"),
        (["model=mpl"], "model: there is no 'mpl'; did you mean 'mlp'?"),
        (["models.8x8=cnn", "models.8x8.chanels=[1,2]"], "models.8x8.chanels: unknown setting; did you mean"),
        (["training.schedule=step", "training.schedule.gama=1"], "gama: unknown setting"),
        (["training.schedule=cosin"], "training.schedule"),
        (["training.optimizer=sdg"], "training.optimizer: input should be 'sgd' or 'adam' (got 'sdg')"),
        (["engine.name=locl"], "engine.name: there is no engine 'locl'; did you mean 'local'?"),
        (["sharing.by=colour"], "clients have no attribute 'colour'; they have: device, cohort"),
        (["sharing=fedper", "sharing.head=tail"], "cannot be cut before 'tail'; possible cut points: head"),
        (["sharing=fedper", "model=logistic"], "possible cut points: none"),
        (["training"], "'training' is no change: write a.b=c"),
        (["rounds.x=1"], "'rounds' is a single value"),
    ],
)
def test_errors_name_the_place_and_suggest(changes, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError) as caught:
        intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert message in str(caught.value)
    assert not (tmp_path / "r" / "summary.json").exists()


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(SettingsError, match=r"^settings: input should be a valid string"):
        load({"\ud800": 1})


def test_unknown_recipes_and_files():
    with pytest.raises(SettingsError, match="no recipe or file 'quickstrt'; did you mean 'quickstart'"):
        load("quickstrt")
    with pytest.raises(SettingsError, match="cannot read"):
        load("nowhere.toml")


def test_a_file_that_is_not_toml(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(SettingsError, match="is not TOML"):
        load(path)


def test_changes_are_toml_values_or_words():
    settings = load(
        "quickstart",
        [
            "rounds=3",
            "method=fedprox",
            "objective.mu=1e-3",
            "model.hidden=[8, 4]",
            "name=a b",
            "engine.workers=2",
        ],
    )
    assert settings.rounds == 3
    assert settings.method == {"name": "fedprox"}
    assert settings.objective == {"mu": 1e-3}
    assert settings.model["hidden"] == [8, 4]
    assert settings.name == "a b"
    assert settings.engine.workers == 2


def test_a_choice_by_name_replaces_the_table():
    settings = load({"model": {"name": "mlp", "hidden": [3]}}, ["model=cnn"])
    assert settings.model == {"name": "cnn"}
    changed = load({"objective": "proximal"}, ["objective.mu=2"])
    assert changed.objective == {"name": "proximal", "mu": 2}


@pytest.mark.parametrize("recipe", sorted(recipes()))
def test_recipes_are_valid(recipe):
    experiment = Experiment.build(load(recipe))
    assert len(experiment.setup.population) > 0


def test_complete_settings_are_complete_and_run_again(small_run, tmp_path):
    first = small_run("method=fedprox")
    settings = first.settings
    assert settings.objective == {"name": "proximal", "mu": 0.01}
    assert settings.sharing == {"name": "all", "by": "device", "norms": "shared"}
    assert settings.merge == {"name": "mean"}
    assert settings.population["test"] == 0.25
    again = intarsia.run(first.path / "settings.toml", out=tmp_path / "again")
    assert again.metrics == first.metrics
    assert (again.path / "settings.toml").read_text() == (first.path / "settings.toml").read_text()


def test_models_by_device(small_run):
    run = small_run("models.4x4=mlp", "models.4x4.hidden=[5]")
    hidden = {run.client(n).info.device: run.client(n).model()[1].out_features for n in run.clients}
    assert hidden == {"8x8": 16, "4x4": 5}


def test_preview_says_what_the_run_will_send(small_run):
    changes = ["method=fedper", "sampling.clients=3", "rounds=1"]
    plan = intarsia.preview(SMALL, changes=changes)
    run = small_run(*changes)
    assert plan["bytes_a_round"] == {"down": run.summary["bytes"]["down"], "up": run.summary["bytes"]["up"]}
    assert plan["clients_a_round"] == 3
    client = plan["clients"][0]
    assert [b["address"] for b in client["blocks"]] == ["base@8x8", "head@me"]
    assert client["blocks"][0]["parameters"] == 64 * 16 + 16
    assert client["blocks"][1]["down"] == 0


def write_table(path: Path, first: str = "0.5", more: int = 0) -> None:
    """Two clients with twelve rows each."""
    rows = [f"{c},{i},{i % 2}" for c in ("ann", "bob") for i in range(12 + more)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["client,x,label", f"ann,{first},0", *rows]) + "\n")


OWN_FILES = """
rounds = 1
[population]
name = "files"
path = "data/table.csv"
[engine]
name = "debug"
device = "cpu"
"""


def test_paths_in_a_file_lead_from_the_file_and_a_run_repeats_from_anywhere(tmp_path, monkeypatch):
    write_table(tmp_path / "project" / "data" / "table.csv")
    write_table(tmp_path / "elsewhere" / "data" / "table.csv", more=5)
    (tmp_path / "project" / "mine.toml").write_text(OWN_FILES)
    monkeypatch.chdir(tmp_path / "elsewhere")
    first = intarsia.run("../project/mine.toml", out="run")
    assert sum(first.client("bob").info.samples.values()) == 12
    monkeypatch.chdir(tmp_path)
    again = intarsia.run("elsewhere/run/settings.toml", out="again")
    assert sum(again.client("bob").info.samples.values()) == 12


def test_paths_in_changes_and_dicts_lead_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "a.toml").write_text(OWN_FILES + '[public]\nname = "files"\npath = "public"\n')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = load("../a.toml", ["weights=w.safetensors", "start_from=~/runs/a", "data_folder=/data"])
    assert settings.population["path"] == str(tmp_path / "data" / "table.csv")
    assert settings.public["path"] == str(tmp_path / "public")
    assert settings.weights == str(tmp_path / "here" / "w.safetensors")
    assert settings.start_from == str(tmp_path / "home" / "runs" / "a")
    assert settings.data_folder == "/data"
    assert load({"population": {"name": "files", "path": "x"}}).population["path"] == str(
        tmp_path / "here" / "x"
    )
    members = {"a": {"name": "files", "path": "x"}}
    joint = with_values(settings, {"population": {"name": "joint", "members": members}})
    assert joint.population["members"]["a"]["path"] == str(tmp_path / "here" / "x")
    assert load("quickstart").weights == ""


@pytest.mark.parametrize("change", ["rounds=2", "method=local", "engine.workers=1", "seed=0"])
def test_changes_that_leave_the_data_as_it_was_keep_the_check_of_the_split(tmp_path, change):
    write_table(tmp_path / "data" / "table.csv")
    (tmp_path / "mine.toml").write_text(OWN_FILES)
    first = intarsia.run(tmp_path / "mine.toml", out=tmp_path / "first")
    intarsia.preview(first.path / "settings.toml", changes=[change])
    write_table(tmp_path / "data" / "table.csv", first="0.75")
    with pytest.raises(DataError, match="the data is not the same"):
        intarsia.preview(first.path / "settings.toml", changes=[change])
    with pytest.raises(DataError, match="the data is not the same"):
        intarsia.preview(with_values(first.settings, {"training.lr": 0.3}))
    intarsia.preview(first.path / "settings.toml", changes=[change, "split_hash="])


@pytest.mark.parametrize("change", ["seed=1", "population.test=0.5"])
def test_changes_of_the_data_stand_for_another_split(tmp_path, change):
    write_table(tmp_path / "data" / "table.csv")
    (tmp_path / "mine.toml").write_text(OWN_FILES)
    first = intarsia.run(tmp_path / "mine.toml", out=tmp_path / "first")
    other = intarsia.run(first.path / "settings.toml", changes=[change], out=tmp_path / "other")
    assert other.settings.split_hash != first.settings.split_hash
    with pytest.raises(DataError, match="the data is not the same"):
        intarsia.preview(first.path / "settings.toml", changes=[change, "split_hash=0123456789abcdef"])


def test_the_weights_are_checked_until_others_are_named():
    before = load({"weights": "/a", "weights_hash": "1", "split_hash": "2"})
    assert load(before, ["rounds=2"]).weights_hash == "1"
    assert load(before, ["seed=4"]).weights_hash == "1"
    assert load(before, ["weights=/b"]).weights_hash == ""
    assert load(before, ["weights=/b"]).split_hash == "2"


MODFL = {"method": "modfl", "sharing": {"operation": "head", "by": "device"}}


def test_another_method_leaves_out_what_it_does_not_have():
    with pytest.warns(
        intarsia.IntarsiaWarning, match=r"of method 'modfl', and 'local' .* out: sharing\.operation$"
    ):
        settings = load(MODFL, ["method=local"])
    assert settings.sharing == {"by": "device"}


def test_a_whole_record_of_settings_can_be_of_another_method(small_run):
    done = small_run("method=modfl", "rounds=1")
    with pytest.warns(intarsia.IntarsiaWarning, match="sharing.operation"):
        settings = load(done.path / "settings.toml", ["method=fedprox", "objective.mu=0.5"])
    assert settings.sharing == {"by": "device", "norms": "shared"}
    assert settings.objective == {"mu": 0.5}


def test_changes_for_another_method_are_still_checked(small_run):
    with pytest.raises(SettingsError, match=r"sharing\.operation: unknown setting"):
        small_run("method=local", "sharing.operation=head")


@pytest.mark.parametrize("changes", [["method=modfl"], ["method=local", "sharing=modfl"], ["method=unheard"]])
def test_settings_that_are_meant_stay(changes, recwarn):
    before = {**MODFL, "sharing": {**MODFL["sharing"], "name": "modfl"}}
    assert load(before, [*changes, "sharing.operation=head"]).sharing["operation"] == "head"
    assert not recwarn.list


def test_a_part_chosen_by_name_stays_under_another_method(recwarn):
    settings = load({"method": "fedavg", "sharing": {"name": "fedper", "head": "x"}}, ["method=fedprox"])
    assert settings.sharing == {"name": "fedper", "head": "x"}
    assert not recwarn.list
