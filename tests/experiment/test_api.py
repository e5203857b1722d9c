"""The public interface: own models, own data, own methods, without touching our files."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import AddressError, CutError, DataError, IntarsiaWarning, SettingsError
from intarsia.methods import Sharing
from intarsia.methods.fedavg import FedAvg
from intarsia.methods.fedper import FedPer, HeadStaysHome
from intarsia.methods.fedprox import FedProx

QUICK = {"rounds": 2, "training": {"lr": 0.1, "batch_size": 8}, "engine": {"name": "debug", "device": "cpu"}}


def clients(shape=(3,), n=8, count=3, **more):
    source = torch.Generator().manual_seed(0)
    return {
        f"c{i}": {
            "train": (torch.randn(n, *shape, generator=source), torch.arange(n) % 3),
            "test": (torch.randn(3, *shape, generator=source), torch.arange(3)),
            **more,
        }
        for i in range(count)
    }


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.features(x)))


def test_own_model_and_own_data(tmp_path):
    run = intarsia.run(
        {**QUICK, "method": "fedper", "cut": {"base": "features.*", "head": "head.*"}},
        data=clients(),
        model=Network(),
        out=tmp_path / "r",
    )
    model = run.client("c1").model()
    assert type(model) is Network
    assert not model.training
    assert model(torch.zeros(1, 3)).shape == (1, 3)
    assert {r["block"] for r in run.traffic} == {"base", ""}
    assert run.settings.population == {"name": "own"}
    reopened = intarsia.open_run(run.path, data=clients(), model=Network()).client("c1").model()
    assert torch.equal(model.head.weight, reopened.head.weight)
    with pytest.raises(SettingsError, match="given in Python; give it again"):
        intarsia.open_run(run.path).client("c1")


def test_the_children_of_a_model_are_its_parts(tmp_path):
    run = intarsia.run({**QUICK, "method": "fedper"}, data=clients(), model=Network(), out=tmp_path / "r")
    assert {
        a["address"]
        for c in intarsia.preview({**QUICK, "method": "fedper"}, data=clients(), model=Network())["clients"]
        for a in c["blocks"]
    } == {"base@all", "head@me"}
    assert run.summary["clients"] == 3


def test_a_models_initial_weights_are_used(tmp_path):
    start = Network()
    run = intarsia.run({**QUICK, "training": {"lr": 1e-12}}, data=clients(), model=start, out=tmp_path / "r")
    torch.testing.assert_close(run.client("c0").model().features.weight, start.features.weight)


@pytest.mark.parametrize(
    ("changes", "alike", "unlike"),
    [
        ({"method": "local"}, [], ["features", "head"]),
        ({"method": "fedper"}, ["features"], ["head"]),
        ({"sharing": {"by": "device"}}, [], ["features", "head"]),
        ({"method": "fedavg"}, ["features", "head"], []),
    ],
)
def test_several_models_keep_the_weights_that_nobody_shares(tmp_path, changes, alike, unlike):
    torch.manual_seed(0)
    given = {"a": Network(), "b": Network()}
    before = {key: copy.deepcopy(model) for key, model in given.items()}
    data = {f"c{i}": {**one, "device": "ab"[i % 2]} for i, one in enumerate(clients().values())}
    settings = {**QUICK, "training": {"lr": 1e-12}, **changes}
    run = intarsia.run(settings, data=data, model=given, out=tmp_path / "r")
    for name, key in (("c0", "a"), ("c1", "b")):
        made = run.client(name).model()
        for part in alike:
            torch.testing.assert_close(getattr(made, part).weight, getattr(before["a"], part).weight)
        for part in unlike:
            torch.testing.assert_close(getattr(made, part).weight, getattr(before[key], part).weight)


@pytest.mark.parametrize("kind", ["numpy", "list", "dataset"])
def test_data_in_many_forms(kind, tmp_path):
    data = clients()
    for entry in data.values():
        for split in ("train", "test"):
            x, y = entry[split]
            entry[split] = {
                "numpy": (x.numpy(), y.numpy()),
                "list": (x.tolist(), y.tolist()),
                "dataset": torch.utils.data.TensorDataset(x, y),
            }[kind]
    plain = intarsia.run(QUICK, data=clients(), out=tmp_path / "plain")
    run = intarsia.run(QUICK, data=data, out=tmp_path / "r")
    assert run.metrics == plain.metrics


def test_regression(tmp_path):
    data = {
        f"c{i}": {"train": (torch.randn(20, 3), torch.randn(20)), "test": (torch.randn(5, 3), torch.randn(5))}
        for i in range(3)
    }
    settings = {**QUICK, "training": {"lr": 0.01, "loss": "mse"}}
    run = intarsia.run(settings, data=data, out=tmp_path / "r")
    assert run.summary["accuracy"] == {}
    assert run.summary["loss"]["mean"] > 0
    assert all(row["accuracy"] is None and row["correct"] is None for row in run.metrics)


def test_a_method_of_ones_own(tmp_path):
    @intarsia.part
    class Half(intarsia.Merge):
        """Halfway from the present version to the mean."""

        name = "half"

        def finish(self, sums, present):
            mean = intarsia.Merge.finish(self, sums, present)
            return intarsia.Block(
                {n: (present.tensors[n] + t) / 2 for n, t in mean.tensors.items()}, present.buffers
            )

    @intarsia.part
    class Careful(intarsia.Method):
        """FedAvg, but the server goes only half of the way."""

        name = "careful"
        title = "Careful"

    start = Network()
    one = {**QUICK, "rounds": 1}
    full = intarsia.run(one, data=clients(), model=start, out=tmp_path / "full")
    half = intarsia.run(one, data=clients(), model=start, method=Careful(merge=Half()), out=tmp_path / "half")
    assert half.summary["method"] == "careful"
    middle = (start.head.weight + full.client("c0").model().head.weight) / 2
    torch.testing.assert_close(half.client("c0").model().head.weight, middle)


def test_a_cut_that_misses_a_tensor(tmp_path):
    with pytest.raises(CutError, match=r"misses 'features\.weight', 'features\.bias'"):
        intarsia.run(
            {**QUICK, "cut": {"head": "head.*"}}, data=clients(), model=Network(), out=tmp_path / "r"
        )
    assert not (tmp_path / "r").exists()


def test_a_cut_without_the_blocks_that_the_method_needs(tmp_path):
    with pytest.raises(CutError, match="needs blocks"):
        intarsia.run(
            {**QUICK, "method": "fedper", "cut": {"all": "*"}},
            data=clients(),
            model=Network(),
            out=tmp_path / "r",
        )


def test_two_shapes_at_one_address_are_an_error(tmp_path):
    data = clients()
    data["odd"] = {**clients((4,))["c0"], "device": "gen2"}
    with pytest.raises(AddressError) as caught:
        intarsia.run(QUICK, data=data, out=tmp_path / "r")
    text = str(caught.value)
    for part in (
        "'c0' (device 'default')",
        "'odd' (device 'gen2')",
        "model@all",
        "hidden1.weight",
        "[64, 3]",
        "[64, 4]",
        'sharing.by = "device"',
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": None}, "client 'c1' has no train data"),
        ({"test": None}, "client 'c1' has no test data"),
        ({"train": (torch.zeros(0, 3), torch.zeros(0))}, "client 'c1' has no train data"),
        ({"test": (torch.zeros(2, 3), torch.zeros(3))}, "test data of client 'c1': 2 inputs but 3 targets"),
        ({"train": (torch.tensor([[1.0, 2, np.nan]]), [0])}, "row 0 holds a NaN"),
        ({"train": (torch.zeros(2, 3), [0.5, 1])}, "labels must be whole numbers"),
        ({"train": (torch.zeros(2, 3), [-1, 1])}, "client 'c1' has labels from -1 to 2"),
        ({"train": (torch.zeros(2, 4), [0, 1])}, "different shapes in its splits"),
        ({"train": ([[1.0, 2], [1.0]], [0, 1])}, "cannot be made tensors"),
        ({"train": "x.csv"}, "must be a pair"),
        ({"colour": "red"}, "unknown keys ['colour']"),
    ],
)
def test_bad_data_is_named(change, message):
    data = clients()
    data["c1"] = {**data["c1"], **change}
    with pytest.raises(DataError) as caught:
        intarsia.from_dict(data)
    assert message in str(caught.value)


def test_no_clients():
    with pytest.raises(DataError, match="at least one client"):
        intarsia.from_dict({})


def test_more_clients_than_samples():
    with pytest.raises(DataError, match="1797 samples, too few for 2000 clients"):
        intarsia.preview("quickstart", changes=["population.clients=2000"])
    with pytest.raises(DataError, match="too few samples to train and test 1500 of 1500"):
        intarsia.preview("quickstart", changes=["population.clients=1500"])


def test_an_unknown_client(small_run):
    run = small_run("rounds=1")
    with pytest.raises(DataError, match="no client 'client-0'; clients: client-00, client-01"):
        run.client("client-0")


def test_default_folders_are_new_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [intarsia.run({**QUICK, "name": "mine"}, data=clients()) for _ in range(2)]
    assert [str(run.path) for run in runs] == ["runs/mine-1", "runs/mine-2"]


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_cnn_on_images(engine, tmp_path):
    run = intarsia.run(
        {**QUICK, "model": "cnn", "engine": {"name": engine, "workers": 1, "device": "cpu"}},
        data=clients((1, 8, 8)),
        out=tmp_path / "r",
    )
    assert run.summary["finished"]


def test_published_parameter_count_of_the_cnn():
    model = intarsia.models.CNN().build((1, 28, 28), 10)
    assert sum(p.numel() for p in model.parameters()) == 1_663_370
    with pytest.raises(SettingsError, match="needs images"):
        intarsia.models.CNN().build((5,), 10)


def test_a_spec_travels_as_plain_values():
    spec = intarsia.models.Spec(intarsia.models.MLP(hidden=(7,)), (4,), 3)
    again = intarsia.models.Spec.from_json(spec.to_json(), intarsia.models.MODELS)
    one, other = spec.build(5).state_dict(), again.build(5).state_dict()
    assert all(torch.equal(one[k], other[k]) for k in one)
    with pytest.raises(SettingsError, match="no architecture 'os'"):
        intarsia.models.Spec.from_json({"name": "os"}, intarsia.models.MODELS)


def test_import_works_without_flower():
    code = (
        "import sys; sys.modules['flwr'] = None; import intarsia, intarsia.cli; "
        "assert 'sklearn' not in sys.modules and 'plotly' not in sys.modules; print(intarsia.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == intarsia.__version__


def test_blocks_of_one_name_and_layout_start_alike():
    """Different input layers, same head: the heads start from the same weights."""
    data = {**clients(), "odd": {**clients((4,))["c0"], "device": "gen2"}}
    from intarsia.experiment import Experiment, Given

    settings = intarsia.load({**QUICK, "method": "fedper", "sharing": {"by": "device"}})
    setup = Experiment.build(settings, Given(data=data)).setup
    one, other = setup.template("c0").initial, setup.template("odd").initial
    assert one["head"].version == other["head"].version
    assert one["base"].layout != other["base"].layout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["engine.device=cuda:7"], "engine.device: there is no 'cuda:7' on this machine"),
        (["engine.device=toaster"], "engine.device: 'toaster' is no device"),
        (["engine.name=ray"], "engine.name: there is no engine 'ray'"),
        (["training.loss=mse"], "training.loss: 'mse' does not fit the data"),
        (["models.9x9=mlp"], "models.9x9: no client has this model or device"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(changes, message, tmp_path):
    if "cuda" in changes[0] and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(intarsia.IntarsiaError) as caught:
        intarsia.run("quickstart", changes=changes, out=tmp_path / "r")
    assert message in str(caught.value)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(5, 3), "the model of client 'c0' (Linear) cannot be used with its data"),
        (nn.Linear(3, 3, dtype=torch.float64), "cannot be used with its data"),
        (nn.Linear(3, 3, dtype=torch.complex64), "which cannot be merged"),
    ],
)
def test_a_model_that_does_not_fit_the_data(model, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError) as caught:
        intarsia.run(QUICK, data=clients(), model=model, out=tmp_path / "r")
    assert message in str(caught.value)


def test_types_that_differ_at_one_address(tmp_path):
    class Half(Network):
        def __init__(self) -> None:
            super().__init__()
            self.to(torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.double())

    data = clients()
    data["c1"]["device"] = "new"
    with pytest.raises(AddressError, match=r"is float32\[5\] and float64\[5\]"):
        intarsia.run(QUICK, data=data, model={"default": Network(), "new": Half()}, out=tmp_path / "r")


def test_a_group_called_me_is_refused(tmp_path):
    with pytest.raises(DataError, match="has cohort 'me'"):
        intarsia.run({**QUICK, "sharing": {"by": "cohort"}}, data=clients(cohort="me"), out=tmp_path / "r")


def test_more_odd_data():
    with pytest.raises(DataError, match="must be a dict of clients"):
        intarsia.from_dict([1, 2])
    with pytest.raises(DataError, match="client 'a' must be a dict"):
        intarsia.from_dict({"a": (1, 2)})
    with pytest.raises(DataError, match="one row a sample"):
        intarsia.from_dict({"a": {"train": (3.0, 1), "test": (3.0, 1)}})
    with pytest.raises(DataError, match="row 1 holds a NaN"):
        intarsia.from_dict({"a": {"train": ([1.0, np.nan], [0, 1]), "test": ([1.0], [0])}})
    grown = torch.ones(4, 2, requires_grad=True) * 2
    assert (
        not intarsia.from_dict({"a": {"train": (grown, [0, 1, 0, 1]), "test": (grown, [0, 1, 0, 1])}})
        .clients["a"]
        .data["train"]
        .x.requires_grad
    )


def test_batches_of_one_with_batch_norm_use_every_sample(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    settings = {**QUICK, "training": {"batch_size": 1}}
    run = intarsia.run(settings, data=clients((1, 8, 8)), model=model, out=tmp_path / "r")
    assert {m["n"] for m in run.metrics if m["split"] == "train"} == {8}


@pytest.mark.parametrize("squeezed", [True, False])
def test_one_value_a_sample_may_be_a_vector_or_a_column(tmp_path, squeezed):
    class Line(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y.squeeze(-1) if squeezed else y

    source = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, generator=source)
    data = {"a": {"train": (x, x.sum(1)), "test": (x, x.sum(1))}}
    settings = {**QUICK, "rounds": 40, "training": {"lr": 0.1, "loss": "mse", "batch_size": 10}}
    run = intarsia.run(settings, data=data, model=Line(3, 1), out=tmp_path / "r")
    assert run.summary["loss"]["mean"] < 1e-3
    with pytest.raises(DataError, match=r"gives \[2\] values a sample, the targets are \[1\]"):
        intarsia.run(settings, data=data, model=Line(3, 2), out=tmp_path / "wide")


def hooked() -> nn.Module:
    model = Network()
    model.head.weight.register_hook(lambda gradient: gradient * 0)
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(3, 2), "gives 2 scores, and there are 3 classes"),
        (lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 3))), "copies of the model cannot be trained"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "a lazy layer"),
        (hooked, "'head.weight' has a hook"),
    ],
)
def test_models_that_would_not_be_trained_as_given_are_refused(model, message, tmp_path):
    with pytest.raises(DataError, match=message):
        intarsia.run(QUICK, data=clients(), model=model(), out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_model_is_tried_on_every_shape_of_input(tmp_path):
    data = clients() | {"wide": clients((4,), count=1)["c0"]}
    with pytest.raises(DataError, match=r"client 'wide'.*cannot be used with its data"):
        intarsia.run(QUICK, data=data, model=Network(), out=tmp_path / "r")


class Counting(Network):
    """Keeps things of its own, outside its state."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.mean, self.seen = 0, torch.zeros(3), [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.seen.append(len(x))
            self.last = x
        factor = 1 + 0.1 * self.count + len(self.seen) + hasattr(self, "last")
        return super().forward(x - self.mean) * factor


