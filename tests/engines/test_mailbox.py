"""Messages between an engine and its workers: small and large ones, with and without shared memory."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from intarsia.engines.mailbox import LARGE, Mailbox, memory


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


def echo(box: Mailbox) -> None:
    for _ in range(3):
        header, records = box.receive()
        box.send_large({**header, "seen": [len(r) for r in records]}, [r[::-1] for r in records])


def test_large_messages_come_back_whole(ends):
    ours, theirs = ends
    worker = multiprocessing.get_context("fork").Process(target=echo, args=(theirs,))
    worker.start()
    for records in ([b"small"], [os.urandom(3 * LARGE), b"", os.urandom(LARGE)], []):
        ours.send_large({"kind": "jobs"}, records)
        header, back = ours.receive()
        assert header == {"kind": "jobs", "seen": [len(r) for r in records]}
        assert back == [r[::-1] for r in records]
    worker.join(10)
    assert worker.exitcode == 0


def test_a_shorter_message_after_a_longer_one_has_none_of_it():
    down = memory()
    if down is None:
        pytest.skip("no memory without a name on this system")
    one, other = multiprocessing.Pipe()
    ours, theirs = Mailbox(one, down, None), Mailbox(other, None, os.dup(down))
    for record in (b"a" * (4 * LARGE), b"b" * (2 * LARGE)):
        ours.send_large({}, [record])
        assert theirs.receive() == ({}, [record])
    ours.close()
    theirs.close()
    ours.close()
