"""FedMN+: what clients keep of the pool, by hand and against a slow implementation; what travels; what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import SettingsError
from intarsia.methods.fedmn.dropping import FedMNPlus, gates_between, keep
from tests.methods.fedmn.test_fedmn import LR, POOL, SETTINGS, population, shared

PLUS = {
    **SETTINGS,
    "method": {"name": "fedmn+", "whole": 1, "every": 2},
    "model": {**POOL, "layers": [2, 2, 2]},
}


def play(tmp_path: Any, *changes: str, out: str = "run", **given: Any) -> intarsia.Run:
    return intarsia.run(PLUS, data=population(), changes=changes, out=tmp_path / out, **given)


def test_what_is_taken_away_by_hand():
    """Encoders weigh 10, heads 1. Needs: encoder 0 lowers the loss by 1, encoder 1 by 0.5, head 0 by 0.2, head 1 by -0.1."""
    sizes = {(0, 0): 10, (0, 1): 10, (1, 0): 1, (1, 1): 1}
    worth = {(0, 0): 1.0, (0, 1): 0.5, (1, 0): 0.2, (1, 1): -0.1}

    def loss(kept):
        return 5 - sum(worth[place] for place in kept)

    everything = {*sizes}
    assert keep((2, 2), sizes, 22, loss) == everything - {(1, 1)}  # within its budget it drops what harms it
    assert keep((2, 2), sizes, 21, loss) == everything - {(1, 1)}  # -0.1 a byte is the best price
    assert keep((2, 2), sizes, 20, loss) == {(0, 0), (1, 0)}  # then the cheaper encoder: 0.5 / 10
    assert keep((2, 2), sizes, 1, loss) == {(0, 0), (1, 0)}  # every layer keeps one


def test_links_between_kept_blocks_are_open():
    assert gates_between((2, 2), {(0, 0), (0, 1), (1, 1)}) == [0, 1, 0, 1, 0, 1]


class Slow:
    """A client of FedMN+ written down again: every subset that can be reached, path by path, float64."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights

    def output(self, x: torch.Tensor, kept: set[str]) -> torch.Tensor:
        w = self.weights
        first = [
            torch.relu(x @ w[f"{e}.network.head.weight"].T + w[f"{e}.network.head.bias"])
            for e in sorted(kept)
            if e[0] == "e"
        ]
        code = sum(first) / len(first)
        middle = [
            torch.relu(code @ w[f"{b}.linear.weight"].T + w[f"{b}.linear.bias"])
            for b in sorted(kept)
            if b[0] == "b"
        ]
        code = sum(middle) / len(middle)
        heads = [code @ w[f"{h}.weight"].T + w[f"{h}.bias"] for h in sorted(kept) if h[0] == "h"]
        return sum(heads) / len(heads)

    def chosen(self, x: torch.Tensor, y: torch.Tensor, budget: float) -> set[str]:
        sizes = {b: sum(t.numel() for n, t in self.weights.items() if n.startswith(f"{b}.")) for b in BLOCKS}
        kept = set(BLOCKS)
        while True:
            now = nn.functional.cross_entropy(self.output(x, kept), y).item()
            free = [b for b in kept if sum(other[:4] == b[:4] for other in kept) > 1]
            costs = {b: nn.functional.cross_entropy(self.output(x, kept - {b}), y).item() - now for b in free}
            if not free:
                return kept
            if sum(sizes[b] for b in kept) > budget * sum(sizes.values()):
                kept = kept - {min(free, key=lambda b: costs[b] / sizes[b])}
            elif min(costs.values()) <= 0:
                kept = kept - {min(free, key=costs.__getitem__)}
            else:
                return kept


BLOCKS = ("encoder1", "encoder2", "block2-1", "block2-2", "head1", "head2")


@pytest.mark.parametrize("budget", [0.55, 0.75, 1.0])
def test_what_clients_keep_against_a_slow_implementation(tmp_path, budget):
    run = play(tmp_path, f"method.budget={budget}", "rounds=2", "checkpoints.keep=9")
    kept = {n["client"]: set(n["blocks"]) for n in run.notes if n["kind"] == "decision" and n["round"] == 2}
    slow = Slow(shared(run, 1))
    for name, own in population().items():
        x, y = own["train"]
        assert kept[name] == slow.chosen(x.double(), y, budget), name
    assert any(len(blocks) < 6 for blocks in kept.values())


