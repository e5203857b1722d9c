"""Bases: trained centrally, stopped and gone on with, loaded into federations, and labelled."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.data import Digits, Scaling
from intarsia.experiment import Augment
from intarsia.models import Base, ResNet, base_bytes, base_in_words
from intarsia.report import view
from tests.models.test_mobilenet import keras_arrays

DIGITS = 'population={name="digits",clients=4,cohorts=1,labels=10,generations=["8x8"]}'
SMALL = [
    DIGITS,
    "model.stem=4",
    "model.channels=[4,8]",
    "model.blocks=1",
    "training.epochs=3",
    "training.lr=0.05",
    "training.batch_size=16",
    "augment.crop=1",
]
FEDERATED = {
    "name": "adapted",
    "rounds": 2,
    "adapters": "parallel",
    "population": {"name": "digits", "clients": 4, "cohorts": 1, "generations": ["8x8"], "labels": 10},
    "model": {"name": "resnet", "stem": 4, "channels": [4, 8], "blocks": 1},
    "training": {"lr": 0.01},
    "engine": {"name": "debug", "device": "cpu"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return intarsia.pretrain(tmp_path_factory.mktemp("base") / "base.safetensors", changes=SMALL)


def test_the_card_says_what_the_base_is(trained):
    card = trained.card
    options = {"stem": 4, "channels": [4, 8], "blocks": 1}
    assert card["architecture"] == {"name": "resnet", "options": options}
    assert (card["trained_on"], card["classes"], card["epochs"], card["seed"]) == ("digits", 10, 3, 0)
    assert card["images"] + card["validation"]["images"] == 1797
    assert card["validation"]["accuracy"] == card["history"][-1]["validation"] > 0.7
    assert card["history"][0]["loss"] > card["history"][-1]["loss"]
    model = ResNet(**options).build((1, 8, 8), 10)
    assert card["parameters"] == sum(w.numel() for w in model.parameters())
    assert card["settings"]["training"]["schedule"] == {"name": "cosine", "floor": 0.0}
    model.load_state_dict(load_file(trained.path))


def test_a_stop_changes_nothing(trained, tmp_path):
    def stop(epoch):
        raise KeyboardInterrupt

    out = tmp_path / "again.safetensors"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            intarsia.pretrain(out, changes=SMALL, observer=stop)
    with pytest.raises(intarsia.IntarsiaError, match=r"other settings or data \(seed: 0, now 1\)"):
        intarsia.pretrain(out, changes=[*SMALL, "seed=1"])
    seen = []
    again = intarsia.pretrain(out, changes=SMALL, observer=seen.append)
    assert [epoch.number for epoch in seen] == [3]
    assert again.sha256 == trained.sha256
    assert [p.name for p in tmp_path.iterdir()] == ["again.safetensors"]
    assert intarsia.pretrain(out, changes=SMALL, observer=stop).sha256 == trained.sha256
    with pytest.raises(intarsia.IntarsiaError, match=r"already there and was made in another way \(augment"):
        intarsia.pretrain(out, changes=[*SMALL, "augment.flip=true"])


def test_an_interrupt_says_how_to_go_on(monkeypatch, tmp_path):
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.experiment.pretraining.train", interrupted)
    with pytest.raises(KeyboardInterrupt, match="0 of 3 epochs are done; the same command goes on"):
        intarsia.pretrain(tmp_path / "b.safetensors", changes=SMALL)


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "b.safetensors.checkpoint").write_bytes(b"no")
    with pytest.raises(intarsia.IntarsiaError, match=r"b\.safetensors\.checkpoint is damaged"):
        intarsia.pretrain(tmp_path / "b.safetensors", changes=SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.lrr=1", "unknown setting; did you mean 'lr'"),
        ("model.width=1", "unknown setting"),
        ("rounds=3", "rounds: unknown setting"),
        ("population.generations=['8x8','4x4']", "inputs differ in shape"),
        ("population.tasks=['digit','loops']", "one task"),
    ],
)
def test_wrong_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        intarsia.pretrain(tmp_path / "b.safetensors", changes=[*SMALL, change])


def test_augmented_images_by_hand():
    x = torch.arange(2 * 9, dtype=torch.uint8).view(2, 1, 3, 3) + 1
    assert torch.equal(Augment().apply(x, 0, 1), x)
    many = x[:1].expand(400, -1, -1, -1)
    flipped = Augment(flip=True).apply(many, 0, 1)
    mirrored = (flipped == many.flip(-1)).flatten(1).all(1)
    assert ((flipped == many).flatten(1).all(1) ^ mirrored).all()
    assert 150 < int(mirrored.sum()) < 250
    padded = np.pad(x[0, 0].numpy(), 1)
    shifts = {padded[i : i + 3, j : j + 3].tobytes() for i in range(3) for j in range(3)}
    cropped = Augment(crop=1).apply(many, 0, 1)
    assert {image.numpy().tobytes() for image in cropped} == shifts
    assert torch.equal(cropped, Augment(crop=1).apply(many, 0, 1))
    assert not torch.equal(cropped, Augment(crop=1).apply(many, 0, 2))


def test_a_federation_starts_from_a_base(trained, tmp_path):
    changes = [f"weights={trained.path}"]
    run = intarsia.run(FEDERATED, changes=changes, out=tmp_path / "run")
    base = run.summary["base"]
    assert (base["weights"], base["sha256"]) == (str(trained.path), trained.sha256)
    assert base["card"] == trained.card
    assert view(run).note == "base trained on digits"
    stored = load_file(trained.path)
    model = run.client(run.clients[0]).model()
    assert torch.equal(model.stem.conv.base.weight, stored["stem.conv.weight"])
    random = intarsia.run(FEDERATED, out=tmp_path / "random")
    assert random.summary["base"] == {"weights": "random"}
    assert view(random).note == "random base"
    assert run.summary["accuracy"]["mean"] > random.summary["accuracy"]["mean"] + 0.1
    assert intarsia.preview(FEDERATED)["base"] == {"weights": "random"}
    later = intarsia.run(FEDERATED, changes=[f"start_from={random.path}"], out=tmp_path / "later")
    assert later.summary["base"]["base"] == {"weights": "random"}
    assert view(later).note == "random base"
    given = ResNet(stem=4, channels=(4, 8), blocks=1).build((1, 8, 8), 10)
    assert intarsia.preview(FEDERATED, model=given)["base"] == {"weights": "given"}
    plain = intarsia.run(FEDERATED, changes=["adapters=none"], out=tmp_path / "plain")
    assert "base" not in plain.summary


def test_a_run_is_not_repeated_with_another_file(trained, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(trained.path.read_bytes())
    run = intarsia.run(FEDERATED, changes=[f"weights={path}", "rounds=1"], out=tmp_path / "run")
    assert run.settings.weights_hash == trained.sha256
    path.write_bytes(base_bytes(trained.tensors, {}))
    for changes in ([], ["seed=1"]):
        with pytest.raises(intarsia.IntarsiaError, match="is another file"):
            intarsia.preview(run.path / "settings.toml", changes=changes)
    assert intarsia.preview(run.path / "settings.toml", changes=["weights_hash="])["base"]["card"] == {}


def test_an_output_layer_of_another_size_starts_afresh(trained):
    changes = [f"weights={trained.path}", "population.tasks=['loops']"]
    assert intarsia.preview(FEDERATED, changes=changes)["base"]["sha256"] == trained.sha256


def test_a_base_of_another_model_is_refused(trained, tmp_path):
    weights = f"weights={trained.path}"
    with pytest.raises(intarsia.IntarsiaError, match="holds a 'resnet', the model is 'cnn'"):
        intarsia.preview(FEDERATED, changes=["model=cnn", weights])
    with pytest.raises(
        intarsia.IntarsiaError, match=r"base\.safetensors: 'stage2.0.conv1.weight' has shape \[8"
    ):
        intarsia.preview(FEDERATED, changes=["model.channels=[4,16]", weights])
    with pytest.raises(intarsia.IntarsiaError, match=r"lacks \d+ tensors of the model, 'stage1.1.conv1.w"):
        intarsia.preview(FEDERATED, changes=["model.blocks=2", weights])
    head = {n: t for n, t in load_file(trained.path).items() if n.startswith("head.")}
    save_file(head, tmp_path / "head.safetensors")
    with pytest.raises(intarsia.IntarsiaError, match=r"head\.safetensors lacks"):
        intarsia.preview(FEDERATED, changes=[f"weights={tmp_path / 'head.safetensors'}"])


def test_inputs_must_be_scaled_as_the_base_wants_them(trained, tmp_path):
    path = tmp_path / "unit.safetensors"
    path.write_bytes(base_bytes(trained.tensors, {**trained.card, "inputs": "unit"}))
    changes = [f"weights={path}"]
    assert intarsia.preview(FEDERATED, data=scaled(Scaling(1.0, (0.0,), (1.0,))), changes=changes)["base"]
    with pytest.raises(
        intarsia.IntarsiaError, match=r"trained on unit inputs.*population.standardise = false"
    ):
        intarsia.preview(FEDERATED, data=scaled(Scaling(1.0, (0.4,), (0.2,))), changes=changes)


def scaled(scaling):
    """The digits, scaled on the way into the model."""
    options = {k: v for k, v in FEDERATED["population"].items() if k != "name"}
    population = Digits(**options).load(0)
    clients = {
        name: replace(client, data={s: replace(e, scaling=scaling) for s, e in client.data.items()})
        for name, client in population.clients.items()
    }
    return replace(population, clients=clients)


def test_words():
    assert base_in_words({}) == ""
    assert base_in_words({"weights": "x/b.safetensors", "card": {}}) == "base b.safetensors"
    assert base_in_words({"weights": "earlier run", "base": {}}) == "base of an earlier run"


def command(*arguments):
    """Run a command in this process; return what it prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_commands(tmp_path):
    changes = [part for change in SMALL[:4] for part in ("--set", change)]
    given = ("pretrain", "resnet", *changes, "--epochs", "1", "--out", tmp_path / "b.safetensors")
    assert '"trained_on": "digits"' in command(*given, "--json")
    shown = json.loads(command("weights", "show", tmp_path / "b.safetensors", "--json"))
    assert shown == json.loads(command(*given, "--json"))
    assert (shown["epochs"], shown["sha256"]) == (1, Base.read(tmp_path / "b.safetensors").sha256)
    with pytest.raises(intarsia.IntarsiaError, match="already there"):
        command(*given, "--seed", "5")
    np.savez(tmp_path / "keras.npz", **keras_arrays())
    convert = ("weights", "convert", "mobilenet_v2", tmp_path / "keras.npz")
    command(*convert, "--out", tmp_path / "m.safetensors", "--trained-on", "noise")
    card = Base.read(tmp_path / "m.safetensors").card
    assert card["architecture"] == {"name": "mobilenet_v2", "options": {"width": 0.35}}
    assert (card["trained_on"], card["source"], card["inputs"]) == ("noise", "keras.npz", "unit")
    with pytest.raises(intarsia.IntarsiaError, match="already there"):
        command(*convert, "--out", tmp_path / "m.safetensors")
    with pytest.raises(intarsia.IntarsiaError, match="no conversion to 'vgg'"):
        command("weights", "convert", "vgg", "x", "--out", "y")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"out": None}, "out: give a path, not None"),
        ({"out": "."}, "out: . is a folder: name the file to write"),
        ({"cores": 0}, "cores: give a whole number from 1 on, not 0"),
        ({"device": "gpu"}, "device: 'gpu' is no device: write auto, cpu, cuda or mps"),
        ({"changes": "model=mlp"}, "changes: give a list"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(wrong, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        intarsia.pretrain(**{"out": tmp_path / "w", "changes": SMALL, **wrong})
