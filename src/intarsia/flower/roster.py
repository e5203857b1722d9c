"""Who is there: which site a node stands for, and which clients live at it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr.proto.node_pb2 import NodeInfo

from intarsia.blocks import DataError, IntarsiaError, WireError
from intarsia.data import Client, ClientInfo, Population
from intarsia.engines import write_atomically
from intarsia.flower.agent import HERE, PROBLEM, WHO
from intarsia.flower.certs import same_key
from intarsia.flower.parcel import Parcel
from intarsia.flower.post import QUERY, Post, Trouble
from intarsia.flower.site import info_from_json, population_of

SITES = "sites.json"
PATIENCE = 60.0
"""Seconds before a node that did not say who it is is asked again."""


@dataclass(frozen=True)
class SiteRecord:
    """What the server knows of a site."""

    name: str
    key: str
    clients: list[dict[str, Any]]
    goals: dict[str, dict[str, Any]]
    """What the clients of each task predict."""
    version: str = ""

    @property
    def names(self) -> list[str]:
        """The clients at this site, in their order."""
        return [c["name"] for c in sorted(self.clients, key=lambda c: (c["place"], c["name"]))]

    def info(self, client: str) -> ClientInfo:
        """Return what is known of a client."""
        entry = next(c for c in self.clients if c["name"] == client)
        return info_from_json({key: value for key, value in entry.items() if key != "place"})


@dataclass
class _Asked:
    node: int
    key: bytes
    until: float


@dataclass
class Roster:
    """Sites by name, and the node that each is reached by.

    `keys` are the public keys that may take part (None: every node that the SuperLink lets in): Flower 1.41 lets
    anyone who reaches its port register a node.
    """

    post: Post
    keys: Collection[bytes] | None
    log: Callable[[str], None]
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """All clients; those that came later stand behind."""
    newcomers: dict[str, SiteRecord] = field(default_factory=dict)
    """Sites that answered while a round was played; they join with the next."""
    _site_of: dict[int, str] = field(default_factory=dict)
    _online: set[int] = field(default_factory=set)
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _shunned: dict[int, float] = field(default_factory=dict)
    _reasons: dict[int, str] = field(default_factory=dict)
    """Why nodes are not used, as it was told: the same is not told again."""

    def load(self, folder: Path) -> None:
        """Read who took part before."""
        path = folder / SITES
        if path.exists():
            about = json.loads(path.read_bytes())
            self.sites = {name: SiteRecord(**record) for name, record in about["sites"].items()}
            self.order = about["order"]

    def save(self, folder: Path) -> None:
        """Write down who takes part."""
        about = {"sites": {name: asdict(site) for name, site in self.sites.items()}, "order": self.order}
        write_atomically(folder / SITES, (json.dumps(about, indent=1) + "\n").encode(), durable=True)

    def node(self, site: str) -> int | None:
        """Return the node of a site, if it is connected."""
        return next((n for n, s in self._site_of.items() if s == site and n in self._online), None)

    def site_of(self, client: str) -> SiteRecord:
        """Return the site that a client lives at."""
        return next(site for site in self.sites.values() if any(c["name"] == client for c in site.clients))

    def connected(self) -> list[str]:
        """Return the sites that are connected, those that are about to join included."""
        known = {*self.sites, *self.newcomers}
        return sorted(site for site in known if self.node(site) is not None)

    def refresh(self) -> None:
        """See which nodes are there, ask new ones who they are, and take what was answered."""
        nodes = {node.node_id: node for node in self.post.nodes()}
        self._online = set(nodes)
        now = time.monotonic()
        asked = {entry.node for entry in self._asked.values()}
        for number, node in nodes.items():
            known = number in self._site_of or number in asked
            if not known and self._shunned.get(number, 0.0) < now and self._may_take_part(node, now):
                self._ask(number, node, now)
        for name, outcome in self.post.receive(set(self._asked)):
            self._take(self._asked.pop(name), outcome, now)
        for name, entry in list(self._asked.items()):
            if entry.until < now or entry.node not in self._online:
                del self._asked[name]

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
            self.post.pause()
            self.refresh()

    def admit(self) -> list[str]:
        """Let the newcomers in; return the names of their sites."""
        names = sorted(self.newcomers)
        arrived = [(c["place"], c["name"]) for site in self.newcomers.values() for c in site.clients]
        self.order += [name for _, name in sorted(arrived)]
        self.sites |= self.newcomers
        self.newcomers = {}
        return names

    def population(self) -> Population:
        """Return all clients as the server knows them: without data."""
        where = {c["name"]: site for site in self.sites.values() for c in site.clients}
        clients = {name: Client(where[name].info(name), {}) for name in self.order}
        goals: dict[str, dict[str, Any]] = {}
        for name in self.order:
            task = clients[name].info.task
            goals.setdefault(task, where[name].goals[task])
        return population_of(clients, goals)

    def _may_take_part(self, node: NodeInfo, now: float) -> bool:
        if self.keys is None or any(same_key(node.public_key, key) for key in self.keys):
            return True
        self._shunned[node.node_id] = now + 3600
        self.log(f"node {node.node_id} is not used: its key is not on the list")
        return False

    def _ask(self, number: int, node: NodeInfo, now: float) -> None:
        name = self.post.send(number, Parcel({"kind": WHO}), QUERY, PATIENCE)
        if name is not None:
            self._asked[name] = _Asked(number, node.public_key, now + PATIENCE)

    def _take(self, asked: _Asked, outcome: Parcel | Trouble, now: float) -> None:
        try:
            if isinstance(outcome, Trouble):
                raise WireError(outcome.reason)
            if outcome.header.get("kind") == PROBLEM:
                raise WireError(f"{outcome.header.get('message')}\n{outcome.header.get('details')}")
            site = _record(outcome.header, asked.key.hex())
            self._check(site)
        except IntarsiaError as error:
            self._shunned[asked.node] = now + 10
            if self._reasons.get(asked.node) != str(error):
                self.log(f"node {asked.node} is not used: {error}")
            self._reasons[asked.node] = str(error)
            return
        self._site_of[asked.node] = site.name
        if site.name not in self.sites and site.name not in self.newcomers:
            self.newcomers[site.name] = site
        self.log(f"site '{site.name}' is here: {len(site.clients)} clients")

    def _check(self, site: SiteRecord) -> None:
        """Refuse a site that does not fit the others, or that takes another's place."""
        known = {**self.sites, **self.newcomers}
        if site.name in known:
            before = known[site.name]
            if before.key != site.key:
                raise DataError(f"there is a site '{site.name}' with another key already: rename one of them")
            if before.names != site.names:
                raise DataError(
                    f"site '{site.name}' has other clients than before ({', '.join(before.names[:3])} ...): give the "
                    "site with new clients another name"
                )
            return
        for other in known.values():
            both = set(other.names) & set(site.names)
            if both:
                raise DataError(
                    f"client '{min(both)}' of site '{site.name}' is at site '{other.name}' already"
                )
            for task in site.goals.keys() & other.goals.keys():
                _check_goal(task, other, site)


def _check_goal(task: str, one: SiteRecord, other: SiteRecord) -> None:
    mine, yours = one.goals[task], other.goals[task]
    if mine != yours:
        what = "labels" if mine["outputs"] == yours["outputs"] else "the number of labels"
        raise DataError(
            f"sites '{one.name}' and '{other.name}' differ in {what} that they predict "
            f"({mine['outputs']} and {yours['outputs']}); write the same labels = [...] in both site files"
        )


def _record(header: Mapping[str, Any], key: str) -> SiteRecord:
    try:
        if header["kind"] != HERE:
            raise WireError(f"asked who it is, it answered with {header['kind']!r}")
        fields = ("clients", "goals", "version")
        record = SiteRecord(header["site"], key, **{name: header[name] for name in fields})
        if not record.clients:
            raise DataError(f"site '{record.name}' has no clients")
        for name in record.names:
            population_of({}, {"": record.goals[record.info(name).task]})
        return record
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"it did not say who it is: {error!r}") from error
