"""Helper processes for the server's own work: forked when there is some, gone when it is done."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from intarsia.core import IntarsiaError
from intarsia.engines.local.processes import WorkerDied, cause_of, end_with
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


@dataclass
class _Done:
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)


def side_by_side(function: Callable[[T], R], items: Sequence[T], processes: int) -> list[R]:
    """Call a function with every item in forked processes, one thread each; return the results in order.

    A helper is a copy of this process as it is now, so function and items need not travel; results come back as
    bytes. After an error nothing new is begun; of all errors, the one of the first item is raised, as it was.
    """
    helpers: list[_Helper] = []
    try:
        for _ in range(min(processes, len(items))):
            helpers.append(_start(function, items))
        done = _gather(helpers, deque(range(len(items))))
    finally:
        for helper in helpers:
            helper.process.kill()
            helper.process.join()
            helper.pipe.close()
    if done.errors:
        raise done.errors[min(done.errors)]
    return [done.results[number] for number in range(len(items))]


def _start(function: Callable[[T], R], items: Sequence[T]) -> _Helper:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    arguments = (function, items, theirs, os.getpid())
    process = context.Process(target=_help, args=arguments, daemon=True, name="intarsia-helper")
    process.start()
    theirs.close()  # before the next one is forked: the end of this helper must be the end of its pipe
    return _Helper(process, ours)


def _gather(helpers: Sequence[_Helper], waiting: deque[int]) -> _Done:
    done, busy = _Done(), [helper for helper in helpers if _give(helper, waiting)]
    while busy:
        pipes = wait([helper.pipe for helper in busy])
        for helper in [one for one in busy if one.pipe in pipes]:
            _take(helper, done)
            if done.errors:
                waiting.clear()
            if not _give(helper, waiting):
                busy.remove(helper)
    return done


def _give(helper: _Helper, waiting: deque[int]) -> bool:
    helper.item = waiting.popleft() if waiting else None
    if helper.item is None:
        return False
    try:
        helper.pipe.send(helper.item)
    except OSError:
        raise _dead(helper) from None
    return True


def _take(helper: _Helper, done: _Done) -> None:
    assert helper.item is not None
    try:
        answer = helper.pipe.recv_bytes()
    except (EOFError, OSError):
        raise _dead(helper) from None
    result, error, trace = pickle.loads(answer)  # noqa: S301 - written by a copy of this process
    if error is None:
        done.results[helper.item] = result
    else:
        error.__cause__ = Elsewhere(trace)
        done.errors[helper.item] = error


def _dead(helper: _Helper) -> WorkerDied:
    return WorkerDied(f"a helper process of the server ended by {cause_of(helper.process)}")


def _help(function: Callable[[T], R], items: Sequence[T], pipe: Connection, parent: int) -> None:
    """Be a helper: do the items that are named, until the parent ends this process."""
    end_with(parent)
    for ending in (signal.SIGINT, signal.SIGTERM):  # the process that started this one ends it
        signal.signal(ending, signal.SIG_IGN)
    torch.set_num_threads(1)
    tune_allocator()
    while True:
        number = pipe.recv()
        pipe.send_bytes(_answer(function, items[number]))


def _answer(function: Callable[[T], R], item: T) -> bytes:
    # Plain pickle: a pipe's own would put tensors into shared memory that ends with this process.
    try:
        return pickle.dumps((function(item), None, ""))
    except Exception as error:  # noqa: BLE001 - raised again where it is awaited
        return pickle.dumps((None, _portable(error), traceback.format_exc()))


def _portable(error: Exception) -> Exception:
    """Return the error if it can be carried to another process, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - just written
    except Exception:  # noqa: BLE001 - whatever it is, it cannot be carried
        return IntarsiaError(f"{type(error).__name__}: {error}")
    return error
