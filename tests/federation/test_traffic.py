"""Bytes, to the byte: what travels, what is held, and what evaluation costs."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import nn

import intarsia


def state_bytes(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def test_fedavg_sends_the_whole_state_once_each_way(small_run):
    run = small_run("rounds=3")
    each = [state_bytes(run.client(name).model()) for name in run.clients]
    by_round = defaultdict(int)
    for row in run.traffic:
        if row["purpose"] == "train":
            by_round[row["round"]] += row["bytes"]
    assert dict(by_round) == {r: 2 * sum(each) for r in (1, 2, 3)}
    assert run.summary["bytes"] == {"up": 3 * sum(each), "down": 3 * sum(each)}


def test_evaluation_is_counted_apart_and_changes_no_training_byte(small_run):
    every = small_run("evaluation.every=1", out="every")
    seldom = small_run("evaluation.every=3", out="seldom")
    train = [[r for r in run.traffic if r["purpose"] == "train"] for run in (every, seldom)]
    assert train[0] == train[1]
    assert every.summary["bytes"] == seldom.summary["bytes"]
    assert every.summary["evaluation_bytes"]["down"] == 3 * seldom.summary["evaluation_bytes"]["down"]
    assert every.summary["evaluation_bytes"]["up"] == 0
    assert {m["round"] for m in seldom.metrics if m["split"] == "test"} == {3}


def test_fedper_sends_not_one_byte_of_a_head(small_run):
    run = small_run("method=fedper")
    assert {row["block"] for row in run.traffic} == {"base", ""}
    base = {
        n: sum(t.numel() * 4 for k, t in run.client(n).model().state_dict().items() if "head" not in k)
        for n in run.clients
    }
    assert run.summary["bytes"] == {"up": 3 * sum(base.values()), "down": 3 * sum(base.values())}


def test_rows_have_the_documented_keys(small_run):
    run = small_run("rounds=1", "method=fedper")
    assert list(run.traffic[0]) == [
        "round",
        "exchange",
        "purpose",
        "client",
        "block",
        "group",
        "direction",
        "bytes",
        "envelope",
    ]
    assert list(run.metrics[0]) == ["round", "client", "split", "stage", "n", "correct", "loss", "accuracy"]
    summary = run.summary
    for key in ("method", "rounds", "clients", "seed", "train_samples_per_second"):
        assert key in summary
    assert set(summary["accuracy"]) == {"mean", "weighted", "p10", "worst"}
    assert set(summary["bytes"]) == {"up", "down"}
    assert set(summary["seconds"]) == {"total", "train", "merge", "server", "evaluate", "save", "clients"}
    stages = sum(v for k, v in summary["seconds"].items() if k not in ("total", "clients"))
    assert 0 < stages <= summary["seconds"]["total"] * 1.001


@intarsia.part
class FrozenBase(intarsia.Method):
    """Only the head is trained and returned; the base is fetched and stays as it is."""

    name = "frozen"
    title = "Frozen"

    def round(self, server):
        head = lambda client: ["head"]  # noqa: E731
        yield intarsia.Exchange("train", train=head, give_back=head)


def test_an_unchanged_block_is_sent_once(small_run):
    """The base travels to each client once, because its version does not change: no special case."""
    cut = {"base": ["hidden1.*"], "head": ["head.*"]}
    settings = {**intarsia.load("quickstart").model_dump(), "cut": cut, "rounds": 3}
    run = intarsia.run(
        settings,
        method=FrozenBase(),
        out=small_run(out="x").path.parent / "frozen",
        changes=[
            "population.clients=8",
            "model.hidden=[16]",
            "sharing.name=all",
            "sharing.by=device",
            "engine.name=debug",
            "sampling.clients=5",
            "rounds=6",
        ],
    )
    base = [r for r in run.traffic if r["block"] == "base" and r["purpose"] == "train"]
    assert {r["direction"] for r in base} == {"down"}
    assert len(base) == len({r["client"] for r in base}) == 8
    heads = [r for r in run.traffic if r["block"] == "head" and r["purpose"] == "train"]
    assert len(heads) == 6 * 5 * 2
    # A client that holds the base is not sent it for evaluation either.
    first = min(r["round"] for r in base)
    evaluated = [r for r in run.traffic if r["block"] == "base" and r["purpose"] == "evaluate"]
    assert len(evaluated) < 6 * 8
    assert first == 1
    initial = intarsia.load(run.path / "settings.toml")
    assert initial.cut == {"base": ("hidden1.*",), "head": ("head.*",)}


def test_batch_norm_statistics_are_shared_with_their_block(small_run):
    def network(client):
        side = client.shape[-1] ** 2
        return nn.Sequential(nn.Flatten(), nn.Linear(side, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    run = small_run("method=fedper", model=network)
    models = [run.client(n).model() for n in run.clients if run.client(n).info.device == "8x8"]
    assert all(torch.equal(models[0][2].running_mean, m[2].running_mean) for m in models)
    assert models[0][2].running_mean.abs().sum() > 0
    assert not torch.equal(models[0][3].weight, models[1][3].weight)


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_a_method_can_see_single_updates(engine, small_run):
    seen = []

    @intarsia.part
    class Watching(intarsia.Method):
        """FedAvg that looks at what came back."""

        name = "watching"
        title = "Watching"

        @property
        def sees_updates(self):
            return True

        def round(self, server):
            replies = yield intarsia.Exchange("train")
            for update in replies.values():
                seen.append((update.client, [str(a) for a in update.blocks], update.values["steps"]))

    small_run(
        f"engine.name={engine}",
        "engine.workers=2",
        "sampling.clients=3",
        "sharing.by=",
        'population.generations=["8x8"]',
        method=Watching(),
        out=engine,
    )
    assert len(seen) == 9
    assert all(blocks == ["model@all"] and steps > 0 for _, blocks, steps in seen)
