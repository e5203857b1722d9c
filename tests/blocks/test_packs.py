"""Small blocks lie together in packs: found by whoever asks, damage noticed, and no more room than a third too much."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from intarsia.blocks import Block, BlockStore, packs
from intarsia.core import CheckpointError


def block(number: int, size: int = 20) -> Block:
    return Block({"w": torch.full((size,), float(number))})


def packed(store: BlockStore, *numbers: int, size: int = 20) -> list[str]:
    versions = [store.put(block(number, size)) for number in numbers]
    assert store.pack(versions) == set()
    store.tidy()
    return versions


def names(folder: Path) -> set[str]:
    return {path.suffix for path in folder.iterdir()}


def test_small_blocks_lie_together_and_large_ones_alone(tmp_path):
    store = BlockStore(tmp_path)
    large = store.put(block(9, 1 << 13))
    small = [store.put(block(number)) for number in (1, 2, 3)]
    assert store.pack([large, *small]) == {large}
    assert len(list(tmp_path.iterdir())) == 5  # nothing goes before `tidy`
    store.tidy()
    (pack,) = tmp_path.glob("*.pack")
    assert store.files() == {pack: set(small), tmp_path / f"{large}.safetensors": {large}}
    header = len(block(1).pieces()[0])
    assert pack.stat().st_size == 4 + 3 * (16 + 8 + 4) + 3 * (header + 20 * 4)
    for number, version in zip((9, 1, 2, 3), (large, *small), strict=True):
        for reader in (store, BlockStore(tmp_path)):
            assert reader.get(version).version == version
            assert reader.get(version).tensors["w"][0] == number


def test_a_reader_finds_what_is_packed_and_written_anew_meanwhile(tmp_path):
    store, reader = BlockStore(tmp_path), BlockStore(tmp_path)
    first = store.put(block(0))
    assert reader.get(first).version == first
    packed(store, 0)
    assert reader.get(first).version == first
    for number in range(1, 20):  # small packs become one: the first is not there any more
        packed(store, number)
    assert len(list(tmp_path.glob("*.pack"))) < packs.ALIKE + 1
    assert reader.get(first).version == first
    with pytest.raises(CheckpointError, match=r"[0-9a-f]{32}\.safetensors is missing: the run's state is"):
        reader.get(block(99).version)


def test_what_is_put_again_is_there_whatever_becomes_of_the_pack(tmp_path):
    """A worker that makes a block anew knows nothing of what the run lets go of."""
    store, worker = BlockStore(tmp_path), BlockStore(tmp_path)
    one, two = packed(store, 1, 2)
    worker.put(block(1))
    store.remove([two])
    assert worker.get(one).version == one
    store.remove([one])
    assert not list(tmp_path.iterdir())
    worker.put(block(1))
    assert packed(store, 1) == [one]
    assert worker.get(one).version == one


def test_a_block_that_comes_back_lies_in_the_same_pack_again(tmp_path):
    store = BlockStore(tmp_path)
    one, two = packed(store, 1, 2)
    (pack,) = tmp_path.iterdir()
    store.remove([two])
    packed(store, 2)
    assert list(tmp_path.iterdir()) == [pack]
    assert store.get(two).version == two
    store.remove([one, two])
    assert not list(tmp_path.iterdir())


def test_a_block_that_was_let_go_between_packing_and_tidying_keeps_its_file(tmp_path):
    store = BlockStore(tmp_path)
    version = store.put(block(1))
    store.pack([version])
    store.remove([version])
    store.put(block(1))
    store.tidy()
    assert names(tmp_path) == {".safetensors"}
    assert store.get(version).version == version


def test_a_sweep_lets_go_of_all_else(tmp_path):
    store = BlockStore(tmp_path)
    first, second = packed(store, 1, 2), packed(store, 3, 4)
    single = store.put(block(5))
    (tmp_path / ("0" * 32 + ".pack")).write_bytes(b"\0")
    again = BlockStore(tmp_path)
    again.sweep([first[0], single])
    assert sorted(map(len, again.files().values())) == [1, 2]
    assert not again.files().keys() & {path for path, held in store.files().items() if second[0] in held}
    assert again.get(first[0]).version == first[0]


@pytest.mark.parametrize("seed", range(5))
def test_packs_waste_no_more_than_a_third_and_lose_nothing(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "FULL", 3000)
    monkeypatch.setattr(packs, "AT_ONCE", 9000)
    chance, store, held = random.Random(seed), BlockStore(tmp_path), dict[int, str]()
    for round in range(80):
        clients = chance.sample(range(40), 5)
        held |= dict(zip(clients, packed(store, *(100 * round + c for c in clients)), strict=True))
        known = set().union(*store.files().values())
        assert known >= set(held.values())
        store.remove(known - set(held.values()))
        if chance.random() < 0.1:
            store = BlockStore(tmp_path)
            store.sweep(held.values())
        for client in chance.sample(sorted(held), 3):
            assert store.get(held[client]).version == held[client]
    packed(store, -1)
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    needed = (len(held) + 1) * (28 + len(block(0).to_bytes()))
    assert total <= 1.5 * needed
    assert len(list(tmp_path.iterdir())) < 12


def test_a_file_that_a_power_cut_left_empty_is_passed_over(tmp_path):
    store = BlockStore(tmp_path)
    version = store.put(block(1))
    store.pack([version])
    (tmp_path / f"{version}.safetensors").write_bytes(b"")
    assert BlockStore(tmp_path).get(version).version == version


@pytest.mark.parametrize("at", [0, 3, 4, 30, -1])
def test_a_damaged_pack_is_noticed(at, tmp_path):
    store = BlockStore(tmp_path)
    one, two = packed(store, 1, 2)
    (pack,) = tmp_path.iterdir()
    data = bytearray(pack.read_bytes())
    data[at] ^= 1
    pack.write_bytes(bytes(data))
    hurt = {-1: sorted((one, two))[1:]}.get(at, (one, two))
    for version in (one, two):
        if version in hurt:
            with pytest.raises(CheckpointError, match=f"{pack.name} is damaged"):
                BlockStore(tmp_path).get(version)
        else:
            assert BlockStore(tmp_path).get(version).version == version


@pytest.mark.parametrize("left", [0, 2, 20, 100])
def test_a_pack_that_was_cut_short_is_noticed(left, tmp_path):
    one, two = packed(BlockStore(tmp_path), 1, 2)
    (pack,) = tmp_path.iterdir()
    pack.write_bytes(pack.read_bytes()[:left])
    for version in (one, two):
        with pytest.raises(CheckpointError, match=f"{pack.name} is damaged"):
            BlockStore(tmp_path).get(version)
