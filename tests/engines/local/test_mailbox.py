"""Messages between an engine and its workers: small and large ones, with and without shared memory."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch

from intarsia.blocks import Block
from intarsia.engines.local import mailbox
from intarsia.engines.local.mailbox import LARGE, Mailbox, memory


@pytest.fixture(params=["memory", "pipe"])
def ends(request):
    """Both ends of a mailbox; a large message through the pipe alone needs a reader at the other end."""
    one, other = multiprocessing.get_context("fork").Pipe()
    down, up = (memory(), memory()) if request.param == "memory" else (None, None)
    if request.param == "memory" and down is None:
        pytest.skip("no memory without a name on this system")
    boxes = (
        Mailbox(one, down, up),
        Mailbox(other, *(os.dup(f) if f is not None else None for f in (up, down))),
    )
    yield boxes
    for box in boxes:
        box.close()


def block(*sizes: int) -> Block:
    """Return a block with a tensor of each size, of different kinds; the second is a buffer."""
    kinds = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
    tensors = {f"t{i}": (torch.rand(n) * 9).to(kinds[i % 4]) for i, n in enumerate(sizes)}
    return Block(tensors, frozenset({"t1"} & tensors.keys()))


def echo(box: Mailbox) -> None:
    for _ in range(4):
        header, blocks = box.receive()
        kept = [b.copy(v) for b, v in zip(blocks, header["versions"], strict=True)]
        box.release()
        box.send_large({"buffers": [sorted(b.buffers) for b in kept]}, kept)


@pytest.mark.parametrize("kept", [1 << 26, 0])
def test_blocks_come_back_whole(ends, kept, monkeypatch):
    """Small, large, empty; with memory that stays for the next message, and that is given back at once."""
    monkeypatch.setattr(mailbox, "KEPT", kept)
    ours, theirs = ends
    worker = multiprocessing.get_context("fork").Process(target=echo, args=(theirs,))
    worker.start()
    for blocks in (
        [block(3, 5)],
        [block(3 * LARGE, 7, 0, 11), block(), block(LARGE)],
        [],
        [block(LARGE // 2, 1)],
    ):
        ours.send_large({"versions": [b.version for b in blocks]}, blocks)
        header, back = ours.receive()
        assert header == {"buffers": [sorted(b.buffers) for b in blocks]}
        assert [b.version for b in back] == [Block(b.tensors, b.buffers).version for b in blocks]
        del back
        ours.release()
    worker.join(10)
    assert worker.exitcode == 0


def test_what_lies_in_memory_is_read_without_a_copy_and_aligned():
    down = memory()
    if down is None:
        pytest.skip("no memory without a name on this system")
    one, other = multiprocessing.Pipe()
    ours, theirs = Mailbox(one, down, None), Mailbox(other, None, os.dup(down))
    ours.send_large({}, [block(LARGE + 1, 3, 5)])
    _, (first,) = theirs.receive()
    assert all(t.data_ptr() % 64 == 0 for t in first.tensors.values())
    second = block(LARGE, 3)
    ours.send_large({}, [second])
    _, (got,) = theirs.receive()
    assert got.tensors["t0"].data_ptr() == first.tensors["t0"].data_ptr()
    assert got.version == second.version
    for box in (ours, theirs, ours):
        box.close()


def test_a_message_to_a_busy_side_never_waits():
    one, other = multiprocessing.Pipe()
    ours, theirs = Mailbox(one), Mailbox(other)
    assert ours.send_ahead({"x": 1})
    assert not ours.send_ahead({"x": "y" * LARGE})
    assert theirs.receive() == ({"x": 1}, [])
    assert not theirs.pipe.poll()
    for box in (ours, theirs):
        box.close()
