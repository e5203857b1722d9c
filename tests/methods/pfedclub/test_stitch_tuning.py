"""Stitch tuning: losses by hand, the same stitches with and without kept activations, the closest candidate."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from intarsia.core import chance
from intarsia.data import Examples, Scaling
from intarsia.methods.pfedclub.assembly import assemble, own_model, rebuild
from intarsia.methods.pfedclub.cka import block_features, compare, group_blocks
from intarsia.methods.pfedclub.cmsr import CMSR, Search
from intarsia.methods.pfedclub.decompose import Ref, decompose, total
from intarsia.methods.pfedclub.stitch_tuning import Prefixes, StitchTuning, agreement, choose, tune
from intarsia.methods.pfedclub.views import PublicData, augment, nt_xent, unlabelled
from intarsia.models import MODELS, ClubCNN, MobileNetV3, Spec

IMAGES, OUTPUTS = (3, 8, 8), 4
SPECS = {
    "a": Spec(ClubCNN(number=2, width=0.1), IMAGES, OUTPUTS),
    "b": Spec(ClubCNN(number=4, width=0.1), IMAGES, OUTPUTS),
    "c": Spec(MobileNetV3(width=0.1, stride=1), IMAGES, OUTPUTS),
}
SETTINGS = StitchTuning(epochs=2, batch_size=8, lr=0.01)


@pytest.fixture(autouse=True, scope="module")
def _double():
    """Work with double precision: Adam makes much of the rounding of gradients that are almost zero."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def chains(_double):
    built = {}
    for seed, (key, spec) in enumerate(SPECS.items()):
        model = spec.build(seed)
        model.train()(torch.rand(8, *IMAGES, generator=torch.Generator().manual_seed(0)))
        built[key] = decompose(model.eval(), IMAGES)
    return built


def raw(count=21):
    return torch.randint(
        0, 256, (count, *IMAGES), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def public(labels=True):
    if labels:
        return PublicData((raw() / 255.0,), torch.arange(21) % OUTPUTS)
    return unlabelled(Examples(raw() / 255.0, torch.zeros(21).long()), seed=2, copies=2, flips=True)


CANDIDATES = [
    [("b", 0), ("b", 1), ("c", 4), ("b", 6), ("b", 9)],
    [("b", 0), ("b", 1), ("a", 2), ("a", 3)],
    [("c", 2), ("a", 4)],
    [("a", 0), ("a", 1), ("a", 2)],
]


def made(chains, blocks):
    return assemble([Ref(*block) for block in blocks], chains, IMAGES, OUTPUTS, len(blocks))


def by_hand(assembly, chains, data, settings, seed):
    """Train the whole model step by step, and nothing but the stitches."""
    model = assembly.build(chains, seed)
    optimiser = torch.optim.Adam(model.stitches.parameters(), lr=settings.lr)
    draw = chance.generator(seed, "stitch batches")
    for epoch in range(settings.epochs):
        order = torch.randperm(len(data.views[0]), generator=draw)
        for start in range(0, len(order), settings.batch_size):
            rows = order[start : start + settings.batch_size]
            optimiser.zero_grad()
            if data.y is not None:
                loss = functional.cross_entropy(model(data.views[0][rows]), data.y[rows])
            else:
                loss = nt_xent(
                    model(data.views[0][rows]), model(data.views[1 + epoch % 2][rows]), settings.temperature
                )
            loss.backward()
            optimiser.step()
    return model


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("blocks", CANDIDATES)
def test_tuned_stitches_are_those_of_training_the_whole_model(chains, blocks, labels):
    one, data = made(chains, blocks), public(labels)
    tuned = tune(one, Prefixes(chains, data), SETTINGS, 5)
    wanted = by_hand(one, chains, data, SETTINGS, 5)
    fresh = one.build(chains, 5).stitches.state_dict()
    for name, tensor in wanted.stitches.state_dict().items():
        assert torch.allclose(tuned.stitches[name], tensor, atol=1e-9)
    assert any(not torch.equal(fresh[n], t) for n, t in wanted.stitches.state_dict().items())
    with torch.no_grad():
        assert torch.allclose(tuned.logits, wanted.eval()(data.views[0]), atol=1e-9)


class Unit(nn.Module):
    """Begins with a step that changes what it was given."""

    def __init__(self, inplace):
        super().__init__()
        self.act = nn.ReLU(inplace=inplace)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(self.act(x))


@pytest.mark.parametrize("blocks", [[("d", 0), ("d", 1), ("a", 2)], [("a", 0), ("d", 1), ("d", 2)]])
def test_blocks_that_work_in_place_change_no_others(chains, blocks):
    def every(inplace):
        torch.manual_seed(0)
        conv, linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 8 * 8, OUTPUTS)
        return {
            **chains,
            "d": decompose(nn.Sequential(conv, Unit(inplace), nn.Flatten(), linear), IMAGES),
        }

    prefixes = Prefixes(every(True), public())
    first = prefixes((Ref("d", 0),))[0].clone()
    one = made(every(True), blocks)
    tuned = tune(one, prefixes, SETTINGS, 5)
    assert torch.equal(prefixes((Ref("d", 0),))[0], first)
    wanted = by_hand(one, every(False), public(), SETTINGS, 5)
    for name, tensor in wanted.stitches.state_dict().items():
        assert torch.allclose(tuned.stitches[name], tensor, atol=1e-9)


