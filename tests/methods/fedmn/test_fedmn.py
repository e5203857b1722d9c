"""FedMN against an independent slow implementation, and what its plans, merges and stages promise."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Block
from intarsia.core import SettingsError, chance, part
from intarsia.methods.fedmn.fedmn import FedMN
from intarsia.methods.fedmn.router import nearer
from intarsia.papers.study import mean_accuracy, stage_accuracy
from tests.conftest import SMALL

LR = 0.2
PAIRED = {"form": "tensor", "standardise": "population", "router_clip": 1000.0}
"""A router that sees how inputs and labels are paired."""
LAYERS = (1, 2, 2)
POOL = {"name": "module_pool", "layers": list(LAYERS), "features": 5, "hidden": 4, "dropout": 0.0}
SETTINGS: dict[str, Any] = {
    "name": "fedmn",
    "rounds": 2,
    "method": {"name": "fedmn", "x_size": 3, "y_size": 2, "router_lr": 0.7},
    "model": POOL,
    "training": {"lr": LR, "batch_size": 100, "epochs": 2},
    "engine": {"name": "debug", "device": "cpu"},
}


def population(sizes: tuple[int, ...] = (9, 14, 21)) -> dict[str, dict[str, Any]]:
    made = {}
    for i, n in enumerate(sizes):
        source = torch.Generator().manual_seed(i)
        x, y = torch.randn(n + 5, 3, generator=source), torch.randint(0, 3, (n + 5,), generator=source)
        made[f"c{i}"] = {"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}
    return made


def play(tmp_path: Any, *changes: str, out: str = "run", **given: Any) -> intarsia.Run:
    return intarsia.run(SETTINGS, data=population(), changes=changes, out=tmp_path / out, **given)


def changed(method: dict[str, Any]) -> list[str]:
    return [f"method.{key}={value}" for key, value in method.items()]


def shared(run: intarsia.Run, round: int) -> dict[str, torch.Tensor]:
    """The pool after a round, by tensor name, in float64."""
    state = run.state(round)
    return {
        name: tensor.double()
        for address in state.pool
        for name, tensor in state.pool.get(address).tensors.items()
    }


class Slow:
    """FedMN written down again: one client, one link, one path after the other, float64, plain autograd."""

    def __init__(self, weights: dict[str, torch.Tensor], plus: bool, clip: float = math.inf) -> None:
        self.weights, self.plus, self.clip = weights, plus, clip

    def router(self, w: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(
            x @ w["router.encoder.network.head.weight"].T + w["router.encoder.network.head.bias"]
        )
        one_hot = nn.functional.one_hot(y, 3).double()
        if self.plus:
            mean = sum(torch.outer(s, h).flatten() for s, h in zip(seen, one_hot, strict=True)) / len(x)
            return w["router.scores.weight"] @ (mean / mean.norm()) + w["router.scores.bias"]
        label = one_hot @ w["router.labels.weight"].T + w["router.labels.bias"]
        rows = torch.cat([seen, label], 1)
        rows = rows / rows.norm(dim=1, keepdim=True)
        return (rows @ w["router.scores.weight"].T + w["router.scores.bias"]).mean(0)

    def network(
        self, w: dict[str, torch.Tensor], x: torch.Tensor, gates: torch.Tensor, active: set[str]
    ) -> torch.Tensor:
        def layer(name: str, u: torch.Tensor) -> torch.Tensor:
            return u @ w[f"{name}.weight"].T + w[f"{name}.bias"]

        code = torch.relu(layer("encoder1.network.head", x))
        middle = {}
        for k in (0, 1):
            if f"block2-{k + 1}" in active:
                middle[k] = torch.relu(layer(f"block2-{k + 1}.linear", gates[k] * code / gates[k]))
        heads = {}
        for h in (0, 1):
            if f"head{h + 1}" in active:
                weight = {k: gates[2 + 2 * k + h] for k in middle}
                mean = sum(weight[k] * middle[k] for k in middle) / sum(weight.values())
                heads[h] = layer(f"head{h + 1}", mean)
        return sum(gates[6 + h] * heads[h] for h in heads) / sum(gates[6 + h] for h in heads)

    def decide(self, raw: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        every = torch.stack(list(raw.values()))
        if not self.plus:
            return torch.zeros(8).double(), torch.ones(8).double()
        return every.mean(0), 2.0 / every.std(0, unbiased=False)

    def round(self, number: int, rounds: int) -> dict[str, set[str]]:
        data = {n: (d["train"][0].double(), d["train"][1]) for n, d in population().items()}
        raw = {n: self.router(self.weights, *own).detach() for n, own in data.items()}
        centre, slope = self.decide(raw)
        temperature = 1.0 * 0.1 ** ((number - 1) / (rounds - 1))
        trained, used = {}, {}
        for name, (x, y) in data.items():
            noise = torch.from_numpy(chance.numpy_generator(0, "gates", number, name).random(8))
            trained[name], used[name] = self.client(x, y, noise, temperature, centre, slope)
        self.merge(trained, used, {n: len(y) for n, (_, y) in data.items()})
        return used

    def client(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        noise: torch.Tensor,
        temperature: float,
        centre: torch.Tensor,
        slope: torch.Tensor,
    ) -> tuple[dict[str, torch.Tensor], set[str]]:
        w = {n: t.clone().requires_grad_(True) for n, t in self.weights.items()}
        frozen = {
            n: t.clone().requires_grad_(True) for n, t in self.weights.items() if n.startswith("router")
        }
        hard = None
        change = {n: torch.zeros_like(t) for n, t in frozen.items()}
        for _ in range(2):  # epochs of one batch; the router stays as it was received
            scores = (self.router(frozen, x, y) - centre) * slope
            soft = torch.sigmoid((noise.log() - (1 - noise).log() + scores) / temperature)
            if hard is None:
                hard, active = self.chosen(soft.detach(), scores.detach())
            gates = hard + soft - soft.detach()
            loss = nn.functional.cross_entropy(self.network(w, x, gates, active), y)
            own = [n for n in w if n.split(".")[0] in active and n not in frozen]
            grads = torch.autograd.grad(loss, [w[n] for n in own] + list(frozen.values()))
            for n, g in zip(own, grads, strict=False):
                w[n] = (w[n] - LR * g).detach().requires_grad_(True)
            for n, g in zip(frozen, grads[len(own) :], strict=True):
                change[n] += g
        result = {n: t.detach() for n, t in w.items()}
        length = float(torch.cat([g.flatten() for g in change.values()]).norm())
        step = 0.7 * min(1.0, self.clip / length) if length else 0.0
        return result | {n: frozen[n].detach() - step * change[n] for n in frozen}, active

    def chosen(self, soft: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, set[str]]:
        paths = {(k, h): (k, 2 + 2 * k + h, 6 + h) for k, h in product((0, 1), (0, 1))}
        hard = (soft > 0.5).double()
        if not any(all(hard[i] for i in links) for links in paths.values()):
            logs = torch.sigmoid(scores).log()
            best = max(paths.values(), key=lambda links: float(logs[list(links)].sum()))
            hard[list(best)] = 1
        active = {"encoder1", "router"}
        for (k, h), links in paths.items():
            if all(hard[i] for i in links):
                active |= {f"block2-{k + 1}", f"head{h + 1}"}
        return hard, active

    def merge(
        self, trained: dict[str, dict[str, torch.Tensor]], used: dict[str, set[str]], n: dict[str, int]
    ) -> None:
        for tensor in self.weights:
            holders = [c for c in trained if tensor.split(".")[0] in used[c]]
            if holders:
                total = sum(n[c] for c in holders)
                self.weights[tensor] = sum(n[c] * trained[c][tensor] for c in holders) / total


@pytest.mark.parametrize(("paired", "clip"), [(False, 10.0), (True, 1000.0), (False, 0.02), (True, 0.3)])
def test_against_a_slow_implementation(tmp_path, paired, clip):
    changes = [*(changed(PAIRED) if paired else ()), f"method.router_clip={clip}"]
    run = play(tmp_path, *changes, "rounds=6", "checkpoints.keep=9")
    slow = Slow(shared(run, 0), paired, clip)
    for number in range(1, 7):
        used = slow.round(number, 6)
        noted = {
            n["client"]: {*n["blocks"], "router"}
            for n in run.notes
            if n["kind"] == "decision" and n["stage"] == "train" and n["round"] == number
        }
        assert noted == used
        for name, tensor in shared(run, number).items():
            assert torch.allclose(tensor, slow.weights[name], rtol=0, atol=3e-5), (number, name)
    assert any(len(blocks) < 6 for blocks in used.values())


def router_moved(run: intarsia.Run, round: int) -> float:
    """How far the shared router went in a round."""
    before, after = shared(run, round - 1), shared(run, round)
    moves = [(after[n] - before[n]).flatten() for n in after if n.startswith("router")]
    return float(torch.cat(moves).norm())


@pytest.mark.parametrize(("clip", "bounded"), [(10, True), (0, False)])
def test_one_client_whose_loss_is_out_of_bounds_does_not_decide_for_everybody(tmp_path, clip, bounded):
    """Its inputs are a thousand times too large. Without a limit, its router's step saturates everyone's gates."""
    data = population()
    data["c0"]["train"] = (data["c0"]["train"][0] * 1000, data["c0"]["train"][1])
    changes = [f"method.router_clip={clip}", "method.router_lr=0.05", "rounds=3", "checkpoints.keep=9"]
    run = intarsia.run(SETTINGS, data=data, changes=changes, out=tmp_path / "r")
    most = max(router_moved(run, round) for round in (1, 2, 3))
    sure = [
        abs(p - 0.5) > 0.49
        for n in run.notes
        if n["kind"] == "decision" and n["stage"] == "own" and n["client"] != "c0"
        for p in n["probabilities"]
    ]
    assert (most <= 0.05 * 10 + 1e-6) is bounded
    assert any(sure) is not bounded


class Pushing(FedMN):
    """A client that does not clip: it moves its router as far as it likes."""

    def local_step(self, step, client):
        values = super().local_step(step, client)
        if step != "route" and client.info.name == "c0":
            with torch.no_grad():
                client.model.router.scores.bias.add_(100.0)
        return values


def test_the_server_damps_a_client_that_does_not_clip(tmp_path):
    """c0 has 9 of 44 samples: damped to 0.7 * 0.5, it moves the mean by no more than that; others add at most theirs."""
    method = part(Pushing)(x_size=3, y_size=2, router_lr=0.7, router_clip=0.5)
    run = play(tmp_path, "rounds=2", "checkpoints.keep=9", method=method)
    assert run.summary["refused"] == 0
    for round in (1, 2):
        assert 0.5 * 0.35 * 9 / 44 < router_moved(run, round) <= 0.35 + 1e-6


@pytest.mark.parametrize(("length", "most", "expected"), [(5.0, 10.0, 5.0), (5.0, 5.0, 5.0), (5.0, 1.0, 1.0)])
def test_a_router_is_brought_nearer_to_what_was_sent(length, most, expected):
    sent = Block({"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([2.0])}, frozenset({"b"}))
    new = Block({"a": 1 + length * torch.tensor([0.6, 0.8]), "b": torch.tensor([9.0])}, frozenset({"b"}))
    near = nearer(new, sent, most)
    torch.testing.assert_close(near.tensors["a"], 1 + expected * torch.tensor([0.6, 0.8]))
    assert near.tensors["b"].item() == 9
    assert (near is new) is (expected == length)


def test_a_client_fetches_and_returns_its_active_blocks_encoders_and_router_alone(tmp_path):
    run = play(tmp_path, "rounds=5")
    decisions = {
        (n["round"], n["client"]): set(n["blocks"])
        for n in run.notes
        if n["kind"] == "decision" and n["stage"] == "train"
    }
    assert any(len(blocks) < 5 for blocks in decisions.values())
    rows = [r for r in run.traffic if r["block"] and r["purpose"] == "train"]
    for (round, client), blocks in decisions.items():
        up = {r["block"] for r in rows if (r["round"], r["client"], r["direction"]) == (round, client, "up")}
        assert up == blocks | {"encoder1", "router"}
        down = [r for r in rows if (r["round"], r["client"], r["direction"]) == (round, client, "down")]
        assert {r["block"] for r in down if r["exchange"] == "train"} <= blocks | {"encoder1"}
        assert {r["block"] for r in down if r["exchange"] == "route"} <= {"router"}


def test_untouched_blocks_keep_their_value(tmp_path):
    run = play(tmp_path, "rounds=5", "checkpoints.keep=9", "sampling.clients=1")
    kept = 0
    for number in range(1, 6):
        used = {
            b for n in run.notes if n["round"] == number and n.get("stage") == "train" for b in n["blocks"]
        }
        before, after = shared(run, number - 1), shared(run, number)
        for name in before:
            if name.split(".")[0] not in {*used, "encoder1", "router"}:
                assert torch.equal(before[name], after[name])
                kept += 1
    assert kept


def test_an_encoder_that_no_link_uses_is_returned_as_it_came(tmp_path):
    changes = ("model.layers=[2,2,2]", "training.weight_decay=0.1", "training.momentum=0.5")
    run = play(tmp_path, *changes, "rounds=6", "checkpoints.keep=9", "sampling.clients=1")
    idle = 0
    for note in run.notes:
        if note.get("stage") != "train":
            continue
        rows = [r for r in run.traffic if (r["round"], r["direction"]) == (note["round"], "up")]
        before, after = shared(run, note["round"] - 1), shared(run, note["round"])
        for encoder in ("encoder1", "encoder2"):
            same = all(torch.equal(before[n], after[n]) for n in before if n.startswith(encoder))
            assert same == (encoder not in note["blocks"])
            assert encoder in {r["block"] for r in rows}
            idle += same
    assert idle


def test_the_routers_step_is_plain(tmp_path):
    """The clients' weight decay does not reach it: of one client, what it returns is the next router."""
    changes = ("rounds=1", "sampling.clients=1", "training.epochs=1")
    plain = play(tmp_path, *changes)
    other = play(tmp_path, *changes, "training.weight_decay=0.1", out="other")
    first = shared(plain, 1)
    assert any(not torch.equal(first[n], t) for n, t in shared(other, 1).items() if n.startswith("encoder"))
    assert all(torch.equal(first[n], t) for n, t in shared(other, 1).items() if n.startswith("router"))


