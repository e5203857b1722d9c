"""Lines to workers: answers and errors come back, strangers do not get in, an end is noticed; runs go on without."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import ExitStack

import pytest

import intarsia
from intarsia.engines.cluster import lines, members
from intarsia.engines.cluster.lines import GUESTS, SILENCE, TOKEN, Caller, Line, Listening
from tests.conftest import failures
from tests.engines.cluster.conftest import Up
from tests.engines.cluster.test_cluster import PARTLY, states, tables

HOST = "127.0.0.1"
PATIENCE = 10.0
WATCHED = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


class UnportableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Worker(Listening):
    def __init__(self) -> None:
        self.waits = threading.Event()

    def twice(self, data: bytes) -> bytes:
        return data * 2

    def fails(self) -> None:
        raise UnportableError(1, 2)

    def wait(self) -> None:
        self.waits.set()
        threading.Event().wait(PATIENCE)


def asked(caller: Caller, method: str, *arguments: object) -> tuple[object, Exception | None]:
    told: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
    caller.call(method, arguments, lambda answer, error: told.put((answer, error)))
    return told.get(timeout=PATIENCE)


def test_answers_and_errors_come_back():
    worker = Worker()
    caller = Caller(HOST, worker.listen(HOST), PATIENCE)
    large = bytes(range(256)) * 10_000
    assert asked(caller, "twice", large) == (large * 2, None)
    answer, error = asked(caller, "fails")
    assert answer is None
    assert "UnportableError: 1 and 2" in str(error)
    assert asked(caller, "twice", b"a") == (b"aa", None)
    caller.close()


def test_strangers_are_not_heard_and_keep_nobody_out():
    way = port, _ = Worker().listen(HOST)
    with ExitStack() as strangers:
        silent = [
            strangers.enter_context(socket.create_connection((HOST, port), PATIENCE))
            for _ in range(GUESTS + 4)
        ]
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(TOKEN)):
            with socket.create_connection((HOST, port), PATIENCE) as stranger:
                stranger.sendall(words)
        with pytest.raises(OSError):  # noqa: PT011 - closed, or reset
            Caller(HOST, (port, bytes(range(2 * TOKEN))), PATIENCE)
        assert silent[0].recv(1) == b""  # too many: who has been silent for longest is sent away
        caller = Caller(HOST, way, PATIENCE)
        assert silent[-1].recv(1) == b""
        assert asked(caller, "twice", b"a") == (b"aa", None)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), PATIENCE)
        caller.close()


@pytest.mark.parametrize("answer", [b"", b"!", bytes(TOKEN)])
def test_nobody_else_is_called(answer):
    """Who has taken the port of a worker that has gone cannot show what came with the token."""
    with socket.create_server((HOST, 0)) as door:
        squatter = threading.Thread(target=lambda: door.accept()[0].sendall(answer))
        squatter.start()
        with pytest.raises(OSError):  # noqa: PT011 - closed, or named
            Caller(HOST, (door.getsockname()[1], bytes(range(2 * TOKEN))), PATIENCE)
        squatter.join()


def test_a_door_is_not_open_for_long(monkeypatch):
    monkeypatch.setattr(lines, "KNOCK", 0.05)
    port, _ = Worker().listen(HOST)
    with socket.create_connection((HOST, port), PATIENCE) as stranger:
        stranger.settimeout(PATIENCE)
        assert stranger.recv(1) == b""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system cannot be told")
def test_a_line_ends_if_the_other_side_has_gone_without_a_word():
    with socket.create_server((HOST, 0)) as door, socket.create_connection(door.getsockname()) as one:
        Line(one)
        idle, step, count, whole = (
            one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in WATCHED
        )
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + step * count <= SILENCE
    assert whole == 1000 * SILENCE


def test_an_end_is_told_to_who_waits():
    worker, told = Worker(), queue.SimpleQueue()
    caller = Caller(HOST, worker.listen(HOST), PATIENCE)
    caller.call("wait", (), lambda answer, error: told.put(error))
    assert worker.waits.wait(PATIENCE)
    caller.close()
    assert isinstance(told.get(timeout=PATIENCE), OSError)


def test_a_host_that_cannot_be_listened_at(monkeypatch):
    def refused(*arguments: object, **options: object) -> None:
        raise OSError("cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    assert Worker().listen(HOST) is None


class CuttingLines(intarsia.Observer):
    """Cuts all lines after the second reply of the training of the second round."""

    def __init__(self, callers: list[Caller]) -> None:
        self.callers, self.replies, self.now = callers, 0, False

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        self.replies, self.now = 0, (round, name) == (2, "train")

    def replied(self, reply: object) -> None:
        self.replies += 1
        if self.now and self.replies == 2:
            for caller in self.callers:
                caller._line.close()


def test_workers_whose_lines_are_cut_take_part_again(up: Up, small_run, monkeypatch):
    """Both at once: nobody is left, until they are asked anew."""

    def caller(*arguments: object) -> Caller:
        callers.append(Caller(*arguments))
        return callers[-1]

    callers: list[Caller] = []
    monkeypatch.setattr(members, "Caller", caller)
    monkeypatch.setattr(members, "AGAIN", 0.1)
    changes = ("method=fedper", "training.batched=false", PARTLY)
    run = small_run(*changes, *up.engine, out="dask", observer=CuttingLines(callers))
    local = small_run(*changes, "engine.name=local", "engine.workers=2", out="local")
    assert len(callers) > 2
    assert (tables(run), states(run)) == (tables(local), states(local))
    assert {event["kind"] for event in failures(run)} == {"died"}


@pytest.mark.parametrize("opened", [True, False])
def test_runs_go_through_dask_where_there_is_no_line(opened, up: Up, small_run, monkeypatch):
    def caller(*arguments: object) -> Caller:
        asked_for.append(arguments)
        if opened:
            return Caller(*arguments)
        raise ConnectionRefusedError

    asked_for: list[object] = []
    monkeypatch.setattr(members, "Caller", caller)
    changes = ("method=fedper", PARTLY, "rounds=2")
    run = small_run(*changes, *up.engine, out="dask")
    local = small_run(*changes, "engine.name=local", "engine.workers=2", out="local")
    assert len(asked_for) == 2
    assert (tables(run), states(run)) == (tables(local), states(local))
