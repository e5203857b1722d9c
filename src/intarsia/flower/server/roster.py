"""Who is there: which site a node stands for, and which clients live at it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from flwr.proto.node_pb2 import NodeInfo

from intarsia.blocks.plain import read_json
from intarsia.core import CheckpointError, DataError, IntarsiaError, WireError, write_atomically
from intarsia.data import Client, ClientInfo, Population
from intarsia.flower.message_schema import HERE, PROBLEM, WHO, Aim, Here, Problem, Told, population_of, read
from intarsia.flower.messages import SiteMessage
from intarsia.flower.server.channel import QUERY, Channel, NoAnswer
from intarsia.flower.server.public_keys import fingerprint
from intarsia.flower.server.register import Register

T = TypeVar("T")

SITES = "sites.json"
PATIENCE = 60.0
"""Seconds before a node that did not say who it is is asked again."""
MOST_SAMPLES = 1_000_000
"""Training samples that a client may claim, unless the operator says otherwise: they are its weight."""


@dataclass(frozen=True)
class SiteRecord:
    """What the server knows of a site: what it told, and the key that told it."""

    here: Here
    key: str

    @property
    def name(self) -> str:
        """The name of the site."""
        return self.here.site

    @property
    def clients(self) -> Sequence[Told]:
        """What the site told of its clients, in no order."""
        return self.here.clients

    @property
    def goals(self) -> Mapping[str, Aim]:
        """What the clients of each task predict."""
        return self.here.goals

    @property
    def names(self) -> list[str]:
        """The clients at this site, in their order."""
        return [client.name for client in sorted(self.clients, key=lambda c: (c.place, c.name))]

    @cached_property
    def told(self) -> Mapping[str, Told]:
        """What the site told of each client."""
        return {client.name: client for client in self.clients}

    def info(self, client: str) -> ClientInfo:
        """Return what is known of a client."""
        return self.told[client].info

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        about = self.here.model_dump(exclude={"kind", "site"})
        return {"name": self.name, "key": self.key, **about}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SiteRecord:
        """Read a record that was written down; what no site may say is an error, as it is on the wire."""
        rest = {name: value for name, value in record.items() if name not in ("name", "key")}
        return _record({"kind": HERE, "site": record.get("name"), **rest}, str(record.get("key")))


@dataclass
class _Asked:
    node: int
    key: bytes
    until: float


@dataclass
class Claimed:
    """Who has a client, and who first said what a task predicts: a new site is compared with these alone."""

    clients: dict[str, SiteRecord] = field(default_factory=dict)
    tasks: dict[str, SiteRecord] = field(default_factory=dict)

    @classmethod
    def by(cls, sites: Iterable[SiteRecord]) -> Claimed:
        """Return what some sites claim."""
        claimed = cls()
        for site in sites:
            claimed.add(site)
        return claimed

    def add(self, site: SiteRecord) -> None:
        """Note what one more site claims."""
        self.clients |= dict.fromkeys(site.told, site)
        self.tasks = dict.fromkeys(site.goals, site) | self.tasks


@dataclass
class Roster:
    """Sites by name, and the node that each is reached by.

    `keys` are the public keys that may take part (None: every node that the SuperLink lets in): Flower 1.41 lets
    anyone who reaches its port register a node.
    """

    channel: Channel
    keys: Collection[bytes] | None
    log: Callable[[str], None]
    register: Register | None = None
    """Who owns which client, device and cohort (None: what a site says first counts)."""
    most: int = MOST_SAMPLES
    """Training samples that a client may claim."""
    needs: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Plug-ins that every site must have, by registry."""
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """All clients; those that came later stand behind."""
    joining: dict[str, SiteRecord] = field(default_factory=dict)
    """Sites that answered while a round was played; they join with the next."""
    _homes: dict[str, SiteRecord] = field(default_factory=dict)
    """The site of every client that takes part."""
    _site_of: dict[int, str] = field(default_factory=dict)
    _nodes: dict[str, list[int]] = field(default_factory=dict)
    """The nodes that each site was reached by."""
    _online: set[int] = field(default_factory=set)
    _claimed: Claimed = field(default_factory=lambda: Claimed())
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _shunned: dict[int, float] = field(default_factory=dict)
    _reasons: dict[int, str] = field(default_factory=dict)
    """Why nodes are not used, as it was told: the same is not told again."""

    def load(self, folder: Path) -> None:
        """Read who took part before; a record that no site may tell is left out, so that the site can join anew."""
        path = folder / SITES
        if not path.exists():
            return
        about = read_json(path.read_bytes(), str(path))
        if not isinstance(about.get("sites"), dict) or not isinstance(about.get("order"), list):
            raise CheckpointError(f"{path} is damaged: put back a copy, or start the run anew")
        sites = {}
        for name, record in about["sites"].items():
            try:
                sites[name] = SiteRecord.from_json(record)
            except (IntarsiaError, AttributeError) as error:
                self.log(f"site '{name}' must join anew, its record in {path} is not used: {error}")
        self._settle(sites, [name for name in about["order"] if isinstance(name, str)])

    def save(self, folder: Path) -> None:
        """Write down who takes part."""
        about = {"sites": {name: site.to_json() for name, site in self.sites.items()}, "order": self.order}
        write_atomically(folder / SITES, (json.dumps(about, indent=1) + "\n").encode())

    def node(self, site: str) -> int | None:
        """Return the node of a site, if it is connected."""
        return next((n for n in self._nodes.get(site, ()) if n in self._online), None)

    def site_of(self, client: str) -> SiteRecord:
        """Return the site that a client lives at."""
        return self._homes[client]

    def connected(self) -> list[str]:
        """Return the sites that are connected, those that are about to join included."""
        known = {*self.sites, *self.joining}
        return sorted(site for site in known if self.node(site) is not None)

    def refresh(self) -> None:
        """See which nodes are there, ask new ones who they are, and take what was answered."""
        nodes = {node.node_id: node for node in self.channel.nodes()}
        self._online = set(nodes)
        now = time.monotonic()
        asked = {entry.node for entry in self._asked.values()}
        for number, node in nodes.items():
            known = number in self._site_of or number in asked
            if not known and self._shunned.get(number, 0.0) < now and self._may_take_part(node, now):
                self._ask(number, node, now)
        for name, outcome in self.channel.receive(set(self._asked)):
            self._take(self._asked.pop(name), outcome, now)
        for name, entry in list(self._asked.items()):
            if entry.until < now or entry.node not in self._online:
                del self._asked[name]
                self.channel.forget([name])

    def wait(self, count: int, seconds: float) -> None:
        """Wait until so many sites are connected, and every node that is there has said who it is."""
        end = time.monotonic() + seconds
        self.refresh()
        while len(self.connected()) < count or self._asked:
            if time.monotonic() > end and len(self.connected()) < count:
                here = ", ".join(self.connected()) or "none"
                raise IntarsiaError(
                    f"{len(self.connected())} of {count} sites were there after {seconds:.0f} s: {here}. Start the "
                    "others (intarsia site, then the SuperNode), or ask for fewer (--run-config 'sites=...')"
                )
            self.channel.pause()
            self.refresh()

    def admit(self, build: Callable[[Population], T]) -> tuple[list[str], T]:
        """Let those that are joining in with whom a federation can be built; return their sites, and what was built.

        One that does not fit the others is left out and named; which one that is, the others decide.
        """
        waiting, self.joining = dict(sorted(self.joining.items())), {}
        try:
            return self._join(waiting, build)
        except Exception as error:  # whatever a site told may break what is built of it
            fitting = self._fitting(waiting, build)
            if not fitting and not self.sites:
                raise
            for name in waiting.keys() - fitting.keys():
                self._leave_out(name, error)
        return self._join(fitting, build)

    def _fitting(
        self, waiting: Mapping[str, SiteRecord], build: Callable[[Population], object]
    ) -> dict[str, SiteRecord]:
        """Return the sites that fit: all but one, if there is just one that does not; else those that fit in turn."""
        for odd in waiting if len(waiting) > 2 else ():
            rest = {name: site for name, site in waiting.items() if name != odd}
            if self._fits(rest, build):
                return rest
        found: dict[str, SiteRecord] = {}
        for name, site in waiting.items():
            if self._fits({**found, name: site}, build):
                found[name] = site
        return found

    def _fits(self, more: Mapping[str, SiteRecord], build: Callable[[Population], object]) -> bool:
        try:
            build(_population({**self.sites, **more}, self._order_with(more)))
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def _join(self, more: Mapping[str, SiteRecord], build: Callable[[Population], T]) -> tuple[list[str], T]:
        sites, order = {**self.sites, **more}, self._order_with(more)
        built = build(_population(sites, order))
        self._settle(sites, order)
        return sorted(more), built

    def _order_with(self, more: Mapping[str, SiteRecord]) -> list[str]:
        arrived = sorted((c.place, c.name) for site in more.values() for c in site.clients)
        return self.order + [name for _, name in arrived]

    def _settle(self, sites: dict[str, SiteRecord], order: Sequence[str]) -> None:
        """Take these sites for those that take part."""
        self.sites = sites
        self._claimed = Claimed.by((*sites.values(), *self.joining.values()))
        self._homes = {name: site for site in sites.values() for name in site.told}
        self.order = [name for name in order if name in self._homes]

    def _leave_out(self, site: str, error: Exception) -> None:
        for node in self._nodes.pop(site, []):
            self._site_of.pop(node, None)
            self._shunned[node] = time.monotonic() + 3600
        self.log(f"site '{site}' is not used, it does not fit the others: {error}")

    @cached_property
    def _allowed(self) -> Collection[object] | None:
        return None if self.keys is None else {fingerprint(key) for key in self.keys}

    def _may_take_part(self, node: NodeInfo, now: float) -> bool:
        listed = self._allowed is None or fingerprint(node.public_key) in self._allowed
        if listed and (self.register is None or self.register.site_of(node.public_key) is not None):
            return True
        self._shunned[node.node_id] = now + 3600
        self.log(f"node {node.node_id} is not used: its key is not on the list")
        return False

    def _ask(self, number: int, node: NodeInfo, now: float) -> None:
        name = self.channel.send(number, SiteMessage({"kind": WHO}), QUERY, PATIENCE)
        if name is not None:
            self._asked[name] = _Asked(number, node.public_key, now + PATIENCE)

    def _take(self, asked: _Asked, outcome: SiteMessage | NoAnswer, now: float) -> None:
        try:
            if isinstance(outcome, NoAnswer):
                raise WireError(outcome.reason)
            site = _record(outcome.header, asked.key.hex())
            if self.register is not None:
                self.register.check(site.here, asked.key)
            self._check(site)
        except IntarsiaError as error:
            self._shunned[asked.node] = now + 10
            if self._reasons.get(asked.node) != str(error):
                self.log(f"node {asked.node} is not used: {error}")
            self._reasons[asked.node] = str(error)
            return
        self._site_of[asked.node] = site.name
        self._nodes.setdefault(site.name, []).append(asked.node)
        if site.name not in self.sites and site.name not in self.joining:
            self.joining[site.name] = site
            self._claimed.add(site)
        self.log(f"site '{site.name}' is here: {len(site.clients)} clients")

    def _check(self, site: SiteRecord) -> None:
        """Refuse a site that does not fit the others, that takes another's place, or that claims too much."""
        _check_plugins(site, self.needs)
        known = self.sites.get(site.name) or self.joining.get(site.name)
        if known is not None:
            _check_same(known, site)
            return
        for client in site.clients:
            claimed = client.samples["train"]
            if claimed > self.most:
                raise DataError(
                    f"client '{client.name}' of site '{site.name}' claims {claimed} training samples; at most "
                    f"{self.most} are believed (most_samples of the app)"
                )
        both = site.told.keys() & self._claimed.clients.keys()
        if both:
            other = self._claimed.clients[min(both)]
            raise DataError(f"client '{min(both)}' of site '{site.name}' is at site '{other.name}' already")
        for task in site.goals.keys() & self._claimed.tasks.keys():
            _check_goal(task, self._claimed.tasks[task], site)