def test_one_client_alone_has_no_spread(tmp_path):
    run = play(tmp_path, *changed(PAIRED), "sampling.clients=1", "rounds=1", "checkpoints.keep=9")
    (note,) = [n for n in run.notes if n.get("stage") == "train"]
    assert set(note["probabilities"]) == {0.5}
    before, after = shared(run, 0), shared(run, 1)
    assert all(torch.equal(before[n], after[n]) for n in before if n.startswith("router"))


def test_soft_gates_let_everything_travel(tmp_path):
    run = play(tmp_path, "method.gating=soft")
    up = {(r["client"], r["block"]) for r in run.traffic if r["direction"] == "up" and r["round"] == 1}
    blocks = {"encoder1", "block2-1", "block2-2", "head1", "head2", "router", ""}
    assert up == set(product(population(), blocks))


def test_pretraining_keeps_the_encoders_alone(tmp_path):
    run = play(tmp_path, "method.pretraining=2", "rounds=4", "checkpoints.keep=9")
    first, second = shared(run, 0), shared(run, 2)
    changed = {name.split(".")[0] for name in first if not torch.equal(first[name], second[name])}
    assert changed == {"encoder1"}
    assert {n["round"] for n in run.notes if n["kind"] == "decision"} == {3, 4}
    one = shared(run, 1)
    changed = {name.split(".")[0] for name in first if not torch.equal(first[name], one[name])}
    assert changed == {"encoder1", "block2-1", "block2-2", "head1", "head2"}


