"""An engine carries tasks to clients and updates back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.blocks import Address, Block, ClientError, Fold, Layout, Refused, Task, Traffic, Update
from intarsia.engines.client import State
from intarsia.engines.setup import Setup


@dataclass(frozen=True)
class Job:
    """A task, the client state that it builds on, and the client's weight in a merge."""

    task: Task
    state: State
    samples: int


@dataclass(frozen=True)
class Failure:
    """A client's step that raised (`failed`), or an update that was not merged (`refused`)."""

    kind: str
    client: str
    stage: str
    block: str
    message: str
    details: str = ""

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


class Engine(ABC):
    """Carries one exchange at a time; results do not depend on which engine does it."""

    name: str

    @abstractmethod
    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs; yield a reply for each, in any order.

        Accepted updates are added to the fold by the time that the last reply has been read. `content` has
        the block of every version that a task or the fold names. With `keep_blocks` the replies' updates
        keep their blocks.
        """

    def close(self) -> None:  # noqa: B027 - not every engine holds something
        """Let go of processes and memory."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def accept(setup: Setup, fold: Fold, job: Job, update: Update) -> None:
    """Check an update against its task and add it to the fold, or refuse it."""
    task = job.task
    asked = (task.run, task.round, task.exchange, task.client)
    got = (update.run, update.round, update.exchange, update.client)
    if asked != got:
        raise Refused(f"the update is for {got}, the task was {asked}")
    expected: dict[Address, Layout] = setup.layouts(task.client, task.plan)
    fold.add(update.blocks, expected, job.samples, update.values)


def failed(client: str, error: ClientError) -> Reply:
    """Return the reply of a client whose step raised."""
    failure = Failure("failed", client, error.stage, error.block, str(error), error.details)
    return Reply(client, failure=failure)


def refused(update: Update, error: Refused) -> Reply:
    """Return the reply of a client whose update was refused; its bytes travelled all the same."""
    where = f"client '{update.client}'{f', block {error.block!r}' if error.block else ''}"
    failure = Failure("refused", update.client, "merge", error.block, f"{where}: {error}")
    return Reply(update.client, traffic=update.traffic(), failure=failure)
