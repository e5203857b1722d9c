"""Batched clients: a client's bits do not depend on who is beside it, and training is what the solver does."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from intarsia.core import DataError, chance
from intarsia.data import Examples, Scaling
from intarsia.models import LastStep, ModularLSTM
from intarsia.models.architectures.simple import CNN, MLP, Logistic
from intarsia.training import (
    LOSSES,
    Descent,
    Objective,
    Proximal,
    Situation,
    Trained,
    Training,
    evaluate,
    train,
)
from intarsia.training.fast import (
    MOST,
    Chain,
    StackMember,
    TrainedWeights,
    chain_for,
    rows_of,
    score_together,
    train_together,
)

CROSS_ENTROPY = LOSSES["cross_entropy"]
COUNTS = [40, 17, 64, 33, 16, 50, 21, 40, 77, 10, 30, 30, 55, 12, 24, 100]
"""Training samples of sixteen clients: ragged numbers of steps and last batches, of 10 rows and of 16."""
SHAPES = [((), 7, 2), ((), 60, 10), ((16,), 33, 10), ((33, 20), 64, 5), ((20, 12, 9), 50, 3)]
"""Hidden layers, inputs, classes: no width is a whole number of cache lines in most."""
SERIES = [((5, 6), (9, 3), 4), ((16, 16), (32, 6), 6), ((24, 20, 9), (7, 17), 3)]
"""Units and hidden layers, steps and channels, classes, of an LSTM and layers with tanh."""
LARGE = [((200, 200), 784, 10), ((), 3072, 10)]
"""The same of networks as they are used for images."""
WAYS = {
    "plain": (Training(lr=0.05, batch_size=10), Objective()),
    "one": (Training(lr=0.05, batch_size=1), Objective()),
    "odd": (Training(lr=0.05, batch_size=5), Objective()),
    "momentum": (Training(lr=0.05, batch_size=10, momentum=0.9), Objective()),
    "decay": (Training(lr=0.05, batch_size=10, weight_decay=0.1), Objective()),
    "proximal": (Training(lr=0.05, batch_size=10), Proximal(0.5)),
    "adam": (Training(optimizer="adam", lr=0.005, batch_size=10), Objective()),
    "adam, all": (
        Training(optimizer="adam", lr=0.005, batch_size=16, weight_decay=0.01, epochs=3),
        Proximal(0.5),
    ),
    "all": (Training(lr=0.05, batch_size=16, momentum=0.5, weight_decay=0.01, epochs=3), Proximal(0.5)),
}


def network(hidden, inputs, classes) -> nn.Module:
    if isinstance(inputs, tuple):
        return ModularLSTM(hidden[0], hidden[1:], (9,)).build(inputs, classes)
    return (MLP(hidden) if hidden else Logistic()).build((inputs,), classes)


class Class:
    """Clients with models, data and received parameters of their own."""

    def __init__(self, hidden=(33, 20), inputs=64, classes=5, counts=COUNTS, way="plain") -> None:
        torch.manual_seed(1)
        self.training, objective = WAYS[way]
        self.descent = Descent(objective, self.training, self.training.lr, self.training.epochs)
        self.models = [network(hidden, inputs, classes) for _ in counts]
        shape = inputs if isinstance(inputs, tuple) else (inputs,)
        self.received = [{n: torch.randn_like(p) for n, p in m.named_parameters()} for m in self.models]
        self.data = [Examples(torch.randn(n, *shape), torch.randint(0, classes, (n,))) for n in counts]

    def together(self, *clients: int, trained: frozenset[str] | None = None) -> list[TrainedWeights]:
        chain = Chain.of(self.models[0])
        assert chain is not None
        members = [
            StackMember(
                dict(self.models[i].named_parameters()),
                trained or frozenset(self.received[i]),
                self.received[i],
                self.data[i],
                chance.generator(0, "batches", i),
            )
            for i in clients
        ]
        return train_together(chain, members, self.descent)

    def sequential(self, client: int, frozen: frozenset[str] = frozenset()) -> tuple[nn.Module, Trained]:
        model = copy.deepcopy(self.models[client])
        for name, weight in model.named_parameters():
            weight.requires_grad_(name not in frozen)
        situation = Situation(model, CROSS_ENTROPY, self.received[client])
        draw = chance.generator(0, "batches", client)
        return model, train(situation, self.descent, self.data[client], draw)


def same(one: TrainedWeights, other: TrainedWeights) -> bool:
    return one.trained == other.trained and all(
        torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items()
    )


@pytest.mark.parametrize(
    ("hidden", "inputs", "classes", "way"),
    [*((*shape, way) for shape in SHAPES + SERIES for way in WAYS), *((*shape, "plain") for shape in LARGE)],
)
def test_a_clients_bits_do_not_depend_on_who_is_beside_it(hidden, inputs, classes, way):
    pupils = Class(hidden, inputs, classes, way=way)
    rows = {i: rows_of(count, pupils.training) for i, count in enumerate(COUNTS)}
    fitting = [i for i in rows if rows[i] == rows[0]]
    alone = {i: pupils.together(i)[0] for i in fitting}
    for size in (2, 7, len(fitting)):
        for first in (0, 3, 7):
            beside = [fitting[(first + k) % len(fitting)] for k in range(size)]
            assert all(
                same(learned, alone[i]) for i, learned in zip(beside, pupils.together(*beside), strict=True)
            )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("hidden", "inputs", "classes"), SHAPES + SERIES)
def test_training_together_is_what_the_solver_does(hidden, inputs, classes, way):
    pupils = Class(hidden, inputs, classes, way=way)
    for i, learned in enumerate(pupils.together(0, 1, 2, 3)):
        model, expected = pupils.sequential(i)
        assert (learned.trained.steps, learned.trained.score.n) == (expected.steps, expected.score.n)
        assert learned.trained.step_weight == expected.step_weight
        assert learned.trained.score.loss == pytest.approx(expected.score.loss, rel=1e-4)
        assert abs(learned.trained.score.correct - expected.score.correct) <= 1
        for name, weight in model.named_parameters():
            torch.testing.assert_close(learned.weights[name], weight.data, rtol=1e-4, atol=1e-6)


def test_one_step_by_hand():
    # Weights and biases 0: probabilities 1/2, 1/2; x = [1, 2], label 0; slope of the outputs [-1/2, 1/2]; lr 1.
    model = Logistic().build((2,), 2)
    weights = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    data = Examples(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    member = StackMember(weights, frozenset(weights), {}, data, chance.generator(0, "test"))
    (learned,) = train_together(Chain.of(model), [member], Descent(Objective(), Training(), 1.0, 1))
    assert learned.weights["head.weight"].tolist() == [[0.5, 1.0], [-0.5, -1.0]]
    assert learned.weights["head.bias"].tolist() == [0.5, -0.5]
    assert learned.trained.score.loss == pytest.approx(0.6931472)
    assert learned.trained.steps == 1
    assert not any(weight.any() for weight in weights.values())


def test_only_what_is_trained_changes():
    pupils = Class()
    trained = frozenset({"hidden2.bias", "head.weight", "head.bias"})
    (learned,) = pupils.together(0, trained=trained)
    model, _ = pupils.sequential(0, frozen=frozenset(pupils.received[0]) - trained)
    assert learned.weights.keys() == trained
    for name in trained:
        torch.testing.assert_close(
            learned.weights[name], model.get_parameter(name).data, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("part", ["lstm", "features1", "lstm.weight_hh_l0", "lstm.bias_ih_l0"])
def test_parts_of_a_recurrent_model_can_be_frozen(part):
    pupils = Class((5, 6), (9, 3), 4)
    frozen = frozenset(name for name in pupils.received[0] if name.startswith(part))
    trained = frozenset(pupils.received[0]) - frozen
    for i, learned in enumerate(pupils.together(0, 1, 2, trained=trained)):
        model, _ = pupils.sequential(i, frozen=frozen)
        assert learned.weights.keys() == trained
        for name in trained:
            weight = model.get_parameter(name).data
            torch.testing.assert_close(learned.weights[name], weight, rtol=1e-4, atol=1e-6)


def test_relu_and_tanh_can_stand_in_one_chain():
    pupils = Class((12, 9), 20, 3)
    for model in pupils.models:
        model.relu2 = nn.Tanh()
    alone = [pupils.together(i)[0] for i in range(3)]
    for i, learned in enumerate(pupils.together(0, 1, 2)):
        assert same(learned, alone[i])
        for name, weight in pupils.sequential(i)[0].named_parameters():
            torch.testing.assert_close(learned.weights[name], weight.data, rtol=1e-4, atol=1e-6)


def test_inputs_that_are_gathered_in_pieces_are_the_same(monkeypatch):
    whole = Class().together(0, 1, 2)
    monkeypatch.setattr("intarsia.training.fast.batched.STAGE", 1)
    pieces = Class().together(0, 1, 2)
    assert all(same(a, b) for a, b in zip(whole, pieces, strict=True))


def test_images_are_scaled_and_flattened_as_the_model_does_it():
    torch.manual_seed(0)
    model = Logistic().build((3, 4, 4), 2)
    scaling = Scaling(1 / 255, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    images = torch.randint(0, 256, (30, 3, 4, 4), dtype=torch.uint8)
    data = Examples(images.contiguous(memory_format=torch.channels_last), torch.randint(0, 2, (30,)), scaling)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    member = StackMember(weights, frozenset(weights), {}, data, chance.generator(0, "a"))
    descent = Descent(Objective(), Training(), 0.1, 1)
    (learned,) = train_together(Chain.of(model), [member], descent)
    train(Situation(model, CROSS_ENTROPY, {}), descent, data, chance.generator(0, "a"))
    for name, weight in model.named_parameters():
        torch.testing.assert_close(learned.weights[name], weight.data, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("hidden", "inputs", "classes"), SHAPES + SERIES + LARGE)
def test_scores_do_not_depend_on_who_is_beside_a_client(hidden, inputs, classes):
    pupils = Class(hidden, inputs, classes, counts=[1, 2, 5, 16, 40, 63, 64, 65, 130, 200, 40, 7])
    model = pupils.models[0]
    chain, weights = Chain.of(model), dict(model.named_parameters())
    alone = [score_together(chain, weights, [data])[0] for data in pupils.data]
    assert score_together(chain, weights, pupils.data) == alone
    assert score_together(chain, weights, pupils.data[3:7]) == alone[3:7]
    assert score_together(chain, weights, pupils.data[::-1]) == alone[::-1]
    for data, score in zip(pupils.data, alone, strict=True):
        expected = evaluate(model, data, CROSS_ENTROPY)
        assert (score.n, score.correct) == (expected.n, expected.correct)
        assert score.loss == pytest.approx(expected.loss, rel=1e-5)


def test_scores_that_are_gathered_in_pieces_are_the_same(monkeypatch):
    pupils = Class()
    chain, weights = Chain.of(pupils.models[0]), dict(pupils.models[0].named_parameters())
    whole = score_together(chain, weights, pupils.data)
    monkeypatch.setattr("intarsia.training.fast.batched.STAGE", 1)
    assert score_together(chain, weights, pupils.data) == whole


@pytest.mark.parametrize("inputs", [59, 61])
def test_samples_of_another_width_are_refused(inputs):
    pupils = Class((), 60, 10)
    pupils.data[1] = Examples(torch.randn(40, inputs), torch.zeros(40, dtype=torch.long))
    with pytest.raises(DataError, match=f"the model takes 60 inputs, a sample has {inputs}"):
        pupils.together(0, 1)
    chain, weights = Chain.of(pupils.models[0]), dict(pupils.models[0].named_parameters())
    with pytest.raises(DataError, match=f"a sample has {inputs}"):
        score_together(chain, weights, pupils.data)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((9, 4), "takes .steps, 3. inputs"), ((27,), "takes .steps, 3."), ((8, 3), "24, 27")],
)
def test_series_of_another_form_are_refused(shape, message):
    pupils = Class((5, 6), (9, 3), 4)
    pupils.data[1] = Examples(torch.randn(40, *shape), torch.zeros(40, dtype=torch.long))
    with pytest.raises(DataError, match=message):
        pupils.together(0, 1)
    chain, weights = Chain.of(pupils.models[0]), dict(pupils.models[0].named_parameters())
    with pytest.raises(DataError, match=message):
        score_together(chain, weights, pupils.data)


def test_labels_that_the_model_does_not_have_are_refused():
    pupils = Class((), 60, 10)
    pupils.data[1].y[3] = 12
    with pytest.raises(RuntimeError, match="out of bounds"):
        pupils.together(0, 1)


class Own(Objective):
    """An objective that the hand-written step knows nothing of."""

    def value(self, at, batch, outputs, fit):
        return 2 * fit


class Stronger(Proximal):
    """One that says nothing of its form, as what it inherits may not be true of it."""

    def value(self, at, batch, outputs, fit):
        return fit + super().value(at, batch, outputs, fit)


class Passed(Objective):
    """One with a pass of its own."""

    def forward(self, at, batch):
        return super().forward(at, batch)


class Renamed(Proximal):
    """One that changes nothing, and keeps the form."""


class Declared(Objective):
    """One that says that its value is of the form that it has."""

    form = "loss"

    def value(self, at, batch, outputs, fit):
        return fit


def hooked() -> nn.Module:
    model = MLP().build((8,), 3)
    model.head.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def twice() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 3))


def tied() -> nn.Module:
    model = MLP((8, 8)).build((8,), 3)
    model.hidden2.weight = model.hidden1.weight
    return model


@pytest.mark.parametrize(
    "model",
    [
        CNN((2, 2), 8).build((1, 8, 8), 3),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), LastStep(8, 8), nn.Linear(8, 3)),
        nn.Sequential(LastStep(8, 8, batch_first=True), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(LastStep(8, 8), nn.Linear(8, 3)),
        nn.Sequential(LastStep(8, 8, batch_first=True, bias=False), nn.Linear(8, 3)),
        nn.Sequential(LastStep(8, 8, 2, batch_first=True), nn.Linear(8, 3)),
        nn.Sequential(LastStep(8, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)),
        nn.Sequential(LastStep(8, 8, batch_first=True, proj_size=4), nn.Linear(4, 3)),
        nn.Sequential(nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 3, bias=False)),
        nn.Sequential(nn.Linear(8, 3)),
        nn.Sequential(),
        MLP().build((8,), 3).double(),
        hooked(),
        tied(),
        twice(),
    ],
)
def test_other_models_are_left_to_the_solver(model):
    assert Chain.of(model) is None


@pytest.mark.parametrize(
    ("training", "objective", "loss", "taken"),
    [
        (Training(), Objective(), "cross_entropy", True),
        (Training(momentum=0.9, weight_decay=0.1), Proximal(), "cross_entropy", True),
        (Training(batched=True), Objective(), "cross_entropy", True),
        (Training(batched=False), Objective(), "cross_entropy", False),
        (Training(optimizer="adam"), Objective(), "cross_entropy", True),
        (Training(), Own(), "cross_entropy", False),
        (Training(), Stronger(), "cross_entropy", False),
        (Training(), Passed(), "cross_entropy", False),
        (Training(), Renamed(), "cross_entropy", True),
        (Training(), Declared(), "cross_entropy", True),
        (Training(), Objective(), "mse", False),
    ],
)
def test_settings_decide_what_is_trained_in_this_way(training, objective, loss, taken):
    model = MLP().build((8,), 3)
    assert (chain_for(model, training, objective, LOSSES[loss]) is not None) == taken


@pytest.mark.parametrize(
    ("units", "batch", "taken"),
    [(16, 8, True), (16, 16, True), (24, 8, True), (16, 17, False), (33, 8, False)],
)
def test_small_lstms_are_taken_where_it_was_asked_for(units, batch, taken):
    model = ModularLSTM(units).build((9, 3), 4)
    asked = {
        wish: chain_for(model, Training(batch_size=batch, batched=wish), Objective(), CROSS_ENTROPY)
        is not None
        for wish in ("auto", True, False, "lstm")
    }
    assert asked == {"auto": False, True: False, False: False, "lstm": taken}


def test_a_loss_of_ones_own_is_left_to_the_solver():
    own = dataclasses.replace(LOSSES["cross_entropy"], function=lambda outputs, y: (outputs**2).mean())
    assert chain_for(MLP().build((8,), 3), Training(), Objective(), own) is None


def test_large_models_make_small_stacks():
    def most(hidden: tuple[int, ...], inputs: int) -> int:
        return Chain.of(MLP(hidden).build((inputs,), 10)).most

    assert most((16,), 64) == MOST
    assert 4 <= most((200, 200), 784) <= 16
    assert most((4000, 4000), 3072) == 1