def test_pretraining_ends_beside_frozen_weights(tmp_path):
    changes = ("method.pretraining=1", "checkpoints.keep=9", "adapters.name=parallel", "adapters.rank=2")
    run = play(tmp_path, *changes)
    assert run.summary["failed"] == run.summary["refused"] == 0
    before, after = (run.state(number).pool for number in (0, 1))
    changed = {
        str(address) for address in before if before.version(address) != after.version(after.present(address))
    }
    assert changed == {"encoder1@all"}
    assert "block2-1.linear.base.weight" in shared(run, 1)


@pytest.mark.parametrize("down", ["true", "false"])
def test_what_codecs_lost_of_a_block_ends_with_its_pretraining(tmp_path, down):
    """From round 3 on nothing is learned: a block that moved nevertheless would be paid what another one was owed."""
    codec = ("codec.name=topk", "codec.share=0.05", f"codec.down={down}")
    still = (
        "training.schedule.name=step",
        "training.schedule.milestones=[2]",
        "training.schedule.gamma=1e-12",
    )
    changes = ("method.pretraining=2", "method.router_lr=1e-12", "rounds=4", *codec, *still)
    run = play(tmp_path, *changes, "checkpoints.keep=9")
    first, last = shared(run, 0), shared(run, 4)
    moved = {name.split(".")[0] for name in first if not torch.allclose(first[name], last[name], atol=1e-9)}
    assert moved == {"encoder1"}
    assert any(not torch.equal(shared(run, 2)[n], last[n]) for n in last if n.startswith("encoder1"))
    resumed = resumed_after_two_rounds(tmp_path, *changes)
    assert all(torch.equal(tensor, last[name]) for name, tensor in shared(resumed, 4).items())
    local = play(tmp_path, *changes, "engine.name=local", "engine.workers=2", out="local")
    assert all(torch.equal(tensor, last[name]) for name, tensor in shared(local, 4).items())


