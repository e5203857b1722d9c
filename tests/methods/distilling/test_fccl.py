"""FCCL against a slow implementation with numerical gradients; correlations by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import intarsia
from intarsia.core import chance
from intarsia.methods.distilling.fccl import FCCL, correlation
from tests.conftest import NEEDS, SMALL
from tests.methods import slow

SUBSET, DIGESTS, OFF, INTER, INTRA, PRETRAINING = 8, 2, 0.03, 0.7, 0.4, 2
SETTINGS = [
    f"method.subset={SUBSET}",
    f"method.digest_epochs={DIGESTS}",
    f"method.digest_batch={slow.SIZE}",
    f"method.off_diagonal={OFF}",
    f"method.inter={INTER}",
    f"method.intra={INTRA}",
    f"method.pretraining={PRETRAINING}",
]


def test_correlations_by_hand():
    # Columns (1,2,3) and (0,0,3) against (1,2,3) and (2,1,0): (1,2,3) and (0,0,3) centred are (-1,0,1), (-1,-1,2),
    # of lengths sqrt 2, sqrt 6, with product 3: 3 / sqrt 12 = sqrt 3 / 2.
    one = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 3.0]])
    other = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 0.0]])
    half = 3**0.5 / 2
    torch.testing.assert_close(correlation(one, other), torch.tensor([[1.0, -1.0], [half, -half]]))
    # (1 - 1)^2 + (-half - 1)^2 + 0.1 ((-1 + 1)^2 + (half + 1)^2)
    expected = 1.1 * (half + 1) ** 2
    assert FCCL(off_diagonal=0.1).dissent(one, other).item() == pytest.approx(expected, rel=1e-6)
    flat = torch.ones(3, 2, requires_grad=True)
    FCCL().dissent(flat, other).backward()
    assert correlation(flat, other).tolist() == flat.grad.tolist()[:2] == [[0, 0], [0, 0]]


def scores(w, x):
    return x @ w["weight"].T + w["bias"]


def dissent(w, x, consensus):
    """Entry by entry, with numpy's own correlation."""
    mine, total = scores(w, x), 0.0
    for u in range(3):
        for v in range(3):
            c = np.corrcoef(mine[:, u], consensus[:, v])[0, 1]
            total += (c - 1) ** 2 if u == v else OFF * (c + 1) ** 2
    return total


def slope(value, w, step=1e-6):
    """The gradient of a function of the weights by central differences."""
    gradient = {name: np.zeros_like(tensor) for name, tensor in w.items()}
    for name, tensor in w.items():
        for at in np.ndindex(tensor.shape):
            up, down = ({k: t.copy() for k, t in w.items()} for _ in range(2))
            up[name][at] += step
            down[name][at] -= step
            gradient[name][at] = (value(up) - value(down)) / (2 * step)
    return gradient


def dual(w, before, alone, x, y):
    """Cross entropy and both divergences, sample by sample."""
    p, total = slow.probabilities(w, x), 0.0
    teachers = ((INTER, slow.probabilities(before, x)), (INTRA, slow.probabilities(alone, x)))
    for i, label in enumerate(y):
        total -= np.log(p[i, label])
        for weight, q in teachers:
            total += weight * sum(q[i, k] * np.log(q[i, k] / p[i, k]) for k in range(3))
    return total / len(y)


def play(data, public, rounds):
    nets = {name: slow.start() for name in data}
    x, alone = public.x.double().numpy(), {}
    for name in data:
        own = slow.arrays(data[name])
        for rows in slow.batches(len(own[1]), name, 1, "alone", PRETRAINING):
            nets[name] = slow.plus(
                nets[name], slow.gradient(nets[name], own[0][rows], own[1][rows]), -slow.LR
            )
        alone[name] = nets[name]
    for round in range(1, rounds + 1):
        picked = torch.randperm(len(x), generator=chance.generator(0, "public", round)).numpy()[:SUBSET]
        some = x[picked]
        consensus = sum(scores(net, some) for net in nets.values()) / len(nets)
        for name in data:
            w = nets[name]
            for rows in slow.batches(SUBSET, name, round, "digest", DIGESTS):
                w = slow.plus(w, slope(lambda v: dissent(v, some[rows], consensus[rows]), w), -slow.LR)  # noqa: B023
            own = slow.arrays(data[name])
            for rows in slow.batches(len(own[1]), name, round):
                mine = own[0][rows], own[1][rows]
                w = slow.plus(w, slope(lambda v: dual(v, nets[name], alone[name], *mine), w), -slow.LR)  # noqa: B023
            nets[name] = w
    return nets


