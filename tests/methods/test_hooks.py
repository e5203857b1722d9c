"""What a method may do beside training: keep tensors with clients, and hold a conversation to evaluate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

import intarsia
from intarsia.blocks import Address, Block, Values
from intarsia.core import Refused
from intarsia.experiment import Experiment, load
from intarsia.federation import Planner
from intarsia.methods import OWN, Exchange, Method, Round, Server, report
from intarsia.methods.fedavg import FedAvg
from intarsia.runs import RunState
from intarsia.training import LocalClient
from tests.conftest import SMALL
from tests.methods import slow


@intarsia.part
class Counting(Method):
    """FedAvg whose clients keep two tensors: how often they trained, and the bias that they had then."""

    name = "counting"
    title = "Counting"

    def local_step(self, step: str, client: LocalClient) -> Values:
        before = client.tensors.get("counts", {"times": torch.tensor(0), "bias": torch.zeros(3)})
        values = report(client.train(self.objective))
        bias = client.model.state_dict()["bias"]
        client.tensors["counts"] = {"times": before["times"] + 1, "bias": before["bias"] + bias}
        if "odd" in client.tensors:
            del client.tensors["odd"]
        else:
            client.tensors["odd"] = {"round": torch.tensor(client.round)}
        return {**values, "times": int(before["times"])}

    def own_model(self, client: LocalClient) -> Iterator[str]:
        if "counts" in client.tensors:
            client.model.load_state_dict({"bias": client.tensors["counts"]["bias"]}, strict=False)
        client.tensors["counts"] = {"times": torch.tensor(99), "bias": torch.zeros(3)}
        yield OWN


def kept(run: intarsia.Run, client: str, purpose: str) -> dict[str, torch.Tensor]:
    return dict(run.client(client).own_blocks()[f"{purpose}|kept"].tensors)


def test_kept_tensors_come_back_and_those_let_go_are_gone(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", Counting(), data)
    plain = slow.run(tmp_path / "f", "fedavg", data)
    for name in data:
        assert kept(run, name, "counts")["times"] == 3
        assert kept(run, name, "odd")["round"] == 3
        own = run.client(name).model().state_dict()
        assert torch.equal(own["bias"], kept(run, name, "counts")["bias"])
    slow.close(slow.shared(run), slow.shared(plain), 0, 0)
    two = slow.run(tmp_path / "two", Counting(), data, rounds=2)
    assert "odd|kept" not in two.state().clients["c0"].state["private"]


def test_kept_tensors_travel_nowhere(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", Counting(), data)
    assert {row["block"] for row in run.traffic} == {"model", ""}


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_kept_tensors_survive_a_stop(engine, tmp_path):
    data = slow.population()
    changes = ["sampling.clients=2", f"engine.name={engine}", "engine.workers=2"]
    whole = slow.run(tmp_path / "whole", Counting(), data, "sampling.clients=2", rounds=5)
    with pytest.raises(KeyboardInterrupt):
        slow.run(
            tmp_path / "cut",
            Counting(),
            data,
            *changes,
            rounds=5,
            observer=slow.Stop(3),
        )
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=slow.linear(), method=Counting())
    assert resumed.metrics == whole.metrics
    for name in data:
        one, two = kept(whole, name, "counts"), kept(resumed, name, "counts")
        assert all(torch.equal(one[key], two[key]) for key in one)


@intarsia.part
class Asking(Method):
    """FedAvg whose clients are evaluated with the mean of all clients' first inputs for a bias."""

    name = "asking"
    title = "Asking"

    lose: str = ""
    """A client that does not answer the question."""

    def local_step(self, step: str, client: LocalClient) -> Values:
        if step != "ask":
            return report(client.train(self.objective))
        if client.info.name == self.lose:
            raise ValueError("no answer")
        client.state["asked"] = True
        with torch.no_grad():
            client.model.bias.fill_(7)
        return {"input": client.data["train"].x[0].tolist()}

    def evaluation(self, server: Server) -> Round:
        replies = yield Exchange("ask", fetch=lambda client: [])
        inputs = [update.values["input"] for update in replies.values()]
        server.state["heard"] = sorted(replies)
        mean = [sum(column) / len(inputs) for column in zip(*inputs, strict=True)]
        yield Exchange("evaluate", values=lambda client: {"bias": mean})

    def own(self, server: Server) -> Exchange:
        return Exchange("evaluate", values=lambda client: {"bias": [0.0, 0.0, 0.0]})

    def own_model(self, client: LocalClient) -> Iterator[str]:
        assert "asked" not in client.state
        with torch.no_grad():
            client.model.bias.copy_(torch.tensor(client.values["bias"]))
        yield OWN


def hits_with(run: intarsia.Run, data: Any, bias: torch.Tensor) -> dict[str, int]:
    """How many test samples the shared weights and this bias get right, by client."""
    weight = torch.tensor(slow.shared(run)["weight"], dtype=torch.float32)
    return {
        name: int(((entry["test"][0] @ weight.T + bias).argmax(1) == entry["test"][1]).sum())
        for name, entry in data.items()
    }


def correct(run: intarsia.Run, round: int) -> dict[str, int]:
    rows = [r for r in run.metrics if r["round"] == round and r["split"] == "test" and r["stage"] == OWN]
    return {row["client"]: row["correct"] for row in rows}


