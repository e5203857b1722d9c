"""Who may ask, and how much: names of hosts, the length of a request, what every answer says to a browser."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
from collections.abc import Collection, Mapping
from io import BufferedReader

LOCAL = ("localhost",)
MOST_LINE = 4096
"""How long the first line of a request may be."""
MOST_HEAD = 16 << 10
"""How long all lines of its head may be together."""
PATIENCE = 10.0
"""For how many seconds a request may come in."""
ANSWER = 60.0
"""For how many seconds an answer may go out, through a slow tunnel for example."""
ALWAYS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""What a browser may do with an answer that is no page: nothing."""
OF_PAGES = "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""What is said of pages beside the policy that they carry, which allows their own scripts alone, by hash."""


class Head:
    """What a browser sends, read as far as a request may be long, and no longer than it may take."""

    def __init__(self, file: BufferedReader, connection: socket.socket) -> None:
        self._file, self._connection = file, connection
        self._left = MOST_HEAD
        self._end = time.monotonic() + PATIENCE

    def readline(self, most: int = -1) -> bytes:
        """Return a line."""
        limit = self._left + 1 if most < 0 else min(most, self._left + 1)
        line = b""
        while len(line) < limit and not line.endswith(b"\n") and (there := self._arrived()):
            line += self._file.readline(min(there, limit - len(line)))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException("the head of the request is too long")
        return line

    def _arrived(self) -> int:
        """Wait until something is there, but not past the end: who sends a byte now and then gains no time by it."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        try:
            return len(self._file.peek(1))
        finally:
            self._connection.settimeout(PATIENCE)

    @property
    def closed(self) -> bool:
        """Whether nothing more is read."""
        return self._file.closed

    def close(self) -> None:
        """Read nothing more."""
        self._file.close()


def is_loopback(host: str) -> bool:
    """Return whether an address that a server listens at is reached from its own machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOCAL


def names_of(host: str) -> Collection[str]:
    """Return the names that a server may be called by that listens at this address."""
    if is_loopback(host):
        return {*LOCAL}
    return {*LOCAL, host.lower(), socket.gethostname().lower()}


def is_ours(said: str | None, host: str) -> bool:
    """Return whether the name that a browser asked for is one of the server's own.

    A page elsewhere can have its own name lead to this machine (DNS rebinding), but it cannot make the browser call it
    by a number: those are allowed, of the loopback where the server listens there alone.
    """
    name = _without_port(said or "")
    if name is None:
        return False
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in names_of(host)
    return address.is_loopback or not is_loopback(host)


def _without_port(said: str) -> str | None:
    """Return the name in a Host header; None where it is none."""
    said = said.strip().lower()
    if said.startswith("["):
        name, closed, port = said[1:].partition("]")
        return name if closed and (not port or (port[0] == ":" and port[1:].isdigit())) else None
    name, _, port = said.partition(":")
    return name.removesuffix(".") if name and (port.isdigit() or said == name) else None


def is_foreign(site: str | None, mode: str | None) -> bool:
    """Return whether the page of somebody else asks, and not the reader who follows a link."""
    return site in ("cross-site", "same-site") and mode != "navigate"