def test_against_a_slow_implementation(tmp_path):
    data = slow.population()
    given = slow.with_public(data)
    run = slow.run(tmp_path / "r", "fccl", given, *SETTINGS, rounds=2)
    nets = play(data, given.public, 2)
    for name in data:
        slow.close(slow.own(run, name), nets[name], 1e-3, 1e-4)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_teacher_from_the_last_round_by_hand(rounds, tmp_path):
    """One client; a teacher that is followed at all costs is what the client was before it met the others.

    In a first round that is the pre-trained model, whatever collaborative updating did; so too in a second.
    """
    given = slow.with_public(slow.population((8,)))
    far = ["method.digest_epochs=500", "method.off_diagonal=5"]
    strong = [*far, "method.inter=1000", "method.intra=0", "training.lr=0.002", "training.epochs=400"]
    run = slow.run(tmp_path / "r", "fccl", given, *SETTINGS, *strong, rounds=rounds)
    alone = run.client("c0").own_blocks()["alone|kept"].tensors
    x = slow.arrays(slow.population((8,))["c0"])[0]
    expected = slow.probabilities({name: t.double().numpy() for name, t in alone.items()}, x)
    np.testing.assert_allclose(slow.probabilities(slow.own(run, "c0"), x), expected, atol=0.01)


def test_public_data_travels_once_and_its_labels_are_not_used(tmp_path):
    given = slow.with_public(slow.population())
    other = replace(given, public=replace(given.public, y=(given.public.y + 1) % 3))
    run = slow.run(tmp_path / "one", "fccl", given, *SETTINGS)
    assert run.metrics == slow.run(tmp_path / "two", "fccl", other, *SETTINGS).metrics
    rows = [r for r in run.traffic if r["client"] == "c0" and r["block"]]
    assert {r["block"] for r in rows} == {"public", "scores", "consensus"}
    assert [r["round"] for r in rows if r["block"] == "public"] == [1]


def test_correlations_with_others_grow(tmp_path):
    """With collaborative updating alone in effect, clients that began apart come to correlate."""
    data = slow.population((40, 40, 40))
    given = slow.with_public(data, 60)
    x = given.public.x

    def agreement(run: intarsia.Run) -> float:
        tables = [run.client(name).model()(x).detach() for name in data]
        mean = torch.stack(tables).mean(0)
        return float(torch.stack([correlation(t, mean).diagonal().mean() for t in tables]).mean())

    one = slow.run(tmp_path / "one", "fccl", given, "method.digest_epochs=20", rounds=3)
    alone = slow.run(tmp_path / "alone", "local", given, rounds=3)
    assert agreement(one) > agreement(alone) + 0.1


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data = slow.with_public(slow.population())
    changes = [*SETTINGS, "sampling.clients=2"]
    whole = slow.run(tmp_path / "whole", "fccl", data, *changes, rounds=4)
    with pytest.raises(KeyboardInterrupt):
        slow.run(tmp_path / "cut", "fccl", data, *changes, rounds=4, observer=slow.Stop(3))
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=slow.linear())
    assert resumed.metrics == whole.metrics


def test_it_learns_the_digits(tmp_path):
    changes = ["method=fccl", "rounds=12", "training.epochs=3", *NEEDS["fccl"]]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.85


def test_it_needs_public_data_and_classes(tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match="this method needs public data"):
        slow.run(tmp_path / "a", "fccl", slow.population())
    numbers = {
        name: {
            **own,
            "train": (own["train"][0], own["train"][1].float()),
            "test": (own["test"][0], own["test"][1].float()),
        }
        for name, own in slow.population().items()
    }
    with pytest.raises(intarsia.IntarsiaError, match="'fccl' is defined for the loss 'cross_entropy' alone"):
        slow.run(tmp_path / "b", "fccl", intarsia.from_dict(numbers, "regression"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.off_diagonal=-1", "method.off_diagonal: input should be greater than or equal to 0"),
        ("method.digest_batch=1", "method.digest_batch: input should be greater than or equal to 2"),
        ("method.pretraining=0", "method.pretraining: input should be greater than or equal to 1"),
        ("method.inters=0", "method.inters: unknown setting; did you mean 'inter'"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "fccl", slow.with_public(slow.population()), change)
