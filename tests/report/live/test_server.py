"""The server of `intarsia watch`, asked as browsers and as strangers ask."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import pytest

import intarsia
from intarsia.core import SettingsError
from intarsia.report.live import Watching, guard, watching
from intarsia.report.live.guard import is_ours
from intarsia.report.live.server import MOST_CONNECTIONS, MOST_STREAMS
from tests.conftest import SMALL

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, the same one under an evil name, damaged, and behind links."""
    home = tmp_path_factory.mktemp("watched")
    intarsia.run(SMALL, out=home / "runs" / "good")
    shutil.copytree(home / "runs" / "good", home / "runs" / EVIL)
    shutil.copytree(home / "runs" / "good", home / "runs" / "damaged")
    (home / "runs" / "damaged" / "metrics.jsonl").write_text('{"round": 1}\n')
    shutil.copytree(home / "runs" / "good", home / "runs" / "linked")
    (home / "runs" / "linked" / "notes.jsonl").unlink()
    (home / "runs" / "linked" / "notes.jsonl").symlink_to("/etc/passwd")
    shutil.copytree(home / "runs" / "good", home / "outside")
    (home / "runs" / "elsewhere").symlink_to(home / "outside")
    return home / "runs"


@pytest.fixture(scope="module")
def server(played: Path) -> Iterator[Watching]:
    shown = watching([played])
    yield shown
    shown.close()


