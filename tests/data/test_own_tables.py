"""Own tables: every rule with worked numbers, fitted on training rows alone, and tables as careless people have them."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.core import DataError
from intarsia.data import Files, who_holds_what
from intarsia.data.fitting import Sums
from intarsia.data.preparation import Preparation, preparations_of
from intarsia.data.tables import read_table
from intarsia.export import Predictor

FLEET = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fleet.py"))["write"]


def load(path: Path, **options):
    return Files(path=str(path), **options).load(0, ())


def csv(path: Path, *lines: str, name: str = "t.csv") -> Path:
    (path / name).write_text("\n".join(lines) + "\n")
    return path / name


def column(population, client: str, split: str = "train", i: int = 0) -> list[float]:
    return population.clients[client].data[split].x[..., i].tolist()


SPLIT = (
    "client,x,label,split",
    "a,1,0,train",
    "a,3,1,train",
    "a,,0,train",
    "a,100,0,test",
    "b,10,1,train",
    "b,30,0,train",
    "b,,1,test",
)


@pytest.mark.parametrize(
    ("by", "means"),
    [("all", {"a": 11.0, "b": 11.0}), ("client", {"a": 2.0, "b": 20.0}), ("device", {"a": 11.0, "b": 11.0})],
)
def test_the_mean_of_training_rows_fills_gaps(by, means, tmp_path):
    """1, 3, 10 and 30 are in training rows; 100 is for testing, and moves nothing."""
    population = load(csv(tmp_path, *SPLIT), missing="mean", scale_by=by)
    assert column(population, "a") == [1, 3, means["a"]]
    assert column(population, "a", "test") == [100]
    assert column(population, "b", "test") == [means["b"]]


@pytest.mark.parametrize(
    ("by", "moments"),
    [
        ("client", {"a": (2, 1), "b": (20, 10)}),
        ("all", {"a": (11, math.sqrt(131.5)), "b": (11, math.sqrt(131.5))}),
    ],
)
def test_scales_are_those_of_training_rows(by, moments, tmp_path):
    population = load(csv(tmp_path, *SPLIT), missing="mean", scale="standard", scale_by=by)
    for name, (mean, deviation) in moments.items():
        prepared = population.preparations[name].columns[0]
        assert (prepared.offset, prepared.fill) == (mean, mean)
        assert prepared.scale == pytest.approx(deviation, rel=1e-15)
    mean, deviation = moments["a"]
    assert column(population, "a", "test") == [pytest.approx((100 - mean) / deviation)]
    assert column(population, "a")[2] == 0


@pytest.mark.parametrize("by", ["client", "device", "all"])
def test_test_rows_move_nothing(by, tmp_path):
    options = {"missing": "mean", "scale": "standard", "scale_by": by}
    before = load(csv(tmp_path, *SPLIT), **options).preparations
    changed = [line.replace("100", "-7777") for line in SPLIT]
    assert load(csv(tmp_path, *changed), **options).preparations == before


def test_devices_are_scaled_apart(tmp_path):
    rows = ["client,x,label,split,device"]
    rows += [
        f"{c},{x},{x % 2},{s},{d}"
        for c, d, x in (("a", "old", 1), ("b", "old", 3), ("c", "new", 9))
        for s in ("train", "test")
    ]
    population = load(csv(tmp_path, *rows), scale="standard", scale_by="device")
    assert [population.preparations[name].columns[0].offset for name in "abc"] == [2, 2, 9]
    assert population.preparations["c"].columns[0].scale == 1  # it does not vary: divided by one


def test_a_number_fills_gaps_and_rows_are_dropped(tmp_path):
    path = csv(tmp_path, *SPLIT)
    assert column(load(path, missing=7), "a") == [1, 3, 7]
    with pytest.raises(DataError, match="client 'b' has no test data"):
        load(path, missing="drop")
    kept = csv(tmp_path, *SPLIT, "b,5,0,test")
    assert column(load(kept, missing="drop"), "a") == [1, 3]
    with pytest.raises(
        DataError, match=r"line 4, column 'x': a value is missing \(and in 1 more row .*population\.missing"
    ):
        load(path)


def test_values_are_carried_within_a_split(tmp_path):
    rows = ["client,x,label", *(f"a,{x},{i % 2}" for i, x in enumerate(["", "1", "", "4", "", "", "7", "8"]))]
    path = csv(tmp_path, *rows)
    population = load(path, missing="carry", order="time", test=0.5)
    assert column(population, "a") == [2.5, 1, 1, 4]  # before the first, the mean of 1 and 4
    assert column(population, "a", "test") == [2.5, 2.5, 7, 8]  # nothing comes over from training rows
    with pytest.raises(DataError, match=r'rows must stay in the order of time .*population\.order = "time"'):
        load(path, missing="carry")


def test_words_are_categories_of_training_rows(tmp_path):
    rows = ["client,gear,label,split", "a,low,0,train", "a, high ,1,train", "b,low,1,train", "b,,0,train"]
    rows += ["a,reverse,0,test", "b,high,1,test"]
    population = load(csv(tmp_path, *rows), missing="mean")
    assert population.preparations["a"].inputs == ("gear=high", "gear=low")
    assert population.clients["a"].data["train"].x.tolist() == [[0, 1], [1, 0]]
    assert population.clients["a"].data["test"].x.tolist() == [[0, 0]]  # 'reverse' was never trained on
    assert population.clients["b"].data["train"].x.tolist() == [[0, 1], [0, 0]]
    named = load(csv(tmp_path, *rows), missing="mean", words={"gear": ("reverse", "low", "high")})
    assert named.clients["a"].data["test"].x.tolist() == [[1, 0, 0]]


def test_numbers_can_be_words_and_many_words_are_refused(tmp_path):
    path = csv(tmp_path, "client,code,label", *(f"a,{i % 3},{i % 2}" for i in range(12)))
    assert load(path, words={"code": ()}).infos[0].shape == (3,)
    path = csv(tmp_path, "client,serial,label", *(f"a,part-{i},{i % 2}" for i in range(120)))
    with pytest.raises(DataError, match=r"120 different words, .*population\.ignore = \[\"serial\"\]"):
        load(path)


MOMENTS = ("2024-03-02 12:00", "2024-03-01 06:00", "2024-03-04 00:30", "2024-03-03 18:00", "2024-03-05 00:00")


def test_times_are_an_order_and_features(tmp_path):
    path = csv(tmp_path, "client,at,x,label", *(f"a,{at},{i},{i % 2}" for i, at in enumerate(MOMENTS)))
    population = load(path, time="at", order="time", time_parts=("hour", "weekday"))
    assert column(population, "a") == [1, 0, 3, 2]
    assert column(population, "a", i=1) == [6, 12, 18, 0.5]
    assert column(population, "a", i=2) == [4, 5, 6, 0]
    assert column(population, "a", "test") == [4]
    seconds = load(path, time="at", order="time", time_parts=("seconds",), scale="standard")
    assert abs(sum(column(seconds, "a", i=1))) < 1e-5
    with pytest.raises(DataError, match=r"column 'at' holds times, .*set population\.time = \"at\""):
        load(path)


def test_windows_stay_within_a_split_and_a_stretch(tmp_path):
    rows = [f"a,{60 * i + (600 if i > 4 else 0)},{i},{i % 2}" for i in range(10)]
    path = csv(tmp_path, "client,s,x,label", *rows)
    options = {"time": "s", "order": "time", "window": 3, "stride": 1, "test": 0.3}
    population = load(path, **options)
    assert column(population, "a") == [[i, i + 1, i + 2] for i in range(5)]
    assert column(population, "a", "test") == [[7, 8, 9]]
    assert population.clients["a"].data["train"].y.tolist() == [0, 1, 0, 1, 0]  # of the last row
    apart = load(path, gap=100, **options)
    assert column(apart, "a") == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]  # after row 4 ten minutes pass
    assert column(load(path, **{**options, "stride": 0}), "a") == [[0, 1, 2], [3, 4, 5]]
    assert population.infos[0].shape == (3, 1)
    with pytest.raises(
        DataError, match=r"no 4 test rows in a row for a window: set population\.window to fewer"
    ):
        load(path, **{**options, "window": 4})
    with pytest.raises(DataError, match=r'population\.order = "time"'):
        load(path, window=3)


def test_targets_of_a_regression_are_scaled_and_come_back(tmp_path):
    rows = ["client,x,y,split", "a,1,100,train", "a,2,300,train", "a,3,900,test"]
    population = load(csv(tmp_path, *rows), target="y", problem="regression", target_scale="standard")
    assert population.clients["a"].data["train"].y.tolist() == [[-1], [1]]
    y = population.clients["a"].data["test"].y
    assert y.tolist() == [[7]]
    assert population.preparations["a"].predicted(y.numpy()).tolist() == [[900]]


def test_known_scales_stand_in_place_of_fitted_ones(tmp_path):
    population = load(csv(tmp_path, *SPLIT), missing="mean", scale="standard", scales={"x": (1.0, 2.0)})
    assert column(population, "a") == [0, 1, 0]


def test_sums_are_exact_and_commute():
    values = np.random.default_rng(0).normal(size=999) * 10.0 ** np.random.default_rng(1).integers(-8, 9, 999)
    whole = Sums.of(values)
    parts = [Sums.of(part) for part in np.split(np.random.default_rng(2).permutation(values), [5, 300, 301])]
    assert sum(reversed(parts), Sums()) == sum(parts, Sums()) == whole
    assert whole.mean == math.fsum(values) / 999
    assert whole.deviation == pytest.approx(values.std())
    late = Sums.of(1.7e9 + np.arange(5.0))
    assert late.deviation == math.sqrt(2)
    assert Sums.of(np.full(9, 0.1)).deviation == 1


def test_a_run_keeps_how_readings_were_prepared(tmp_path):
    """The README's case from one table: old trucks measure heat alone, new ones load and vibration too."""
    FLEET(tmp_path / "fleet.csv")
    settings = {
        "rounds": 6,
        "method": "modfl",
        "sharing": {"operation": "hidden2"},
        "population": {
            "name": "files",
            "path": str(tmp_path / "fleet.csv"),
            "client": "truck",
            "target": "state",
            "time": "time",
            "order": "time",
            "missing": "carry",
            "scale": "standard",
            "ignore": ["depot"],
            "relabel": {"OK": "ok"},
        },
        "training": {"lr": 0.1, "epochs": 2, "class_weights": "balanced"},
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    assert run.summary["accuracy"]["mean"] > 0.9  # 'ok' alone would be 76 %
    about = json.loads((tmp_path / "run" / "population.json").read_text())
    kept = preparations_of(about)
    assert len(about["preparations"]) == 2
    population = run.experiment.setup.population
    assert kept == population.preparations
    assert {info.device for info in population.infos} == {"heat+gear", "heat+load+vibration+gear"}
    table = read_table(tmp_path / "fleet.csv")
    for name in ("truck-02", "truck-11"):
        rows = [i for i, truck in enumerate(table.columns["truck"]) if truck == name]
        prepared = kept[name]
        assert isinstance(prepared, Preparation)
        x = prepared.apply(prepared.raw(table.rows(rows[:64])))
        np.testing.assert_array_equal(x, population.clients[name].data["train"].x.numpy())
    again = intarsia.run(run.path / "settings.toml", out=tmp_path / "again")
    assert again.metrics == run.metrics


def test_several_tables_with_a_client_column_are_one(tmp_path):
    lines = [f"{'ab'[i % 2]},{i},{i // 2 % 2}" for i in range(24)]
    csv(tmp_path, "client,x,label", *lines, name="all.csv")
    (tmp_path / "parts").mkdir()
    csv(tmp_path / "parts", "client,x,label", *lines[:10], name="jan.csv")
    csv(
        tmp_path / "parts", "client;x;label", *(line.replace(",", ";") for line in lines[10:]), name="feb.csv"
    )
    whole = load(tmp_path / "all.csv", order="time")
    months = [str(tmp_path / "parts" / name) for name in ("jan.csv", "feb.csv")]
    parts = Files(path=tuple(months), order="time").load(0, ())
    assert parts.split_hash == whole.split_hash
    assert list(load(tmp_path / "parts").clients) == ["a", "b"]
    (tmp_path / "parts" / "feb.csv").write_text("client,x,label\na,hot,1\n")
    with pytest.raises(DataError, match=r"feb\.csv, line 2, column 'x': 'hot' is no finite number"):
        Files(path=tuple(months)).load(0, ())


def test_preparations_of_archives(tmp_path):
    x = np.asarray([[1.0, 5.0], [3.0, np.nan], [np.nan, 7.0], [9.0, 9.0]])
    np.savez(tmp_path / "a.npz", x_train=x[:3], y_train=[0, 1, 0], x_test=x[3:], y_test=[1])
    population = load(tmp_path, missing="mean", scale="standard")
    assert population.clients["a"].data["train"].x.tolist() == [[-1, -1], [1, 0], [0, 1]]
    assert population.clients["a"].data["test"].x.tolist() == [[7, 3]]
    assert population.preparations["a"].inputs == ("x0", "x1")
    clean = tmp_path / "clean"
    clean.mkdir()
    np.savez(clean / "a.npz", x=x[[0, 3] * 4], y=[0, 1] * 4)
    assert load(clean).preparations == {}


def test_pictures_say_how_they_become_inputs(tmp_path):
    from PIL import Image

    for i in range(8):
        folder = tmp_path / "clinic" / ("ill" if i % 2 else "well")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), (30 * i, 0, 9)).save(folder / f"{i}.png")
    population = load(tmp_path, size=4)
    kept = preparations_of(json.loads(json.dumps(who_holds_what(population))))["clinic"]
    files = sorted(tmp_path.glob("*/*/*.png"))
    raw = kept.raw(files)
    held = torch.cat([e.x for e in population.clients["clinic"].data.values()])
    assert sorted(map(bytes, raw.reshape(8, -1))) == sorted(
        map(bytes, held.contiguous().reshape(8, -1).numpy())
    )