def test_an_evaluation_may_be_a_conversation(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", Asking(), data)
    mean = torch.stack([entry["train"][0][0] for entry in data.values()]).mean(0)
    assert correct(run, 3) == hits_with(run, data, mean)
    assert run.client("c0").model().bias.tolist() == [0, 0, 0]
    plain = slow.run(tmp_path / "f", "fedavg", data)
    slow.close(slow.shared(run), slow.shared(plain), 0, 0)
    assert run.summary["bytes"] == plain.summary["bytes"]
    asked = [row for row in run.traffic if row["purpose"] == "evaluate"]
    assert {row["direction"] for row in asked} == {"down", "up"}


def test_who_does_not_answer_a_question_sits_out_the_evaluation(tmp_path):
    data = slow.population()
    run = slow.run(tmp_path / "r", Asking(lose="c1"), data)
    mean = torch.stack([data[name]["train"][0][0] for name in ("c0", "c2")]).mean(0)
    expected = hits_with(run, data, mean)
    assert correct(run, 3) == {"c0": expected["c0"], "c2": expected["c2"]}
    assert [event["client"] for event in run.events if event["kind"] != "warning"] == ["c1"] * 3
    assert "exchange 'ask'" in run.events[0]["message"]
    assert run.state().server["heard"] == ["c0", "c2"]


@intarsia.part
class Letters(Method):
    """FedAvg that sends every client a block of its own and one of everyone's, and gets back their sums."""

    name = "letters"
    title = "Letters"

    def round(self, server: Server) -> Round:
        def send(client: intarsia.ClientInfo) -> dict[Address, Block]:
            own = torch.full((2,), float(client.train_samples + server.round))
            return {
                Address("letter", client.name): Block({"x": own}),
                Address("news", "all"): Block({"y": torch.tensor([1, 2, 3])}),
            }

        replies = yield Exchange(send=send)
        for name, update in replies.items():
            server.note("sum", client=name, value=update.tensors["sum"].tensors["s"].tolist())

    def local_step(self, step: str, client: LocalClient) -> Values:
        values = report(client.train(self.objective))
        s = client.sent["letter"]["x"].sum() + client.sent["news"]["y"].sum()
        client.answer["sum"] = {"s": s if client.info.name != self.liar else s / 0}
        return values

    liar: str = ""

    def check_reply(self, model: Any, update: Any) -> None:
        if update.exchange == "train" and set(update.tensors) != {"sum"}:
            raise Refused("a sum was expected")


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_tensors_travel_beside_the_model_both_ways(tmp_path, engine):
    data = slow.population()
    run = slow.run(tmp_path / engine, Letters(), data, f"engine.name={engine}")
    plain = slow.run(tmp_path / "plain", "fedavg", data)
    slow.close(slow.shared(run), slow.shared(plain), 0, 0)
    sizes = {name: len(own["train"][1]) for name, own in data.items()}
    expected = {(r, c): 2.0 * (n + r) + 6 for c, n in sizes.items() for r in (1, 2, 3)}
    assert {(n["round"], n["client"]): n["value"] for n in run.notes} == expected
    rows = [r for r in run.traffic if r["purpose"] == "train"]
    letters = [(r["round"], r["bytes"]) for r in rows if r["block"] == "letter" and r["client"] == "c0"]
    assert letters == [(1, 8), (2, 8), (3, 8)]
    assert [r["round"] for r in rows if r["block"] == "news" and r["client"] == "c0"] == [1]
    assert [r["bytes"] for r in rows if r["block"] == "sum" and r["client"] == "c0"] == [4, 4, 4]


def test_named_tensors_that_are_no_numbers_are_refused(tmp_path):
    run = slow.run(tmp_path / "r", Letters(liar="c1"), slow.population())
    assert run.summary["refused"] == 3
    assert "holds an infinity" in run.events[0]["message"]


class Noisy:
    """A step of its own, for any method."""

    def local_step(self, step, client):
        return {}


@intarsia.part
class Loud(Noisy, FedAvg):
    """FedAvg with that step."""


@intarsia.part
class Louder(Loud):
    """The same."""


@intarsia.part
class Tuned(FedAvg):
    """FedAvg with an own model that is more than its blocks."""

    def own_model(self, client):
        yield "own"


@intarsia.part
class Same(Tuned):
    """A step of its own that says it is the usual one."""

    side_by_side: ClassVar[bool] = True

    def local_step(self, step, client):
        return super().local_step(step, client)


@pytest.mark.parametrize(
    ("method", "step", "model"),
    [
        (FedAvg, True, True),
        (Loud, False, True),
        (Louder, False, True),
        (Tuned, True, False),
        (Same, True, False),
    ],
)
def test_a_step_of_ones_own_is_not_taken_for_the_usual_one(method, step, model):
    assert (method.side_by_side, method.own_as_joined) == (step, model)


@pytest.mark.parametrize("method", [FedAvg, Loud])
def test_only_the_usual_step_is_done_side_by_side(method):
    setup = Experiment.build(load(SMALL, ["training.batched=true"])).setup
    setup = dataclasses.replace(setup, method=method(sharing=setup.method.sharing))
    planner = Planner(setup)
    plan = planner.plan(Exchange(), planner.weights(), setup.addresses)
    jobs, _ = planner.jobs(RunState("0", setup.initial_pool(), 1), plan, Exchange())
    assert (setup.stack(jobs[0].task)[1] > 1) is (method is FedAvg)
