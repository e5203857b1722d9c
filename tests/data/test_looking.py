"""A look at own files: what is found in a nasty table, and recipes that run as they are."""

from __future__ import annotations

import json
import runpy
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import DataError
from intarsia.data.looking import look, recipe_for

FLEET = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fleet.py"))["write"]


def played(found, home: Path, rounds: int = 2):
    """Write the recipe, run it as it is but for its length, and return the run."""
    path = home / "recipe.toml"
    path.write_text(recipe_for(found, home))
    changes = [f"rounds={rounds}", "engine.name=debug", "engine.device=cpu"]
    return intarsia.run(path, changes=changes, out=home / "run")


def nasty(path: Path) -> Path:
    """A table with everything: ids, constants, words among numbers, few rows, gaps, twins, unlike columns."""
    generator = np.random.default_rng(0)
    rows = ["Serial;Machine;When;Temp (C);Pressure;Mode;Torque;Firm;Remark;Odd;Verdict"]
    for i in range(90):
        machine = f"M{i % 5}" if i < 88 else "M9"
        verdict = ["good", "Good ", "bad"][0 if generator.random() < 0.85 else 1 + i % 2]
        temp = "n/a" if i % 11 == 0 else f"{20 + 5 * generator.random():.2f}".replace(".", ",")
        torque = f"{generator.random() / 1000:.6f}".replace(".", ",") if i % 5 in (3, 4) and i < 88 else ""
        odd = "broken" if i == 17 else str(i % 7)
        rows.append(
            f"S{i:05};{machine};{i % 28 + 1:02}.03.2024;{temp};{100000 + i % 9};{'eco' if i % 3 else 'full'};{torque};"
            f"ACME;;{odd};{verdict if i != 40 else ''}"
        )
    path.write_text("\n".join(rows), encoding="cp1252")
    return path


def test_a_nasty_table(tmp_path):
    found = look([nasty(tmp_path / "shop floor.csv")])
    roles = {column.name: column.role for column in found.columns}
    assert roles == {
        "Serial": "left out",
        "Machine": "client",
        "When": "time",
        "Temp (C)": "feature",
        "Pressure": "feature",
        "Mode": "feature",
        "Torque": "feature",
        "Firm": "left out",
        "Remark": "left out",
        "Odd": "left out",
        "Verdict": "target",
    }
    assert found.trouble == ""
    said = "\n".join(found.findings)
    for part in (
        "'Serial' is left out: it is another in every row",
        "'Firm' is left out: it is the same in every row",
        "'Odd' is left out: it holds words among numbers, such as 'broken' (",
        "line 19)",
        "labels 'Good' and 'good' look alike: they are made one",
        "'Verdict' is missing in 1 rows: they are dropped",
        "clients with fewer than 10 rows are left out: 'M9' (2)",
        "column 'Torque': 4 of 6 clients have none (M0, M1, M2, M9)",
        "missing values: Temp (C) 9",
        "columns are of unlike size ('Torque' varies by",
        "of rows are 'good': who always says so is right as often",
    ):
        assert part in said, part
    assert found.roles.unsure == ["target: 'Verdict' is a guess; say otherwise with --target COLUMN"]
    assert found.settings["ignore"] == ["Serial", "Firm", "Odd"]
    run = played(found, tmp_path)
    assert len(run.experiment.setup.population) == 5
    devices = {info.device for info in run.experiment.setup.population.infos}
    assert devices == {"Temp (C)+Pressure+Mode", "Temp (C)+Pressure+Mode+Torque"}
    text = (tmp_path / "recipe.toml").read_text()
    assert "# Unsure: target: 'Verdict' is a guess" in text
    assert 'class_weights = "balanced"' in text


