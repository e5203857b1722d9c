"""Privacy on the page and in the terminal."""

from __future__ import annotations

import pytest

from intarsia.report.sections.privacy import SpentPrivacy, privacy_line

pytest.importorskip("dp_accounting")

CLIENT = {
    "level": "client",
    "epsilon": 1.234,
    "delta": 1e-3,
    "budget": 2.0,
    "randomness": "keyed",
    "addresses": {"head@<b>": {"releases": 3, "epsilon": 1.2}},
}
EXAMPLE = {
    "level": "example",
    "epsilon": 4.0,
    "delta": 1e-2,
    "budget": 0.0,
    "randomness": "system",
    "clients": {"one": {"times": 1, "epsilon": 2.0}, "two": {"times": 2, "epsilon": 4.0}},
}


def test_what_was_spent_is_said_in_a_sentence():
    said = privacy_line({"privacy": CLIENT})
    assert (
        said
        == "Spent of a client's privacy: epsilon 1.23 of a budget of 2, delta 1.0e-03; keyed noise: a simulation"
    )
    assert privacy_line({"privacy": EXAMPLE}) == "Spent of the privacy of a sample: epsilon 4, delta 1.0e-02"
    assert privacy_line({}) == ""


def test_the_page_has_a_line_for_every_address_or_client():
    ((head, body),) = SpentPrivacy({"privacy": CLIENT}).parts("<run>")
    assert "&lt;run&gt;" in head
    assert "head@&lt;b&gt;" in body
    ((_, body),) = SpentPrivacy({"privacy": EXAMPLE}).parts("run")
    assert body.index(">two<") < body.index(">one<")


def test_a_run_shows_it_only_where_there_is_privacy(small_run):
    assert SpentPrivacy.read(small_run("rounds=1")) is None
    run = small_run("rounds=1", "privacy.clip=1.0", "privacy.noise=1.0", out="private")
    assert SpentPrivacy.read(run) is not None
