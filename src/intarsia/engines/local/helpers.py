"""Helper processes for the server's own work: forked when there is some, gone when it is done."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from intarsia.core import IntarsiaError
from intarsia.engines.dealing import WorkerDied
from intarsia.engines.local.processes import cause_of, end_with
from intarsia.training import tune_allocator

T = TypeVar("T")
R = TypeVar("R")


class Elsewhere(Exception):  # noqa: N818
    """Where an error was raised that came from another process: the cause of that error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass
class _Helper:
    process: BaseProcess
    pipe: Connection
    item: int | None = None
    """Which item it is at."""

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@dataclass
class _Work:
    """What is to be done, and what is done."""

    start: Callable[[], _Helper]
    told: Callable[[str], object]
    waiting: deque[int]
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)
    killers: set[int] = field(default_factory=set)
    """Items that a helper died at."""


def side_by_side(
    function: Callable[[T], R], items: Sequence[T], processes: int, told: Callable[[str], object] = str
) -> list[R]:
    """Call a function with every item in forked processes, one thread each; return the results in order.

    A helper is a copy of this process as it is now, so function and items need not travel; results come back as
    bytes. After an error nothing new is begun; of all errors, the one of the first item is raised, as it was. The item
    of a helper that dies is done once more by another (`told` of it); if that dies too, it is an error.
    """
    work = _Work(lambda: _start(function, items), told, deque(range(len(items))))
    helpers: list[_Helper] = []
    try:
        for _ in range(min(processes, len(items))):
            helpers.append(work.start())
        _gather(helpers, work)
    finally:
        for helper in helpers:
            helper.end()
    if work.errors:
        raise work.errors[min(work.errors)]
    return [work.results[number] for number in range(len(items))]


def _start(function: Callable[[T], R], items: Sequence[T]) -> _Helper:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    arguments = (function, items, theirs, os.getpid())
    process = context.Process(target=_help, args=arguments, daemon=True, name="intarsia-helper")
    process.start()
    theirs.close()  # before the next one is forked: the end of this helper must be the end of its pipe
    return _Helper(process, ours)


def _gather(helpers: list[_Helper], work: _Work) -> None:
    busy = [helper for helper in helpers if _give(helper, work)]
    while busy:
        pipes = wait([helper.pipe for helper in busy])
        for helper in [one for one in busy if one.pipe in pipes]:
            if not _take(helper, work):
                busy.remove(helper)
                helper = _replaced(helper, helpers, work)
                busy.append(helper)
            if work.errors:
                work.waiting.clear()
            if not _give(helper, work):
                busy.remove(helper)


def _give(helper: _Helper, work: _Work) -> bool:
    helper.item = work.waiting.popleft() if work.waiting else None
    if helper.item is None:
        return False
    with suppress(OSError):  # it died: that is noticed when its answer is read
        helper.pipe.send(helper.item)
    return True


def _take(helper: _Helper, work: _Work) -> bool:
    """Take what a helper answered; return whether it is still there."""
    assert helper.item is not None
    try:
        answer = helper.pipe.recv_bytes()
    except (EOFError, OSError):
        return False
    take_answer(answer, helper.item, work.results, work.errors)
    return True


def take_answer(answer: bytes, item: int, results: dict[int, Any], errors: dict[int, BaseException]) -> None:
    """Put what came of an item to the results, or to the errors."""
    result, error, trace = pickle.loads(answer)  # noqa: S301 - written by a copy of this process
    if error is None:
        results[item] = result
    else:
        error.__cause__ = Elsewhere(trace)
        errors[item] = error


def _replaced(helper: _Helper, helpers: list[_Helper], work: _Work) -> _Helper:
    """Put another helper in the place of one that died; the item that it was at comes first."""
    assert helper.item is not None
    message = f"a helper process of the server ended by {cause_of(helper.process)}"
    if helper.item in work.killers:
        raise WorkerDied(f"{message}, as did the one before at the same piece of work")
    work.killers.add(helper.item)
    work.told(f"{message}; another does its work")
    work.waiting.appendleft(helper.item)
    helper.end()
    helpers[helpers.index(helper)] = other = work.start()
    return other


def _help(function: Callable[[T], R], items: Sequence[T], pipe: Connection, parent: int) -> None:
    """Be a helper: do the items that are named, until the parent ends this process."""
    end_with(parent)
    for ending in (signal.SIGINT, signal.SIGTERM):  # the process that started this one ends it
        signal.signal(ending, signal.SIG_IGN)
    torch.set_num_threads(1)
    tune_allocator()
    while True:
        number = pipe.recv()
        pipe.send_bytes(answer_of(function, items[number]))


def answer_of(function: Callable[[T], R], item: T) -> bytes:
    """Return what a function gives, or the error that it raises, as bytes."""
    # Plain pickle: a pipe's own would put tensors into shared memory that ends with this process.
    try:
        return pickle.dumps((function(item), None, ""))
    except Exception as error:  # noqa: BLE001 - raised again where it is awaited
        return pickle.dumps((None, portable(error), traceback.format_exc()))


def portable(error: Exception) -> Exception:
    """Return the error if it can be carried to another process, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - just written
    except Exception:  # noqa: BLE001 - whatever it is, it cannot be carried
        return IntarsiaError(f"{type(error).__name__}: {error}")
    return error
