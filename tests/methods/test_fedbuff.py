"""FedBuff against numbers worked out by hand, and against an independent slow implementation."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

import intarsia
from intarsia.blocks import Address, Block, Fold
from intarsia.blocks.merge import Stale
from intarsia.methods.fedbuff import Buffered
from tests.golden.plays import digests
from tests.methods.test_methods import LR, Net, close, network, population, slow_client

FLEET = {"speed": 120, "down": 124, "up": 124}
"""As in `tests/federation/fleet/test_clock.py`: clients of 5, 12 and 30 samples take 7, 14 and 32 seconds."""
ARRIVALS = [
    # who fills the buffer, and after which round each of them was asked
    {"c0": 0, "c1": 0},  # at 7 and 14
    {"c0": 1, "c1": 1},  # asked at 14, at 21 and 28
    {"c2": 0, "c0": 2},  # asked at 0 and 28, at 32 and 35
    {"c1": 2, "c0": 3},  # asked at 28 and 35, both at 42
]


def ours(path: Any, *changes: str, **given: Any) -> intarsia.Run:
    settings = {
        "rounds": 4,
        "method": {"name": "fedbuff", "buffer": 2},
        "training": {"lr": LR, "batch_size": 8, "epochs": 2},
        "engine": {"name": "debug", "device": "cpu"},
        "fleet": FLEET,
    }
    return intarsia.run(settings, data=population(), model=network(), changes=changes, out=path, **given)


def slow(lr: float, keys: list[str]) -> tuple[Net, dict[str, Net]]:
    """Play the arrivals in plain torch; `keys` are shared, the rest is each client's own."""
    versions = [dict(network().state_dict())]
    own = {name: copy.deepcopy(versions[0]) for name in population()}
    for round, arrived in enumerate(ARRIVALS, 1):
        total = {key: torch.zeros_like(versions[-1][key], dtype=torch.float64) for key in keys}
        for name, asked in arrived.items():
            received = {**own[name], **{key: versions[asked][key] for key in keys}}
            trained, _ = slow_client(received, population()[name], name, round)
            weight = 1 / math.sqrt(1 + (round - 1 - asked))
            for key in keys:
                total[key] += weight * (trained[key].double() - received[key].double())
            own[name] = trained
        now = {k: (versions[-1][k].double() + lr * total[k] / len(arrived)).float() for k in keys}
        versions.append({**versions[-1], **now})
    return versions[-1], own


def sums_of(merge: Buffered, version: Block, updates: list[Block]) -> Stale:
    address = Address("model", "all")
    fold = Fold(merge, {address: version}, {address: len(updates)})
    for update in updates:
        fold.add({address: update}, {address: update.layout}, 1, {})
    return Stale(0, version, fold.sums(address))


def block(values: list[float], variance: float, batches: int) -> Block:
    tensors = {"w": torch.tensor(values), "v": torch.tensor([variance]), "n": torch.tensor(batches)}
    return Block(tensors, frozenset({"v", "n"}))


@pytest.mark.parametrize(("staleness", "weight"), [(0, 1.0), (1, 0.70711), (3, 0.5), (8, 0.33333), (99, 0.1)])
def test_the_weight_of_a_stale_update(staleness, weight):
    assert Buffered().weight(staleness) == pytest.approx(weight, abs=5e-6)


def test_a_buffer_by_hand():
    merge = Buffered(lr=0.5)
    present, old = block([1.0, 2.0, 3.0], 4.0, 7), block([0.0, 0.0, 0.0], 1.0, 5)
    fresh = sums_of(merge, present, [block([2.0, 3.0, 4.0], 6.0, 9)])  # changed by 1
    stale = sums_of(merge, old, [block([2.0, 2.0, 0.0], 3.0, 8), block([0.0, 2.0, 0.0], 9.0, 6)])
    merged = merge.flush(present, [fresh, stale._replace(staleness=3)])
    # 1, 1, 1 at full weight; 2, 4, 0 in all at half: present + 0.5 / 3 of 2, 3, 1.
    torch.testing.assert_close(merged.tensors["w"], torch.tensor([1 + 1 / 3, 2.5, 3 + 1 / 6]))
    # Variances: (6 + 0.5 * 3 + 0.5 * 9) / 2, at no learning rate.
    torch.testing.assert_close(merged.tensors["v"], torch.tensor([6.0]))
    assert merged.tensors["n"] == 9
    assert merge.flush(present, []) is present


@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_fedbuff_is_the_slow_implementation(lr, tmp_path):
    run = ours(tmp_path / "r", f"merge.lr={lr}")
    came = [
        {
            row["client"]: row["round"] - 1 - row["staleness"]
            for row in run.clock
            if row["round"] == r and row["client"]
        }
        for r in (1, 2, 3, 4)
    ]
    assert came == ARRIVALS
    assert [row["answered"] for row in run.clock if not row["client"]] == [14, 28, 35, 42]
    shared, _ = slow(lr, list(network().state_dict()))
    close(dict(run.client("c2").model().state_dict()), shared)


def test_heads_stay_home_and_go_on_from_where_they_were(tmp_path):
    run = ours(tmp_path / "r", "sharing=fedper", "fleet.down=64", "fleet.up=64")  # the base has 64 bytes
    shared, own = slow(1.0, ["0.weight", "0.bias"])
    for name in population():
        mine = dict(run.client(name).model().state_dict())
        close(mine, {**own[name], "0.weight": shared["0.weight"], "0.bias": shared["0.bias"]})


class StopAfterTwo(intarsia.Observer):
    """Wants to stop after the second round, with a client on its way since the beginning."""

    def __init__(self) -> None:
        self.rounds = 0

    def round_done(self, report: intarsia.RoundReport) -> None:
        self.rounds += 1

    def wants_stop(self) -> bool:
        return self.rounds == 2


@pytest.mark.parametrize("sharing", ["{name='fedper', by='device'}", "modfl"])
def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(sharing, small_run):
    fleet = "fleet={speed=1e6, dropout=0.2, devices={'8x8'={speed=3e5}}}"
    changes = ("method=fedbuff", "method.buffer=3", f"sharing={sharing}", fleet, "rounds=5")
    whole = small_run(*changes, out="whole")
    assert max(row.get("staleness", 0) for row in whole.clock) > 0
    assert {row["outcome"] for row in whole.clock} == {"counted", "dropped", "round"}
    stopped = small_run(*changes, out="stopped", observer=StopAfterTwo())
    assert stopped.state().flying
    again = intarsia.resume(stopped.path)
    workers = small_run(*changes, "engine.name=local", "engine.workers=2", out="workers")
    for other in (again, workers):
        assert digests(other) == digests(whole)
        assert (other.path / "clock.jsonl").read_bytes() == (whole.path / "clock.jsonl").read_bytes()


def test_a_client_that_never_comes_back_stops_the_run_with_its_reason(small_run):
    with pytest.raises(intarsia.IntarsiaError, match="a window that is shorter than a client needs"):
        small_run("method=fedbuff", "method.buffer=1", "fleet={speed=1e3, available='01:00-01:01'}")
