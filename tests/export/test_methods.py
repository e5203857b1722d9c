"""Every method's own models: opened without data in a folder that moved, exported, and compared with what was scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.export import Predictor
from intarsia.methods import METHODS
from intarsia.methods.fedmn.module_pool import Assembled, ModulePool
from intarsia.methods.pfedbayes.gaussian import RHO
from intarsia.models import plain_model
from tests.conftest import NEEDS, SMALL

MORE = {"heterofl": ["method.by=lot", "method.widths=[1.0, 0.3]"], "fedem": ["method.components=2"]}
ONNX = ("fedem", "fedmn+", "heterofl", "pfedbayes")
"""Methods whose own models are of other kinds than a plain network."""


def played(method: str, folder: Path, *changes: str) -> intarsia.Run:
    """Run two rounds, in which some clients never train."""
    wanted = [
        f"method={method}",
        "rounds=2",
        "sampling.clients=5",
        *NEEDS.get(method, ()),
        *MORE.get(method, ()),
    ]
    return intarsia.run(SMALL, changes=[*wanted, *changes], out=folder)


def scored(run: intarsia.Run, name: str) -> dict[str, float]:
    """Return how a client's own model was scored on its test data in the last round."""
    rows = [r for r in run.client(name).metrics if r["split"] == "test" and r["stage"] == "own"]
    return rows[-1]


@pytest.mark.parametrize("method", METHODS)
def test_own_models_come_home_from_a_folder_without_data(method, tmp_path, moved):
    run = played(method, tmp_path / "run")
    population = run.experiment.setup.population
    there = moved(run)
    worst = 0.0
    for name in there.clients:
        test = population.clients[name].data["test"]
        outputs = there.client(name).model()(test.x)
        told = scored(there, name)
        assert int((outputs.argmax(1) == test.y).sum()) == told["correct"]
        loss = torch.nn.functional.cross_entropy(outputs.detach(), test.y)
        assert float(loss) == pytest.approx(told["loss"], abs=1e-5)
    for name in there.clients[:1]:
        test, original = population.clients[name].data["test"], there.client(name).model()
        written = [there.client(name).export(tmp_path / f"{name}{end}") for end in (".pt2", ".safetensors")]
        if method in ONNX:
            written.append(there.client(name).export(tmp_path / f"{name}.onnx"))
        for one in written:
            assert (one.check.samples, one.check.made) == (0, 64)
            if one.path.suffix == ".safetensors":
                worst = max(worst, one.difference)
                continue
            probabilities = Predictor.open(one.path).predict(test.x).values
            apart = (original(test.x).softmax(1) - torch.from_numpy(probabilities)).abs().max()
            worst = max(worst, one.difference, float(apart))
    assert worst < 1e-5


def test_a_pool_becomes_the_blocks_that_are_used(tmp_path):
    run = played("fedmn", tmp_path / "run")
    pool = run.client("client-00").model()
    assert isinstance(pool, ModulePool)
    pool.gates.copy_(torch.tensor([1.0, 0, 0, 0, 0.5, 0, 0, 0, 1, 0]))
    assembled = plain_model(pool)
    assert isinstance(assembled, Assembled)
    assert [name for name, _ in assembled.named_children()] == ["encoder1", "block2-1", "head1"]
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(assembled(x), pool.eval()(x))


def test_gaussian_weights_become_their_means_and_draws_are_said(tmp_path):
    run = played("pfedbayes", tmp_path / "run", "method.predictions=2")
    client = run.client("client-00")
    assert any(name.endswith(RHO) for name in client.model().state_dict())
    plain = plain_model(client.model())
    assert not any(RHO in name for name in plain.state_dict())
    check = client.export(tmp_path / "model.pt2").check
    assert check.draws
    assert "the original draws them" in str(check)


def test_a_slice_holds_its_scaling_and_its_mask(tmp_path):
    run = played("heterofl", tmp_path / "run")
    name = next(n for n in run.clients if "width-0.3" in run.setup.model_of[n])
    original, x = run.client(name).model(), torch.rand(7, *run.client(name).info.shape)
    plain = plain_model(original)
    assert not any(module._forward_hooks for module in plain.modules())
    assert torch.allclose(plain(x), original(x), atol=1e-6)
    assert (plain(x) == 0).all(0).sum() == 6  # four of ten labels are the client's
    assert plain_model(original).state_dict().keys() == plain.state_dict().keys()


def test_earlier_rounds_of_tuned_models_need_the_data_and_say_so(tmp_path, moved):
    run = played("fedavg+", tmp_path / "run")
    before = run.client("client-00").model(1)
    there = moved(run)
    with pytest.raises(intarsia.IntarsiaError, match="after round 1 takes its training data"):
        there.client("client-00").model(1)
    assert not torch.equal(
        before.state_dict()["head.weight"], there.client("client-00").model().state_dict()["head.weight"]
    )


def test_what_is_kept_of_another_run_or_round_is_not_used(tmp_path):
    run = played("fedavg+", tmp_path / "run")
    model = run.client("client-00").model().state_dict()
    kept = run.path / "state" / "own.json"
    kept.write_text(kept.read_text().replace('"round": 2', '"round": 1'))
    again = run.client("client-00").model().state_dict()  # made anew, of the data that is at hand
    assert all(torch.equal(again[name], tensor) for name, tensor in model.items())
    kept.write_text(kept.read_text().replace('"round": 1', '"round": 2').replace('"blocks"', '"stones"'))
    with pytest.raises(intarsia.IntarsiaError, match=r"own\.json is damaged"):
        run.client("client-00").model()


def test_only_what_takes_data_is_kept(tmp_path):
    assert not (played("fedper", tmp_path / "a").path / "state" / "own.json").exists()
    everyone = intarsia.run(SMALL, changes=["method=pfedme", "rounds=1"], out=tmp_path / "b")
    assert not (everyone.path / "state" / "own.json").exists()
