"""The port of a site's agent: who may speak to it, for how long, and how much."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from intarsia.core import SettingsError, WireError
from intarsia.flower.messages import PIECE, SiteMessage, take_bytes
from intarsia.flower.site.agent import Agent, Log
from intarsia.flower.site.site_file import Site
from intarsia.runs import lock

SOCKET_PATH_LIMIT = 100
SILENCE = 30.0
"""Seconds after which a connection that says nothing is closed: others wait for it."""
PATIENCE = 600.0
"""Seconds that a message may take to come in, or an answer to go out."""


def serve(site: Site, log: Log = print) -> None:
    """Be the agent of a site until a signal ends it."""
    mine = lock(site.open_state() / "lock", f"{site.state} is in use by an agent that is still running")
    agent = Agent(site, log)
    with mine, _listen(site) as listener:
        secret = _secret(site)
        counts = sum(info.train_samples for info in agent.population.infos)
        log(
            f"site '{site.name}': {len(agent.population)} clients, {counts} training samples; at {site.address}"
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    _handle(agent, connection, secret)
        except KeyboardInterrupt:
            log("stopped")
        finally:
            agent.close()
            if not secret:
                Path(site.address).unlink(missing_ok=True)


def _handle(agent: Agent, connection: socket.socket, secret: bytes) -> None:
    """Answer one connection; whatever it sends, or does not, the next one is answered too."""
    read_some = _reader(connection)
    try:
        if secret and not secrets.compare_digest(take_bytes(read_some, len(secret)), secret):
            agent.log("a connection without the token was refused")
            return
        message = SiteMessage.read(read_some, agent.site.largest)
    except (WireError, OSError) as error:
        agent.log(f"a message was refused: {error}")
        return
    reply = agent.answer(message)
    connection.settimeout(PATIENCE)
    with suppress(OSError):  # the relay was killed; the server will ask again
        for piece in reply.frame():
            connection.sendall(piece)


def _reader(connection: socket.socket) -> Callable[[int], bytes]:
    """Return a function that reads up to so many bytes, and gives up on a side that is silent or too slow."""
    end = time.monotonic() + PATIENCE

    def read_some(size: int) -> bytes:
        connection.settimeout(min(SILENCE, max(0.001, end - time.monotonic())))
        return connection.recv(min(size, PIECE))

    return read_some


def _listen(site: Site) -> socket.socket:
    host, _, port = site.address.rpartition(":")
    if host and port.isdigit():
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            raise SettingsError(f"listen: the agent serves this machine alone: write 127.0.0.1:{port}")
        return socket.create_server((host.strip("[]"), int(port)))
    if len(site.address.encode()) > SOCKET_PATH_LIMIT:
        raise SettingsError(
            f"listen: {site.address} is too long for a socket: set folder to a shorter path, or write 127.0.0.1:PORT"
        )
    Path(site.address).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)
    try:
        listener.bind(site.address)
    finally:
        os.umask(before)
    listener.listen()
    return listener


def _secret(site: Site) -> bytes:
    """Return the token that a connection over loopback must bring; the file is made anew at each start."""
    host, _, port = site.address.rpartition(":")
    if not (host and port.isdigit()):
        return b""
    path = site.state / "token"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path.read_bytes()
