"""FedEM against a slow implementation of its Algorithm 1; the mixture by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.methods import METHODS
from intarsia.methods.fedem import Mixture, mixture_of
from intarsia.models import add_adapters
from tests.conftest import SMALL
from tests.methods import slow

M = 2


class Fixed(nn.Module):
    """Gives the same probabilities to every input."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities).log() + 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def test_a_mixture_by_hand():
    # 1/4 (.8, .2) + 3/4 (.4, .6) = (.5, .5)
    model = Mixture([Fixed(0.8, 0.2), Fixed(0.4, 0.6)])
    model.weights.copy_(torch.tensor([0.25, 0.75]))
    x, y = torch.zeros(3, 1), torch.tensor([0, 1, 1])
    torch.testing.assert_close(model(x).exp(), torch.full((3, 2), 0.5))
    assert nn.functional.cross_entropy(model(x), y).item() == pytest.approx(math.log(2), rel=1e-6)
    model.weights.copy_(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(model(x).exp(), torch.tensor([[0.4, 0.6]] * 3))


def test_components_start_differently_and_repeatably():
    def made(differ: str) -> Mixture:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        model[0].bias.requires_grad_(False)
        return mixture_of(model, 3, differ)

    state, again = made("all").state_dict(), made("all").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())
    first = [state[f"components.component-{m}.0.weight"] for m in (1, 2, 3)]
    assert not any(torch.equal(first[a], first[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    last = made("last").state_dict()
    assert torch.equal(last["components.component-1.0.weight"], last["components.component-2.0.weight"])
    assert not torch.equal(last["components.component-1.2.weight"], last["components.component-2.2.weight"])


def test_what_cannot_start_differently_is_named():
    with pytest.raises(
        intarsia.IntarsiaError, match=r"'Fixed' \(Fixed\) has parameters and no method reset_"
    ):
        mixture_of(Fixed(0.5, 0.5), 2)
    frozen = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(intarsia.IntarsiaError, match="no trainable layer"):
        mixture_of(frozen, 2)
    assert len(mixture_of(Fixed(0.5, 0.5), 1).components) == 1


def initial(run: intarsia.Run) -> list[slow.Net]:
    (template,) = run.experiment.setup.templates.values()
    fresh = [run.initial_blocks()["model"][f"component-{m}"] for m in (1, 2)]
    assert set(template.initial) == {"component-1", "component-2", "mixture"}
    return [
        {name.rpartition(".")[2]: value for name, value in slow.as_net(block.tensors).items()}
        for block in fresh
    ]


def losses(nets, x, y):
    return np.array([-np.log(slow.probabilities(net, x)[np.arange(len(y)), y]) for net in nets])


def responsibilities(pi, table):
    joint = pi[:, None] * np.exp(-table)
    return joint / joint.sum(0)


def play(data, nets, rounds, clients):
    pi = {name: np.full(M, 1 / M) for name in data}
    for round in range(1, rounds + 1):
        done = {}
        for name in clients(round):
            x, y = slow.arrays(data[name])
            q = responsibilities(pi[name], losses(nets, x, y))
            pi[name] = q.mean(1)
            mine = list(nets)
            for rows in slow.batches(len(y), name, round):
                for m in range(M):
                    step = slow.gradient(mine[m], x[rows], y[rows], q[m][rows])
                    mine[m] = slow.plus(mine[m], step, -slow.LR)
            done[name] = mine
        n = slow.samples(data)
        nets = [slow.mean({c: own[m] for c, own in done.items()}, n) for m in range(M)]
    return nets, pi


def parts(model: nn.Module) -> tuple[list[slow.Net], np.ndarray]:
    assert isinstance(model, Mixture)
    nets = [slow.as_net(component.state_dict()) for component in model.components.values()]
    return nets, model.weights.double().numpy()


def test_against_a_slow_implementation(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", "fedem", data, f"method.components={M}")
    nets, pi = play(data, initial(run), 3, lambda round: data)
    for name in data:
        mine, weights = parts(run.client(name).model())
        for m in range(M):
            slow.close(mine[m], nets[m])
        np.testing.assert_allclose(weights, pi[name], atol=1e-5)
        x, y = slow.arrays(data[name], "test")
        mixed = sum(pi[name][m] * slow.probabilities(nets[m], x) for m in range(M))
        row = next(r for r in run.metrics if r["client"] == name and r["round"] == 3 and r["split"] == "test")
        assert row["loss"] == pytest.approx(-np.log(mixed[np.arange(len(y)), y]).mean(), rel=1e-4)
        assert row["correct"] == (mixed.argmax(1) == y).sum()
    assert {(r["block"], r["group"]) for r in run.traffic if r["block"]} == {
        ("component-1", "all"),
        ("component-2", "all"),
    }


def test_a_client_that_never_trained_fits_its_weights_to_fixed_components(tmp_path):
    """Its weights are the most likely ones for its training data; found here by trying them all."""
    from intarsia.federation import Sampling

    data = slow.population((9, 12, 10))
    changes = [f"method.components={M}", "sampling.clients=1"]
    run = slow.run(tmp_path / "r", "fedem", data, *changes, rounds=2)
    chosen = {r: list(Sampling(clients=1).choose(list(data), 0, r)) for r in (1, 2)}
    nets, pi = play(data, initial(run), 2, chosen.__getitem__)
    seen = {name for names in chosen.values() for name in names}
    grid = np.linspace(0, 1, 2001)
    assert 0 < len(seen) < 3
    for name in data:
        _, weights = parts(run.client(name).model())
        expected = pi[name]
        if name not in seen:
            table = np.exp(-losses(nets, *slow.arrays(data[name])))
            likelihood = [np.log(g * table[0] + (1 - g) * table[1]).sum() for g in grid]
            best = grid[int(np.argmax(likelihood))]
            expected = np.array([best, 1 - best])
        np.testing.assert_allclose(weights, expected, atol=0.02 if name not in seen else 1e-5)


def test_one_component_is_fedavg(tmp_path):
    data = slow.population()
    one = slow.run(tmp_path / "em", "fedem", data, "method.components=1")
    plain = slow.run(tmp_path / "avg", "fedavg", data)
    (net,), weights = parts(one.client("c0").model())
    slow.close(net, slow.own(plain, "c0"))
    assert weights.tolist() == [1]


def test_it_tells_clients_apart_that_disagree(tmp_path):
    """Two kinds of clients name the same inputs differently: no single model can be right for both."""
    data = slow.population((40, 40, 40, 40))
    for i, entry in enumerate(data.values()):
        for split in ("train", "test"):
            x, _ = entry[split]
            entry[split] = (x, (x.argmax(1) + i % 2) % 3)
    changes = ["training.epochs=5", "method.components=2"]
    run = slow.run(tmp_path / "r", "fedem", data, *changes, rounds=20)
    share = [parts(run.client(name).model())[1][0] for name in data]
    assert min(abs(share[0] - share[1]), abs(share[2] - share[3])) > 0.8
    assert max(abs(share[0] - share[2]), abs(share[1] - share[3])) < 0.1
    plain = slow.run(tmp_path / "f", "fedavg", data, "training.epochs=5", rounds=20)
    assert run.summary["accuracy"]["mean"] > plain.summary["accuracy"]["mean"] + 0.2


def test_it_learns_the_digits(tmp_path):
    changes = ["method=fedem", "rounds=15", "training.epochs=3"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.85


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data = slow.population()
    whole = slow.run(tmp_path / "whole", "fedem", data, "sampling.clients=2", rounds=4)
    with pytest.raises(KeyboardInterrupt):
        slow.run(tmp_path / "cut", "fedem", data, "sampling.clients=2", rounds=4, observer=slow.Stop(3))
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=slow.linear())
    assert resumed.metrics == whole.metrics
    for name in data:
        one, two = slow.own(whole, name), slow.own(resumed, name)
        assert all(np.array_equal(one[key], two[key]) for key in one)


def test_components_with_adapters_and_norms_at_home(tmp_path):
    changes = [
        "method=fedem",
        "method.components=2",
        "adapters=parallel",
        "model={name='cnn',channels=[4,6],hidden=8}",
        "sharing.norms=home",
    ]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    sent = [r["client"] for r in run.traffic if r["block"] == "frozen" and r["direction"] == "down"]
    assert sorted(sent) == sorted(run.clients)
    state = run.client("client-00").model().state_dict()
    first, second = (f"components.component-{m}.conv1" for m in (1, 2))
    assert torch.equal(state[f"{first}.base.weight"], state[f"{second}.base.weight"])
    assert not torch.equal(state[f"{first}.adapter.weight"], state[f"{second}.adapter.weight"])
    with pytest.raises(intarsia.IntarsiaError, match=r"'hidden1' \(LowRankAdapter\) has parameters and no"):
        intarsia.run(
            SMALL, changes=["method=fedem", "adapters={name='parallel',rank=2}"], out=tmp_path / "no"
        )


@pytest.mark.parametrize("form", ["parallel", "series"])
def test_adapters_of_every_component_start_by_their_own_rule(form):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 200, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(200 * 16, 2))
    zero = list(mixture_of(add_adapters(net, init="zero", form=form), 3).components.values())
    assert all(not component[0].adapter.weight.any() for component in zero)
    assert not torch.equal(zero[0][3].weight, zero[1][3].weight)
    he = list(mixture_of(add_adapters(net, form=form), 3).components.values())
    weights = [component[0].adapter.weight for component in he]
    assert not torch.equal(weights[1], weights[2])
    for weight in weights:  # N(0, 2 / 200); torch's own rule draws within 1 / sqrt(inputs)
        assert weight.std().item() == pytest.approx(0.1, rel=0.1)
    for component in he:
        assert torch.equal(component[0].base.weight, net[0].weight)
        assert not component[0].base.weight.requires_grad
    alike = add_adapters(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), init="zero", form=form)
    with pytest.raises(intarsia.IntarsiaError, match="copies would all be alike"):
        mixture_of(alike, 2)


def numbers() -> dict[str, dict[str, object]]:
    """A population with numbers to estimate."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    return {"c0": {"train": (x, x[:, 0]), "test": (x, x[:, 0])}}


def test_other_losses_and_other_sharings_are_refused(tmp_path):
    with pytest.raises(
        intarsia.IntarsiaError, match=r"'fedem' is defined for the loss 'cross_entropy' alone"
    ):
        slow.run(tmp_path / "r", "fedem", numbers(), "training.loss=mse", model=nn.Linear(3, 1))
    for sharing in ("all", "fedper"):
        with pytest.raises(intarsia.IntarsiaError, match=f"sharing '{sharing}' does not"):
            slow.run(tmp_path / "r", "fedem", slow.population(), f"sharing={sharing}")
    with pytest.raises(intarsia.IntarsiaError, match="for the mixture that method 'fedem' makes"):
        slow.run(tmp_path / "r", "fedavg", slow.population(), "sharing=fedem")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.components=0", "method.components: input should be greater than or equal to 1"),
        ("method.differ=first", "method.differ: input should be 'all' or 'last'"),
        ("method.component=2", "method.component: unknown setting; did you mean 'components'"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "fedem", slow.population(), change)


def test_attention_layers_are_redrawn(tmp_path):
    """Torch's attention draws its weights under a name of its own."""
    model = nn.Sequential(
        nn.Embedding(5, 4), nn.TransformerEncoderLayer(4, 2, 8), nn.Flatten(), nn.Linear(12, 5)
    )
    mixture = METHODS["fedem"](components=2).prepare(model)
    first, second = (dict(c.named_parameters()) for c in mixture.components.values())
    assert not torch.equal(first["1.self_attn.in_proj_weight"], second["1.self_attn.in_proj_weight"])
