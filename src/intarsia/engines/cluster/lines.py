"""A line from the server of a run to what it has in a worker: calls past dask's own loops, which small rounds feel.

Where there can be none (TLS, a worker that cannot be reached), calls go through dask as they always can.
"""

from __future__ import annotations

import hmac
import pickle
import queue
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from intarsia.engines.local.helpers import portable

PLAIN = "tcp"
"""What the address of a worker begins with that can be called by a line."""
KNOCK = 10.0
"""Seconds that a worker waits for its line to be opened."""
GUESTS = 16
"""How many may stand at the door and say nothing, until the first of them is sent away."""
SILENCE = 30
"""Seconds after which a line is at its end whose other side cannot be reached: as long as dask waits."""
PROBES = {"TCP_KEEPIDLE": SILENCE // 3, "TCP_KEEPINTVL": SILENCE // 6, "TCP_KEEPCNT": 4}
TOKEN = 32
"""Bytes by which either side is known to the other: the caller says the first half of what came through dask, and is
answered by the second."""

Way = tuple[int, bytes]
"""Where a line is opened: a port, and what proves to each side who the other is."""
Tell = Callable[[Any, Exception | None], None]
"""Takes what a call gave: an answer, or an error."""


class Line:
    """One end of a connection that carries whatever can be pickled; large bytes are not copied on their way."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _watch(connection)
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


def _watch(connection: socket.socket) -> None:
    """Let a connection end whose other side has gone without a word, as far as this system can tell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**PROBES, "TCP_USER_TIMEOUT": 1000 * SILENCE}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Listening:
    """What can be called by a line, one call after the other, in a thread of its own."""

    def listen(self, host: str) -> Way | None:
        """Wait for a line to this host; None if there can be none."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            door = socket.create_server((host, 0), family=family)
        except OSError:
            return None
        token = secrets.token_bytes(2 * TOKEN)
        threading.Thread(target=self._serve, args=(door, token), daemon=True).start()
        return door.getsockname()[1], token

    def _serve(self, door: socket.socket, token: bytes) -> None:
        """Answer calls until the line ends."""
        with suppress(OSError), closing(Line(_Door(door, token).opened())) as line:
            while True:
                method, arguments = line.receive()
                line.send(_outcome(getattr(self, method), arguments))


class _Door:
    """Lets in who has the token; strangers are sent away, and keep nobody waiting."""

    def __init__(self, door: socket.socket, token: bytes) -> None:
        self._door, self._asked, self._answer = door, token[:TOKEN], token[TOKEN:]
        self._guests: dict[socket.socket, None] = {}
        self._selector = selectors.DefaultSelector()

    def opened(self) -> socket.socket:
        """Return the connection of who asked for it, if it comes in time; then the door is closed."""
        with self._door, self._selector:
            self._door.setblocking(False)
            self._selector.register(self._door, selectors.EVENT_READ)
            try:
                return self._awaited()
            finally:
                for guest in self._guests:
                    guest.close()

    def _awaited(self) -> socket.socket:
        end = time.monotonic() + KNOCK
        while (seconds := end - time.monotonic()) > 0:
            for guest in self._heard(seconds):
                if self._knows(guest):
                    del self._guests[guest]
                    return guest
                self._send_away(guest)
        raise TimeoutError("nobody with the token came")

    def _heard(self, seconds: float) -> list[socket.socket]:
        """Let in who comes; return who has said something."""
        heard = [key.fileobj for key, _ in self._selector.select(seconds)]
        if self._door in heard:
            self._let_in()
        return [guest for guest in self._guests if guest in heard]

    def _let_in(self) -> None:
        """Let one in, and send away who has been silent for longest, if there are too many."""
        with suppress(BlockingIOError, ConnectionError):
            guest, _ = self._door.accept()
            guest.setblocking(False)
            self._guests[guest] = None
            self._selector.register(guest, selectors.EVENT_READ)
        if len(self._guests) > GUESTS:
            self._send_away(next(iter(self._guests)))

    def _knows(self, guest: socket.socket) -> bool:
        """Read no more than what should be the token; show who has it that this is who it was for."""
        with suppress(OSError):
            if hmac.compare_digest(guest.recv(TOKEN), self._asked):
                guest.sendall(self._answer)
                return True
        return False

    def _send_away(self, guest: socket.socket) -> None:
        del self._guests[guest]
        self._selector.unregister(guest)
        guest.close()


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 - raised again by the server
        return None, portable(error)


def _entered(connection: socket.socket, token: bytes) -> socket.socket:
    """Show the token; return the connection if at its other end is who the token came from."""
    try:
        connection.sendall(token[:TOKEN])
        if not hmac.compare_digest(connection.recv(TOKEN), token[TOKEN:]):
            raise ConnectionError("somebody else is there")
    except OSError:
        connection.close()
        raise
    return connection


class Caller:
    """The server's end of a line: carries calls in a thread of its own, and tells what came of them."""

    def __init__(self, host: str, way: Way, patience: float) -> None:
        port, token = way
        self._line = Line(_entered(socket.create_connection((host, port), patience), token))
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