def test_blocks_stay_as_they_are(chains):
    before = {k: [t.clone() for b in c for t in b.module.state_dict().values()] for k, c in chains.items()}
    for labels in (True, False):
        data = public(labels)
        several = [made(chains, blocks) for blocks in CANDIDATES]
        choose({"a": several}, Prefixes(chains, data), SETTINGS, 0)
    after = {k: [t for b in c for t in b.module.state_dict().values()] for k, c in chains.items()}
    assert all(torch.equal(x, y) for k in before for x, y in zip(before[k], after[k], strict=True))


def test_tuning_lowers_the_loss(chains):
    y = torch.arange(20) % 2
    bright = (0.2 + 0.8 * y)[:, None, None, None]
    data = PublicData((torch.rand(20, *IMAGES, generator=chance.generator(0, "x")) * bright,), y)
    for blocks in CANDIDATES[1::2]:
        one, losses = made(chains, blocks), []
        for epochs in (0, 40):
            logits = tune(one, Prefixes(chains, data), StitchTuning(epochs=epochs, lr=0.01), 0).logits
            losses.append(functional.cross_entropy(logits, y))
        assert losses[1] < 0.8 * losses[0]


@pytest.fixture
def runs(chains):
    """How often blocks of model b ran, by number."""
    counts = []
    hooks = [
        block.module.register_forward_hook(lambda *_, index=block.index: counts.append(index))
        for block in chains["b"]
    ]
    yield counts
    for hook in hooks:
        hook.remove()


def test_shared_prefixes_run_once(chains, runs):
    prefixes = Prefixes(chains, public())
    first, second = made(chains, CANDIDATES[0]), made(chains, CANDIDATES[1])
    assert first.frozen == second.frozen == 2
    for one in (first, second):
        tune(one, prefixes, SETTINGS, 0)
    assert (runs.count(0), runs.count(1)) == (1, 1)
    prefixes((Ref("b", 0), Ref("b", 1), Ref("b", 2)))
    assert (runs.count(0), runs.count(1), runs.count(2)) == (1, 1, 1)


def test_memory_is_limited(chains, runs):
    data = public()
    none = Prefixes(chains, data, memory=0)
    chain = (Ref("b", 0), Ref("b", 1))
    x = none(chain)[0]
    assert torch.equal(x, none(chain)[0])
    assert len(runs) == 4
    # Room for what the second block gives; what the first gives is larger.
    one = Prefixes(chains, data, memory=x.nbytes)
    one(chain)
    one(chain)
    assert len(runs) == 6


def test_nt_xent_by_hand():
    rows = torch.eye(2)
    # Each row has its partner at cosine 1 and two others at 0.
    assert nt_xent(rows, 5 * rows, 1.0).item() == pytest.approx(-math.log(math.e / (math.e + 2)), abs=1e-6)
    assert nt_xent(rows, rows, 0.5).item() == pytest.approx(-math.log(math.e**2 / (math.e**2 + 2)), abs=1e-6)
    turned = rows.flip(0)
    # The partner at 0, and one other row at 1.
    assert nt_xent(rows, turned, 1.0).item() == pytest.approx(math.log(math.e + 2), abs=1e-6)
    assert nt_xent(rows[:1], turned[:1], 1.0).item() == pytest.approx(0.0, abs=1e-6)


def test_nt_xent_by_its_formula():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randn(5, 3, generator=draw), torch.randn(5, 3, generator=draw)
    rows = torch.cat([one, other])
    total = 0.0
    for i in range(10):
        closeness = [
            math.exp(functional.cosine_similarity(rows[i], rows[k], dim=0).item() / 0.07) for k in range(10)
        ]
        total -= math.log(closeness[(i + 5) % 10] / (sum(closeness) - closeness[i]))
    assert nt_xent(one, other).item() == pytest.approx(total / 10, rel=1e-4)


