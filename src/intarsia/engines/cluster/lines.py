"""A line from the server of a run to what it has in a worker: calls past dask's own loops, which small rounds feel.

Where there can be none (TLS, a worker that cannot be reached), calls go through dask as they always can.
"""

from __future__ import annotations

import hmac
import pickle
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from intarsia.engines.local.helpers import portable

PLAIN = "tcp"
"""What the address of a worker begins with that can be called by a line."""
KNOCK = 10.0
"""Seconds that a worker waits for its line to be opened."""
TOKEN = 32
WELCOME = b"!"

Way = tuple[int, bytes]
"""Where a line is opened: a port, and what proves that it is opened by who asked for it."""
Tell = Callable[[Any, Exception | None], None]
"""Takes what a call gave: an answer, or an error."""


class Line:
    """One end of a connection that carries whatever can be pickled; large bytes are not copied on their way."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection
        self._reads, self._writes = connection.makefile("rb"), connection.makefile("wb")

    def send(self, message: Any) -> None:
        """Send a message."""
        pickle.dump(message, self._writes, protocol=5)
        self._writes.flush()

    def receive(self) -> Any:
        """Wait for a message; an end of the line is an `OSError`, in the midst of a message too."""
        try:
            return pickle.load(self._reads)  # noqa: S301 - dask itself pickles: trusted clusters alone
        except (EOFError, pickle.UnpicklingError) as error:
            raise ConnectionError("the other side has gone") from error

    def close(self) -> None:
        """End the line; who waits at either side learns of it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Listening:
    """What can be called by a line, one call after the other, in a thread of its own."""

    def listen(self, host: str) -> Way | None:
        """Wait for a line to this host; None if there can be none."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            door = socket.create_server((host, 0), family=family)
        except OSError:
            return None
        token = secrets.token_bytes(TOKEN)
        threading.Thread(target=self._serve, args=(door, token), daemon=True).start()
        return door.getsockname()[1], token

    def _serve(self, door: socket.socket, token: bytes) -> None:
        """Answer calls until the line ends."""
        with suppress(OSError), closing(Line(_opened(door, token))) as line:
            while True:
                method, arguments = line.receive()
                line.send(_outcome(getattr(self, method), arguments))


def _opened(door: socket.socket, token: bytes) -> socket.socket:
    """Return the connection of who asked for it; of anybody else nothing is read but what should be the token."""
    with door:
        door.settimeout(KNOCK)
        connection, _ = door.accept()
    connection.settimeout(KNOCK)
    if not hmac.compare_digest(connection.recv(TOKEN, socket.MSG_WAITALL), token):
        connection.close()
        raise ConnectionError("a stranger")
    connection.sendall(WELCOME)
    return connection


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 - raised again by the server
        return None, portable(error)


class Caller:
    """The server's end of a line: carries calls in a thread of its own, and tells what came of them."""

    def __init__(self, host: str, way: Way, patience: float) -> None:
        port, token = way
        connection = socket.create_connection((host, port), patience)
        connection.sendall(token)
        if connection.recv(len(WELCOME)) != WELCOME:
            raise ConnectionError("another was there before")
        self._line = Line(connection)
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...], Tell] | None] = queue.SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()

    def call(self, method: str, arguments: tuple[Any, ...], tell: Tell) -> None:
        """Let the other side do something; the answer or an error is told, an `OSError` if the line has ended."""
        self._calls.put((method, arguments, tell))

    def close(self) -> None:
        """End the line."""
        self._line.close()
        self._calls.put(None)

    def _carry(self) -> None:
        while (call := self._calls.get()) is not None:
            method, arguments, tell = call
            try:
                self._line.send((method, arguments))
                tell(*self._line.receive())
            except Exception as error:  # noqa: BLE001 - told to who called
                tell(None, error)
