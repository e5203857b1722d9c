"""The workers of a cluster, as a run sees them: who is there, who came, who has gone; and calls to them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import queue
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch

from intarsia.core import IntarsiaError, SettingsError, Versions, harmless, versions_here, warn
from intarsia.engines.cluster.lines import PLAIN, Caller, Listening
from intarsia.engines.cluster.own_blocks import Kept
from intarsia.engines.dealing import Lane

PATIENCE = 30.0
"""Seconds to wait for a scheduler, and at first for a worker."""
START = 120.0
"""Seconds that a worker has to begin with anything: one that is paused for its memory does not."""
AGAIN = 5.0
"""Seconds until a worker that was lost, but not for the scheduler, is asked to take part again."""
ANSWER = 10.0
"""Seconds that a scheduler has to say that it is there."""
REACH = 2.0
"""Seconds to try whether workers can be reached from here, past the scheduler."""
COMPARED = ("intarsia", "torch", "python")
_RUNS = itertools.count()


class ClusterActor:
    """What a run has in a worker; it is gone when the run's connection is."""

    def about(self) -> dict[str, Any]:
        """Return which versions are here, and how the processor computes."""
        return {"versions": versions_here(), "processor": torch.backends.cpu.get_cpu_capability()}


@dataclass(frozen=True)
class Tls:
    """Paths of what a connection is encrypted and known by."""

    ca: str
    certificate: str
    key: str


@dataclass(eq=False)
class Member(Lane):
    """A worker that takes part in the run."""

    address: str = field(kw_only=True)
    actor: Any = field(kw_only=True)
    processor: str = field(kw_only=True)
    caller: Caller | None = None
    """Its line, if it has one."""
    kept: Kept = field(default_factory=Kept)
    busy: bool = False
    """Whether it has a call to answer."""
    loaded: int = 0
    """Which piece of the server's own work it has."""


@dataclass(frozen=True)
class Came:
    """What a call gave: an answer, or an error of the worker's."""

    member: Member
    answer: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Gone:
    """A worker that is not there any more; the member that did not answer, if that is how it was noticed."""

    address: str
    member: Member | None = None


@dataclass(frozen=True)
class Joined:
    """A worker that is ready and takes part from now on."""

    member: Member


@dataclass(frozen=True)
class Unfit:
    """A worker that cannot take part, and why."""

    address: str
    reason: str


Happening = Came | Gone | Joined | Unfit


Prepare = Callable[[Any], Awaitable[None]]
"""Makes an actor ready; what it raises says why its worker cannot take part."""


async def _done(future: Any) -> None:
    await future


async def _ready(actor: Any) -> None:
    """Let an actor take part as it is."""