def _population(sites: Mapping[str, SiteRecord], order: Sequence[str]) -> Population:
    """Return the clients of some sites, without data."""
    where = {name: site for site in sites.values() for name in site.told}
    clients = {name: Client(where[name].info(name), {}) for name in order}
    goals: dict[str, Aim] = {}
    for name, client in clients.items():
        if client.info.task not in goals:
            goals[client.info.task] = where[name].goals[client.info.task]
    return population_of(clients, goals)


def _check_plugins(site: SiteRecord, needs: Mapping[str, Collection[str]]) -> None:
    """Refuse a site that lacks what the run is made of."""
    for word, names in needs.items():
        for name in sorted(set(names) - set(site.here.plugins.get(word, ()))):
            raise DataError(
                f"site '{site.name}' lacks '{name}' of {word}, which does not come with Intarsia: install there the "
                f"package that has it (entry points intarsia.{word}), or name the file in the site's own file "
                '(plugins = ["FILE.py"]), and start its agent again'
            )


def _check_same(before: SiteRecord, now: SiteRecord) -> None:
    """Refuse a site that comes back as another one."""
    name = now.name
    if before.key != now.key:
        raise DataError(f"there is a site '{name}' with another key already: rename one of them")
    if before.names != now.names:
        raise DataError(
            f"site '{name}' has other clients than before ({', '.join(before.names[:3])} ...): give the "
            "site with new clients another name"
        )
    for client, told in before.told.items():
        if told != now.told[client]:
            raise DataError(
                f"client '{client}' of site '{name}' had {_told(told)} before, and now has "
                f"{_told(now.told[client])}: put back what it was, or start another run"
            )
    if before.goals != now.goals:
        raise DataError(f"site '{name}' predicts other labels than before: put back its labels = [...]")


def _told(client: Told) -> str:
    counts = ", ".join(f"{n} {split}" for split, n in client.samples.items())
    return f"{counts} samples of shape {client.shape}, device '{client.device}', cohort '{client.cohort}'"


def _check_goal(task: str, one: SiteRecord, other: SiteRecord) -> None:
    mine, yours = one.goals[task], other.goals[task]
    if mine != yours:
        what = "labels" if mine.outputs == yours.outputs else "the number of labels"
        raise DataError(
            f"sites '{one.name}' and '{other.name}' differ in {what} that they predict "
            f"({mine.outputs} and {yours.outputs}); write the same labels = [...] in both site files"
        )


def _record(header: Mapping[str, Any], key: str) -> SiteRecord:
    here = read(header, (HERE, PROBLEM))
    if isinstance(here, Problem):
        raise WireError(f"{here.message}\n{here.details}")
    assert isinstance(here, Here)
    record = SiteRecord(here, key)
    if len(record.told) < len(here.clients):
        raise DataError(f"site '{here.site}' names a client twice")
    for client in here.clients:
        if client.task not in here.goals:
            raise DataError(f"site '{here.site}' does not say what task '{client.task}' predicts")
    return record
