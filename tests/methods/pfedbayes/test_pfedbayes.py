"""pFedBayes against a slow implementation with gradients written out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import chance
from intarsia.experiment import Experiment, Given
from intarsia.federation import Sampling
from tests.conftest import SMALL
from tests.methods import slow

ZETA, RHO, SAMPLES, PERSONAL_LR, BETA = 1.5, -1.0, 2, 0.1, 0.5
SETTINGS = [
    f"method.zeta={ZETA}",
    f"method.rho={RHO}",
    f"method.samples={SAMPLES}",
    f"method.personal_lr={PERSONAL_LR}",
    f"merge.beta={BETA}",
]
NAMES = ("weight", "bias")


def start():
    means = slow.start()
    return means | {f"{n}_rho": np.full_like(means[n], RHO) for n in NAMES}


def sigma(q, name):
    return np.log1p(np.exp(q[f"{name}_rho"]))


def slope(q, name):
    """d sigma / d rho."""
    return 1 / (1 + np.exp(-q[f"{name}_rho"]))


def likelihood_gradient(q, x, y):
    """Of the expected loss, by means and rhos; the draws come in the order of the passes."""
    total = {key: np.zeros_like(value) for key, value in q.items()}
    for _ in range(SAMPLES):
        noise = {n: torch.randn(q[n].shape).double().numpy() for n in NAMES}
        gradient = slow.gradient({n: q[n] + sigma(q, n) * noise[n] for n in NAMES}, x, y)
        for n in NAMES:
            total[n] += gradient[n] / SAMPLES
            total[f"{n}_rho"] += gradient[n] * noise[n] * slope(q, n) / SAMPLES
    return total


def kl_gradients(v, w):
    """Of KL(v || w), by v and by w."""
    of_v, of_w = {}, {}
    for n in NAMES:
        s_v, s_w, apart = sigma(v, n), sigma(w, n), v[n] - w[n]
        of_v[n], of_w[n] = apart / s_w**2, -apart / s_w**2
        of_v[f"{n}_rho"] = (s_v / s_w**2 - 1 / s_v) * slope(v, n)
        of_w[f"{n}_rho"] = (1 / s_w - (s_v**2 + apart**2) / s_w**3) * slope(w, n)
    return of_v, of_w


def local(w, v, entry, name, round, purpose="batches", step="train"):
    x, y = slow.arrays(entry)
    tie = ZETA / len(y)
    with chance.torch_seeded(0, step, round, name):
        for rows in slow.batches(len(y), name, round, purpose):
            gradient = slow.plus(likelihood_gradient(v, x[rows], y[rows]), kl_gradients(v, w)[0], tie)
            v = slow.plus(v, gradient, -PERSONAL_LR)
            w = slow.plus(w, kl_gradients(v, w)[1], -slow.LR * tie)
    return w, v


def play(data, rounds, clients):
    w, personal = start(), {}
    for round in range(1, rounds + 1):
        done = {}
        for name in clients(round):
            done[name], personal[name] = local(w, personal.get(name, w), data[name], name, round)
        w = slow.plus(w, slow.plus(slow.mean(done, slow.samples(data)), w, -1), BETA)
    return w, personal


def test_against_a_slow_implementation(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", "pfedbayes", data, *SETTINGS)
    w, personal = play(data, 3, lambda round: data)
    slow.close(slow.shared(run), w)
    for name in data:
        slow.close(slow.own(run, name), personal[name])
    stages = {(row["round"], row["stage"]) for row in run.metrics if row["split"] == "test"}
    assert stages == {(r, s) for r in (1, 2, 3) for s in ("before", "own")}


def test_a_personal_model_waits_for_its_client_and_a_new_client_makes_one(tmp_path):
    data = slow.population()
    chosen = {r: list(Sampling(clients=1).choose(list(data), 0, r)) for r in (1, 2)}
    seen = {name for names in chosen.values() for name in names}
    run = slow.run(tmp_path / "r", "pfedbayes", data, *SETTINGS, "sampling.clients=1", rounds=2)
    w, personal = play(data, 2, chosen.__getitem__)
    slow.close(slow.shared(run), w)
    assert 0 < len(seen) < 3
    for name in data:
        expected = (
            personal[name] if name in seen else local(w, w, data[name], name, 2, "personal", "evaluate")[1]
        )
        slow.close(slow.own(run, name), expected)


def test_the_own_model_predicts_by_its_means_or_by_draws(tmp_path):
    data = slow.population()
    x = data["c0"]["test"][0]
    by_means = slow.run(tmp_path / "means", "pfedbayes", data, *SETTINGS)
    model = by_means.client("c0").model()
    assert torch.equal(model(x), nn.functional.linear(x, model.weight, model.bias))
    by_draws = slow.run(tmp_path / "draws", "pfedbayes", data, *SETTINGS, "method.predictions=3")
    mixed = by_draws.client("c0").model()
    assert torch.allclose(mixed(x).exp().sum(1), torch.ones(len(x)), atol=1e-5)
    assert torch.equal(mixed.network.weight, model.weight)
    again = slow.run(tmp_path / "again", "pfedbayes", data, *SETTINGS, "method.predictions=3")
    assert again.metrics == by_draws.metrics


def test_without_a_tie_the_shared_model_stays_and_clients_learn_alone(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", "pfedbayes", data, "method.zeta=0", f"method.rho={RHO}")
    slow.close(slow.shared(run), start(), 1e-6, 1e-7)
    assert not np.allclose(slow.own(run, "c0")["weight"], start()["weight"])


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    slow.check_stopped(tmp_path, "pfedbayes", *SETTINGS)


def test_it_learns_the_digits(tmp_path):
    changes = ["method=pfedbayes", "rounds=12", "training.epochs=3"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.75
    assert run.summary["accuracy"]["mean"] > run.summary["before"]["mean"]


def test_steps_that_overshoot_are_warned_of(tmp_path):
    """By hand: softplus(-1) = 0.31326, its square 0.098133; with 5 samples and zeta 1.5, lr 0.6542 gives 2."""
    settings = [*SETTINGS, "training.epochs=1"]
    with pytest.warns(UserWarning, match=r"client 'c0' has 2\.0\d*, and 1 of 3 reach it: lower training.lr"):
        slow.run(tmp_path / "over", "pfedbayes", slow.population(), *settings, "training.lr=0.66", rounds=1)
    personal = [*settings, "training.lr=0.1", "method.personal_lr=0.66"]
    with pytest.warns(UserWarning, match="and 1 of 3 reach it"):
        slow.run(tmp_path / "personal", "pfedbayes", slow.population(), *personal, rounds=1)


def test_deviations_that_are_nothing_are_warned_of():
    settings = intarsia.load({"method": {"name": "pfedbayes", "rho": -1000}})
    experiment = Experiment.build(settings, Given(data=slow.population(), model=slow.linear()))
    with pytest.warns(UserWarning, match="client 'c0' has inf, and 3 of 3 reach it"):
        experiment.check()


@pytest.mark.parametrize("changes", [["training.lr=0.65"], ["training.lr=0.66", "training.optimizer=adam"]])
def test_steps_that_do_not_overshoot_are_not(changes, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slow.run(tmp_path / "r", "pfedbayes", slow.population(), *SETTINGS, *changes, rounds=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.zeta=-1", "method.zeta: input should be greater than or equal to 0"),
        ("method.samples=0", "method.samples: input should be greater than or equal to 1"),
        ("merge.beta=0", "merge.beta: input should be greater than 0"),
        ("method.sample=1", "method.sample: unknown setting; did you mean 'samples'"),
        ("training.loss=mse", "defined for the loss 'cross_entropy' alone"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "pfedbayes", slow.population(), change)


def test_a_model_that_has_no_gaussian_form_says_so(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(intarsia.IntarsiaError, match="no Gaussian form: '1' is BatchNorm1d"):
        slow.run(tmp_path / "r", "pfedbayes", slow.population(), model=model)