def test_lines_that_repeat_the_header_are_skipped_and_named(tmp_path):
    body = [f"{'ab'[i % 2]},{i},{i // 2 % 2}" for i in range(20)]
    path = csv(tmp_path, "client,x,label", *body, "client, x,label", *body, "client,x,label", *body)
    with pytest.warns(
        intarsia.IntarsiaWarning,
        match=r"t\.csv, line 22 repeats the header \(as lines do 2 times in all\): skipped",
    ):
        population = load(path)
    assert sum(sum(info.samples.values()) for info in population.infos) == 60
    with pytest.warns(intarsia.IntarsiaWarning), pytest.raises(DataError, match="no rows below"):
        load(csv(tmp_path, "client,x,label", "client,x,label"))


def test_a_missing_word_is_named_as_such_and_all_rows_are_counted(tmp_path):
    rows = [f"{'ab'[i % 2]},{i},{'' if i in (3, 4, 8) else 'eco'},{i // 2 % 2}" for i in range(20)]
    with pytest.raises(DataError) as caught:
        load(csv(tmp_path, "client,x,mode,label", *rows))
    message = str(caught.value)
    assert "t.csv, line 5, column 'mode': a value is missing (and in 2 more rows of the table)" in message
    assert "population.missing" in message
    assert "finite" not in message


