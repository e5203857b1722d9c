"""Links, gates, the module pool and the router of FedMN against enumeration and plain autograd."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import SettingsError
from intarsia.experiment import load
from intarsia.experiment.build import Experiment
from intarsia.experiment.given import Given
from intarsia.methods.fedmn import ModulePool, Router
from intarsia.methods.fedmn.links import (
    active_blocks,
    binary_concrete,
    complete,
    count_links,
    likeliest_path,
    matrices,
    straight_through,
)
from intarsia.models import MODELS, Spec
from intarsia.models.bases import Base, base_bytes

POOLS = [(2, 2, 2), (3, 3, 3), (1, 4, 3), (2, 3, 2, 2), (2, 2)]


def paths(layers):
    """All complete paths, as blocks and as numbers of their links, written down one by one."""
    for blocks in itertools.product(*map(range, layers)):
        start, links = 0, []
        for layer, block in enumerate(blocks):
            after = layers[layer + 1] if layer + 1 < len(layers) else 1
            following = blocks[layer + 1] if layer + 1 < len(layers) else 0
            links.append(start + block * after + following)
            start += layers[layer] * after
        yield list(enumerate(blocks)), links


def slow_active(layers, on):
    used = [blocks for blocks, links in paths(layers) if all(on[link] for link in links)]
    return frozenset(block for blocks in used for block in blocks)


@pytest.mark.parametrize(("layers", "links"), [((2, 2, 2), 10), ((3, 3, 3), 21), ((1, 4, 3), 19)])
def test_number_of_links(layers, links):
    assert count_links(layers) == links == max(max(own) for _, own in paths(layers)) + 1


@pytest.mark.parametrize("layers", POOLS)
def test_active_blocks_are_those_on_a_complete_path(layers):
    draw = torch.Generator().manual_seed(1)
    seen = set()
    for _ in range(300):
        on = (torch.rand(count_links(layers), generator=draw) < 0.45).float()
        assert active_blocks(layers, on) == slow_active(layers, on.tolist())
        seen.add(len(active_blocks(layers, on)))
    assert 0 in seen
    assert len(seen) > 2


def test_how_often_there_is_no_path():
    """Every one of the 2^10 decisions of [2,2,2], and all by their first and last layers for larger pools."""
    none = sum(
        not active_blocks((2, 2, 2), torch.tensor(on)) for on in itertools.product((0.0, 1.0), repeat=10)
    )
    assert none / 2**10 == pytest.approx(0.493, abs=5e-4)
    assert no_path((2, 2, 2)) == none / 2**10
    assert no_path((3, 3, 3)) == pytest.approx(0.209, abs=5e-4)
    assert no_path((1, 4, 3)) == pytest.approx(0.313, abs=5e-4)


@pytest.mark.parametrize("layers", [(3, 3, 3), (1, 4, 3)])
def test_drawn_decisions_have_no_path_as_often_as_enumeration_says(layers):
    draw = torch.Generator().manual_seed(5)
    drawn = (torch.rand(4000, count_links(layers), generator=draw) < 0.5).float()
    share = sum(not active_blocks(layers, on) for on in drawn) / len(drawn)
    assert share == pytest.approx(no_path(layers), abs=4 * math.sqrt(0.25 / len(drawn)))


def no_path(layers):
    """P(no complete path) at pi = 1/2: how many blocks of each layer are reached, layer by layer."""
    reached = {layers[0]: 1.0}
    for width in (*layers[1:], 1):
        following: dict[int, float] = {}
        for k, p in reached.items():
            hit = 1 - 0.5**k
            for n in range(width + 1):
                chance = math.comb(width, n) * hit**n * (1 - hit) ** (width - n)
                following[n] = following.get(n, 0.0) + p * chance
        reached = following
    return reached[0]


@pytest.mark.parametrize("layers", POOLS)
def test_likeliest_path(layers):
    draw = torch.Generator().manual_seed(2)
    for _ in range(20):
        scores = 3 * torch.randn(count_links(layers), generator=draw, dtype=torch.float64)
        logs = torch.sigmoid(scores).log()
        best = max((links for _, links in paths(layers)), key=lambda links: float(logs[links].sum()))
        assert likeliest_path(layers, scores) == best


def test_a_path_is_switched_on_only_where_there_is_none():
    layers, scores = (1, 2, 1), torch.tensor([0.0, 2.0, 1.0, -1.0, 0.5])
    broken = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
    assert complete(layers, broken, scores)[1]
    assert complete(layers, broken, scores)[0].tolist() == [1, 0, 1, 1, 1]
    whole = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    assert complete(layers, whole, scores) == (whole, False)
    assert broken.tolist() == [1, 0, 0, 1, 1]


def test_binary_concrete_by_hand():
    soft = binary_concrete(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25]), 0.5)
    assert soft.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-(1 - math.log(3)) / 0.5))], rel=1e-6)


def test_straight_through_is_hard_with_the_gradient_of_soft():
    scores = torch.tensor([0.3, -0.2], requires_grad=True)
    gates = straight_through(torch.sigmoid(scores), torch.tensor([1.0, 0.0]))
    assert gates.tolist() == [1.0, 0.0]
    (gates * torch.tensor([2.0, 5.0])).sum().backward()
    own = torch.sigmoid(scores.detach())
    assert torch.allclose(scores.grad, torch.tensor([2.0, 5.0]) * own * (1 - own))


def pool(layers=(1, 2, 1), shape=(2,), outputs=1, **settings) -> ModulePool:
    options = {"layers": layers, "features": 2, "hidden": 1, "dropout": 0.0, **settings}
    return Spec(MODELS["module_pool"](**options), shape, outputs).build(0)


def by_hand() -> ModulePool:
    """A pool whose blocks do: encoder x -> relu(x); blocks 3a + b and a - b + 1; heads 2h and -h + 4."""
    model = pool((1, 2, 2))
    weights = {
        "encoder1.network.head": ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]),
        "block2-1.linear": ([[3.0, 1.0]], [0.0]),
        "block2-2.linear": ([[1.0, -1.0]], [1.0]),
        "head1": ([[2.0]], [0.0]),
        "head2": ([[-1.0]], [4.0]),
    }
    with torch.no_grad():
        for name, (weight, bias) in weights.items():
            layer = model.get_submodule(name)
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
    return model


@pytest.mark.parametrize(
    ("gates", "output"),
    [
        # x = (2, 1): blocks give 7 and 2; all open: both heads get 4.5 and give 9 and -0.5
        ([1, 1, 1, 1, 1, 1, 1, 1], (9 - 0.5) / 2),
        ([1, 0, 1, 1, 1, 1, 1, 1], (14 - 3) / 2),  # the second block is not reached: only the first counts
        ([1, 1, 1, 0, 0, 1, 1, 1], (14 + 2) / 2),  # one block a head
        ([1, 1, 1, 1, 1, 1, 1, 0], 9),  # the second head does not reach the output
        ([1, 1, 1, 0, 0, 1, 0, 1], 2),  # neither does the first block
    ],
)
def test_a_pool_by_hand(gates, output):
    model = by_hand()
    model.gates.copy_(torch.tensor(gates, dtype=torch.float32))
    assert float(model(torch.tensor([[2.0, 1.0]]))) == pytest.approx(output)


def test_soft_gates_weigh_by_hand():
    model = by_hand()
    model.gates.copy_(torch.tensor([1, 1, 0.5, 1, 0.25, 1, 0.8, 0.2]))
    first, second = (0.5 * 7 + 0.25 * 2) / 0.75, (7 + 2) / 2
    expected = 0.8 * 2 * first + 0.2 * (4 - second)
    assert float(model(torch.tensor([[2.0, 1.0]]))) == pytest.approx(expected)


def test_inactive_blocks_get_no_gradient_but_open_and_closed_links_do():
    model = pool((2, 2, 2), outputs=3)
    hard = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    scores = torch.zeros(10, requires_grad=True)
    model.gating = lambda: straight_through(torch.sigmoid(scores), hard)
    x = torch.rand(4, 2) + 0.1
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("head"):
                weight.abs_()  # nothing is cut off by a ReLU
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0])).backward()
    trained = {name.split(".")[0] for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained == {"encoder1", "block2-1", "head1"}
    # The link from the idle second encoder to the used block is told what it would change.
    assert scores.grad[2] != 0
    assert not scores.grad[[1, 3, 5, 6, 7, 9]].any()


def test_gradient_of_gates_is_that_of_the_mean():
    """d mean / d gate = (output - mean) / sum of gates, by hand for one block with two encoders."""
    outputs, gates = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 0.0], requires_grad=True)
    way = matrices((2, 1), torch.cat([gates, torch.ones(1)]))[0]
    mean = (way[:, 0] * outputs).sum() / way[:, 0].sum()
    mean.backward()
    assert mean == 1
    assert gates.grad.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [
        ("mlp", (1, 16, 16)),
        ({"name": "cnn", "channels": [2, 3], "hidden": 8, "same": False}, (1, 16, 16)),
        ({"name": "mobilenet_v2", "width": 0.35, "stride": 1}, (3, 16, 16)),
        ("modular_lstm", (5, 3)),
        ("char_lstm", (6,)),
        ({"name": "char_transformer", "width": 8, "heads": 2, "depth": 1}, (6,)),
    ],
)
def test_every_encoder_learns(encoder, shape):
    model = pool((2, 3, 2), shape, 4, encoder=encoder, features=8, hidden=6)
    x = torch.randint(0, 4, (5, *shape)) if len(shape) == 1 else torch.rand(5, *shape)
    output = model(x)
    assert output.shape == (5, 4)
    output.square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_published_pool_for_handwriting():
    encoder = {"name": "cnn", "same": False, "hidden": 2048}
    model = Spec(MODELS["module_pool"](layers=(3, 3, 3), encoder=encoder), (1, 28, 28), 62).build(0)
    network = model.get_submodule("encoder1").network
    assert (network.hidden.in_features, network.hidden.out_features) == (1024, 2048)
    assert network.head.out_features == 512
    assert model.get_submodule("block2-1").linear.weight.shape == (256, 512)
    assert model.get_submodule("head3").weight.shape == (62, 256)


def test_deeper_pools_have_layers_of_equal_width_between():
    model = pool((1, 2, 3, 2), features=5, hidden=4)
    assert model.get_submodule("block2-2").linear.weight.shape == (4, 5)
    assert model.get_submodule("block3-3").linear.weight.shape == (4, 4)


def test_signals_fade_in_torchs_first_weights_and_not_in_hes():
    x = torch.randn(200, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def spread(init: str) -> float:
        kind = MODELS["module_pool"](layers=(2, 2, 2), encoder="cnn", features=64, hidden=32, init=init)
        pool = Spec(kind, (1, 28, 28), 10).build(0).eval()
        return float(pool(x).detach().std(0).mean())

    assert spread("torch") < 0.02
    assert 0.1 < spread("he") < 10


def test_bad_pools_are_refused():
    with pytest.raises(SettingsError, match="there is no 'cn'; did you mean 'cnn'"):
        MODELS["module_pool"](encoder="cn")
    with pytest.raises(Exception, match="at least 2"):
        MODELS["module_pool"](layers=(3,))


def router(form: str) -> Router:
    torch.manual_seed(4)
    encoder = nn.Sequential(nn.Linear(3, 5), nn.ReLU())
    return Router(encoder, 4, 7, form, 5, 2).double().eval()


def data_set(n: int = 11):
    source = torch.Generator().manual_seed(6)
    return torch.randn(n, 3, generator=source, dtype=torch.float64), torch.arange(n) % 4


@pytest.mark.parametrize("form", ["concat", "tensor", "hidden"])
def test_scores_and_gradients_are_those_of_autograd_through_everything(form):
    """Whatever the batches: as one expression of all samples, differentiated by torch."""
    x, y = data_set()
    ours, plain = router(form), router(form)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    seen = plain.encoder(x)
    one_hot = nn.functional.one_hot(y, 4).double()
    if form == "tensor":
        mean = torch.einsum("nd,nc->dc", seen, one_hot).flatten() / len(x)
        scores = plain.scores(mean / mean.norm())
    else:
        joined = torch.cat([seen, one_hot @ plain.labels.weight.T + plain.labels.bias], 1)
        joined = joined / joined.norm(dim=1, keepdim=True)
        joined = plain.hidden(joined).relu() if form == "hidden" else joined
        scores = plain.scores(joined).mean(0)
    assert torch.allclose(ours(batches), scores, rtol=0, atol=1e-12)
    gradient = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    scores.backward(gradient)
    ours.learn(batches, gradient)
    for name, weight in ours.named_parameters():
        assert torch.allclose(weight.grad, plain.get_parameter(name).grad, rtol=0, atol=1e-12), name


class Unit(nn.Module):
    def forward(self, x):
        return nn.functional.normalize(x)


def test_the_papers_router_is_blind_to_how_inputs_and_labels_are_paired():
    """Two clients with the same inputs and the same labels, paired differently.

    With embeddings of equal length it is blind exactly; else it sees the little that lengths tell.
    """
    x, y = data_set(8)
    other = (y + 1) % 4
    told = {
        form: float((router(form)([(x, y)]) - router(form)([(x, other)])).abs().max())
        for form in ("concat", "hidden", "tensor")
    }
    plain = router("concat")
    plain.encoder.append(Unit())
    with torch.no_grad():
        plain.labels.weight.div_(plain.labels.weight.norm(dim=0))
        plain.labels.bias.zero_()
    assert float((plain([(x, y)]) - plain([(x, other)])).abs().max()) < 1e-12
    assert told["tensor"] > 0.1 > told["concat"]


def test_learning_loads_nothing_that_training_does_without():
    code = (
        "import sys, torch; from torch import nn; from intarsia.methods.fedmn import Router\n"
        "router = Router(nn.Linear(3, 4), 2, 5, 'concat', 4, 2)\n"
        "router.learn([(torch.ones(2, 3), torch.tensor([0, 1]))], torch.ones(5))\n"
        "assert router.scores.weight.grad is not None\n"
        "print('sympy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_encoders_and_routers_start_from_weights_of_a_file(tmp_path):
    """The body of every encoder, the router's too, is the file's; layers of another size are drawn, each for itself."""
    base = MODELS["mlp"](hidden=(4,)).build((3,), 7).state_dict()
    (tmp_path / "base.safetensors").write_bytes(base_bytes(base, {"architecture": {"name": "mlp"}}))
    encoder = {"name": "mlp", "hidden": [4]}
    pool = {"name": "module_pool", "layers": [2, 2], "encoder": encoder, "features": 5, "hidden": 5}
    settings = {"method": "fedmn", "model": pool, "weights": str(tmp_path / "base.safetensors")}
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    data = intarsia.from_dict({"c0": {"train": (x, y), "test": (x + 1, y)}})
    (template,) = Experiment.build(load(settings), Given(data=data)).setup.templates.values()
    state = template.model.state_dict()
    (body,) = (name for name, tensor in base.items() if tensor.shape == (4, 3))
    for place in ("encoder1.network", "encoder2.network", "router.encoder.network"):
        assert torch.equal(state[f"{place}.{body}"], base[body])
    assert not torch.equal(*(state[f"encoder{i}.network.head.weight"] for i in (1, 2)))
    assert state["router.encoder.network.head.weight"].shape == (128, 4)
    with pytest.raises(SettingsError, match="holds a 'mlp', the model is 'cnn'"):
        Base.read(tmp_path / "base.safetensors").check(MODELS["module_pool"](encoder="cnn").bases, ())
