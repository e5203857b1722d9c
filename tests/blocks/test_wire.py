from __future__ import annotations

import pytest
import torch

from intarsia.blocks import Address, Block, ClientPlan, Pool, Task, Update
from intarsia.core import AddressError, Refused, WireError

BASE, HEAD = Address("base", "all"), Address("head", "me")


def block() -> Block:
    tensors = {"a.weight": torch.randn(3, 2), "a.count": torch.tensor(4), "é": torch.zeros(0)}
    return Block(tensors, frozenset({"a.count"}))


def task(**changes) -> Task:
    content = block()
    fields = {
        "run": "r",
        "round": 3,
        "exchange": "train",
        "purpose": "train",
        "client": "café",
        "state": "s",
        "blocks": {BASE: content},
        "values": {"gates": [0.1, 1e-17]},
        "plan": ClientPlan({"base": BASE, "head": HEAD}, frozenset({"base", "head"}), frozenset({"base"})),
        "versions": {BASE: content.version},
    }
    return Task(**{**fields, **changes})


def test_a_task_comes_through_its_bytes():
    sent = task(changes={BASE: "0" * 32})
    got = Task.from_bytes(sent.to_bytes())
    assert got.header() == sent.header()
    assert got.changes == {BASE: "0" * 32}
    assert got.plan == sent.plan
    assert got.blocks[BASE].version == sent.blocks[BASE].version
    assert got.blocks[BASE].buffers == {"a.count"}
    assert got.plan.returned == (BASE,)


def test_an_update_comes_through_its_bytes():
    content = block()
    sent = Update("r", 1, "train", "train", "c", "s", {BASE: content}, {"loss": 0.5}, samples=7)
    got = Update.from_bytes(sent.to_bytes())
    assert got.header() == sent.header()
    assert got.blocks[BASE].version == content.version


@pytest.mark.parametrize("blocks", [{}, {BASE: block()}, {BASE: block(), Address("b", "g"): block()}])
def test_every_byte_of_a_message_is_counted_once(blocks):
    message = task(blocks=blocks, versions={a: b.version for a, b in blocks.items()})
    rows = message.traffic()
    assert sum(r.bytes + r.envelope for r in rows) == len(message.to_bytes())
    assert sum(r.bytes for r in rows) == sum(b.nbytes for b in blocks.values())
    assert [(r.block, r.group) for r in rows] == [*((a.block, a.group) for a in blocks), ("", "")]
    assert {r.direction for r in rows} == {"down"}


def block_version(data: bytes) -> bytes:
    return data.partition(b'"versions":{"base@all":"')[2][:32]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: b"",
        lambda d: b"hello" * 10,
        lambda d: d[:-1],
        lambda d: d[:20],
        lambda d: d + b"x",
        lambda d: d.replace(b'"round":3', b'"rounx":3'),
        lambda d: d.replace(block_version(d), b"../../etc/passwd" * 2),
        lambda d: d.replace(b'"train"', b'"train\xff'),
    ],
)
def test_damaged_messages_are_errors(damage):
    with pytest.raises(WireError):
        Task.from_bytes(damage(task().to_bytes()))


def test_a_block_is_no_pickle():
    with pytest.raises(WireError, match="no block of ours"):
        Block.from_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.")


def test_a_version_is_the_hash_of_the_content():
    one = Block({"w": torch.tensor([1.0, 2.0])})
    assert one.version == Block({"w": torch.tensor([1.0, 2.0])}).version
    assert one.version != Block({"w": torch.tensor([1.0, 2.5])}).version
    assert one.version != Block({"v": torch.tensor([1.0, 2.0])}).version
    assert one.version != Block({"w": torch.tensor([[1.0, 2.0]])}).version
    assert one.version != Block({"w": torch.tensor([1.0, 2.0])}, frozenset({"w"})).version
    strided = torch.tensor([[1.0, 9.0], [2.0, 9.0]])[:, 0]
    assert one.version == Block({"w": strided}).version


def test_pool():
    pool = Pool()
    old = pool.put(BASE, Block({"w": torch.zeros(2)}))
    copy = pool.copy()
    new = pool.put(BASE, Block({"w": torch.ones(2)}))
    assert pool.version(BASE) == new
    assert pool.version(BASE) != old
    assert copy.version(BASE) == old
    assert pool.nbytes == 8
    with pytest.raises(AddressError, match="stays with its client"):
        pool.put(HEAD, Block({}))
    with pytest.raises(AddressError, match="no block at x@y; it has: base@all"):
        pool.get(Address("x", "y"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_endless_block_enters_the_pool(bad):
    pool = Pool()
    old = pool.put(BASE, Block({"w": torch.zeros(2), "n": torch.tensor(3)}))
    assert pool.put(BASE, Block({"w": torch.tensor([1.0, bad]), "n": torch.tensor(4)})) == old
    assert pool.version(BASE) == old
    assert pool.kept == [BASE]
    assert pool.copy().kept == []
    with pytest.raises(Refused, match="first version of new@all holds a NaN or an infinity"):
        pool.put(Address("new", "all"), Block({"w": torch.tensor([bad])}))


@pytest.mark.parametrize(
    "text", ["base", "@all", "base@", "a@b@c", "a@b@0", "a@b@01", "a@b@" + "9" * 5000, ""]
)
def test_bad_addresses(text):
    with pytest.raises(AddressError, match="block@group"):
        Address.parse(text)


def test_addresses():
    assert Address.parse("operation@task/north") == Address("operation", "task/north")
    assert str(BASE) == "base@all"
    assert HEAD.private
    assert not BASE.private


def test_a_block_that_is_restarted_has_an_address_of_its_own():
    again = BASE.anew().anew()
    assert str(again) == "base@all@2"
    assert Address.parse("base@all@2") == again != BASE
    assert again.original == BASE
    pool = Pool({again: Block({"w": torch.zeros(2)})})
    assert pool.present(BASE) == again
    assert pool.present(HEAD) == HEAD
    assert pool.present(Address("base", "few")) == Address("base", "few")
