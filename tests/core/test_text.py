from __future__ import annotations

import io

import pytest
from rich.console import Console

from intarsia.cli.terminal import complain, errors
from intarsia.core import file_name, harmless, harmless_values
from intarsia.engines import Failure, Reply
from intarsia.experiment import fresh_folder
from intarsia.experiment.progress import Progress

BAD = "\x1b[2J\x1b]0;owned\x07 \x9b31m \r hidden \u202e \ud800 \x7f"


def is_harmless(text: str) -> bool:
    text.encode()
    return not any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 or c == "\u202e" for c in text)


def test_a_plain_text_shows_what_a_terminal_would_obey():
    assert harmless("a\tb\nc é 漢") == "a\tb\nc é 漢"
    assert harmless("\x1b[92mINFO\x1b[0m: x") == "INFO: x"
    assert harmless("\x1b[2J\r") == "\\x1b[2J\\r"
    assert is_harmless(harmless(BAD))
    assert is_harmless(str(harmless_values({"a\x1b": [BAD, 1, None, {"b": BAD}]})))


def test_a_failure_is_harmless_on_the_screen_and_in_the_events():
    """Its texts come from another machine: none moves the cursor, or passes for a line of ours."""
    ours = "\n[intarsia] the run has ended"
    failure = Failure("[/]failed", "c", "", "", f"{BAD}{ours}", f"[bold]x\n{BAD}{ours}")
    assert all(is_harmless(text) for text in failure.to_json().values())
    screen = io.StringIO()
    Progress(Console(file=screen, width=200, force_terminal=False)).replied(Reply("c", failure=failure))
    said = screen.getvalue()
    assert is_harmless(said)
    assert "owned" in said
    assert not [line for line in said.splitlines() if line.startswith("[intarsia]")]


def test_an_error_that_quotes_others_is_harmless():
    with errors.capture() as screen:
        complain(BAD)
    assert "owned" in screen.get()
    assert is_harmless(screen.get())


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..\\x", "a/b", "x\0"])
def test_a_name_stays_in_its_folder(tmp_path, name):
    assert (tmp_path / file_name(name)).parent == tmp_path
    assert fresh_folder(tmp_path, name).parent == tmp_path
    assert file_name("quickstart v1.2 (é)") == "quickstart v1.2 (é)"