def test_the_temperature_falls_exponentially():
    method = FedMN(pretraining=2)
    assert [method.temperature(r, 5) for r in (3, 4, 5)] == pytest.approx([1.0, 10**-0.5, 0.1])


def test_own_models_are_those_that_were_evaluated(tmp_path):
    run = play(tmp_path, "rounds=3")
    for name, data in population().items():
        model = run.client(name).model()
        x, y = data["test"]
        with torch.no_grad():
            correct = int((model(x).argmax(1) == y).sum())
        (row,) = [r for r in run.client(name).metrics if r["round"] == 3 and r["split"] == "test"]
        assert row["correct"] == correct
        (note,) = [n for n in run.notes if n.get("stage") == "own" and (n["round"], n["client"]) == (3, name)]
        assert model.gates.tolist() == note["gates"]
        expected = [float(p > 0.5) for p in note["probabilities"]]
        assert note["fallback"] or note["gates"] == expected


def test_own_models_of_other_rounds_have_the_last_evaluations_gates(tmp_path):
    run = play(tmp_path, "rounds=4", "evaluation.every=2", "checkpoints.keep=9")
    client = run.client("c1")
    noted = {n["round"]: n["gates"] for n in run.notes if n.get("stage") == "own" and n["client"] == "c1"}
    assert noted.keys() == {2, 4}
    gates = {number: client.model(number).gates.tolist() for number in (1, 2, 3, 4)}
    assert gates == {1: [1.0] * 8, 2: noted[2], 3: noted[2], 4: noted[4]}
    one, two = (client.model(number).encoder1.network.head.weight for number in (2, 3))
    assert not torch.equal(one, two)