class Cluster:
    """A connection to a scheduler; whatever happens is told by `next`, in the thread that asks for it."""

    def __init__(
        self, scheduler: str, tls: Tls | None, kind: type[ClusterActor], prepare: Prepare = _ready
    ) -> None:
        self.scheduler = scheduler
        self._kind = kind
        self._prepare = prepare
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._client = connected(scheduler, tls)
        self._run = f"{self._client.id}-{next(_RUNS)}"
        self._connection = self._client.scheduler_comm
        self._actors: dict[str, Any] = {}
        self._paused: set[str] = set()
        self._shut: set[str] = set()
        """Hosts whose ports for lines a firewall hides."""
        self._callers: dict[str, Caller] = {}
        self._client.subscribe_topic("all", self._told)
        there = list(self._client.nthreads())
        self.direct = bool(there) and all(map(reachable, there))
        self._client.direct_to_workers = self.direct
        for address in there:
            self._join(address)
        self.expected = frozenset(there)
        """The workers that were there at the beginning: each is told of as joined, gone or unfit."""

    @property
    def connected(self) -> bool:
        """Whether the scheduler is there, and always was: one that comes back knows nothing of this run."""
        return self._client.status == "running" and self._client.scheduler_comm is self._connection

    def alive(self) -> bool:
        """Ask the scheduler whether it is there: without one, workers end by themselves."""
        with suppress(Exception):  # whatever it is: it did not answer
            self._client.sync(self._client.scheduler.echo, data="", callback_timeout=ANSWER)
            return self.connected
        return False

    def paused(self, address: str) -> bool:
        """Return whether a worker has too little memory left to be given anything."""
        return address in self._paused

    def next(self, seconds: float | None = None) -> Happening | None:
        """Wait for what happens next; None if nothing does, in so many seconds."""
        with suppress(queue.Empty):
            return self._happenings.get(timeout=seconds)
        return None

    def call(self, member: Member, method: str, *arguments: Any) -> None:
        """Let a worker do something; what comes of it is told by `next`."""
        member.busy = True
        if member.caller is None:
            self._soon(self._called(member, method, *arguments))
        else:
            member.caller.call(method, arguments, partial(self._came, member))

    def close(self) -> None:
        """Let go of what the run has in the workers, and of the connection."""
        for address in list(self._callers):
            self._hang_up(address)
        if not self.connected:
            logging.getLogger("distributed.client").setLevel(
                logging.CRITICAL
            )  # it tells how it looked, at length
        with suppress(Exception):  # of a scheduler that is not there any more, of any kind
            self._client.unsubscribe_topic("all")
        with suppress(OSError, TimeoutError, RuntimeError):
            self._client.close(timeout=ANSWER)

    def _hang_up(self, address: str) -> None:
        if caller := self._callers.pop(address, None):
            caller.close()

    def _soon(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._client.loop.asyncio_loop)

    async def _called(self, member: Member, method: str, *arguments: Any) -> None:
        try:
            answer = await getattr(member.actor, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a worker raises is told by name
            self._came(member, None, error)
        else:
            self._came(member, answer, None)

    def _came(self, member: Member, answer: Any, error: Exception | None) -> None:
        lost = error is not None and _lost(error)
        if lost:
            self._later(partial(self._again, member.address, self._actors.get(member.address)))
        self._happenings.put(Gone(member.address, member) if lost else Came(member, answer, error))

    def _told(self, event: tuple[float, Any]) -> None:
        """Hear of workers that come and go, in the connection's own thread."""
        about = event[1] if isinstance(event[1], dict) else {}
        if about.get("action") == "remove-worker":
            self._leave(about["worker"])
            self._happenings.put(Gone(about["worker"]))
        if about.get("action") == "add-worker":
            self._join(about["worker"])

    def _leave(self, address: str) -> None:
        self._actors.pop(address, None)
        self._paused.discard(address)
        self._hang_up(address)

    def _later(self, work: Callable[[], None]) -> None:
        """Do something after a while, in the connection's own thread, if the connection is there then."""
        loop = self._client.loop.asyncio_loop
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.call_later, AGAIN, work)

    def _again(self, address: str, actor: Any) -> None:
        """Let a worker take part anew that was lost, if the scheduler still has it: only its line has ended."""
        if actor is not None and self._actors.get(address) is actor and self.connected:
            self._leave(address)
            self._join(address)

    def _told_status(self, address: str, event: tuple[float, Any]) -> None:
        """Hear whether a worker is paused, for its memory, or goes on."""
        status = event[1].get("status") if isinstance(event[1], dict) else None
        (self._paused.add if status == "paused" else self._paused.discard)(address)

    def _join(self, address: str) -> None:
        if address not in self._actors:
            self._client.subscribe_topic(address, partial(self._told_status, address))
            self._actors[address] = None
            self._soon(self._joined(address))

    async def _joined(self, address: str) -> None:
        """Put an actor into a worker, look whether it fits, and make it ready."""
        make: Any = the_library().Actor

        try:
            key = f"intarsia-{self._run}-{address}-{next(_RUNS)}"
            # As bytes: a scheduler unpickles what it passes on, and need not have Intarsia installed.
            made = pickle.dumps(self._kind())
            future = self._client.submit(pickle.loads, made, actor=True, workers=[address], key=key)
            self._actors[address] = future
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_done(future))), START)
            with self._client.as_current():
                actor = make(self._kind, address, future.key)
                about = await actor.about()
                check_versions(about["versions"])
                await self._prepare(actor)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told by name
            gone, unfit = Gone(address), Unfit(address, _reason(address, error))
            lost = _lost(error) or address not in self._actors
            self._happenings.put(gone if lost else unfit)
        else:
            caller = await self._line(address, actor)
            member = Member(address=address, actor=actor, processor=about["processor"], caller=caller)
            self._happenings.put(Joined(member))

    async def _line(self, address: str, actor: Any) -> Caller | None:
        """Open a line to a worker that can be called so."""
        place = urlsplit(address)
        host = place.hostname
        if host is None or place.scheme != PLAIN or not (self.direct and issubclass(self._kind, Listening)):
            return None
        try:
            if host not in self._shut and (way := await actor.listen(host)):
                self._callers[address] = await asyncio.to_thread(Caller, host, way, REACH)
        except TimeoutError:
            self._shut.add(host)
        except OSError:
            pass
        return self._callers.get(address)


