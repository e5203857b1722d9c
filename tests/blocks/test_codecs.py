"""Codecs: worked numbers, what is lost comes back, bytes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import intarsia
from intarsia.blocks import CODECS, Block, Code, decode_block, encode_block
from intarsia.blocks.codecs import Codec, Half, Int8, TopK
from intarsia.core import Refused
from tests.conftest import SMALL

LOSSY = [Half(), Int8(), TopK(share=0.25)]


def test_int8_by_hand():
    """Two rows with their largest values 127 and 254: scales 1 and 2."""
    change = torch.tensor([[127.0, -3.4, 0.0], [254.0, 5.0, -1.0]])
    coded = Int8().encode(change)
    assert coded["int8"].tolist() == [[127, -3, 0], [127, 2, 0]]
    assert coded["scale"].tolist() == [1.0, 2.0]
    assert Int8().decode(coded, change.shape).tolist() == [[127.0, -3.0, 0.0], [254.0, 4.0, 0.0]]


def test_topk_by_hand():
    change = torch.tensor([[0.1, -5.0], [3.0, 0.2]])
    coded = TopK(share=0.5).encode(change)
    assert (coded["at"].tolist(), coded["top"].tolist()) == ([1, 2], [-5.0, 3.0])
    assert TopK(share=0.5).decode(coded, change.shape).tolist() == [[0.0, -5.0], [3.0, 0.0]]


def test_half_by_hand():
    change = torch.tensor([1.0, 1.0 + 2**-11, 2.0**-3])
    assert Half().decode(Half().encode(change), change.shape).tolist() == [1.0, 1.0, 0.125]


def test_what_is_lost_is_added_to_the_next_update():
    """A change that is too small for its row's scale alone travels once it has added up."""
    codec = Int8()
    received = Block({"w": torch.zeros(1, 2)})
    residual, arrived = None, torch.zeros(1, 2, dtype=torch.float64)
    for _ in range(20):
        trained = Block({"w": torch.tensor([[127.0, 0.3]])})
        coded, residual = encode_block(codec, trained, received, residual)
        arrived += decode_block(codec, coded, received, "b").tensors["w"].double()
    assert float(arrived[0, 1]) == pytest.approx(20 * 0.3, abs=0.51)
    forgetful = Int8(feedback=False)
    coded, _ = encode_block(forgetful, trained, received, residual)
    assert float(decode_block(forgetful, coded, received, "b").tensors["w"][0, 1]) == 0.0