def ask(server: Watching, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Ask with exactly this path."""
    connection = http.client.HTTPConnection("127.0.0.1", server._server.server_port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in named)
    for name, value in named.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def keys(server: Watching) -> dict[str, str]:
    return {own["name"]: own["key"] for own in server.watch.standings()}


def test_it_serves_all_runs_and_each_ones_page(server):
    assert sorted(keys(server)) == sorted([EVIL, "damaged", "good", "linked"])
    status, headers, text = ask(server, "/")
    assert status == 200
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    allowed = re.search("script-src ([^;]*);", text)[1].split()
    assert all(own.startswith("'sha256-") for own in allowed)
    assert len(allowed) == len(re.findall("<script>", text[: text.index("<main>")]))
    status, _, text = ask(server, f"/run/{keys(server)['good']}")
    assert status == 200
    assert "<h2>Accuracy by round</h2>" in text
    assert "<h2>Mosaic</h2>" in text
    status, headers, part = ask(server, f"/run/{keys(server)['good']}/sections")
    assert (status, len(part) < len(text) / 10) == (200, True)
    assert "<script>" not in part
    version = headers["ETag"]
    assert ask(server, f"/run/{keys(server)['good']}/sections", If_None_Match=version)[0] == 304
    both = "&".join(f"run={keys(server)[name]}" for name in ("good", EVIL))
    status, _, text = ask(server, f"/compare?{both}")
    assert status == 200
    assert "<h1>Comparison</h1>" in text
    assert ask(server, f"/run/{keys(server)['good']}", "HEAD")[2] == ""


def test_every_name_is_text(server):
    for path in ("/", f"/run/{keys(server)[EVIL]}", f"/run/{keys(server)[EVIL]}/sections"):
        assert "<img" not in ask(server, path)[2].partition("<main>")[2]
        assert "<img src" not in ask(server, path)[2].partition("</script>")[0].partition("<script>")[0]


def test_a_damaged_folder_and_a_link_are_named_and_the_server_goes_on(server):
    status, _, text = ask(server, f"/run/{keys(server)['damaged']}")
    assert status == 200
    assert re.search("This cannot be drawn.*damaged: .*metrics.jsonl, line 1 is damaged", text)
    status, _, text = ask(server, f"/run/{keys(server)['linked']}")
    assert "linked/notes.jsonl is a link, or no plain file" in text
    assert "root:x:" not in text
    assert ask(server, "/")[0] == 200


@pytest.mark.parametrize(
    ("host", "listening", "ours"),
    [
        ("localhost:8787", "127.0.0.1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("127.0.0.1:99", "127.0.0.1", True),
        ("[::1]:8787", "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("10.0.0.7:8787", "127.0.0.1", False),
        ("127.0.0.1@evil", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("[::1", "127.0.0.1", False),
        ("10.0.0.7:8787", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("box.lab:8787", "box.lab", True),
    ],
)
def test_only_its_own_names_are_answered(host, listening, ours):
    assert is_ours(host, listening) is ours


def test_strangers_get_nothing(server):
    assert ask(server, "/", Host="evil.example")[0] == 421
    assert ask(server, "/events", Host="evil.example:80")[0] == 421
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"):
        status, headers, _ = ask(server, "/", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../../../../etc/passwd",
        "/run/../../../../etc/passwd",
        "/run/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/run/good",
        "/run/good/settings.toml",
        "/run/",
        "//run/..",
        "/compare/../run/x",
        "/events/x",
        "/run/elsewhere",
        "/favicon.ico",
    ],
)
def test_no_path_leads_anywhere_else(server, path):
    assert ask(server, path)[0] == 404


def test_odd_requests_are_refused(server):
    for path in ("http://evil.example/", "*", "run/x"):
        assert ask(server, path, Host="localhost")[0] == 400
    for query in ("", "?run=", "?" + "&".join(f"run={n}" for n in range(13)), "?run=%ff"):
        assert ask(server, f"/compare{query}")[0] in (400, 404)
    assert ask(server, "/" + "x" * 5000)[0] == 414
    assert ask(server, "/", X_Long="x" * 20_000)[0] == 431
    assert ask(server, "/", **{f"X_{n}": "x" * 300 for n in range(90)})[0] == 431
    for text in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n"):
        assert b" 421 " in raw(server, text)
    for text in (b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\xfc\x03\r\n", b"GET / HTTP/9\r\n\r\n"):
        assert b" 200 " not in raw(server, text)
    assert ask(server, "/")[0] == 200


def raw(server: Watching, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server._server.server_port), timeout=10) as line:
        line.sendall(text)
        line.shutdown(socket.SHUT_WR)
        return line.recv(1000)


@contextmanager
def all_taken(bound: BoundedSemaphore, most: int) -> Iterator[None]:
    """Take all there is, also what somebody is about to give back."""
    for _ in range(most):
        assert bound.acquire(timeout=20)
    yield
    for _ in range(most):
        bound.release()


def test_streams_and_connections_are_bounded(server):
    with all_taken(server._server.streams, MOST_STREAMS):
        status, _, text = ask(server, "/events")
        assert (status, "close some" in text) == (503, True)
    refused = pytest.raises((http.client.HTTPException, ConnectionError))
    with all_taken(server._server.connections, MOST_CONNECTIONS), refused:
        ask(server, "/")
    assert ask(server, "/")[0] == 200


def test_who_sends_a_byte_now_and_then_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(guard, "PATIENCE", 0.5)
    with socket.create_connection(("127.0.0.1", server._server.server_port), timeout=5) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):  # noqa: PT012 - which of them meets the end depends on the machine
            for _ in range(100):
                slow.sendall(b"a")
                time.sleep(0.1)


class Stream:
    """A stream of events, as a browser reads it."""

    def __init__(self, server: Watching, path: str = "/events", **headers: str) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", server._server.server_port, timeout=20)
        self._line.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self.answer = self._line.getresponse()

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            found[name] = value
        return found

    def close(self) -> None:
        self.answer.close()
        self._line.close()


def test_events_have_numbers_and_go_on_where_a_browser_left(server, monkeypatch):
    monkeypatch.setattr("intarsia.report.live.server.BEAT", 0.1)
    stream = Stream(server)
    assert stream.answer.getheader("Content-Type").startswith("text/event-stream")
    assert int(stream.next()["retry"]) > 0
    first = stream.next()
    news = json.loads(first["data"])
    assert (first["event"], news["whole"], len(news["runs"])) == ("news", True, 4)
    assert first["id"] == f"{server.watch.boot}-{server.watch.number}"
    assert stream.next() == {"event": "beat", "data": "{}"}
    stream.close()
    again = Stream(server, Last_Event_ID=first["id"])
    again.next()
    assert again.next()["event"] == "beat"
    again.close()
    for other in ("00000000-9", "x", f"{server.watch.boot}-x"):
        foreign = Stream(server, Last_Event_ID=other)
        foreign.next()
        assert json.loads(foreign.next()["data"])["whole"] is True
        foreign.close()


def test_a_new_run_and_one_that_is_gone_are_news(server, played, monkeypatch):
    monkeypatch.setattr("intarsia.report.live.watch.SCAN", 0.1)
    monkeypatch.setattr("intarsia.report.live.watch.TICK", 0.1)
    monkeypatch.setattr("intarsia.report.live.server.PACE", 0.05)
    server.watch._scan = 0.0
    stream = Stream(server)
    stream.next()
    stream.next()
    shutil.copytree(played / "good", played / "late")
    news = json.loads(stream.next()["data"])
    assert [own["name"] for own in news["runs"].values()] == ["late"]
    shutil.rmtree(played / "late")
    while not (gone := json.loads(stream.next()["data"])).get("gone"):
        pass
    assert gone["gone"] == list(news["runs"])
    stream.close()


def test_a_port_in_use_and_a_strange_host_are_errors_that_help(server, played):
    with pytest.raises(SettingsError, match=r"is in use on this machine.*--port 0"):
        watching([played], port=server._server.server_port)
    with pytest.raises(SettingsError, match="no address of this machine"):
        watching([played], host="192.0.2.1")