def connected(scheduler: str, tls: Tls | None) -> Any:
    """Connect to a scheduler."""
    distributed = the_library()
    security = None
    if tls is not None:
        security = distributed.Security(
            tls_ca_file=tls.ca,
            tls_client_cert=tls.certificate,
            tls_client_key=tls.key,
            require_encryption=True,
        )
    try:
        return distributed.Client(
            scheduler, security=security, timeout=PATIENCE, set_as_default=False, name="intarsia"
        )
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        raise SettingsError(
            f"engine.scheduler: no scheduler that can be talked to at '{scheduler}' ({error}): look at the address and "
            "at engine.ca, certificate and key, or start one to try: intarsia cluster up"
        ) from error


def the_library() -> Any:
    """Return dask.distributed, or say how to get it."""
    try:
        import distributed
    except ImportError:
        raise SettingsError(
            "engine 'dask' needs a package that is not here: pip install 'intarsia[cluster]'"
        ) from None
    return distributed


def reachable(address: str) -> bool:
    """Return whether a worker answers here, so that blocks need not pass through the scheduler."""
    place = urlsplit(address)
    if place.hostname is None or place.port is None:
        return False
    try:
        socket.create_connection((place.hostname, place.port), REACH).close()
    except OSError:
        return False
    return True


def check_versions(there: Versions) -> None:
    """Refuse a worker whose versions are not those that are here."""
    here = versions_here()
    unlike = [name for name in COMPARED if _compared(name, there) != _compared(name, here)]
    if unlike:
        ours, theirs = (", ".join(f"{n} {v.get(n, '?')}" for n in unlike) for v in (here, there))
        raise SettingsError(f"it has {theirs}, here is {ours}: install the same there")


def _compared(name: str, versions: Versions) -> str:
    """Return what must be alike of a version: of Python, not its last number."""
    version = versions.get(name, "")
    return version.rpartition(".")[0] if name == "python" else version


def _lost(error: Exception) -> bool:
    """Return whether an error says that the worker is not there, and not that it could not do something."""
    return isinstance(error, OSError) or "Actor was lost" in str(error)


def _reason(address: str, error: Exception) -> str:
    text = str(error) if isinstance(error, IntarsiaError) else f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        text += "; what the run needs must be installed there, and files of your own on its PYTHONPATH"
    return harmless(f"worker {address} cannot take part: {text}")


def warn_of_processor(member: Member) -> None:
    """Warn of a worker that does not compute as this machine does: the last bits depend on who does what."""
    here = torch.backends.cpu.get_cpu_capability()
    if member.processor != here:
        warn(
            f"worker {member.address} computes by {member.processor}, this machine by {here}: the last bits of "
            "results depend on who does which client"
        )
