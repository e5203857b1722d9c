"""Stitches in closed form: least squares worked out by numpy, front to back through whole chains; tuning by aims."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from intarsia.core import chance
from intarsia.methods.pfedclub.assembly import Seams, Stitch, assemble, own_model, rebuild
from intarsia.methods.pfedclub.decompose import Ref, decompose
from intarsia.methods.pfedclub.ridge import ridge, start
from intarsia.methods.pfedclub.stitch_tuning import Aim, Prefixes, StitchTuning, choose, tune
from intarsia.methods.pfedclub.views import PublicData
from intarsia.models import MODELS, ClubCNN, Spec

IMAGES, OUTPUTS = (3, 8, 8), 4
SPECS = {
    "a": Spec(ClubCNN(number=1, width=0.2), IMAGES, OUTPUTS),
    "b": Spec(ClubCNN(number=2, width=0.2), IMAGES, OUTPUTS),
}
RIDGE = StitchTuning(epochs=0, start="ridge", ridge=0.1)


@pytest.fixture(autouse=True, scope="module")
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def prefixes(_double):
    chains = {key: decompose(spec.build(seed), IMAGES) for seed, (key, spec) in enumerate(SPECS.items())}
    x = torch.rand(40, *IMAGES, generator=torch.Generator().manual_seed(1))
    return Prefixes(chains, PublicData((x,), torch.arange(40) % OUTPUTS))


PLAIN = Seams()


def made(prefixes, *blocks, seams=PLAIN):
    refs = [Ref(*block) for block in blocks]
    return assemble(refs, prefixes.chains, IMAGES, OUTPUTS, len(refs), seams)


def by_numpy(x, y, strength):
    """Ridge as plain least squares: rows of the root of the strength pull the weights to zero, a column of 1 is b."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    columns = x.shape[1]
    centred = x - x.mean(0)
    s = strength * (centred**2).sum() / columns
    tall = np.vstack([np.hstack([x, np.ones((len(x), 1))]), np.sqrt(s) * np.eye(columns, columns + 1)])
    solution = np.linalg.lstsq(tall, np.vstack([y, np.zeros((columns, y.shape[1]))]), rcond=None)[0]
    return solution[:-1].T, solution[-1]


@pytest.mark.parametrize(("rows", "columns"), [(30, 4), (5, 12), (7, 7)])
@pytest.mark.parametrize("strength", [1e-6, 0.01, 3.0])
def test_ridge_is_least_squares_with_rows_that_pull_to_zero(rows, columns, strength):
    draw = torch.Generator().manual_seed(rows)
    x, y = 2 + torch.randn(rows, columns, generator=draw), torch.randn(rows, 3, generator=draw)
    weight, bias = ridge(x, y, strength)
    wanted, constant = by_numpy(x, y, strength)
    assert weight.numpy() == pytest.approx(wanted, abs=1e-7)
    assert bias.numpy() == pytest.approx(constant, abs=1e-7)


def test_ridge_by_hand():
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    # Centred: -1, 1 and -2, 2. Without a penalty the slope is 4 / 2; with one of 1 x 2, 4 / (2 + 2).
    weight, bias = ridge(x, y, 1.0)
    assert (weight.item(), bias.item()) == pytest.approx((1.0, 2.0))
    flat = ridge(torch.ones(3, 2), torch.tensor([[1.0], [2.0], [6.0]]), 0.1)
    assert flat[0].tolist() == [[0.0, 0.0]]
    assert flat[1].item() == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("takes", "gives"),
    [
        ((4, 6, 6), (3, 6, 6)),
        ((4, 6, 6), (3, 2, 2)),
        ((4, 2, 2), (3, 6, 6)),
        ((4, 6, 6), (9,)),
        ((5,), (9,)),
        ((5,), (3, 2, 2)),
    ],
)
def test_what_a_stitch_could_give_exactly_it_gives(takes, gives):
    """The aim is what a stitch of other weights gives: the start must find that stitch's values again."""
    draw = torch.Generator().manual_seed(0)
    x, stitch = torch.rand(50, *takes, generator=draw), Stitch(takes, gives)
    other, layers = stitch.build(), stitch.build()
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(0.5 + torch.rand(weight.shape, generator=draw))  # its ReLU has nothing to do
        aim = other(x)
        start(layers, stitch, x, aim, 1e-9)
        torch.testing.assert_close(layers(x), aim, rtol=1e-5, atol=1e-5)


def chain_by_hand(prefixes, blocks):
    """Front to back with numpy: maps to places by explicit means, each stitch solved on what comes before it."""
    x = prefixes.public.views[0]
    chains, models = prefixes.chains, []
    for model, index in blocks:
        block, own = chains[model][index], prefixes.public.views[0]
        for before in chains[model][:index]:
            own = before.module(own)
        if tuple(x.shape[1:]) != tuple(own.shape[1:]):
            size = own.shape[2]
            step = x.shape[2] // size
            pooled = x.unfold(2, step, step).unfold(3, step, step).mean((4, 5))
            rows, wanted = (v.permute(0, 2, 3, 1).reshape(-1, v.shape[1]).detach() for v in (pooled, own))
            weight, bias = (torch.tensor(t) for t in by_numpy(rows, wanted, 0.1))
            models.append(weight)
            x = functional.relu(torch.einsum("nchw,dc->ndhw", pooled, weight) + bias[:, None, None])
        x = block.module(x)
    return x.detach(), models