def test_what_a_model_keeps_outside_its_state_does_not_reach_other_clients(tmp_path):
    torch.manual_seed(0)
    model, rows = Counting(), []
    for number, engine in enumerate(({"name": "debug"}, {"name": "local", "workers": 2})):
        settings = {**QUICK, "engine": {**engine, "device": "cpu"}}
        run = intarsia.run(settings, data=clients(), model=model, out=tmp_path / f"r{number}")
        rows.append(run.metrics)
    assert rows[0] == rows[1]
    x, y = clients()["c0"]["test"]
    loss = float(nn.functional.cross_entropy(run.client("c0").model()(x), y))
    (recorded,) = [
        row["loss"] for row in rows[0] if (row["client"], row["round"], row["split"]) == ("c0", 2, "test")
    ]
    assert loss == pytest.approx(recorded, rel=1e-6)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", ["fedavg", "fedavg+"])
def test_a_clients_model_can_be_asked_for_anywhere(around, method, tmp_path):
    run = intarsia.run({**QUICK, "method": method}, data=clients(), model=Network(), out=tmp_path / "r")
    plain = run.client("c0").model()
    with around():
        model = run.client("c0").model()
    assert torch.equal(model.head.weight, plain.head.weight)
    model(torch.zeros(1, 3)).sum().backward()