def test_the_global_loss_is_the_mean_weighted_by_samples(tmp_path):
    run = play(tmp_path)
    rows = [r for r in run.metrics if r["round"] == 2 and r["split"] == "train"]
    sizes = {name: len(own["train"][1]) for name, own in population().items()}
    expected = sum(r["loss"] * sizes[r["client"]] for r in rows) / sum(sizes.values())
    (value,) = [n["value"] for n in run.notes if n["kind"] == "global loss" and n["round"] == 2]
    assert value == pytest.approx(expected)


def resumed_after_two_rounds(tmp_path: Any, *changes: str) -> intarsia.Run:
    class Stop(intarsia.Observer):
        def round_done(self, report: Any) -> None:
            if report.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, *changes, out="stopped", observer=Stop())
    return intarsia.resume(tmp_path / "stopped", data=population())


def test_a_resumed_run_is_the_run(tmp_path):
    changes = ("rounds=4", "method.pretraining=1")
    whole = play(tmp_path, *changes, "checkpoints.keep=9")
    resumed = resumed_after_two_rounds(tmp_path, *changes)
    assert resumed.notes == whole.notes
    assert resumed.metrics == whole.metrics
    expected = shared(whole, 4)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in shared(resumed, 4).items())


def test_workers_do_not_change_a_bit(tmp_path):
    debug = play(tmp_path)
    local = play(tmp_path, "engine.name=local", "engine.workers=2", out="local")
    assert (debug.notes, debug.metrics, debug.traffic) == (local.notes, local.metrics, local.traffic)