def test_chains_start_front_to_back_towards_what_blocks_take_at_home(prefixes):
    blocks = [("a", 0), ("b", 2), ("b", 3), ("b", 4)]
    one = made(prefixes, *blocks, seams=Seams(dense="smaller"))
    tuned = tune(one, prefixes, RIDGE, 0, Aim("a"))
    logits, (weight,) = chain_by_hand(prefixes, blocks)
    assert [place for place, stitch in enumerate(one.stitches) if stitch] == [1]
    assert tuned.stitches["1.1.weight"].squeeze().numpy() == pytest.approx(weight.numpy(), abs=1e-7)
    torch.testing.assert_close(tuned.logits, logits, rtol=1e-6, atol=1e-7)
    random = tune(one, prefixes, StitchTuning(epochs=0), 0)
    own = tune(own_model("b", prefixes.chains), prefixes, RIDGE, 0).logits
    assert (tuned.logits - own).norm() < 0.5 * (random.logits - own).norm()


def test_a_head_starts_towards_the_scores_of_the_clients_model(prefixes):
    one = made(prefixes, ("b", 0), ("b", 1))
    tuned = tune(one, prefixes, RIDGE, 0, Aim("a"))
    maps = prefixes(one.blocks)[0].mean((2, 3))
    scores = tune(own_model("a", prefixes.chains), prefixes, RIDGE, 0).logits
    weight, bias = by_numpy(maps, scores, 0.1)
    assert tuned.logits.numpy() == pytest.approx(maps.numpy() @ weight.T + bias, abs=1e-7)


@pytest.mark.parametrize(
    "settings", [{"target": "own"}, {"target": "own", "answers": "held"}, {"answers": "held"}]
)
def test_steps_towards_own_scores_and_held_labels_by_hand(prefixes, settings):
    one = made(prefixes, ("a", 0), ("b", 2), ("b", 3), ("b", 4))
    how = StitchTuning(epochs=2, batch_size=8, lr=0.01, **settings)
    aim = Aim("a", (1, 3) if "answers" in settings else ())
    model = one.build(prefixes.chains, 5)
    optimiser = torch.optim.Adam(model.stitches.parameters(), lr=0.01)
    (x,), y = prefixes.public
    own = tune(own_model("a", prefixes.chains), prefixes, how, 0).logits
    columns = list(aim.held) or list(range(OUTPUTS))
    rows = [i for i in range(40) if "target" in settings or int(y[i]) in columns]
    draw = chance.generator(5, "stitch batches")
    for _ in range(2):
        order = [rows[i] for i in torch.randperm(len(rows), generator=draw)]
        for begin in range(0, len(order), 8):
            batch = order[begin : begin + 8]
            q = model(x[batch])[:, columns].softmax(1)
            if "target" in settings:
                p = own[batch][:, columns].softmax(1)
                loss = (p * (p / q).log()).sum(1).mean()
            else:
                loss = -torch.stack(
                    [q[i, columns.index(int(y[row]))].log() for i, row in enumerate(batch)]
                ).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    tuned = tune(one, prefixes, how, 5, aim)
    for name, tensor in model.stitches.state_dict().items():
        torch.testing.assert_close(tuned.stitches[name], tensor, rtol=1e-7, atol=1e-9)


def test_without_a_public_sample_of_a_held_label_there_is_nothing_to_tune_on(prefixes):
    few = Prefixes(prefixes.chains, PublicData(prefixes.public.views, torch.zeros(40).long()))
    one = made(few, ("a", 0), ("b", 2), ("b", 3), ("b", 4))
    tuned = tune(one, few, StitchTuning(answers="held"), 5, Aim("a", (1, 3)))
    fresh = one.build(few.chains, 5).stitches.state_dict()
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in tuned.stitches.items())


def test_one_candidate_of_two_clients_is_tuned_for_each(prefixes):
    one = made(prefixes, ("b", 0), ("b", 1))
    teachers = choose({"a": [one], "b": [one]}, prefixes, RIDGE, 0)
    for model, teacher in teachers.items():
        assert torch.equal(teacher.logits, tune(one, prefixes, RIDGE, 0, Aim(model)).logits)
    assert not torch.equal(teachers["a"].logits, teachers["b"].logits)


def test_stitches_at_every_seam_and_smaller_ones_into_dense_layers(prefixes):
    chain = [("a", 0), ("a", 1), ("b", 2), ("b", 3), ("b", 4)]
    usual, every = made(prefixes, *chain), made(prefixes, *chain, seams=Seams(every=True))
    places = [[i for i, stitch in enumerate(one.stitches) if stitch] for one in (usual, every)]
    assert places[1] == [
        2
    ]  # blocks that follow each other at home need none, nor do inputs before a first block
    assert (
        own_model("b", prefixes.chains).stitches
        == assemble(
            own_model("b", prefixes.chains).blocks, prefixes.chains, IMAGES, OUTPUTS, 0, Seams(every=True)
        ).stitches
    )
    twice = [("b", 0), ("a", 1), ("a", 2), ("b", 3)]
    point, smaller = (
        made(prefixes, *[("b", 0), ("a", 2), ("a", 3)], seams=Seams(dense=d)) for d in ("point", "smaller")
    )
    flat = prefixes.chains["a"][2]
    assert point.stitches[1] == Stitch((3, 4, 4), (int(np.prod(flat.takes)),))
    assert smaller.stitches[1] == Stitch((3, 4, 4), flat.takes)
    assert smaller.cost.parameters < point.cost.parameters
    for one in (every, smaller, made(prefixes, *twice, seams=Seams(every=True, dense="smaller"))):
        model = one.build(prefixes.chains, 3).eval()
        again, _ = rebuild(one.blueprint(SPECS), model.state_dict(), MODELS)
        x = prefixes.public.views[0]
        assert torch.equal(again(x), model(x))
