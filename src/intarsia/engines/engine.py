"""An engine carries tasks to clients and updates back."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from intarsia.blocks import Address, Block, Fold, Layout, Task, Traffic, Update, decode_block
from intarsia.clients import State
from intarsia.core import ClientError, Refused, harmless, one_by_one, one_thread
from intarsia.engines.answers import check_answer
from intarsia.methods import EVALUATE
from intarsia.setup import Setup
from intarsia.trust import held_to_bound

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Job:
    """A task, the client state that it builds on, and the client's weight in a merge."""

    task: Task
    state: State
    samples: int


@dataclass(frozen=True)
class Failure:
    """A client's step that raised (`failed`), an update that was not merged (`refused`), a dead worker (`died`)."""

    kind: str
    client: str
    stage: str
    block: str
    message: str
    details: str = ""

    def __post_init__(self) -> None:
        """Make its texts harmless: they may come from another machine, and go to terminals and tables."""
        for name, text in vars(self).items():
            object.__setattr__(self, name, harmless(str(text)))

    def to_json(self) -> dict[str, str]:
        """Return the failure as plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Reply:
    """What came back for one job: an accepted update with its state and traffic, or a failure."""

    client: str
    update: Update | None = None
    state: State = field(default_factory=dict)
    traffic: Sequence[Traffic] = ()
    seconds: float = 0.0
    failure: Failure | None = None
    sent: Sequence[Traffic] | None = None
    """What the task cost on the wire, where the engine sent less than the task alone would (None: the task)."""


class Engine(ABC):
    """Carries one exchange at a time; results do not depend on which engine does it."""

    name: str

    @abstractmethod
    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs; yield a reply for each, in any order; of two for one client, the later counts.

        Accepted updates are added to the fold by the time that the last reply has been read (no fold: they come
        back unchecked, for someone else to merge). `content` has
        the block of every version that a task or the fold names. With `keep_blocks` the replies' updates
        keep their blocks.
        """

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do pieces of the server's work that do not depend on each other; here one after the other."""
        with one_thread():
            return one_by_one(function, items)

    def happened(self) -> list[Failure]:
        """Return what happened to the engine's workers, and to no client, since this was last asked."""
        return []

    def close(self) -> None:  # noqa: B027 - not every engine holds something
        """Let go of processes and memory."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def accept(setup: Setup, fold: Fold | None, job: Job, update: Update) -> Update:
    """Check an update against its task and add it to the fold, or refuse it; a merge that fails is named.

    Returns the update with full values, whatever code it travelled in; without a fold, as it is.
    """
    if fold is None:
        return update
    with merging(update):
        return _accept(setup, fold, job, update)


@contextmanager
def merging(update: Update) -> Iterator[None]:
    """Name whose update it was where checking or merging fails."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        where = f"client '{update.client}', round {update.round}, exchange '{update.exchange}', stage 'merge'"
        raise ClientError(
            f"{where}: {type(error).__name__}: {error}", stage="merge", details=traceback.format_exc()
        ) from error


def _accept(setup: Setup, fold: Fold, job: Job, update: Update) -> Update:
    task = job.task
    check_answer(setup, task, update)
    expected: dict[Address, Layout] = setup.layouts(task.client, task.plan)
    if setup.secure_sums.on:  # what would be done here, the client did before it masked
        fold.add(update.blocks, expected, job.samples, update.values)
        return update
    full = _decoded(setup, fold, expected, update)
    full = setup.method.admit(full, fold.present, setup.training.lr_in(task.round, setup.rounds))
    if setup.privacy.of_clients and task.purpose != EVALUATE:
        full = held_to_bound(full, fold, expected, task.values)
    fold.add(full.blocks, expected, job.samples, full.values)
    return full


def _decoded(setup: Setup, fold: Fold, expected: Mapping[Address, Layout], update: Update) -> Update:
    """Return the update with full values: what came, or changes added to the version that was sent."""
    if not setup.codec.lossy:
        return update
    blocks = {
        a: decode_block(setup.codec, b, fold.merge.view(fold.present[a], expected[a]), a.block)
        for a, b in update.blocks.items()
        if a in expected
    }
    return replace(update, blocks={**update.blocks, **blocks})


def failed(client: str, error: ClientError) -> Reply:
    """Return the reply of a client whose step raised."""
    failure = Failure("failed", client, error.stage, error.block, str(error), error.details)
    return Reply(client, failure=failure)


def refused(update: Update, error: Refused) -> Reply:
    """Return the reply of a client whose update was refused; its bytes travelled all the same."""
    where = f"client '{update.client}'{f', block {error.block!r}' if error.block else ''}"
    failure = Failure("refused", update.client, "merge", error.block, f"{where}: {error}")
    return Reply(update.client, traffic=update.traffic(), failure=failure)