def test_the_flagship_table_from_the_command_line(tmp_path, monkeypatch):
    FLEET(tmp_path / "fleet.csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    done = CliRunner().invoke(app, ["data", "check", "fleet.csv", "--write", "recipes/fleet.toml"])
    assert done.exit_code == 0, done.output
    assert "Recipe: recipes/fleet.toml" in done.output
    settings = tomllib.loads((tmp_path / "recipes" / "fleet.toml").read_text())
    assert settings["population"]["path"] == "../fleet.csv"
    assert settings["population"]["relabel"] == {"OK": "ok"}
    assert settings["method"] == "modfl"
    changes = ["engine.name=debug", "engine.device=cpu", "rounds=10"]
    run = intarsia.run("recipes/fleet.toml", changes=changes, out=tmp_path / "run")
    assert run.summary["accuracy"]["mean"] > 0.9
    again = CliRunner().invoke(app, ["data", "check", "fleet.csv", "--write", "recipes/fleet.toml"])
    assert isinstance(again.exception, DataError)
    assert "is there already: name another file" in str(again.exception)


def test_json_and_roles_that_are_told(tmp_path):
    FLEET(tmp_path / "fleet.csv")
    told = ["--client", "depot", "--target", "gear", "--time", "time", "--json"]
    about = json.loads(CliRunner().invoke(app, ["data", "check", str(tmp_path / "fleet.csv"), *told]).output)
    assert (about["client"], about["target"], about["time"]) == ("depot", "gear", "time")
    assert about["unsure"] == []
    heat = next(column for column in about["columns"] if column["name"] == "heat")
    assert (heat["kind"], heat["role"]) == ("number", "feature")
    assert heat["missing"] > 0
    assert list(about["holds"]["clients"]) == ["north"]
    wrong = CliRunner().invoke(app, ["data", "check", str(tmp_path / "fleet.csv"), "--target", "stat"])
    assert "--target: there is no column 'stat'; did you mean 'state'?" in str(wrong.exception)


def test_regression_of_numbers_in_any_unit(tmp_path):
    rows = [f"{'abcd'[i % 4]},{i % 17},{i % 5},{50_000 + 3_000 * (i % 17)}.5" for i in range(120)]
    (tmp_path / "power.csv").write_text("house,heat,wind,watt\n" + "\n".join(rows))
    found = look([tmp_path / "power.csv"], target="watt")
    assert (found.settings["problem"], found.settings["target_scale"]) == ("regression", "standard")
    run = played(found, tmp_path, rounds=12)
    assert run.summary["loss"]["mean"] < 0.3  # in squared deviations: the mean alone would be 1


def test_a_folder_with_a_file_a_client(tmp_path):
    home = tmp_path / "trucks"
    home.mkdir()
    for name in ("one", "two"):
        text = "heat,label\n" + "".join(f"{i % 9},{'hot' if i % 9 > 4 else 'cold'}\n" for i in range(30))
        (home / f"{name}.tsv").write_text(text.replace(",", "\t"))
    found = look([home])
    assert (found.roles.client, found.roles.target) == ("", "label")
    assert [info.name for info in played(found, tmp_path).experiment.setup.population.infos] == ["one", "two"]
    several = look([home / "one.tsv", home / "two.tsv"])
    assert several.settings["path"] == [str(home / "one.tsv"), str(home / "two.tsv")]
    (tmp_path / "other").mkdir()
    assert len(played(several, tmp_path / "other").experiment.setup.population) == 2


def test_archives(tmp_path):
    home = tmp_path / "arrays"
    home.mkdir()
    x = np.random.default_rng(0).normal(size=(40, 3))
    x[0, 0] = np.nan
    np.savez(home / "a.npz", x=x, y=(x[:, 1] > 0).astype(int))
    np.savez(home / "b.npz", x=100 * x, y=(x[:, 1] > 0).astype(int))
    found = look([home])
    assert (found.settings["missing"], found.settings["scale"]) == ("mean", "standard")
    assert "2 values are missing: they become the mean of training rows" in found.findings
    assert played(found, tmp_path).summary["rounds"] == 2
    np.savez(home / "b.npz", x=x[:, :2], y=np.arange(40) % 2)
    unlike = look([home])
    assert "inputs of shape [3] and [2], but no device: save an array device" in unlike.trouble
    with pytest.raises(DataError, match="these files cannot be run yet"):
        recipe_for(unlike, tmp_path)


def test_folders_of_pictures(tmp_path):
    for i in range(24):
        folder = tmp_path / "clinics" / f"clinic-{i % 2}" / ("ill" if i // 2 % 2 else "well")
        folder.mkdir(parents=True, exist_ok=True)
        side = 10 if i == 5 else 8
        Image.new("L", (side, side), 10 * i).save(folder / f"{i}.png")
    found = look([tmp_path / "clinics"])
    assert found.settings["size"] == 8
    run = played(found, tmp_path)
    assert run.experiment.settings.model["name"] == "cnn"


def test_what_cannot_be_looked_at_is_said(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i / 3}\n" for i in range(30)))
    with pytest.raises(DataError, match=r"no column seems to name the client .*--client COLUMN"):
        look([tmp_path / "t.csv"])
    with pytest.raises(DataError, match="does not exist: put right the path"):
        look([tmp_path / "none.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no \.csv, .*save a table as \.csv"):
        look([tmp_path / "empty"])
    wrong = CliRunner().invoke(app, ["data", "check", "cifar"])
    assert "there is no data set, file or folder 'cifar'; did you mean 'cifar10'?" in str(wrong.exception)


def test_a_guess_that_is_unsure_says_so(tmp_path):
    rows = "".join(f"{'pq'[i % 2]},{i % 7},{'uv'[i % 3 > 1]}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("who,a,what\n" + rows)
    found = look([tmp_path / "t.csv"])
    assert [text.partition(";")[0] for text in found.roles.unsure] == [
        "target: 'what' is a guess",
        "client: 'who' is a guess",
    ]


def test_a_repeated_header_is_a_finding_and_costs_no_column(tmp_path):
    lines = ["truck,at,heat,worn"]
    lines += [f"t{i % 2},2024-01-{i % 28 + 1:02},{i * 7 % 13}.5,{i // 2 % 2}" for i in range(60)]
    (tmp_path / "all.csv").write_text("\n".join([*lines, *lines]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = look([tmp_path / "all.csv"])
    assert [text for text in found.findings if "line 62 repeats the header: skipped; remove it" in text]
    assert len([text for text in found.findings if "repeats the header" in text]) == 1
    assert {c.name: c.role for c in found.columns} == {
        **{"truck": "client", "at": "time", "heat": "feature", "worn": "target"}
    }
    assert "ignore" not in found.settings


def test_a_word_among_numbers_of_several_columns_is_a_gap(tmp_path):
    rows = [
        f"t{i % 2},{'k.A.' if i == 5 else i % 9},{'k.A.' if i == 7 else i * 3 % 7},{i // 2 % 2}"
        for i in range(40)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["truck,heat,load,worn", *rows]))
    found = look([tmp_path / "all.csv"])
    assert found.settings["gaps"] == ["k.A."]
    assert "'k.A.' among the numbers of several columns: taken for missing values" in found.findings
    assert {c.name for c in found.columns if c.role == "feature"} == {"heat", "load"}
    assert found.settings["missing"] == "mean"
    assert found.trouble == ""
    assert 'gaps = ["k.A."]' in recipe_for(found, tmp_path)


@pytest.mark.parametrize("name", ["machine", "Maschine", "vehicle_id", "client"])
def test_one_machines_file_is_one_client(name, tmp_path):
    rows = [f"m99,{i * 7 % 13}.5,{i // 2 % 2}" for i in range(40)]
    (tmp_path / "m99.csv").write_text("\n".join([f"{name},heat,worn", *rows]))
    found = look([tmp_path / "m99.csv"])
    assert found.roles.client == name
    assert (
        f"client: '{name}' is 'm99' in every row, so that all rows are one client's" in found.roles.unsure[0]
    )
    assert "there is one client alone: federating needs others" in found.findings
    assert list(found.population.clients) == ["m99"]


def test_what_the_option_would_do_is_said(tmp_path):
    rows = [f"north,{i * 7 % 13}.5,{i // 2 % 2}" for i in range(40)]
    (tmp_path / "m99.csv").write_text("\n".join(["where,heat,worn", *rows]))
    with pytest.raises(
        DataError, match="'where' is the same in every row: --client where makes all rows one"
    ):
        look([tmp_path / "m99.csv"])
    assert list(look([tmp_path / "m99.csv"], client="where").population.clients) == ["north"]
