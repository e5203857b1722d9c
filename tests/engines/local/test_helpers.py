"""Helper processes: the same results in the same order, errors as they were, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from intarsia.core import DataError, IntarsiaError
from intarsia.engines import WorkerDied
from intarsia.engines.local import helpers
from intarsia.engines.local.helpers import Elsewhere, side_by_side

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="helpers are forked")


@pytest.fixture(autouse=True)
def _none_left():
    yield
    assert not [p for p in multiprocessing.active_children() if p.name == "intarsia-helper"]


def test_results_come_back_in_the_order_of_the_items():
    def slow_at_first(number: int) -> tuple[int, torch.Tensor]:
        time.sleep(0.2 if number == 0 else 0.0)
        return number, torch.full((3,), float(number))

    found = side_by_side(slow_at_first, list(range(7)), 2)
    assert [number for number, _ in found] == list(range(7))
    assert all(torch.equal(tensor, torch.full((3,), float(number))) for number, tensor in found)


def test_pieces_run_elsewhere_with_one_thread_and_change_nothing_here():
    changed = []

    def piece(number: int) -> tuple[int, int]:
        changed.append(number)
        return os.getpid(), torch.get_num_threads()

    found = side_by_side(piece, list(range(9)), 2)
    assert len({process for process, _ in found} | {os.getpid()}) == 3
    assert {threads for _, threads in found} == {1}
    assert not changed


def test_there_are_no_more_helpers_than_items():
    assert side_by_side(str, [5], 4) == ["5"]
    assert side_by_side(str, [], 4) == []


def test_an_error_comes_back_as_it_was_and_nothing_new_is_begun(tmp_path: Path):
    def piece(number: int) -> None:
        (tmp_path / str(number)).touch()
        if number == 1:
            time.sleep(0.3)
            raise DataError("the second is bad")
        if number == 2:
            raise ValueError("the third is worse")

    with pytest.raises(DataError, match=r"^the second is bad$") as caught:
        side_by_side(piece, list(range(50)), 2)
    assert isinstance(caught.value.__cause__, Elsewhere)
    assert 'raise DataError("the second is bad")' in str(caught.value.__cause__)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_an_error_that_cannot_travel_is_told():
    class LocalError(Exception):
        pass

    def piece(number: int) -> None:
        raise LocalError(f"item {number}")

    with pytest.raises(IntarsiaError, match="LocalError: item 0"):
        side_by_side(piece, [0, 1], 2)


def test_a_result_that_cannot_travel_is_an_error():
    with pytest.raises(Exception, match="lambda"):
        side_by_side(lambda number: lambda: number, [0, 1], 2)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(7), "helper process of the server ended by exit code 7"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by signal 9; often: out of memory"),
    ],
)
def test_a_helper_that_dies_is_reported(end, words):
    with pytest.raises(WorkerDied, match=words):
        side_by_side(lambda number: end() if number == 3 else number, list(range(5)), 2)


def test_the_item_of_a_helper_that_is_killed_is_done_by_another(tmp_path):
    def piece(number: int) -> int:
        mark = tmp_path / str(number)
        if number in (1, 3) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    told: list[str] = []
    assert side_by_side(piece, list(range(6)), 2, told.append) == [0, 1, 4, 9, 16, 25]
    assert len(told) == 2
    assert all("ended by signal 9" in text and "another does its work" in text for text in told)


def test_an_interrupt_ends_the_helpers(monkeypatch):
    def interrupted(pipes: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(helpers, "wait", interrupted)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(lambda number: time.sleep(60), [0, 1], 2)
    assert time.monotonic() - start < 30
