"""The page that says what methods send is what they send."""

from __future__ import annotations

import pytest
from benchmarks.sent import PAGE, Played, hear_all, page

from intarsia.audit.sent import DOWN, UP
from intarsia.methods import METHODS


@pytest.fixture(scope="module")
def heard() -> dict[str, Played]:
    return hear_all()


def test_the_page_is_what_the_code_does(heard: dict[str, Played]) -> None:
    assert PAGE.read_text() == page(heard), "run: python -m benchmarks.sent"
    assert set(METHODS) <= heard.keys()


def test_every_name_in_a_message_has_a_meaning_and_every_meaning_a_name(heard: dict[str, Played]) -> None:
    assert {name for own in heard.values() for sent in own.sent for name in sent.up} == UP.keys()
    assert {name for own in heard.values() for sent in own.sent for name in sent.down} == DOWN.keys()


def test_what_methods_must_see_is_said(heard: dict[str, Played]) -> None:
    assert heard["modfl, cohorts found"].single
    assert not heard["modfl"].single
    assert not heard["fedavg"].single
