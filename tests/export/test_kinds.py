"""Networks and data of every kind: LSTMs, attention, MobileNets, adapters, bytes of images, models given in Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import intarsia
from intarsia.core import DataError, SettingsError
from intarsia.data.population import Goal, Scaling
from intarsia.data.recorded import Form
from intarsia.export import ExportError, Inputs, Package, Predictor, export
from intarsia.export.inputs import Scaled
from intarsia.models import MODELS, add_adapters, has_adapters
from intarsia.models.spec import Spec
from tests.experiment.test_api import Network

BYTES = Scaling(1 / 255, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
KINDS = {
    "char_lstm": ({"units": 8}, Form((6,), "int64")),
    "char_transformer": ({"width": 8, "heads": 2, "depth": 1}, Form((6,), "int64")),
    "modular_lstm": ({"units": 4}, Form((5, 3), "float32", Scaling(1.0, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)))),
    "mobilenet_v2": ({}, Form((3, 32, 32), "uint8", BYTES)),
    "resnet": ({"stem": 4, "channels": [8], "blocks": 1}, Form((3, 16, 16), "uint8", BYTES)),
}


def package(name: str) -> Package:
    settings, form = KINDS[name]
    network = Spec(MODELS[name](**settings), form.shape, 7).build(3)
    return Package("c", network, Inputs(form), Goal(7))


@pytest.mark.parametrize("name", KINDS)
def test_networks_export_for_any_number_of_samples(name, tmp_path):
    made = package(name)
    ends = [".pt2", ".onnx"] if name != "mobilenet_v2" else [".onnx"]
    for end in ends:
        one = export(made, tmp_path / f"model{end}")
        assert one.difference < 1e-5
        predictor = Predictor.open(one.path)
        few, many = (predictor.predict(made.made[:n]).values for n in (1, 33))
        assert np.allclose(few[0], many[0], atol=1e-6)
        x = made.inputs.prepared(made.made[:33])
        assert np.abs(made.model.eval()(x).softmax(1).detach().numpy() - many).max() < 1e-5


@pytest.mark.parametrize("form", ["parallel", "series"])
def test_adapters_are_folded(form, tmp_path):
    base = Spec(MODELS["cnn"](channels=(4, 6), hidden=8), (3, 16, 16), 7).build(0)
    model = add_adapters(base, form=form, rank=2)
    made = Package("c", model, Inputs(Form((3, 16, 16), "uint8", BYTES)), Goal(7))
    assert has_adapters(made.model)
    assert not has_adapters(made.deployed.network)
    assert made.deployed.network.state_dict().keys() == base.state_dict().keys()
    assert export(made, tmp_path / "model.pt2").difference < 1e-5


def test_bytes_are_scaled_inside_and_images_are_read(tmp_path, monkeypatch):
    made = package("resnet")
    export(made, tmp_path / "model.onnx")
    (tmp_path / "pictures").mkdir()
    pixels = made.made[:3].permute(0, 2, 3, 1).numpy()
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / "pictures" / f"{i}.png")
    found = Predictor.open(tmp_path / "model.onnx").predict(tmp_path / "pictures")
    x = (made.made[:3].float() / 255 - torch.tensor(BYTES.mean)[:, None, None]) / torch.tensor(BYTES.std)[
        :, None, None
    ]
    assert np.abs(found.values - made.model.eval()(x).softmax(1).detach().numpy()).max() < 1e-5
    assert found.places["file"] == ["0.png", "1.png", "2.png"]
    monkeypatch.setattr(Scaled, "forward", lambda self, raw: raw.float())
    with pytest.raises(ExportError, match="is not written: it differs"):
        export(package("resnet"), tmp_path / "other.pt2")


def test_archives_of_arrays_are_predicted(tmp_path):
    made = package("modular_lstm")
    np.savez(tmp_path / "new.npz", x=made.made.numpy())
    found = Predictor.of(made).predict(tmp_path / "new.npz")
    assert found.places["row"][:2] == [0, 1]
    assert np.array_equal(found.values, Predictor.of(made).predict(made.made).values)
    np.savez(tmp_path / "other.npz", y=made.made.numpy())
    with pytest.raises(DataError, match="there is no array 'x'; there are: y"):
        Predictor.of(made).predict(tmp_path / "other.npz")
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        DataError, match=r"takes an \.npz archive with x of shape \[rows, 5, 3\], not a table"
    ):
        Predictor.of(made).predict(tmp_path / "new.csv")


class Fickle(Network):
    """Looks at values: no graph can be made of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if float(x.sum()) > 0 else -x)


def clients() -> dict[str, dict[str, object]]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(24, 3, generator=draw)
    data = {"train": (x[:16], x[:16].argmax(1)), "test": (x[16:], x[16:].argmax(1))}
    return {f"c{i}": {**data, "capacity": 0.5} for i in range(3)}


GIVEN = {"name": "given", "rounds": 2, "method": "fedavg+", "engine": {"name": "debug", "device": "cpu"}}


def test_models_given_in_python_open_without_their_data_anywhere(tmp_path, moved):
    run = intarsia.run(GIVEN, data=clients(), model=Network(), out=tmp_path / "run")
    before = run.client("c1").model()
    there = moved(run, model=Network())
    after = there.client("c1").model()
    assert all(torch.equal(t, after.state_dict()[n]) for n, t in before.state_dict().items())
    assert there.client("c1").info == run.client("c1").info
    check = there.client("c1").export(tmp_path / "model.pt2").check
    assert (check.samples, check.difference < 1e-5) == (0, True)
    with pytest.raises(SettingsError, match=r"give it again: .*intarsia\.open_run\(folder, model=\.\.\.\)"):
        intarsia.open_run(there.path).client("c1")
    with pytest.raises(intarsia.IntarsiaError, match="does not fit the model"):
        intarsia.open_run(there.path, model=nn.Linear(3, 3))


def test_a_model_that_looks_at_values_says_what_can_be_done(tmp_path):
    run = intarsia.run(GIVEN, data=clients(), model=Fickle(), out=tmp_path / "run")
    with pytest.raises(ExportError, match=r"Fickle cannot be made a graph .* --to model\.safetensors"):
        run.client("c0").export(tmp_path / "model.onnx")
    assert run.client("c0").export(tmp_path / "model.safetensors").difference < 1e-5


def test_tasks_of_their_own_keep_their_labels(tmp_path, moved):
    from tests.conftest import SMALL

    run = intarsia.run(
        SMALL, changes=["method=modfl", "rounds=1", "population.tasks=['digit', 'loops']"], out=tmp_path / "r"
    )
    goals = {run.client(n).info.task: run.client(n).package().goal for n in run.clients}
    there = moved(run)
    for name in there.clients:
        assert there.client(name).package().goal == goals[there.client(name).info.task]
    assert len({goal.outputs for goal in goals.values()}) == 2