def test_layers_of_a_sequential_are_named_by_numbers(tmp_path):
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    settings = {**QUICK, "method": "fedper"}
    run = intarsia.run(settings, data=clients(), model=layers, changes=["sharing.head=2"], out=tmp_path / "r")
    assert run.settings.sharing["head"] == "2"


def by_cohort() -> FedPer:
    return FedPer(sharing=HeadStaysHome(by="cohort"))


def halves():
    both = {"device": "xyy", "cohort": "aba"}
    return {
        name: {**own, **{key: letters[i] for key, letters in both.items()}}
        for i, (name, own) in enumerate(clients().items())
    }


def addresses(settings, method, changes=()):
    plan = intarsia.preview(settings, data=halves(), method=method, changes=changes)
    return {b["address"] for c in plan["clients"] for b in c["blocks"]}


def test_a_method_object_stands_in_place_of_what_the_settings_say_of_a_method(tmp_path):
    settings = {**QUICK, "method": "fedprox", "sharing": {"by": "device"}, "objective": {"mu": 7.0}}
    with pytest.warns(IntarsiaWarning) as seen:
        assert addresses(settings, by_cohort()) == {"base@a", "base@b", "head@me"}
    assert [str(w.message).partition(" of the settings")[0] for w in seen] == [
        "sharing.by: 'device'",
        "objective.mu: 7.0",
    ]
    assert "changes=['sharing.by=device']" in str(seen[0].message)
    with pytest.warns(IntarsiaWarning, match=r"sharing\.by: 'device' of the settings is left aside"):
        assert addresses(settings, FedAvg()) == {"model@all"}
    with pytest.warns(IntarsiaWarning, match=r"sharing: 'fedper' of the settings is left aside"):
        assert addresses({**QUICK, "sharing": "fedper"}, FedAvg()) == {"model@all"}


