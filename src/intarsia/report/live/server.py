"""`intarsia watch`: a server that shows runs while they go on, and lets nobody change anything."""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from intarsia.core import IntarsiaError, SettingsError
from intarsia.report.live.answers import Answer, Refusal, answer_to, keys_in
from intarsia.report.live.folders import Folders
from intarsia.report.live.guard import (
    ALWAYS,
    ANSWER,
    MOST_LINE,
    NOTHING,
    PATIENCE,
    Head,
    is_foreign,
    is_ours,
)
from intarsia.report.live.watch import News, Watch

MOST_CONNECTIONS = 64
"""How many requests are answered at once."""
MOST_STREAMS = 32
"""How many of them may be streams of events, which stay."""
BEAT = 10.0
"""After how many quiet seconds a stream says that it is still there."""
PACE = 0.5
"""How many seconds lie between two events of a stream."""
RETRY = 2000
"""After how many milliseconds a browser tries again."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, watch: Watch) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.watch, self.host = watch, host
        self.connections = BoundedSemaphore(MOST_CONNECTIONS)
        self.streams = BoundedSemaphore(MOST_STREAMS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]  # without asking any DNS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; where there are too many, not at all."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that goes away is no error, and others have been answered."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "intarsia", ""
    timeout = PATIENCE

    def setup(self) -> None:
        super().setup()
        self.rfile = Head(self.rfile, self.connection)  # type: ignore[assignment, arg-type]

    def handle(self) -> None:
        """Answer one request."""
        self.close_connection = True
        self.requestline, self.request_version, self.command = "", "", ""
        try:
            self.raw_requestline = self.rfile.readline(MOST_LINE + 1)
            if len(self.raw_requestline) > MOST_LINE:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif self.raw_requestline and self.parse_request():
                self._checked()
        except (ConnectionError, TimeoutError):
            return

    def _checked(self) -> None:
        try:
            self._refuse_strangers()
            self._answer()
        except Refusal as refusal:
            self.send_error(refusal.status, refusal.reason)
        except IntarsiaError as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def _refuse_strangers(self) -> None:
        if self.command not in ("GET", "HEAD"):
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this server only shows: GET and HEAD")
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not is_ours(hosts[0], self.server.host):
            told = "this server does not go by that name; use the address that intarsia watch printed"
            raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, told)
        if is_foreign(self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")):
            raise Refusal(HTTPStatus.FORBIDDEN, "another site's page may not ask")
        if not self.path.startswith("/"):
            raise Refusal(HTTPStatus.BAD_REQUEST, "ask for a path")

    def _answer(self) -> None:
        try:
            asked = urlsplit(self.path)
            query = parse_qs(asked.query, max_num_fields=64, errors="strict")
        except ValueError:
            raise Refusal(HTTPStatus.BAD_REQUEST, "this is no address") from None
        if asked.path == "/events":
            self._stream(keys_in(query, self.server.watch), query.get("page", [""])[0])
            return
        answer = answer_to(asked.path, query, self.server.watch)
        if answer.version and self.headers.get("If-None-Match") == f'"{answer.version}"':
            answer = Answer(b"", answer.kind, answer.policy, answer.version, HTTPStatus.NOT_MODIFIED)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self._headers(answer.kind, answer.policy)
        if answer.version:
            self.send_header("ETag", f'"{answer.version}"')
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.connection.settimeout(ANSWER)
            self.wfile.write(answer.body)

    def _headers(self, kind: str, policy: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", policy)
        for name, value in ALWAYS.items():
            self.send_header(name, value)

    def _stream(self, keys: tuple[str, ...], page: str) -> None:
        """Tell of changes as server-sent events, until the browser goes or the server ends."""
        if not self.server.streams.acquire(blocking=False):
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} pages are open already: close some"
            )
        try:
            self.send_response(HTTPStatus.OK)
            self._headers("text/event-stream; charset=utf-8", NOTHING)
            self.end_headers()
            if self.command == "HEAD":
                return
            self._say(f"retry: {RETRY}\n\n")
            with self.server.watch.reader(keys):
                self._tell(keys, page)
        finally:
            self.server.streams.release()

    def _tell(self, keys: tuple[str, ...], page: str) -> None:
        watch = self.server.watch
        since = number_in(self.headers.get("Last-Event-ID"), watch.boot)
        watch.look()
        while not watch.ended:
            news = watch.news(keys, since, page, BEAT)
            if news.runs or news.gone or news.page != page or not since:
                self._say(event(watch.boot, news, whole=not since))
            else:
                self._say("event: beat\ndata: {}\n\n")
            since, page = news.number, news.page
            time.sleep(PACE)

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Say in a sentence what was wrong."""
        text = message or HTTPStatus(code).phrase
        self._send(Answer(f"{text}\n".encode(), "text/plain; charset=utf-8", NOTHING, "", HTTPStatus(code)))

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no record of who asked."""


def number_in(last: str | None, boot: str) -> int:
    """Return the number of the last event that a browser has seen; 0 where it was another server's, or is none."""
    mine, _, number = (last or "").partition("-")
    return int(number) if mine == boot and number.isdecimal() and len(number) < 16 else 0


def event(boot: str, news: News, whole: bool) -> str:
    """Return news as a server-sent event; `whole` says that there are no other runs than these."""
    about = {"whole": whole, "runs": news.runs, "gone": news.gone, "page": news.page, "at": int(time.time())}
    return f"id: {boot}-{news.number}\nevent: news\ndata: {json.dumps(about)}\n\n"


class Watching:
    """A server that shows the runs below some folders; `close` ends it."""

    def __init__(self, folders: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.watch = Watch(Folders.of(folders))
        self._server = _bound(host, port, self.watch)
        self._thread = Thread(
            target=self._server.serve_forever, args=(0.2,), name="intarsia-serving", daemon=True
        )

    @property
    def address(self) -> str:
        """Where it is to be found."""
        host, port = self._server.host, self._server.server_port
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def start(self) -> Watching:
        """Begin to answer, in threads of its own."""
        self.watch.start()
        self._thread.start()
        return self

    def wait(self) -> None:
        """Wait until it is ended, by Ctrl-C for example."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self.watch.stop()


def watching(folders: Sequence[str | Path], *, host: str = "127.0.0.1", port: int = 0) -> Watching:
    """Show the runs below some folders while they go on, at an address of this machine; `close()` ends it."""
    return Watching([Path(folder) for folder in folders], host, port).start()


def _bound(host: str, port: int, watch: Watch) -> _Server:
    try:
        return _Server(host, port, watch)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"--port: {port} is in use on this machine: end what listens there, or name another "
                "(--port 0 takes any that is free)"
            ) from None
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise SettingsError(f"--host: {host} is no address of this machine ({error.strerror})") from None
        if error.errno == errno.EACCES:
            raise SettingsError(f"--port: {port} is not for you to use: name one above 1023") from None
        raise
