"""What goes to one site in one exchange: the tasks of its clients, what they cost, and how they fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from intarsia.blocks import Address, Block, Traffic, Update
from intarsia.core import Refused, WireError
from intarsia.engines import Failure, Job, Reply
from intarsia.flower.messages import SiteMessage

Uses = dict[str, set[tuple[str, Address]]]
"""Which clients need a version, and at which address."""


@dataclass
class SiteTasks:
    """What goes to one site in one exchange, and what that costs."""

    site: str
    node: int
    jobs: Sequence[Job]
    merge: bool
    extra: set[str] = field(default_factory=set)
    """Versions that the site asked for although the server thought them held."""
    initial: set[str] = field(default_factory=set)
    """Blocks to start from that the site asked for."""
    tries: int = 0
    sent: list[Traffic] = field(default_factory=list)

    @property
    def who(self) -> str:
        """Whom the message is counted under: its client, or, if there are several, the site."""
        return self.jobs[0].task.client if len(self.jobs) == 1 else self.site

    def row(self, block: str, group: str, way: str, size: int, envelope: int, who: str = "") -> Traffic:
        """Return a line of traffic."""
        task = self.jobs[0].task
        head = (task.round, task.exchange, task.purpose, who or self.who)
        return Traffic(*head, block, group, way, size, envelope)  # type: ignore[arg-type]

    def uses(self) -> Uses:
        """Return the versions that must travel, and who uses them."""
        uses: Uses = defaultdict(set)
        for job in self.jobs:
            for address, version in job.task.versions.items():
                if address in job.task.blocks or version in self.extra:
                    uses[version].add((job.task.client, address))
        return uses

    def changes(self) -> dict[str, tuple[str, Block]]:
        """Return the versions that travel as coded changes: what they apply to, and the change."""
        return {
            job.task.versions[a]: (base, job.task.blocks[a])
            for job in self.jobs
            for a, base in job.task.changes.items()
            if job.task.versions[a] not in self.extra
        }

    def down(self, message: SiteMessage, uses: Uses) -> list[Traffic]:
        """Return the lines of traffic of a message to the site."""
        rows = []
        for name, block in message.blocks.items():
            used = uses.get(name, set())
            clients = {client for client, _ in used}
            address = min((address for _, address in used), default=None)
            who = min(clients) if len(clients) == 1 else self.site
            where = (address.block, address.group) if address else ("initial", "")
            rows.append(self.row(*where, "down", block.nbytes, block.envelope, who))
        return [*rows, self.row("", "", "down", 0, len(message.header_text()))]

    def up(self, update: Update) -> list[Traffic]:
        """Return the lines of traffic of a client's update."""
        named = [(a.block, a.group, b) for a, b in update.blocks.items()]
        named += [(name, "", b) for name, b in update.tensors.items()]
        return [self.row(n, g, "up", b.nbytes, b.envelope, update.client) for n, g, b in named]

    def refusal(self, client: str, error: Refused | WireError) -> Failure:
        """Return the failure of a client whose answer was not taken."""
        block = getattr(error, "block", "")
        where = f"site '{self.site}', client '{client}'" + (f", block {block!r}" if block else "")
        return Failure("refused", client, "merge", block, f"{where}: {error}")

    def fail(self, message: str, details: str = "", refused: bool = False) -> Iterator[Reply]:
        """Give every client of a site the same failure; what was sent has travelled all the same."""
        kind = "refused" if refused else "failed"
        for i, job in enumerate(self.jobs):
            client = job.task.client
            failure = Failure(
                kind, client, "carry", "", f"client '{client}': {message}", "" if i else details
            )
            yield Reply(client, failure=failure, sent=self.sent if i == 0 else ())
