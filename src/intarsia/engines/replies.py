"""The worker's side of an exchange, and how its replies travel: blocks it keeps, the sums of the present exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intarsia.blocks import Address, Block, Fold, Task, Traffic, Update
from intarsia.clients import Answer, ClientRuntime
from intarsia.core import ClientError, Refused
from intarsia.engines.engine import Failure, Job, Reply, accept, failed, refused
from intarsia.setup import Setup

Told = tuple[dict[str, Any], list[Block]]
"""A reply as it travels: plain values, and the blocks that they name."""


class WorkerSide:
    """Does jobs as they are told, and adds up what they give, until the sums are asked for."""

    def __init__(self, setup: Setup, runtime: ClientRuntime) -> None:
        self.setup = setup
        self.runtime = runtime
        self.blocks: dict[str, Block] = {}
        self.present: dict[Address, Block] = {}
        self.planned: dict[Address, int] = {}
        self.keep_blocks = False
        self.fold: Fold | None = None

    def begin(self, header: Mapping[str, Any]) -> None:
        """Begin an exchange: only some of the blocks are kept, and the sums are those of nothing."""
        self.blocks = {version: self.blocks[version] for version in header["keep"]}
        self.keep_blocks = header["blocks"]
        self.present, self.planned = {}, {}
        self.fold = self.setup.fold(self.present, self.planned) if header["merge"] else None

    def take(self, versions: Sequence[str], blocks: Sequence[Block]) -> None:
        """Keep blocks that came."""
        for version, block in zip(versions, blocks, strict=True):
            self.blocks[version] = block.copy(version)

    def jobs(self, header: Mapping[str, Any]) -> Iterator[Told]:
        """Do jobs; yield the replies in their order."""
        for text, version in header["present"].items():
            self.present[Address.parse(text)] = self.blocks[version]
            self.planned[Address.parse(text)] = header["planned"][text]
        jobs = [Job(Task.from_header(j["task"]), j["state"], j["samples"]) for j in header["jobs"]]
        tasks = [(job.task, job.state) for job in jobs]
        answers = self.runtime.run_together(tasks, self.blocks.__getitem__)
        for job, answer in zip(jobs, answers, strict=True):
            yield self._reply(job, answer)

    def sums(self) -> Told:
        """Return the sums of the exchange."""
        header, tensors = self.fold.dump() if self.fold else ({}, Block({}))
        return {"sums": header}, [tensors]

    def _reply(self, job: Job, answer: Answer | ClientError) -> Told:
        if isinstance(answer, ClientError):
            return _as_json(failed(job.task.client, answer)), []
        update = answer.update
        try:
            full = accept(self.setup, self.fold, job, update)
        except ClientError as error:
            return _as_json(failed(job.task.client, error)), []
        except Refused as error:
            return _as_json(refused(update, error)), []
        kept = full if self.keep_blocks else full.without_blocks()
        reply = Reply(update.client, kept, answer.state, update.traffic(), answer.seconds)
        return _as_json(reply), kept.records()


def _as_json(reply: Reply) -> dict[str, Any]:
    return {
        "failure": reply.failure.to_json() if reply.failure else None,
        "update": reply.update.header() if reply.update else None,
        "records": len(reply.update.records()) if reply.update else 0,
        "state": reply.state,
        "traffic": [[r.block, r.group, r.direction, r.bytes, r.envelope] for r in reply.traffic],
        "seconds": reply.seconds,
    }


def as_reply(header: Mapping[str, Any], records: Sequence[Block], task: Task) -> Reply:
    """Return a reply that travelled."""
    rows = [Traffic(task.round, task.exchange, task.purpose, task.client, *row) for row in header["traffic"]]
    if header["failure"]:
        return Reply(task.client, traffic=rows, failure=Failure(**header["failure"]))
    update = Update.from_header(header["update"], records)
    return Reply(task.client, update, header["state"], rows, header["seconds"])
