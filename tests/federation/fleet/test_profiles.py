"""Profiles of devices: what is said, where, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest

import intarsia
from intarsia.core import DataError, IntarsiaWarning, SettingsError
from intarsia.data import ClientInfo
from intarsia.data.sources.files import Files
from intarsia.experiment.settings import check
from intarsia.federation import Fleet
from intarsia.federation.fleet.hours import DAY, Hours


def info(name: str = "a", device: str = "phone", **profile: object) -> ClientInfo:
    return ClientInfo(name, (3,), {"train": 5, "test": 2}, device=device, profile=profile)


def fleet(**settings: object) -> Fleet:
    return check({"fleet": settings}).fleet


def test_what_is_nearer_to_a_client_stands_before_what_is_general(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("client,up,available\na,7,22:00-06:00\nb,8,\n")
    made = fleet(speed=1e6, down=10, up=5, devices={"phone": {"down": 20, "latency": 2}}, path=str(path))
    phone = made.profile(info(dropout=0.25), 0)
    assert (phone.speed, phone.down, phone.up, phone.latency, phone.dropout) == (1e6, 20, 7, 2, 0.25)
    assert not phone.hours.open_at(12 * 3600)
    assert phone.hours.open_at(23 * 3600)
    other = made.profile(info("c", "watch"), 0)
    assert (other.down, other.up, other.hours.windows) == (10, 5, ())


def test_a_table_may_be_about_devices(tmp_path):
    (tmp_path / "kinds.csv").write_text("device;speed\nphone;2,5\nwatch;1,5\n")
    made = fleet(path=str(tmp_path / "kinds.csv"))
    assert made.profile(info(), 0).speed == 2.5
    assert made.profile(info(device="watch"), 0).speed == 1.5


@pytest.mark.parametrize(
    ("drawn", "median"),
    [
        ({"name": "lognormal", "median": 8, "sigma": 0.5}, 8),
        ({"name": "uniform", "low": 2, "high": 4}, 3),
        ({"name": "exponential", "mean": 2}, 2 * np.log(2)),
        ({"name": "pareto", "low": 1, "alpha": 2}, 2**0.5),
        ({"name": "one of", "values": [1, 5], "shares": [1, 3]}, 5),
    ],
)
def test_a_quantity_is_drawn_by_the_clients_name_and_the_seed(drawn, median):
    made = fleet(up=drawn)
    many = [made.profile(info(f"client-{i}"), 0).up for i in range(2001)]
    assert np.median(many) == pytest.approx(median, rel=0.08)
    assert made.profile(info("client-7"), 0).up == many[7]
    assert len({made.profile(info("client-7"), seed).up for seed in range(8)}) > 1


def test_windows_of_the_day():
    night = Hours.of("22:00-06:00 12-13")
    hour = 3600.0
    assert [night.open_at(h * hour) for h in (0, 5.9, 6, 12.5, 21, 23, 24 + 23)] == [1, 1, 0, 1, 0, 1, 1]
    assert night.opens(7 * hour) == 12 * hour
    assert night.opens(23 * hour) == 23 * hour
    assert night.closes(23 * hour) == 30 * hour
    assert night.closes(5 * hour + DAY) == 6 * hour + DAY
    later = Hours.of("22:00-06:00", shift=2 * hour)
    assert [later.open_at(h * hour) for h in (23, 1, 7, 9)] == [False, True, True, False]
    assert (
        Hours.of("").closes(5)
        == Hours.of("0-24").closes(5)
        == Hours.of("0-12 12-24").closes(5)
        == float("inf")
    )
    assert Hours.of("22-24 0-6").closes(23 * hour) == 30 * hour


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speed": 0}, "fleet.speed"),
        ({"sped": 1}, "did you mean 'speed'"),
        ({"dropout": 1}, "fleet.dropout"),
        ({"up": {"name": "lognormal", "media": 1}}, "media"),
        ({"up": {"name": "one of", "values": [1, 2], "shares": [1]}}, "one share a value"),
        ({"overselect": 0.5}, "fleet.overselect"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(SettingsError, match=message):
        fleet(**settings)


def test_what_no_device_can_be_is_refused_with_the_client(tmp_path):
    with pytest.raises(SettingsError, match="client 'a' has up -1"):
        fleet(up={"name": "uniform", "low": -1, "high": -1}).profile(info(), 0)
    with pytest.raises(SettingsError, match="client 'a', available: 'noon' is no window"):
        fleet(available="noon").profile(info(), 0)
    with pytest.raises(SettingsError, match="no day has"):
        fleet(available="25:00-26:00").profile(info(), 0)
    (tmp_path / "odd.csv").write_text("client,sped\na,1\n")
    with pytest.raises(DataError, match="'sped'; did you mean 'speed'"):
        fleet(path=str(tmp_path / "odd.csv")).profile(info(), 0)
    (tmp_path / "twice.csv").write_text("client,speed\na,1\na,2\n")
    with pytest.raises(DataError, match="client 'a' stands there twice"):
        fleet(path=str(tmp_path / "twice.csv")).profile(info(), 0)
    (tmp_path / "others.csv").write_text("client,speed\nx,1\n")
    with pytest.raises(SettingsError, match="names no client that there is; there are: a, b"):
        fleet(path=str(tmp_path / "others.csv")).check_table({"a": 1, "b": 2})
    (tmp_path / "word.csv").write_text("client,speed,up\na,fast,3\nb,slow,4\n")
    with pytest.raises(DataError, match="'fast' is no number"):
        fleet(path=str(tmp_path / "word.csv")).profile(info(), 0)


def test_settings_come_back_as_they_were_given():
    settings = check(
        {"fleet": {"up": {"name": "lognormal", "median": 8.0}, "devices": {"tv": {"speed": 3.0}}}}
    )
    again = check(settings.model_dump(mode="json"))
    assert again.fleet == settings.fleet
    assert "[fleet.devices.tv]" in settings.to_toml()
    assert "fleet" not in check({}).to_toml()


def test_profiles_come_from_own_files_and_from_python(tmp_path):
    rows = ["client,label,x,device,device_speed,device_available"]
    rows += [f"c{i % 2},{i % 3},{i},tv,{1000 + i % 2},1:00-3:00" for i in range(24)]
    (tmp_path / "own.csv").write_text("\n".join(rows) + "\n")
    population = Files(path=str(tmp_path / "own.csv")).load(0, ())
    assert dict(population.clients["c1"].info.profile) == {"speed": 1001, "available": "1:00-3:00"}
    assert population.clients["c1"].info.shape == (1,)
    entry = {"train": ([[0.0]], [0]), "test": ([[0.0]], [1]), "profile": {"up": 3}}
    assert intarsia.from_dict({"a": entry}).clients["a"].info.profile == {"up": 3.0}
    with pytest.raises(DataError, match="profile of client 'a'"):
        intarsia.from_dict({"a": entry | {"profile": {"sped": 3}}})
    with pytest.raises(DataError, match="must have numbers"):
        intarsia.from_dict({"a": entry | {"profile": {"up": "fast"}}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speed": -1}, r"^fleet\.speed: input should be greater than 0 \(got -1\)$"),
        ({"speed": "fast"}, r"^fleet\.speed: input should be a valid number[^\n]*$"),
        ({"up": {"low": 1}}, r"^fleet\.up: write a number, or a table with the name[^\n]*$"),
        ({"up": {"name": "nix"}}, r"^fleet\.up\.name: there is no 'nix'; there are: 'lognormal'[^\n]*$"),
        ({"up": {"name": "uniform", "low": 2, "high": 1}}, "goes from 2 to 1"),
        ({"up": {"name": "uniform", "low": float("nan")}}, "goes from nan to 1"),
        ({"up": {"name": "one of", "values": [1, 2], "shares": [float("inf"), 1]}}, "finite"),
    ],
)
def test_what_is_no_quantity_is_said_in_one_line(settings, message):
    with pytest.raises(SettingsError, match=message):
        fleet(**settings)


def test_a_draw_beyond_all_numbers_is_refused():
    made = fleet(up={"name": "lognormal", "median": 1e308, "sigma": 1e6})
    with pytest.raises(SettingsError, match="which no device has"):
        _ = [made.profile(info(f"c{i}"), 0) for i in range(20)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,speed\na,1\nb,nan\n", r"line 3, column 'speed': no device has speed = nan"),
        ("client,up\na,0\n", r"line 2, column 'up': no device has up = 0"),
        ("client,seconds\na,0\n", r"line 2, column 'seconds': no device"),
        ("client,dropout\na,1\n", r"column 'dropout': no device"),
        ("client,available\na,25-26\n", r"line 2, column 'available': '25-26' names a time"),
        ("client,speed\n,5\na,6\n", r"line 2, column 'client': there is no name"),
        ("client,device,speed\na,phone,5\n", "both columns 'client' and 'device'"),
        ("client\na\nb\n", "no column beside 'client'"),
        ("Client,speed\na,5\n", "did you mean 'client'"),
    ],
)
def test_cells_and_columns_that_cannot_be_are_named_before_a_run(text, message, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises((DataError, SettingsError), match=message):
        _ = fleet(path=str(tmp_path / "t.csv")).table


def test_only_tables_are_read_and_rows_of_nobody_are_told(tmp_path):
    (tmp_path / "t.json").write_text('{"a": {"speed": 5}}')
    with pytest.raises(DataError, match=r"is no table: give a file \.csv, \.tsv or \.parquet"):
        _ = fleet(path=str(tmp_path / "t.json")).table
    (tmp_path / "t.csv").write_text("client,speed\na,1\nx,2\n")
    with pytest.warns(IntarsiaWarning, match=r"names 1 of 2 clients that there are not \(x\)"):
        fleet(path=str(tmp_path / "t.csv")).check_table({"a": 1})
    (tmp_path / "d.csv").write_text("device,speed\nx,1\n")
    with pytest.raises(SettingsError, match="names no device that there is; there are: phone"):
        fleet(path=str(tmp_path / "d.csv")).check_table({"a": 1}, {"phone"})
