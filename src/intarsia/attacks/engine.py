"""An engine with hostile clients in it: what they send is altered after training, knowing what the honest send."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from intarsia.attacks.rules import Attack, Known, moved, poisoned, poisoned_tensors
from intarsia.blocks import Address, Block, Fold, Update
from intarsia.core import ClientError, Refused
from intarsia.engines import Engine, Failure, Job, Reply
from intarsia.engines.engine import accept, failed, refused
from intarsia.methods import EVALUATE
from intarsia.setup import Setup
from intarsia.trust.stack import Stack


class AttackedEngine(Engine):
    """Lets another engine carry an exchange, alters what attackers answered, and only then checks and merges."""

    def __init__(self, inner: Engine, setup: Setup, attack: Attack, attackers: Collection[str]) -> None:
        self.name = f"attacked {inner.name}"
        self.inner = inner
        self.setup = setup
        self.attack = attack
        self.attackers = frozenset(attackers)

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs; attackers see all honest updates before they answer."""
        if fold is None or any(job.task.purpose == EVALUATE for job in jobs):
            yield from self.inner.exchange(jobs, content, fold, keep_blocks)
            return
        replies = {reply.client: reply for reply in self.inner.exchange(jobs, content, None, True)}
        honest = {
            name: reply.update
            for name, reply in sorted(replies.items())
            if reply.update is not None and name not in self.attackers
        }
        hostile = [n for n, r in replies.items() if r.update is not None and n in self.attackers]
        for job in jobs:
            yield self._accepted(job, replies[job.task.client], honest, hostile, fold, keep_blocks)

    def happened(self) -> list[Failure]:
        """Return what happened to the other engine's workers."""
        return self.inner.happened()

    def close(self) -> None:
        """Let go of what the other engine holds."""
        self.inner.close()

    def _accepted(
        self,
        job: Job,
        reply: Reply,
        honest: Mapping[str, Update],
        hostile: Sequence[str],
        fold: Fold,
        keep_blocks: bool,
    ) -> Reply:
        if reply.update is None:
            return reply
        update = reply.update
        if reply.client in self.attackers:
            update = self._altered(update, honest, len(hostile), fold)
        try:
            full = accept(self.setup, fold, job, update)
        except Refused as error:
            return refused(update, error)
        except ClientError as error:
            return failed(reply.client, error)
        return replace(reply, update=full if keep_blocks else full.without_blocks())

    def _altered(self, update: Update, honest: Mapping[str, Update], hostile: int, fold: Fold) -> Update:
        """Return what an attacker sends in place of what it trained."""
        if self.attack.answers:
            return replace(update, values=poisoned(update.values), tensors=poisoned_tensors(update.tensors))
        if self.attack.blocks is None:
            return update
        return replace(
            update,
            blocks={a: self._block(a, block, honest, hostile, fold) for a, block in update.blocks.items()},
        )

    def _block(
        self, address: Address, own: Block, honest: Mapping[str, Update], hostile: int, fold: Fold
    ) -> Block:
        assert self.attack.blocks is not None
        others = [u.blocks[address] for u in honest.values() if address in u.blocks]
        sent = fold.merge.view(fold.present[address], own.layout)
        # Where no honest client holds the block, there is nobody to harm, and nothing to know.
        known = Known(sent, own, Stack(sent, others or [own]), hostile)
        return moved(own, sent, self.attack.blocks(known))
