"""The engine for debugging: one client after the other, everything through its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from intarsia.blocks import Block, BlockStore, Fold, Task, Update, received
from intarsia.clients import ClientRuntime
from intarsia.core import ClientError, Refused, one_thread
from intarsia.engines.engine import Engine, Job, Reply, accept, failed, refused
from intarsia.setup import Setup
from intarsia.training import tune_allocator
from intarsia.trust.guarding import guard_on_one_machine


class DebugEngine(Engine):
    """Runs clients in this process; a task and an update are used only as they would travel."""

    name = "debug"

    def __init__(self, setup: Setup, store: BlockStore, device: str = "cpu") -> None:
        tune_allocator()
        self.setup = setup
        guard = guard_on_one_machine(setup.secure_sums, store.folder.parent)
        self.runtime = ClientRuntime(setup, store, device, guard)

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs one by one."""
        for job in jobs:
            yield self._carry(job, content, fold, keep_blocks)

    def _carry(self, job: Job, content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool) -> Reply:
        task = Task.from_bytes(job.task.to_bytes())
        held = {v: content[v] for a, v in task.versions.items() if a not in task.blocks}
        held |= {base: content[base] for base in task.changes.values()}
        sent = {block.version: block for block in received(task, self.setup.codec, held).values()}
        try:
            with one_thread():
                answer = self.runtime.run(task, job.state, (held | sent).__getitem__)
            update = Update.from_bytes(answer.update.to_bytes())
            full = accept(self.setup, fold, job, update)
        except ClientError as error:
            return failed(task.client, error)
        except Refused as error:
            return refused(update, error)
        kept = full if keep_blocks else full.without_blocks()
        return Reply(task.client, kept, answer.state, update.traffic(), answer.seconds)
