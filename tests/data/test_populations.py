"""Populations on small files that the tests make: dealing, scaling, windows, look-up, cache, errors."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import re
import threading
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.core import DataError, SettingsError, build_part
from intarsia.data import POPULATIONS, Images, Joint, Motion, Roles, get, places, who_holds_what
from intarsia.data import datasets as datasets_module
from intarsia.data.datasets import Dataset, Download, Form
from intarsia.data.download import download
from intarsia.data.raw import RawData, Recording, Recordings, renumber
from intarsia.experiment import Experiment, load
from intarsia.training import LOSSES, evaluate

CLASSES = ("car", "cat", "dog", "ship")


def pictures(n: int = 400, channels: int = 3, **more) -> RawData:
    """Images whose pixels all say which row they are: row number mod 251."""
    x = np.empty((n, 8, 8, channels), dtype=np.uint8)
    x[:] = (np.arange(n) % 251)[:, None, None, None]
    y = (np.arange(n) % 4).astype(np.int64)
    return RawData(x, y, CLASSES, np.arange(n) < 3 * n // 4, **more)


def motion(rate: float = 10.0) -> Recordings:
    """Signals whose value is the time step; two activities one after the other, six subjects."""
    items = []
    for subject in range(6):
        steps = np.arange(200, dtype=np.float32)
        signal = np.stack([steps, steps + 1000 * subject, np.zeros(200)], 1).astype(np.float32)
        items.append(Recording(signal, np.repeat([0, -1, 1], [100, 20, 80]), subject))
    return Recordings(items, ("Walking", "Sitting"), rate)


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Toy data sets that are found in a folder."""

    def add(name: str, raw) -> None:
        (tmp_path / f"{name}.toy").write_text("")
        form = Form("packed", (f"{name}.toy",), lambda folder: raw)
        monkeypatch.setitem(datasets_module.DATASETS, name, Dataset(name, "images", "toy", (form,)))

    add("toy", pictures())
    add("overlap", pictures(natural=np.arange(400) // 5, overlapping=True))
    add("writers", pictures(natural=np.arange(400) % 7))
    add("grey", pictures(channels=1))
    add("walk", motion())
    add("walk20", motion(20.0))
    add("play", "FIRST:\n" + "abcd" * 60 + "\n\nSECOND:\n" + "xy" * 90 + "\n\nFIRST:\nmore\n\nTHIRD:\nno")
    return (tmp_path,)


def rows_of(population) -> list[int]:
    return [r for own in population.rows.values() for split in own.values() for r in split]


def test_every_row_is_used_once_and_holds_its_own_pixels(toys):
    population = Images(dataset="toy", clients=5, validation=0.1).load(0, toys)
    assert sorted(rows_of(population)) == list(range(400))
    for name, client in population.clients.items():
        for split, examples in client.data.items():
            rows = torch.tensor(population.rows[name][split])
            assert examples.x.dtype == torch.uint8
            assert examples.x.shape[1:] == (3, 8, 8)
            assert torch.equal(examples.x[:, 0, 0, 0].long(), rows % 251)
            assert torch.equal(examples.y, rows % 4)
    sizes = population.infos[0].samples
    assert sizes == {"train": 58, "validation": 6, "test": 16}


def test_published_parts_stay_apart(toys):
    for partition in ("iid", "dirichlet", {"name": "windows", "labels_per_group": 2}):
        population = Images(dataset="toy", clients=4, split="published", partition=partition).load(0, toys)
        for own in population.rows.values():
            assert max(own["train"]) < 300 <= min(own["test"])


def test_a_public_share_belongs_to_nobody(toys):
    population = Images(dataset="toy", clients=4, public=0.1).load(0, toys)
    assert len(population.public) == 40
    assert torch.bincount(population.public.y).tolist() == [10, 10, 10, 10]
    assert len(rows_of(population)) == 360
    held = torch.cat([e.x[:, 0, 0, 0] for c in population.clients.values() for e in c.data.values()])
    every = torch.cat([held, population.public.x[:, 0, 0, 0]]).long()
    assert torch.equal(every.bincount(), torch.from_numpy(np.arange(400) % 251).bincount())


def test_overlapping_pictures_are_never_on_both_sides(toys):
    population = Images(dataset="overlap", clients=4, partition="dirichlet").load(0, toys)
    sides = {split: set() for split in ("train", "test")}
    for own in population.rows.values():
        for split, rows in own.items():
            sides[split] |= {r // 5 for r in rows}
    assert sides["train"]
    assert sides["test"]
    assert not sides["train"] & sides["test"]


def test_overlapping_pictures_are_for_one_purpose_only(toys):
    population = Images(dataset="overlap", clients=4, validation=0.2, public=0.2).load(0, toys)
    used: dict[int, set[str]] = {}
    for own in population.rows.values():
        for split, rows in own.items():
            for row in rows:
                used.setdefault(row // 5, set()).add(split)
    assert all(len(splits) == 1 for splits in used.values())
    assert {s for splits in used.values() for s in splits} == {"train", "validation", "test"}
    assert len(population.public) + len(rows_of(population)) == 400
    assert len(population.public) % 5 == 0


def test_drawn_parts_take_from_both_published_ones(toys):
    source = Images(dataset="toy", clients=2, split="drawn", per_label=(80, 20), partition="two_classes")
    population = source.load(0, toys)
    assert {tuple(i.samples.items()) for i in population.infos} == {(("train", 160), ("test", 40))}
    assert any(r >= 300 for own in population.rows.values() for r in own["train"])
    for client in population.clients.values():
        assert set(client.data["train"].y.tolist()) == set(client.data["test"].y.tolist())


def test_a_part_without_a_label_is_an_error_not_another_label(toys, monkeypatch):
    """Else clients would train on some labels and be tested on others."""
    raw = pictures()
    short = replace(raw, train=raw.train | (raw.y == 3))
    form = Form("packed", ("toy.toy",), lambda folder: short)
    monkeypatch.setitem(datasets_module.DATASETS, "toy", Dataset("short", "images", "", (form,)))
    for partition in (
        {"name": "labels", "per_client": 2},
        "two_classes",
        {"name": "windows", "labels_per_group": 2},
    ):
        with pytest.raises(DataError, match="the test part has no sample of label 3"):
            Images(dataset="toy", clients=8, split="published", partition=partition).load(0, toys)


def test_the_scaling_is_the_same_with_any_number_of_threads(toys):
    def scaling():
        return (
            Images(dataset="toy", clients=2, size=5, channels=1)
            .load(0, toys)
            .clients["toy-0"]
            .data["train"]
            .scaling
        )

    torch.set_num_threads(2)
    two = scaling()
    torch.set_num_threads(1)
    assert two == scaling()


def test_the_device_does_not_change_the_split(toys):
    one = Images(dataset="toy", clients=2).load(0, toys)
    other = Images(dataset="toy", clients=2, device="renamed").load(0, toys)
    assert list(one.rows.values()) == list(other.rows.values())


def test_short_stretches_are_used_too(monkeypatch, toys):
    """Stretches shorter than five windows: the end of each subject's time is for testing, not the end of each."""
    steps = np.arange(400, dtype=np.float32)
    y = np.tile(np.repeat([0, 1], [20, 20]), 10)
    raw = Recordings(
        [Recording(np.stack([steps] * 3, 1), y, s) for s in range(2)], ("Walking", "Sitting"), 10.0
    )
    form = Form("packed", ("walk.toy",), lambda folder: raw)
    monkeypatch.setitem(datasets_module.DATASETS, "walk", Dataset("shortwalk", "motion", "", (form,)))
    population = Motion(dataset="walk", clients=2, seconds=1, test=0.2, validation=0.25).load(0, toys)
    sizes = {s: sum(i.samples[s] for i in population.infos) for s in ("train", "validation", "test")}
    total = sum(sizes.values())
    assert sizes["test"] / total == pytest.approx(0.2, abs=0.03)
    assert sizes["validation"] / total == pytest.approx(0.2, abs=0.03)


def test_validation_windows_are_never_taken_from_training_windows_that_overlap_them(toys):
    with pytest.raises(DataError, match="holds no whole window"):
        Motion(dataset="walk", clients=2, seconds=5, validation=0.01).load(0, toys)


def test_noise_is_for_images(toys):
    with pytest.raises(DataError, match="'noise' is for images"):
        Motion(dataset="walk", partition="noise").load(0, toys)


def test_writers_are_clients(toys):
    population = Images(dataset="writers", clients=7, partition="natural", split="published").load(0, toys)
    for own in population.rows.values():
        assert len({r % 7 for rows in own.values() for r in rows}) == 1


def test_labels_are_chosen_by_name_and_order(toys):
    population = Images(dataset="toy", clients=2, labels=("Ship", "automobile")).load(0, toys)
    assert population.outputs == 2
    for name, client in population.clients.items():
        rows = torch.tensor(population.rows[name]["train"])
        assert set((rows % 4).tolist()) == {3, 0}
        assert torch.equal(client.data["train"].y, (rows % 4 == 0).long())
    with pytest.raises(DataError, match="no label 'horse'; it has: car, cat, dog, ship"):
        Images(dataset="toy", labels=("horse",)).load(0, toys)


def test_two_names_for_one_label_are_an_error():
    with pytest.raises(DataError, match="the labels 'car' and 'automobile' mean the same"):
        renumber(("car", "dog"), ("car", "automobile"), "x")
    with pytest.raises(DataError, match="mean the same"):
        renumber(("upstairs", "downstairs"), ("upstairs", "stairs"), "x")


def test_stairs_are_up_and_down():
    labels = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING")
    assert renumber(labels, ("walking", "stairs", "sitting"), "x").tolist() == [0, 1, 1, 2]
    assert renumber(("a", "A"), ("A", "a"), "x").tolist() == [1, 0]


def test_limits_a_label_and_fractions(toys):
    population = Images(dataset="toy", clients=2, split="published", per_label=(30, 10)).load(0, toys)
    assert population.infos[0].samples == {"train": 60, "test": 20}
    with pytest.raises(
        DataError, match=r"has 75 train samples of label 0, population\.per_label asks for 76"
    ):
        Images(dataset="toy", per_label=(76, 1), split="published").load(0, toys)
    assert len(rows_of(Images(dataset="toy", clients=2, fraction=0.25).load(0, toys))) == 100


def test_bytes_are_scaled_in_the_batch_as_floats_would_be(toys):
    """Training on bytes with a scaling is training on the scaled floats."""
    population = Images(dataset="toy", clients=2).load(0, toys)
    examples = population.clients["toy-0"].data["train"]
    scaling = examples.scaling
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (scaling.mean, scaling.std))
    floats = replace(examples, x=(examples.x.float() / 255 - mean) / std, scaling=None)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    one, other = (evaluate(model, e, LOSSES["cross_entropy"]) for e in (examples, floats))
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    every = torch.cat([c.data["train"].x for c in population.clients.values()]).float() / 255
    assert scaling.mean[0] == pytest.approx(every.mean().item(), abs=0.02)
    plain = Images(dataset="toy", clients=2, standardise=False).load(0, toys)
    assert plain.clients["toy-0"].data["train"].scaling.mean == (0, 0, 0)


def test_size_and_channels(toys):
    small = Images(dataset="toy", clients=2, size=4, channels=1).load(0, toys)
    x = small.clients["toy-0"].data["train"].x
    assert x.shape[1:] == (1, 4, 4)
    rows = torch.tensor(small.rows["toy-0"]["train"])
    assert torch.equal(x[:, 0, 2, 2].long(), rows % 251)
    grey = Images(dataset="grey", clients=2, channels=3).load(0, toys)
    assert grey.infos[0].shape == (3, 8, 8)


def test_noise_grows_from_client_to_client(toys):
    source = Images(dataset="toy", clients=3, partition={"name": "noise", "sigma": 0.5})
    population = source.load(0, toys)
    spreads = []
    for name, client in population.clients.items():
        rows = torch.tensor(population.rows[name]["train"])
        clean = (rows % 251).float().div(255).view(-1, 1, 1, 1)
        spreads.append((client.data["train"].x - clean).std().item())
    assert spreads == pytest.approx([0, 0.25, 0.5], rel=0.05, abs=1e-6)


def test_cohorts_that_permute_labels_share_none_and_all_have_the_same_ones(toys):
    source = Images(dataset="toy", clients=6, partition={"name": "permuted_labels", "number": 3})
    plain = Images(dataset="toy", clients=6, partition="iid")
    population = source.load(0, toys)
    raw = pictures()
    said = {}
    for i, (name, client) in enumerate(population.clients.items()):
        assert client.info.cohort == f"cohort-{i % 3}"
        true = raw.y[population.rows[name]["train"]]
        assert torch.equal(
            client.data["train"].x,
            torch.from_numpy(raw.x[population.rows[name]["train"]]).permute(0, 3, 1, 2),
        )
        pairs = set(zip(true.tolist(), client.data["train"].y.tolist(), strict=True))
        said.setdefault(i % 3, set()).update(pairs)
    tables = [dict(pairs) for _, pairs in sorted(said.items())]
    classes = int(raw.y.max()) + 1
    assert all(len(pairs) == classes for pairs in said.values())
    assert tables[0] == {label: label for label in range(classes)}
    assert all(len({table[label] for table in tables}) == 3 for label in range(classes))
    assert plain.load(0, toys).infos[0].cohort == "default"
    with pytest.raises(DataError, match=f"number is 99, but there are {classes} labels"):
        Images(dataset="toy", clients=6, partition={"name": "permuted_labels", "number": 99}).load(0, toys)


def test_cohorts_that_shift_inputs_keep_labels(toys):
    source = Images(dataset="toy", clients=4, partition={"name": "shifted_inputs", "number": 4})
    population, raw = source.load(0, toys), pictures()
    for i, (name, client) in enumerate(population.clients.items()):
        rows = population.rows[name]["test"]
        seen = raw.x[rows].swapaxes(1, 2) if i in (2, 3) else raw.x[rows]
        seen = 255 - seen if i in (1, 3) else seen
        assert torch.equal(client.data["test"].x, torch.from_numpy(seen.copy()).permute(0, 3, 1, 2))
        assert client.data["test"].y.tolist() == raw.y[rows].tolist()
    with pytest.raises(DataError, match="'shifted_inputs' is for images"):
        Motion(dataset="walk", partition="shifted_inputs").load(0, toys)


def test_one_seed_one_split(toys):
    def split(seed, **options):
        return Images(dataset="toy", clients=4, partition="dirichlet", **options).load(seed, toys)

    assert split(0).split_hash == split(0).split_hash
    assert split(0).split_hash == "5c4985ac901f048f"
    assert len({split(s).split_hash for s in range(5)}) == 5


def test_windows_are_cut_after_the_split(toys):
    """With the time in the signal: no step of a test window is in a training window of the same subject."""
    source = Motion(dataset="walk", clients=2, seconds=1, test=0.2, validation=0.25, standardise=False)
    population = source.load(0, toys)
    steps = {split: set() for split in ("train", "validation", "test")}
    for client in population.clients.values():
        for split, examples in client.data.items():
            assert examples.x.shape[1:] == (10, 3)
            assert (examples.x[:, 1:, 0] - examples.x[:, :-1, 0] == 1).all()
            subject = (examples.x[:, 0, 1] - examples.x[:, 0, 0]).long()
            assert ((examples.x[:, 0, 0] >= 120).long() == examples.y).all()
            for window, who in zip(examples.x[:, :, 0].long(), subject, strict=True):
                steps[split] |= {(int(who), int(step)) for step in window}
    assert all(steps.values())
    assert not steps["train"] & steps["test"]
    assert not steps["train"] & steps["validation"]
    assert not steps["validation"] & steps["test"]
    assert not {step for _, step in set().union(*steps.values())} & set(range(100, 120))


def test_split_by_subject(toys):
    source = Motion(dataset="walk", clients=2, seconds=1, split_by="subject", test=0.34, standardise=False)
    population = source.load(0, toys)

    def subjects(split):
        every = torch.cat([c.data[split].x for c in population.clients.values()])
        return {int(s) for s in ((every[:, 0, 1] - every[:, 0, 0]) / 1000).unique()}

    assert len(subjects("test")) == 2
    assert subjects("train") | subjects("test") == set(range(6))
    assert not subjects("train") & subjects("test")
    with pytest.raises(DataError, match="split by time"):
        Motion(dataset="walk", partition="natural", split_by="subject", clients=6).load(0, toys)


def test_subjects_as_clients_and_channels(toys):
    source = Motion(dataset="walk", clients=6, partition="natural", seconds=1, channels=2, standardise=False)
    population = source.load(0, toys)
    for i, client in enumerate(population.clients.values()):
        x = client.data["train"].x
        assert x.shape[-1] == 2
        assert {int(s) for s in ((x[:, 0, 1] - x[:, 0, 0]) / 1000)} == {i}
    with pytest.raises(DataError, match="has 3 channels, not 6"):
        Motion(dataset="walk", channels=6).load(0, toys)


def test_motion_is_standardised_on_training_windows(toys):
    population = Motion(dataset="walk", clients=2, seconds=1).load(0, toys)
    examples = [c.data["train"] for c in population.clients.values()]
    scaled = torch.cat([e.scaling.apply(e.x) for e in examples]).reshape(-1, 3)
    torch.testing.assert_close(scaled[:, :2].mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled[:, :2].std(0), torch.ones(2), atol=1e-3, rtol=0)


def test_windows_longer_than_every_stretch(toys):
    with pytest.raises(DataError, match=r"no stretch of 60\.0 s"):
        Motion(dataset="walk", seconds=60).load(0, toys)


def test_two_generations_in_one_population(toys):
    members = {
        "old": {"name": "motion", "dataset": "walk", "clients": 2, "seconds": 1, "channels": 2},
        "new": {"name": "motion", "dataset": "walk20", "clients": 3, "seconds": 1, "model": "big"},
    }
    population = Joint(members=members).load(0, toys)
    assert {i.device: i.shape for i in population.infos} == {"walk": (10, 2), "walk20": (20, 3)}
    assert [i.model for i in population.infos] == ["", "", "big", "big", "big"]
    assert population.labels == ("Walking", "Sitting")


def test_members_must_share_their_labels(toys):
    image = {"name": "images", "dataset": "toy", "clients": 2}
    with pytest.raises(DataError, match="have different labels"):
        Joint(members={"a": image, "b": {**image, "dataset": "grey", "labels": ("car", "dog")}}).load(0, toys)
    with pytest.raises(DataError, match="'toy-0' is a client of two members"):
        Joint(members={"a": image, "b": {**image, "dataset": "grey", "device": "toy"}}).load(0, toys)
    with pytest.raises(DataError, match="data set 'toy' is dealt twice"):
        Joint(members={"a": image, "b": {**image, "device": "other"}}).load(0, toys)
    with pytest.raises(DataError, match="no public share"):
        Joint(members={"a": {**image, "public": 0.1}}).load(0, toys)
    with pytest.raises(DataError, match="at least one member"):
        Joint().load(0, toys)
    with pytest.raises(
        SettingsError, match=r"population\.members\.a: there is no 'imges'; did you mean 'images'"
    ):
        Joint(members={"a": {"name": "imges"}})


def test_roles_of_a_play(toys):
    population = Roles(dataset="play", length=10, minimum=100).load(0, toys)
    assert list(population.clients) == ["FIRST", "SECOND"]
    alphabet = population.labels
    data = population.clients["SECOND"].data
    assert data["train"].x.shape == (14, 10)
    assert "".join(alphabet[i] for i in data["train"].x[0]) == "xyxyxyxyxy"
    assert alphabet[data["train"].y[0]] == "x"
    with pytest.raises(DataError, match="only 2 roles have 100 characters"):
        Roles(dataset="play", length=10, minimum=100, clients=3).load(0, toys)


def test_a_network_learns_the_play(toys, tmp_path):
    settings = {
        "rounds": 8,
        "data_folder": str(toys[0]),
        "population": {"name": "roles", "dataset": "play", "length": 10, "minimum": 100},
        "model": "char_lstm",
        "training": {"optimizer": "adam", "lr": 0.02, "epochs": 3},
        "method": "fedper",
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    assert run.summary["accuracy"]["mean"] > 0.9


def test_kinds_are_not_mixed_up(toys):
    with pytest.raises(DataError, match="has no images: use population 'motion'"):
        Images(dataset="walk").load(0, toys)
    with pytest.raises(DataError, match="has no motion"):
        Motion(dataset="toy").load(0, toys)


def test_cohorts_of_windows(toys):
    source = Images(dataset="toy", clients=8, partition={"name": "windows", "labels_per_group": 2})
    population = source.load(0, toys)
    assert [i.cohort for i in population.infos][:5] == ["group-0", "group-1", "group-2", "group-3", "group-0"]
    about = who_holds_what(population)
    assert about["labels"] == list(CLASSES)
    held = about["clients"]["toy-1"]["labels"]
    assert [n > 0 for n in held["train"]] == [False, True, True, False]


def test_bad_settings_are_named():
    with pytest.raises(SettingsError, match=r"population\.partition: there is no 'dirichlt'; did you mean"):
        Images(dataset="toy", partition="dirichlt")
    with pytest.raises(SettingsError, match=r"population\.partition\.beta: input should be greater than 0"):
        Images(dataset="toy", partition={"name": "dirichlet", "beta": 0})
    with pytest.raises(SettingsError, match=r"population\.size: input should be greater"):
        Experiment.build(load({"population": {"name": "images", "dataset": "mnist", "size": -1}}))
    with pytest.raises(DataError, match="no data set 'cifr10'; did you mean 'cifar10'"):
        get("cifr10")


def test_a_missing_data_set_says_what_goes_where(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("INTARSIA_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError) as caught:
        get("emnist").locate((tmp_path / "named", *places()[:2]))
    text = str(caught.value)
    for part in ("emnist-byclass-", "nist.gov", str(tmp_path / "named" / "emnist"), "--data DIR"):
        assert part in text


def test_the_order_of_places(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("INTARSIA_DATA", str(tmp_path / "environment"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="the data folder named does not exist"):
        places("named")
    (tmp_path / "named").mkdir()
    order = [str(p) for p in places("named")]
    assert order[:3] == ["named", str(tmp_path / "environment"), str(tmp_path / "cache" / "data")]
    assert order[3] == str(tmp_path.parent / "shared" / "data")


def test_decoded_data_comes_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "a.toy"
    source.write_text("1")
    reads = []

    def read(folder):
        reads.append(folder)
        return pictures(natural=np.arange(400))

    dataset = Dataset("a", "images", "", (Form("packed", ("a.toy",), read),))
    first, second = (dataset.locate((tmp_path,)).load() for _ in range(2))
    assert len(reads) == 1
    assert isinstance(second.x, np.memmap)
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(second.natural, np.arange(400))
    source.write_text("22")
    dataset.locate((tmp_path,)).load()
    assert len(reads) == 2


@pytest.mark.parametrize("damage", ["x.npy", "about.json"])
def test_a_damaged_cache_is_decoded_again(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.toy").write_text("1")
    dataset = Dataset("a", "images", "", (Form("packed", ("a.toy",), lambda f: pictures()),))
    dataset.locate((tmp_path,)).load()
    (path,) = (tmp_path / "cache" / "decoded").glob(f"*/{damage}")
    path.write_bytes(path.read_bytes()[:10])
    assert np.array_equal(dataset.locate((tmp_path,)).load().x, pictures().x)


def test_every_published_file_counts_for_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "x.bin").write_text("1")
    (folder / "y.bin").write_text("1")
    reads = []
    dataset = Dataset(
        "b", "images", "", (Form("published", ("x.bin",), lambda f: reads.append(f) or pictures()),)
    )
    dataset.locate((tmp_path,)).load()
    (folder / "y.bin").write_text("22")
    dataset.locate((tmp_path,)).load()
    assert len(reads) == 2


def test_without_a_cache_it_still_works(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.toy").write_text("1")
    dataset = Dataset("a", "images", "", (Form("packed", ("a.toy",), lambda f: pictures()),))
    assert len(dataset.locate((tmp_path,)).load()) == 400


def test_checksums(tmp_path):
    (tmp_path / "a.toy").write_text("right")
    digest = hashlib.sha256(b"right").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  a.toy\n")
    found = Dataset("a", "images", "", (Form("packed", ("a.toy",), lambda f: pictures()),)).locate(
        (tmp_path,)
    )
    assert found.check() == ["a.toy"]
    (tmp_path / "a.toy").write_text("wrong")
    with pytest.raises(DataError, match=r"a\.toy is damaged: its sha256"):
        found.check()


@pytest.fixture
def server(tmp_path):
    """A web server on loopback with one file."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    served.server_close()


def test_download(server, tmp_path, monkeypatch):
    import io
    import tarfile

    folder, address = server
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    with tarfile.open(folder / "toy.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("toy-files/a.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    md5 = hashlib.md5((folder / "toy.tar.gz").read_bytes()).hexdigest()
    form = Form("published", ("toy-files",), lambda f: (f / "toy-files" / "a.txt").read_text())
    dataset = Dataset("toyset", "text", "", (form,), "", (Download(f"{address}/toy.tar.gz", md5),))
    seen = []
    target = download(dataset, lambda file, done, size: seen.append((file, done, size)))
    assert seen[-1][0] == "toy.tar.gz"
    assert seen[-1][1] == seen[-1][2] > 0
    assert dataset.locate(places()).load() == "hello"
    assert [p.name for p in target.iterdir()] == ["toy-files"]
    wrong = replace(dataset, downloads=(Download(f"{address}/toy.tar.gz", "0" * 32),))
    with pytest.raises(DataError, match="came damaged"):
        download(wrong)
    gone = replace(dataset, downloads=(Download(f"{address}/nowhere.gz", "0" * 32),))
    with pytest.raises(DataError, match=r"cannot fetch .*nowhere\.gz: File not found"):
        download(gone)
    with pytest.raises(DataError, match="cannot fetch"):
        download(replace(dataset, downloads=(Download("http://127.0.0.1:9/x.gz", "0"),)))
    half = replace(dataset, name="half", downloads=(*dataset.downloads, *gone.downloads))
    with pytest.raises(DataError, match="cannot fetch"):
        download(half)
    assert not (tmp_path / "cache" / "data" / "half").exists()
    with pytest.raises(DataError, match="no public address"):
        download(replace(dataset, downloads=()))


def test_a_published_file_is_found_in_a_folder_of_its_own(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, n in (("train", 6), ("t10k", 2)):
        images = b"\x00\x00\x08\x03" + b"".join(d.to_bytes(4, "big") for d in (n, 28, 28)) + bytes(n * 784)
        labels = b"\x00\x00\x08\x01" + n.to_bytes(4, "big") + bytes(i % 2 for i in range(n))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    found = get("mnist").locate((tmp_path,))
    assert found.form.name == "published"
    raw = found.load()
    assert raw.train.tolist() == [True] * 6 + [False] * 2
    with pytest.raises(DataError, match="is damaged: its md5"):
        found.check()


def test_a_run_records_its_split_and_checks_it(toys, tmp_path):
    settings = {
        "rounds": 1,
        "data_folder": str(toys[0]),
        "population": {"name": "images", "dataset": "toy", "clients": 3, "partition": "two_classes"},
        "model": "logistic",
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    assert run.settings.split_hash == run.experiment.setup.population.split_hash
    again = intarsia.run(run.path / "settings.toml", out=tmp_path / "again")
    assert again.metrics == run.metrics
    with pytest.raises(DataError, match=r"the split is .*, the settings were written for"):
        intarsia.run({**run.settings.model_dump(mode="json"), "seed": 1}, out=tmp_path / "other")
    intarsia.run(run.path / "settings.toml", changes=["seed=1"], out=tmp_path / "changed")
    assert set(run.population["clients"]) == {"toy-0", "toy-1", "toy-2"}


def test_engines_agree_on_bytes(toys, tmp_path):
    settings = {
        "rounds": 2,
        "data_folder": str(toys[0]),
        "population": {"name": "images", "dataset": "toy", "clients": 4},
        "model": {"name": "cnn", "channels": [4, 4], "hidden": 8},
    }
    runs = [
        intarsia.run({**settings, "engine": {"name": e, "workers": 2, "device": "cpu"}}, out=tmp_path / e)
        for e in ("debug", "local")
    ]
    assert runs[0].metrics == runs[1].metrics


@pytest.mark.parametrize("name", sorted(datasets_module.DATASETS))
def test_every_data_set_that_is_here_loads_and_checks(name, shared_data: Path):
    dataset = get(name)
    found = dataset.find((shared_data,))
    if found is None:
        assert name in ("emnist", "femnist", "wisdm", "realworld")
        return
    assert len(found.check()) == len(found.files())
    raw = found.load()
    if isinstance(raw, RawData):
        assert set(np.unique(raw.y)) == set(range(len(raw.labels)))
        assert len(raw.x) == len(raw.y) == len(raw.train)
    elif isinstance(raw, Recordings):
        held = {int(i) for r in raw.items for i in np.unique(r.y)}
        assert held - {-1} == set(range(len(raw.labels)))
        assert all(np.isfinite(r.signal).all() for r in raw.items)
    else:
        assert len(raw) == 1_115_394


@pytest.mark.parametrize("number", [1, 2])
def test_the_populations_of_the_page_on_data_can_be_made(number, shared_data: Path):
    page = Path(intarsia.__file__).parents[2] / "docs" / "data.md"
    block = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)[number]
    settings = tomllib.loads(block)["population"]
    population = build_part(POPULATIONS, settings, "population").load(0, (shared_data,))
    members = settings.get("members", {"": settings})
    assert len(population) == sum(member["clients"] for member in members.values())
    assert tuple(population.labels) == tuple(next(iter(members.values()))["labels"])


def test_modfl_on_real_images(shared_data: Path):
    """Nine shared classes, cyclic windows of three labels, both data sets in one population."""
    nine = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "ship", "truck")
    common = {
        "name": "images",
        "clients": 36,
        "labels": nine,
        "split": "published",
        "per_label": (500, 200),
        "partition": {"name": "windows", "labels_per_group": 3},
    }
    members = {"cifar": {**common, "dataset": "cifar10"}, "stl": {**common, "dataset": "stl10", "size": 32}}
    population = Joint(members=members).load(0, (shared_data,))
    # 500 / 12 holders = 41 a label, 3 labels; 200 / 12 = 16.
    assert {tuple(i.samples.items()) for i in population.infos} == {(("train", 123), ("test", 48))}
    assert len({i.cohort for i in population.infos}) == 9
    for client in population.clients.values():
        group = int(client.info.cohort.removeprefix("group-"))
        assert set(client.data["train"].y.tolist()) == {(group + k) % 9 for k in range(3)}