def test_agreement_by_hand():
    one = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    other = torch.tensor([[0.0, 2.0], [4.0, 3.0]])
    assert agreement(one, other) == pytest.approx((0 + 24 / 25) / 2)
    assert agreement(one, one) == pytest.approx(1.0)


def test_the_closest_candidate_is_chosen(chains):
    data = public()
    prefixes = Prefixes(chains, data)
    several = [made(chains, blocks) for blocks in CANDIDATES]
    choice = choose({"b": several}, prefixes, SETTINGS, 0)["b"]
    whole = nn.Sequential(*(block.module for block in chains["b"])).eval()
    with torch.no_grad():
        own = whole(data.views[0])
    scores = [
        agreement(own, by_hand(c, chains, data, SETTINGS, 0).eval()(data.views[0]).detach()) for c in several
    ]
    assert list(choice.scores) == several
    assert list(choice.scores.values()) == pytest.approx(scores, abs=1e-9)
    assert choice.assembly == several[scores.index(max(scores))]
    with_itself = choose({"b": [*several, own_model("b", chains)]}, prefixes, SETTINGS, 0)["b"]
    assert with_itself.scores == {own_model("b", chains): pytest.approx(1.0)}  # the others were not tuned
    assert with_itself.assembly.is_own("b", chains)


def test_views_are_drawn_from_the_seed_and_normalised_after():
    scaling = Scaling(1 / 255, (0.5,) * 3, (1.0,) * 3)
    examples = Examples(raw(), torch.zeros(21).long(), scaling)
    one, again = (unlabelled(examples, seed=3, copies=3, flips=True) for _ in range(2))
    assert len(one.views) == 4
    torch.testing.assert_close(one.views[0], raw().double() / 255 - 0.5, rtol=0, atol=1e-6)
    assert all(torch.equal(x, y) for x, y in zip(one.views, again.views, strict=True))
    assert not torch.equal(one.views[1], one.views[2])
    for view in one.views:
        assert view.min() >= -0.5
        assert view.max() <= 0.5


def test_augmentation_moves_and_only_flips_if_allowed(monkeypatch):
    monkeypatch.setattr("intarsia.methods.pfedclub.views.JITTER", 0.0)
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 3, 1], image[0, 0, 3, 2] = 1.0, 0.5  # bright on the left of half bright
    many = image.expand(300, -1, -1, -1)
    for flips in (False, True):
        out = augment(many, chance.generator(0, "test"), flips)
        seen = set()
        for one in out:
            places = (one[0] == 1.0).nonzero()
            halves = (one[0] == 0.5).nonzero()
            if len(places) and len(halves):
                seen.add(tuple((halves[0] - places[0]).tolist()))
        assert seen == ({(0, 1), (0, -1)} if flips else {(0, 1)})
        rows = {int((one[0] == 1.0).nonzero()[0, 0]) for one in out if (one[0] == 1.0).any()}
        assert rows == set(range(8))


def test_augmentation_keeps_the_scale():
    bright = augment(torch.full((50, 3, 8, 8), 200, dtype=torch.uint8), chance.generator(0, "test"), True)
    assert bright.max() <= 255
    assert bright.max() > 200
    assert bright.is_floating_point()


def test_from_models_to_a_teacher_elsewhere(chains):
    data = public()
    known = compare(chains, {key: block_features(chain, data.views[0]) for key, chain in chains.items()})
    groups = group_blocks(known, 3, seed=0)
    prefixes = Prefixes(chains, data)
    for model, chain in chains.items():
        most = 1.5 * total(block.cost for block in chain).parameters
        draw = chance.numpy_generator(0, "search", model)
        limits = [lambda cost, most=most: cost.parameters <= most]
        found = CMSR(model, chains, groups, known, Search(), draw, limits).candidates()
        chosen = choose({model: found}, prefixes, SETTINGS, seed=0)[model]
        assert chosen.assembly.is_own(model, chains) or chosen.assembly.cost.parameters <= most
        plan = json.loads(json.dumps(chosen.assembly.blueprint(SPECS)))
        teacher, _ = rebuild(plan, chosen.model(chains).state_dict(), MODELS)
        with torch.no_grad():
            assert torch.allclose(teacher(data.views[0]), chosen.logits, atol=1e-9)
