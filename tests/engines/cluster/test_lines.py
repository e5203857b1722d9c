"""Lines to workers: answers and errors come back, strangers do not get in, an end is noticed; runs go on without."""

from __future__ import annotations

import queue
import socket
import threading

import pytest

from intarsia.engines.cluster import members
from intarsia.engines.cluster.lines import TOKEN, Caller, Listening
from tests.engines.cluster.conftest import Up
from tests.engines.cluster.test_cluster import PARTLY, states, tables

HOST = "127.0.0.1"
PATIENCE = 10.0


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


def test_who_does_not_have_the_token_is_not_heard():
    port, _ = Worker().listen(HOST)
    with pytest.raises(OSError):  # noqa: PT011 - closed, or reset
        Caller(HOST, (port, bytes(TOKEN)), PATIENCE)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), PATIENCE)


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


@pytest.mark.parametrize("opened", [True, False])
def test_runs_go_through_dask_where_there_is_no_line(opened, up: Up, small_run, monkeypatch):
    def caller(*arguments: object) -> Caller:
        lines.append(arguments)
        if opened:
            return Caller(*arguments)
        raise ConnectionRefusedError

    lines: list[object] = []
    monkeypatch.setattr(members, "Caller", caller)
    changes = ("method=fedper", PARTLY, "rounds=2")
    run = small_run(*changes, *up.engine, out="dask")
    local = small_run(*changes, "engine.name=local", "engine.workers=2", out="local")
    assert len(lines) == 2
    assert (tables(run), states(run)) == (tables(local), states(local))