GAPPED = (
    "client,x,z,label",
    *(
        f"{'ab'[i % 2]},{'k.A.' if i == 5 else i},{'K.A.' if i == 7 else i * 3 % 7},{i // 2 % 2}"
        for i in range(20)
    ),
)


def test_other_words_for_a_gap_are_told(tmp_path):
    path = csv(tmp_path, *GAPPED)
    with pytest.raises(DataError, match=r"'k\.A\.' is no finite number: .*population\.gaps = \[\"k\.A\.\"\]"):
        load(path, missing="mean")
    told = load(path, missing="mean", gaps=("k.a.",))
    usual = csv(tmp_path, *(row.replace("k.A.", "").replace("K.A.", "") for row in GAPPED), name="u.csv")
    assert told.split_hash == load(usual, missing="mean").split_hash
    with pytest.raises(DataError, match=r"'warm' is no finite number") as caught:
        load(csv(tmp_path, *GAPPED[:5], "a,warm,1,0", name="w.csv"))
    assert "population.gaps" not in str(caught.value)


def test_a_model_that_was_written_knows_the_words_for_a_gap(tmp_path):
    population = {"name": "files", "path": str(csv(tmp_path, *GAPPED)), "missing": "mean", "gaps": ["k.A."]}
    settings = {"rounds": 1, "population": population, "model": {"name": "mlp", "hidden": [4]}}
    run = intarsia.run(settings, out=tmp_path / "run")
    kept = preparations_of(json.loads((tmp_path / "run" / "population.json").read_text()))
    assert kept["a"].gaps == ("k.A.",)
    run.client("a").export(tmp_path / "a.pt2")
    new = csv(tmp_path, "x,z", "k.A.,3", "1,K.A.", name="new.csv")
    plain = csv(tmp_path, "x,z", ",3", "1,", name="plain.csv")
    model = Predictor.open(tmp_path / "a.pt2")
    assert model.predict(new).rows() == model.predict(plain).rows()