def test_a_recipe_does_not_change_a_method_object(tmp_path):
    """The recipe's clients have two kinds of input layers, which the object lets share one address."""
    with (
        pytest.warns(IntarsiaWarning, match=r"sharing\.by: 'device'"),
        pytest.raises(AddressError, match="share base@all"),
    ):
        intarsia.preview("quickstart", method=FedPer())
    plan = intarsia.preview("quickstart", method=FedPer(sharing=HeadStaysHome(by="device")))
    assert {"base@8x8", "base@4x4"} <= plan["addresses"].keys()


@pytest.mark.filterwarnings("error", "ignore::intarsia.JudgedWarning")
def test_changes_change_a_method_object(tmp_path):
    settings = {**QUICK, "sharing": {"by": "device"}}
    assert addresses(settings, by_cohort(), ["sharing.by=device"]) == {"base@x", "base@y", "head@me"}
    assert addresses(QUICK, FedAvg(), ["sharing=fedper"]) == {"base@all", "head@me"}
    run = intarsia.run(
        QUICK, data=clients(), method=FedProx(), changes=["objective.mu=3"], out=tmp_path / "r"
    )
    assert run.settings.objective == {"name": "proximal", "mu": 3.0}


def test_a_search_changes_a_method_object(tmp_path):
    @intarsia.part
    class Scaled(intarsia.Method):
        """A method with a setting of its own."""

        name = "scaled"
        title = "Scaled"
        scale: float = 1.0

        def local_step(self, step, client):
            values = intarsia.Method.local_step(self, step, client)
            with torch.no_grad():
                for weight in client.model.parameters():
                    weight.mul_(self.scale)
            return values

    data = {name: {**own, "validation": own["test"]} for name, own in clients().items()}
    grid = {"method.scale": [0.0, 1.0]}
    found = intarsia.tune(QUICK, grid=grid, data=data, method=Scaled(), out=tmp_path / "t")
    scales = [intarsia.open_run(found.path / t.runs[0].folder).settings.method["scale"] for t in found.trials]
    assert scales == [0.0, 1.0]
    losses = [intarsia.open_run(found.path / t.runs[0].folder).summary["loss"]["mean"] for t in found.trials]
    assert losses[0] == pytest.approx(float(np.log(3)))
    assert losses[1] != losses[0]