@pytest.mark.parametrize("codec", LOSSY, ids=lambda c: c.name)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=24), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_sent_and_lost_are_the_whole_change(codec, numbers, rows):
    numbers = (numbers * rows)[: max(rows, len(numbers) // rows * rows)]
    change = torch.tensor(numbers[: len(numbers) // rows * rows]).reshape(rows, -1)
    trained, received = Block({"w": change}), Block({"w": torch.zeros_like(change)})
    coded, lost = encode_block(codec, trained, received, None)
    back = decode_block(codec, coded, received, "b").tensors["w"]
    assert torch.allclose(back + lost.tensors["w"], change, rtol=1e-6, atol=1e-5)


def test_buffers_and_whole_numbers_travel_as_they_are():
    block = Block(
        {"w": torch.rand(3, 2), "mean": torch.rand(3), "count": torch.tensor(7)}, frozenset({"mean", "count"})
    )
    for codec in LOSSY:
        coded, lost = encode_block(codec, block, block, None)
        assert torch.equal(coded.tensors["mean"], block.tensors["mean"])
        assert lost.tensors.keys() == {"w"}
        assert decode_block(codec, coded, block, "b").layout == block.layout


def test_bytes_of_a_coded_block():
    block = Block({"w": torch.rand(64, 100), "b": torch.rand(64)})
    sizes = {
        c.name: encode_block(c, block, Block({"w": torch.zeros(64, 100), "b": torch.zeros(64)}), None)[
            0
        ].nbytes
        for c in LOSSY
    }
    assert sizes == {"fp16": 2 * 6464, "int8": 6464 + 4 * 64 + 4, "topk": 8 * (1600 + 16)}


BAD = {
    "a part is missing": lambda t: {k: v for k, v in t.items() if not k.endswith("scale")},
    "another type": lambda t: t | {"w|int8": t["w|int8"].float()},
    "another shape": lambda t: t | {"w|int8": t["w|int8"][:1]},
    "another tensor": lambda t: t | {"x|int8": t["w|int8"]},
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_in_the_code_is_refused(what):
    block = Block({"w": torch.rand(3, 2)})
    coded, _ = encode_block(Int8(), block, block, None)
    with pytest.raises(Refused):
        decode_block(Int8(), Block(BAD[what](dict(coded.tensors))), block, "b")


@pytest.mark.parametrize("at", [[0, 0], [-1, 1], [0, 6]])
def test_places_outside_or_twice_are_refused(at):
    coded = {"at": torch.tensor(at, dtype=torch.int32), "top": torch.ones(2)}
    with pytest.raises(Refused, match="places"):
        TopK().decode(coded, torch.Size([3, 2]))


@pytest.mark.parametrize("codec", [c for c in CODECS if c != "none"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_does_not_hide_in_a_code(codec, bad):
    kind = CODECS[codec]()
    trained = Block({"w": torch.tensor([[1.0, bad], [0.5, 0.25]])})
    received = Block({"w": torch.zeros(2, 2)})
    back = decode_block(kind, encode_block(kind, trained, received, None)[0], received, "b")
    assert not torch.isfinite(back.tensors["w"]).all()


@pytest.mark.parametrize("codec", ["fp16", "int8", "topk"])
@pytest.mark.parametrize("method", ["fedavg", "fednova", "fedper", "modfl"])
def test_codecs_combine_with_every_method(codec, method, small_run):
    plain = ["sharing={}"] if method == "modfl" else []
    base = [f"method={method}", *plain]
    run = small_run(*base, f"codec={codec}", "codec.share=0.2" if codec == "topk" else f"codec.name={codec}")
    full = small_run(*base, out="full")
    ups = [sum(r["bytes"] for r in each.traffic if r["direction"] == "up") for each in (run, full)]
    assert ups[0] < {"fp16": 0.51, "int8": 0.3, "topk": 0.45}[codec] * ups[1]
    assert run.summary["finished"]
    assert run.metrics != full.metrics


def test_coded_runs_are_the_same_on_workers_and_after_a_stop(tmp_path):
    changes = ["method=fedper", "codec=int8"]
    one = intarsia.run(SMALL, changes=changes, out=tmp_path / "one")
    two = intarsia.run(
        SMALL, changes=[*changes, "engine.name=local", "engine.workers=2"], out=tmp_path / "two"
    )
    assert one.metrics == two.metrics
    folder = tmp_path / "one"
    (folder / "state" / "checkpoint-000003.json").unlink()
    again = intarsia.resume(folder)
    assert again.metrics == two.metrics


def test_a_coded_round_by_hand(tmp_path):
    """One round of FedAvg with int8: each client's change, rounded by itself, then the weighted mean."""
    changes = ["rounds=1", 'population.generations=["8x8"]', "sharing={}"]
    run = intarsia.run(SMALL, changes=[*changes, "codec=int8"], out=tmp_path / "r")
    alone = intarsia.run(SMALL, changes=[*changes, "method=local"], out=tmp_path / "alone")
    start = intarsia.run(SMALL, changes=[*changes, "training.lr=1e-30"], out=tmp_path / "start")
    initial = start.client("client-00").model().state_dict()
    total = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in initial.items()}
    samples = {name: run.client(name).info.train_samples for name in run.clients}
    for client in run.clients:
        for name, trained in alone.client(client).model().state_dict().items():
            change = trained - initial[name]
            rows = change.reshape(len(change), -1) if change.dim() > 1 else change.reshape(1, -1)
            scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
            rounded = ((rows / scale).round() * scale).reshape(change.shape)
            total[name] += samples[client] / sum(samples.values()) * (initial[name] + rounded).double()
    merged = run.client("client-00").model().state_dict()
    assert all(torch.allclose(merged[n].double(), total[n], atol=1e-6) for n in merged)


def test_none_is_full_values():
    assert not Codec().lossy
    with pytest.raises(intarsia.IntarsiaError, match="codec"):
        intarsia.preview({**SMALL, "codec": "zip"})


@pytest.mark.parametrize("codec", ["fp16", "int8", "topk"])
def test_both_ways_in_code(codec, tmp_path):
    """From the second round on blocks come as changes; what clients hold is what the server has, to the bit."""
    changes = [f"codec={{name='{codec}',down=true}}", "rounds=4"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    full = intarsia.run(SMALL, changes=["rounds=4"], out=tmp_path / "full")

    def down(each, round):
        rows = [
            r for r in each.traffic if r["direction"] == "down" and r["block"] and r["purpose"] == "train"
        ]
        return sum(r["bytes"] for r in rows if r["round"] == round)

    assert down(run, 1) == down(full, 1)
    for round in (2, 3, 4):
        assert down(run, round) < {"fp16": 0.51, "int8": 0.3, "topk": 0.45}[codec] * down(full, round)
    two = intarsia.run(
        SMALL, changes=[*changes, "engine.name=local", "engine.workers=2"], out=tmp_path / "two"
    )
    assert run.metrics == two.metrics
    (tmp_path / "two" / "state" / "checkpoint-000004.json").unlink()
    assert intarsia.resume(tmp_path / "two").metrics == run.metrics
    assert [r for r in two.traffic if r["round"] == 4] == [r for r in run.traffic if r["round"] == 4]


def test_who_missed_a_round_gets_the_whole_block(tmp_path):
    changes = ["codec={name='int8',down=true}", "rounds=5", "sampling.clients=4"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    sizes = {}
    for row in run.traffic:
        if row["direction"] == "down" and row["block"] and row["purpose"] == "train":
            sizes.setdefault(row["client"], {})[row["round"]] = row["bytes"]
    for client, own in sizes.items():
        for round, size in own.items():
            whole = own[min(own)]
            assert (size < 0.5 * whole) == (round - 1 in own), (client, round)


def test_what_the_server_loses_is_added_to_the_next_version():
    codec = Int8(down=True)
    present, code = Block({"w": torch.zeros(1, 2)}), None
    for _ in range(10):
        merged = Block({"w": present.tensors["w"] + torch.tensor([[127.0, 0.3]])})
        present, code = Code.next(codec, merged, present, code)
    assert float(present.tensors["w"][0, 1]) == pytest.approx(3.0, abs=0.51)
    assert decode_block(codec, code.change, code.base, "b").version == code.version == present.version


def test_the_plan_counts_coded_bytes(tmp_path):
    plan = intarsia.preview(SMALL, changes=["codec=int8"])
    run = intarsia.run(SMALL, changes=["codec=int8", "rounds=1"], out=tmp_path / "r")
    assert plan["bytes_a_round"] == run.summary["bytes"]
