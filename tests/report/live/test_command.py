"""`intarsia watch` and `--no-page`, as commands."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
import urllib.request
from pathlib import Path

import tomli_w

import intarsia
from tests.cli.called import LOADED, _call, call
from tests.conftest import SMALL


def test_watch_prints_its_address_and_ends_quietly(tmp_path):
    intarsia.run(SMALL, out=tmp_path / "runs" / "one")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    out, err = tmp_path / "out", tmp_path / "err"
    arguments = ("watch", "runs", "--port", "0")
    process = context.Process(target=_call, args=(arguments, str(tmp_path), str(out), str(err)))
    process.start()
    address = told(out)
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert json.dumps("one")[1:-1] in answer.read().decode()
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert (process.exitcode, err.read_text()) == (0, "")
    assert out.read_text().count("\n") == 1


def told(out: Path) -> str:
    """Wait for the address that the command prints."""
    end = time.monotonic() + 90
    while not (found := re.search(r"http://127\.0\.0\.1:\d+/", out.read_text() if out.exists() else "")):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found[0]


def test_what_cannot_be_watched_is_an_error_that_helps(tmp_path):
    got = call("watch", "nowhere", cwd=tmp_path, code=2)
    assert "nowhere is not there: name folders of runs" in got.stderr
    got = call("watch", ".", "--host", "192.0.2.7", cwd=tmp_path, code=2)
    assert "no address of this machine" in got.stderr


def test_run_and_resume_draw_a_page_unless_told_otherwise(tmp_path):
    (tmp_path / "small.toml").write_text(tomli_w.dumps(SMALL))
    call("run", "small.toml", "--out", "plain", "--no-page", "-q", cwd=tmp_path)
    assert not (tmp_path / "plain" / "page.html").exists()
    call("resume", "plain", "--rounds", "4", "-q", cwd=tmp_path)
    assert "8 clients, 4 of 4 rounds" in (tmp_path / "plain" / "page.html").read_text()
    assert not (tmp_path / "plain" / "now.json").exists()
