"""Threads of one process."""

from __future__ import annotations

import sys

import pytest

from intarsia.core import quick_turns


def test_turns_are_quick_within_and_as_before_afterwards():
    before = sys.getswitchinterval()
    with quick_turns():
        assert sys.getswitchinterval() < before / 10
    assert sys.getswitchinterval() == pytest.approx(before)


def test_turns_that_are_quicker_already_stay_so():
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        with quick_turns():
            assert sys.getswitchinterval() == pytest.approx(1e-5)
    finally:
        sys.setswitchinterval(before)