class Nameless(intarsia.Method):
    """A method that has no name."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "fedper"}, r"""method: give an object .*, not 'fedper'; .*changes=\["method=fedper"\]"""),
        ({"method": FedAvg}, "method: give an object .*, not the class FedAvg"),
        ({"method": Sharing()}, "method: give an object .*, not a Sharing"),
        ({"method": Nameless()}, 'method: class Nameless needs a name: name = "..." in it'),
        ({"model": Network}, r"model: give a module \(Network\(\), not Network\).*, not the class Network"),
        ({"model": lambda: Network()}, "model: the function must take one argument, the client"),
        ({"model": "mlp"}, r"""model: give a module .*, not 'mlp'; .*changes=\["model=mlp"\]"""),
        ({"model": {"default": Network}}, "a module for client 'c0' .*, not the class Network"),
        ({"model": lambda client: None}, "a module for client 'c0' .*, not None"),
        ({"model": lambda client: Network}, "a module for client 'c0' .*, not the class Network"),
        ({"changes": "rounds=1"}, r"""changes: give a list, for example \["rounds=1"\], not 'rounds=1'"""),
        ({"changes": {"rounds": 1}}, "changes: give a list.*, not a dict"),
        ({"changes": None}, "changes: give a list.*, not None"),
        ({"changes": [("rounds", 1)]}, "changes: write each as text, a.b=c, not a tuple"),
        ({"changes": ["population.clients=3"]}, "population.clients: the data is given in Python"),
        ({"model": Network(), "changes": ["model.hidden=[3]"]}, "model.hidden: the model is given in Python"),
        ({"model": Network(), "changes": ["models.a=mlp"]}, "models.a: the model is given in Python"),
        (
            {"observer": print},
            "observer: give an object of a class of intarsia.Observer, or a list of them, not a builtin",
        ),
        ({"out": 5}, "out: give a path, not 5"),
    ],
)
def test_what_is_given_wrongly_is_named(given, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        intarsia.run(QUICK, **{"data": clients(), "out": tmp_path / "r", **given})
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("source", [None, 5, ["quickstart"], intarsia.Settings])
@pytest.mark.parametrize("use", [intarsia.run, intarsia.preview, intarsia.tune, intarsia.load])
def test_settings_that_are_none_are_named(source, use):
    with pytest.raises(
        SettingsError, match="settings: give a recipe's name, a TOML file, a dict or Settings, not"
    ):
        use(source)


def test_runs_that_are_none_are_named(tmp_path):
    for use in (intarsia.resume, intarsia.open_run):
        with pytest.raises(SettingsError, match="path: give a path, not None"):
            use(None)
    run = intarsia.run(QUICK, data=clients(), out=tmp_path / "r")
    with pytest.raises(SettingsError, match=r"engine: give a dict.*, not 'debug'"):
        intarsia.resume(run.path, data=clients(), engine="debug")
    with pytest.raises(SettingsError, match=r"r is a folder, not a settings file: try .*settings\.toml"):
        intarsia.run(run.path)


@pytest.mark.parametrize(
    "train",
    [
        torch.zeros(4, 3),
        np.zeros((4, 3)),
        (torch.zeros(4, 3), torch.arange(4), torch.ones(4)),
        (1, 2, 3),
        {"x": [[1.0]], "y": [0]},
        [{"x": [1.0], "y": 0}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_split_that_is_no_pair_is_named(train):
    with pytest.raises(DataError, match=r"train data of client 'a' must be a pair \(x, y\)"):
        intarsia.from_dict({"a": {"train": train, "test": (torch.zeros(1, 3), [0])}})


@pytest.mark.parametrize("attribute", ["device", "cohort"])
def test_a_group_cannot_be_called_as_what_never_leaves(attribute):
    with pytest.raises(DataError, match=f"client 'c0' has {attribute} 'me', the word for what never leaves"):
        intarsia.preview({**QUICK, "method": "modfl"}, data=clients(**{attribute: "me"}))


def test_what_a_run_is_asked_for_is_checked(tmp_path):
    run = intarsia.run(QUICK, data=clients(), out=tmp_path / "r")
    with pytest.raises(DataError, match="the run has no client '0'; clients: c0, c1"):
        run.client(0)
    with pytest.raises(SettingsError, match="round: give its number, not '1'"):
        run.client("c0").model("1")
    assert run.client("c0").model(np.int64(1)) is not None
    with pytest.raises(DataError, match="classes: give a whole number, not '3'"):
        intarsia.from_dict(clients(), classes="3")
    with pytest.raises(CutError, match="a cut is a dict of patterns by block"):
        intarsia.Cut.of("head")


@pytest.mark.parametrize("setting", ["sampling.clients", "min_updates"])
def test_more_clients_than_there_are_is_told(setting):
    with pytest.warns(IntarsiaWarning, match=f"{setting} is 9, but only 3 clients can train"):
        intarsia.preview(QUICK, data=clients(), changes=[f"{setting}=9"])


def test_the_name_of_a_run_does_not_lead_out_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, folder in (("../../x", "x-1"), ("a/b", "a-b-1"), ("..", "run-1"), ("a b", "a b-1")):
        run = intarsia.run({**QUICK, "name": name}, data=clients())
        assert (run.path.parent, run.path.name) == (Path("runs"), folder)


def test_blocks_that_are_shared_and_blocks_that_never_left(small_run):
    run = small_run("method=fedper", "rounds=2", "checkpoints.keep=9")
    model, own = run.client("client-00").model(), run.client("client-00").own_blocks()
    shared = run.block(f"base@{run.client('client-00').info.device}")
    assert own.keys() == {"head"}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, (shared.tensors | own["head"].tensors)[name])
    assert run.state(1).round == 1
    assert run.state().round == 2
    with pytest.raises(AddressError, match="the run has no block base@8x9; did you mean 'base@8x8'"):
        run.block("base@8x9")