def test_which_layers_are_folded_does_not_depend_on_the_client_that_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.training.fast.folding.LARGE", 1)
    changes = ("rounds=4", "training.batch_size=4", "model.features=40", "model.hidden=40")
    debug = play(tmp_path, *changes)
    local = play(tmp_path, *changes, "engine.name=local", "engine.workers=2", out="local")
    resumed = resumed_after_two_rounds(tmp_path, *changes)
    gates = [n["gates"] for n in debug.notes if n.get("stage") == "train" and n["client"] == "c0"]
    assert gates[0] != gates[2]
    for name, tensor in shared(debug, 4).items():
        assert torch.equal(shared(local, 4)[name], tensor), name
        assert torch.equal(shared(resumed, 4)[name], tensor), name


def test_links_may_begin_open(tmp_path):
    """The router's offsets begin at 2: before any training nearly every link is likely, by hand 1 / (1 + e^-2)."""
    run = play(tmp_path, "method.start=open", "training.lr=1e-9", "method.router_lr=1e-9", "rounds=1")
    found = [p for n in run.notes if n.get("stage") == "train" for p in n["probabilities"]]
    assert all(abs(p - 0.8808) < 0.12 for p in found)
    even = play(tmp_path, "training.lr=1e-9", "rounds=1", out="even")
    assert all(
        abs(p - 0.5) < 0.25 for n in even.notes if n.get("stage") == "train" for p in n["probabilities"]
    )


def test_a_local_model_is_the_own_network_trained_once_more(tmp_path):
    run = play(tmp_path, "method.output=local", "training.epochs=1")
    model = run.client("c1").model()
    pool = play(tmp_path, "training.epochs=1", out="plain")
    assert stage_accuracy(run, "before") == pytest.approx(mean_accuracy(pool))
    plain = pool.client("c1").model()
    plain.requires_grad_(True)
    x, y = population()["c1"]["train"]
    nn.functional.cross_entropy(plain.train()(x), y).backward()
    torch.optim.SGD([w for w in plain.parameters() if w.grad is not None], lr=LR).step()
    x, _ = population()["c1"]["test"]
    torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=0, atol=1e-5)
    assert {r["stage"] for r in run.metrics if r["split"] == "test"} == {"before", "own"}


def test_newcomers_are_routed_and_evaluated_apart(tmp_path):
    run = play(tmp_path, "sampling.newcomers=1", "training.epochs=1")
    stages = {(r["client"], r["stage"]) for r in run.metrics if r["split"] == "test"}
    assert stages == {("c0", "own"), ("c1", "own"), ("c2", "new"), ("c2", "tuned")}
    assert not [r for r in run.traffic if r["client"] == "c2" and r["purpose"] == "train"]
    assert [n for n in run.notes if n.get("client") == "c2" and n["stage"] == "own"]
    assert run.summary["newcomers"]["clients"] == 1
    assert run.summary["evaluated"] == 2
    with pytest.raises(SettingsError, match="newcomers is 3, but there are 3 clients"):
        play(tmp_path, "sampling.newcomers=3", out="none")