def test_what_is_kept_alone_travels_and_blocks_are_means_over_their_holders(tmp_path):
    """Decisions are of round 2 and 4: in round 3 a client's trips have what it kept, and no more."""
    run = play(
        tmp_path,
        "method.budget=0.5",
        "rounds=3",
        "evaluation.every=1",
        "checkpoints.keep=9",
        "training.epochs=1",
    )
    kept = {n["client"]: set(n["blocks"]) for n in run.notes if n["kind"] == "decision" and n["round"] == 3}
    for name in population():
        rows = [
            r
            for r in run.traffic
            if r["round"] == 3 and r["client"] == name and r["purpose"] == "train" and r["block"]
        ]
        assert {r["block"] for r in rows if r["direction"] == "up"} == kept[name]
        assert {r["block"] for r in rows if r["direction"] == "down"} <= kept[name]
    slow, sums, counts = Slow(shared(run, 2)), {}, {}
    for name, own in population().items():
        trained = Slow({n: t.clone().requires_grad_() for n, t in slow.weights.items()})
        x, y = own["train"]
        nn.functional.cross_entropy(trained.output(x.double(), kept[name]), y).backward()
        for n, t in trained.weights.items():
            if n.split(".")[0] in kept[name]:
                step = t.detach() - LR * t.grad
                sums[n] = sums.get(n, 0) + len(y) * step
                counts[n] = counts.get(n, 0) + len(y)
    for n, t in shared(run, 3).items():
        expected = sums[n] / counts[n] if n in counts else slow.weights[n]
        assert torch.allclose(t, expected, rtol=0, atol=3e-5), n


def test_everybody_trains_the_whole_pool_at_first(tmp_path):
    run = play(tmp_path, "method.whole=2", "rounds=3")
    sent = {
        r: {
            row["block"]
            for row in run.traffic
            if row["round"] == r and row["direction"] == "up" and row["block"]
        }
        for r in (1, 2)
    }
    assert sent == {1: set(BLOCKS), 2: set(BLOCKS)}
    assert [r["round"] for r in run.traffic if r["exchange"] == "choose"][:1] == [3]


def test_a_newcomer_chooses_by_its_own_data(tmp_path):
    run = play(tmp_path, "sampling.newcomers=1", "method.budget=0.5", "rounds=3")
    assert [n for n in run.notes if n.get("client") == "c2" and len(n["blocks"]) < 6]
    assert not [r for r in run.traffic if r["client"] == "c2" and r["purpose"] == "train"]


def test_a_client_that_keeps_nothing_is_not_heard(tmp_path):
    class Liar(FedMNPlus):
        def local_step(self, step: str, client: Any) -> Any:
            values = dict(FedMNPlus.local_step(self, step, client))
            return {"kept": [0.0] * 10} if step == "choose" and client.info.name == "c1" else values

    run = play(tmp_path, "rounds=3", method=Liar(whole=1, every=2))
    assert {n["client"] for n in run.notes if n["kind"] == "decision"} == {"c0", "c2"}


def test_a_resumed_run_and_more_workers_do_not_change_a_bit(tmp_path):
    class Stop(intarsia.Observer):
        def round_done(self, report: Any) -> None:
            if report.round == 2:
                raise KeyboardInterrupt

    whole = play(tmp_path, "rounds=4", out="whole")
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, "rounds=4", out="part", observer=Stop())
    resumed = intarsia.resume(tmp_path / "part", data=population())
    several = play(tmp_path, "rounds=4", "engine={name='local', workers=2}", out="several")
    for other, name in itertools.product((resumed, several), ("metrics", "notes")):
        assert getattr(other, name) == getattr(whole, name)


def test_evaluations_change_nothing_of_training(tmp_path):
    def trained(every: int) -> Any:
        run = play(tmp_path, "rounds=6", "sampling.fraction=0.5", f"evaluation.every={every}", out=str(every))
        sent = [row for row in run.traffic if row["purpose"] == "train"]
        return sent, [row for row in run.metrics if row["split"] == "train"]

    assert trained(1) == trained(100)


def test_what_cannot_work_is_said(tmp_path):
    with pytest.raises(SettingsError, match='set model = "module_pool"'):
        play(tmp_path, "model=mlp")
    with pytest.raises(SettingsError, match="budget"):
        play(tmp_path, "method.budget=1.5")
