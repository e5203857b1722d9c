"""pFedMe against a slow implementation of its Algorithm 1."""

from __future__ import annotations

import pytest
import torch

import intarsia
from intarsia.federation import Sampling
from tests.conftest import SMALL
from tests.methods import slow

LAM, STEPS, PERSONAL_LR, BETA = 2.0, 3, 0.1, 0.5
SETTINGS = [
    f"method.lam={LAM}",
    f"method.inner_steps={STEPS}",
    f"method.personal_lr={PERSONAL_LR}",
    f"merge.beta={BETA}",
]


def local(w, entry, name, round, purpose="batches"):
    """Return the client's w and theta after its local rounds."""
    x, y = slow.arrays(entry)
    theta = w
    for rows in slow.batches(len(y), name, round, purpose):
        for _ in range(STEPS):
            pull = slow.plus(theta, w, -1)
            step = slow.plus(slow.gradient(theta, x[rows], y[rows]), pull, LAM)
            theta = slow.plus(theta, step, -PERSONAL_LR)
        w = slow.plus(w, slow.plus(w, theta, -1), -slow.LR * LAM)
    return w, theta


def play(data, rounds, clients):
    """Return the shared model and the personal ones after some rounds of these clients."""
    w, personal = slow.start(), {}
    for round in range(1, rounds + 1):
        done = {}
        for name in clients(round):
            done[name], personal[name] = local(w, data[name], name, round)
        average = slow.mean(done, slow.samples(data))
        w = slow.plus(w, slow.plus(average, w, -1), BETA)
    return w, personal


def test_against_a_slow_implementation(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", "pfedme", data, *SETTINGS)
    w, personal = play(data, 3, lambda round: data)
    slow.close(slow.shared(run), w)
    for name in data:
        slow.close(slow.own(run, name), personal[name])
    stages = {(row["round"], row["stage"]) for row in run.metrics if row["split"] == "test"}
    assert stages == {(r, s) for r in (1, 2, 3) for s in ("before", "own")}


def test_a_personal_model_waits_for_its_client_and_a_new_client_makes_one(tmp_path):
    data = slow.population()
    sampling = Sampling(clients=1)
    chosen = {r: list(sampling.choose(list(data), 0, r)) for r in (1, 2)}
    seen = {name for names in chosen.values() for name in names}
    run = slow.run(tmp_path / "r", "pfedme", data, *SETTINGS, "sampling.clients=1", rounds=2)
    w, personal = play(data, 2, chosen.__getitem__)
    slow.close(slow.shared(run), w)
    assert 0 < len(seen) < 3
    for name in data:
        expected = personal[name] if name in seen else local(w, data[name], name, 2, "personal")[1]
        slow.close(slow.own(run, name), expected)


def test_theta_goes_on_within_a_round_by_hand(tmp_path):
    """One input of 1, one weight, the loss (w x - y)^2, w = 0 at first; lam 1, one inner step of 0.25, eta 0.2.

    The gradient at theta is 2 (theta - 4) + (theta - w). First batch: theta = 2, w = 0.4. Second, from theta = 2:
    theta = 2 - (-4 + 1.6) / 4 = 2.6, w = 0.84. From w it would have been 0.4 + 7.2 / 4 = 2.2.
    """
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    x, y = torch.ones(8, 1), torch.full((8, 1), 4.0)
    data = {"c0": {"train": (x, y), "test": (x, y)}}
    changes = [
        "method.lam=1",
        "method.inner_steps=1",
        "method.personal_lr=0.25",
        "training.epochs=1",
        "training.loss=mse",
    ]
    run = slow.run(tmp_path / "r", "pfedme", data, *changes, rounds=1, model=model)
    assert slow.own(run, "c0")["weight"].item() == pytest.approx(2.6)
    assert slow.shared(run)["weight"].item() == pytest.approx(0.84)


def test_many_steps_lead_to_the_minimum_of_the_envelope(tmp_path):
    """Where theta minimises f + lam/2 |theta - w|^2, lam (w - theta) is the gradient of f at theta."""
    data = slow.population((4,))
    changes = ["method.lam=2", "method.inner_steps=400", "method.personal_lr=0.2", "training.epochs=1"]
    run = slow.run(tmp_path / "r", "pfedme", data, *changes, rounds=1)
    theta, x, y = slow.own(run, "c0"), *slow.arrays(data["c0"])
    pull = {k: 2 * (slow.start()[k] - theta[k]) for k in theta}
    slow.close(slow.gradient(theta, x, y), pull, 1e-3, 1e-5)
    # One batch, beta 1: the shared model took the one step -eta lam (w - theta).
    slow.close(slow.shared(run), slow.plus(slow.start(), pull, -slow.LR))


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    slow.check_stopped(tmp_path, "pfedme", *SETTINGS)


def test_it_learns_the_digits_and_personal_models_are_better(tmp_path):
    changes = ["method=pfedme", "rounds=15", "training.epochs=3"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.8
    assert run.summary["accuracy"]["mean"] > run.summary["before"]["mean"]


def test_frozen_weights_are_not_kept_and_batch_norms_are(tmp_path):
    from torch import nn

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    run = slow.run(tmp_path / "r", "pfedme", slow.population(), rounds=2, model=model)
    kept = run.client("c0").own_blocks()["personal|kept"].tensors
    assert "0.weight" not in kept
    assert {"0.bias", "1.running_mean", "1.num_batches_tracked", "2.weight"} <= kept.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.lam=0", "method.lam: input should be greater than 0"),
        ("method.inner_steps=0", "method.inner_steps: input should be greater than or equal to 1"),
        ("method.personal_lr=-1", "method.personal_lr: input should be greater than 0"),
        ("merge.beta=0", "merge.beta: input should be greater than 0"),
        ("method.personal_rate=1", "method.personal_rate: unknown setting; did you mean 'personal_lr'"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    settings = {"method": {"name": "pfedme"}, "rounds": 1}
    with pytest.raises(intarsia.IntarsiaError, match=message):
        intarsia.run(
            settings, data=slow.population(), model=slow.linear(), changes=[change], out=tmp_path / "r"
        )


def test_kept_models_go_on_and_are_what_is_averaged(tmp_path):
    """FedEM's test bed, slowly: theta <- theta - lr (gradient + lam (theta - w)), w <- the mean of all theta."""
    data, w, personal = slow.population(), slow.start(), {}
    for round in (1, 2, 3):
        for name, entry in data.items():
            x, y = slow.arrays(entry)
            theta = personal.get(name, w)
            for rows in slow.batches(len(y), name, round):
                step = slow.plus(slow.gradient(theta, x[rows], y[rows]), slow.plus(theta, w, -1), LAM)
                theta = slow.plus(theta, step, -slow.LR)
            personal[name] = theta
        w = slow.mean(personal, slow.samples(data))
    run = slow.run(tmp_path / "r", "pfedme", data, "method.form=kept", f"method.lam={LAM}")
    slow.close(slow.shared(run), w)
    for name in data:
        slow.close(slow.own(run, name), personal[name])