def test_a_newcomer_is_tuned_for_one_epoch(tmp_path):
    """The tuned stage is one epoch of plain training on the own model, by hand."""
    run = play(tmp_path, "sampling.newcomers=1", "training.epochs=1")
    model = run.client("c2").model()
    model.requires_grad_(True)
    x, y = population()["c2"]["train"]
    optimiser = torch.optim.SGD([w for n, w in model.named_parameters() if not n.startswith("router")], lr=LR)
    nn.functional.cross_entropy(model.train()(x), y).backward()
    optimiser.step()
    x, y = population()["c2"]["test"]
    loss = float(nn.functional.cross_entropy(model.eval()(x), y))
    (tuned,) = [r["loss"] for r in run.metrics if r["stage"] == "tuned" and r["round"] == 2]
    assert tuned == pytest.approx(loss, abs=1e-5)


def test_bad_scores_are_refused(tmp_path):
    class Liar(FedMN):
        def local_step(self, step: str, client: Any) -> Any:
            values = dict(FedMN.local_step(self, step, client))
            if step == "route" and client.info.name == "c1":
                values["logits"] = [math.nan] * 8
            return values

    run = play(tmp_path, "method=fedmn", method=Liar(x_size=3, y_size=2))
    assert run.summary["refused"] == 4  # twice in training, twice in evaluation
    assert "8 finite numbers" in run.events[0]["message"]
    assert {r["client"] for r in run.traffic if r["exchange"] == "train"} == {"c0", "c2"}


def test_what_cannot_work_is_said(tmp_path):
    with pytest.raises(SettingsError, match='set model = "module_pool"'):
        play(tmp_path, "model=mlp")
    data = population()
    for own in data.values():
        own["train"], own["test"] = ((x, x[:, 0]) for x, _ in (own["train"], own["test"]))
    with pytest.raises(intarsia.IntarsiaError, match="is defined for the loss 'cross_entropy' alone"):
        intarsia.run(SETTINGS, data=data, changes=["training.loss=mse"], out=tmp_path / "numbers")


def test_scores_are_standardised_among_those_who_share_a_router(tmp_path):
    """Two routers, two clients each: whatever the scores, one client is a deviation above, one below: times 2."""
    settings = SMALL | {
        "method": {"name": "fedmn", "x_size": 3, **PAIRED},
        "sharing": {"encoders_by": "device"},
        "rounds": 1,
        "population": {"name": "digits", "clients": 4, "cohorts": 1},
        "model": POOL,
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    devices = {name: own["device"] for name, own in run.population["clients"].items()}
    assert sorted(devices.values()) == ["4x4", "4x4", "8x8", "8x8"]
    above, below = (1 / (1 + math.exp(-score)) for score in (2.0, -2.0))
    for stage in ("train", "own"):
        for device in ("4x4", "8x8"):
            own = [
                n["probabilities"]
                for n in run.notes
                if n.get("stage") == stage and devices[n["client"]] == device
            ]
            for link in zip(*own, strict=True):
                assert sorted(link) == pytest.approx([below, above], abs=1e-5)


@pytest.mark.parametrize("method", [{"name": "fedmn"}, {"name": "fedmn", **PAIRED}, {"name": "fedmn+"}])
def test_it_learns(tmp_path, method):
    settings = SMALL | {
        "method": method,
        "sharing": {"encoders_by": "device"},
        "rounds": 20,
        "training": {"lr": 0.3, "batch_size": 16},
        "population": {"name": "digits", "clients": 6, "cohorts": 1},
        "model": {"name": "module_pool", "layers": [1, 3, 2], "features": 32, "hidden": 32, "dropout": 0.0},
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    assert run.summary["accuracy"]["mean"] > 0.6
    assert json.dumps(run.notes)
