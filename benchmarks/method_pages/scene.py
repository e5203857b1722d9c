"""Who shares what in a small run, read from its messages: what a picture of a method shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.method_pages.described import Described
from benchmarks.sent import USUAL

from intarsia.audit.played import Heard, Played, played
from intarsia.blocks import Address
from intarsia.clients.state import KEPT
from intarsia.data import ClientInfo
from intarsia.experiment import Experiment
from intarsia.experiment.settings import load
from intarsia.methods import EVALUATE

SMALL = (
    "rounds=2",
    "population.clients=4",
    "population.cohorts=2",
    "population.test=0.8",
    "evaluation.every=2",
    "engine.name=debug",
    "engine.device=cpu",
    "training.epochs=1",
)
"""What makes a run of the quickstart small enough for a picture."""
TRAINING = "training figures"
"""How `sent.USUAL` is called in a picture."""


@dataclass(frozen=True)
class Tile:
    """A block that a client holds."""

    address: str
    returned: bool
    share: float
    """How much of the pool's block the client holds."""


@dataclass(frozen=True)
class Piece:
    """A block of a model that is lent to somebody."""

    owner: str
    """The address that it is taken from."""


@dataclass(frozen=True)
class Person:
    """A client."""

    name: str
    about: tuple[str, ...]
    """What tells it apart from others: its device, cohort or model."""
    samples: int
    tiles: tuple[Tile, ...]
    home: tuple[str, ...]
    """Blocks and tensors that never leave it."""
    teacher: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Trip:
    """An exchange: what went to clients, and what came back."""

    step: str
    down: tuple[str, ...]
    up: tuple[str, ...]
    once: tuple[str, ...]
    """What of `down` travelled in the first round alone."""


@dataclass(frozen=True)
class Scene:
    """All that a picture shows."""

    own: Described
    """What is told by hand: what server and clients do."""
    pool: tuple[str, ...]
    public: bool
    """Whether there is public data."""
    people: tuple[Person, ...]
    trips: tuple[Trip, ...]

    @property
    def words(self) -> str:
        """The picture in words."""
        pool = f"The server keeps {', '.join(self.pool)}." if self.pool else "The server keeps no block."
        return " ".join([pool, *(_person_words(person) for person in self.people)])


def _person_words(person: Person) -> str:
    held = ", ".join(tile.address for tile in person.tiles) or "nothing"
    home = ", ".join(("its data", *person.home))
    return f"{person.name} shares {held}; {home} stay at home."


def play(own: Described) -> Scene:
    """Play the run of a page with four clients, and look."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experiment = Experiment.build(load("quickstart", [*own.changes, *SMALL, *own.drawn]))
        with played(experiment) as run:
            return _scene(own, experiment, run)


def _scene(own: Described, experiment: Experiment, run: Played) -> Scene:
    population = experiment.setup.population
    infos = [client.info for client in population.clients.values()]
    steps = {
        step for step, heard in _by_step(run.ear.last).items() if any(own.update.blocks for own in heard)
    }
    people = tuple(_person(info, infos, run, steps) for info in infos)
    order = _order(experiment)
    pool = tuple(map(str, sorted(run.state.pool, key=lambda address: (order(address.block), address.group))))
    return Scene(own, pool, population.public is not None, people, tuple(_trips(run, order)))


def _order(experiment: Experiment) -> Callable[[str], int]:
    """Return the place of every block in the clients' models; what is no block of theirs comes after."""
    setup = experiment.setup
    blocks = _unique(block for client in setup.model_of for block in setup.template(client).cut.blocks)
    return lambda block: blocks.index(block) if block in blocks else len(blocks)


def _trips(run: Played, order: Callable[[str], int]) -> list[Trip]:
    """Return what the steps of a round sent, over all clients, in their order."""
    first, last = (_by_step(heard) for heard in (run.ear.first, run.ear.last))
    everything = [own for step in (*first.values(), *last.values()) for own in step]
    still = {
        *_down(own for step in last.values() for own in step),
        *(n for own in everything for n in _up(own)),
    }
    trips = [_trip(step, first[step], last[step], still) for step in first]
    return [
        replace(t, down=tuple(sorted(t.down, key=order)), up=tuple(sorted(t.up, key=order))) for t in trips
    ]


def _by_step(heard: Mapping[tuple[str, str, str], Heard]) -> dict[str, list[Heard]]:
    steps: dict[str, list[Heard]] = {}
    for (_, purpose, step), own in heard.items():
        if EVALUATE not in (purpose, step):
            steps.setdefault(step, []).append(own)
    return steps


def _trip(step: str, first: Sequence[Heard], last: Sequence[Heard], still: Collection[str]) -> Trip:
    """Return what a step sent; what nobody changes, and travelled at first alone, was sent once."""
    down = _unique((*_down(last), *_down(first)))
    up = _unique(name for heard in (*last, *first) for name in _up(heard))
    return Trip(step, down, up, tuple(name for name in down if name not in still))


def _down(told: Iterable[Heard]) -> tuple[str, ...]:
    heard = list(told)
    blocks = (address.block for own in heard for address in own.task.blocks)
    return _unique((*blocks, *(name for own in heard for name in own.task.values)))


def _up(heard: Heard) -> Iterable[str]:
    yield from (address.block for address in heard.update.blocks)
    yield from heard.update.tensors
    told = [name for name in heard.update.values if not name.startswith("#")]
    yield from (name for name in told if name not in USUAL)
    if set(USUAL) <= set(told):
        yield TRAINING


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _person(info: ClientInfo, everyone: Sequence[ClientInfo], run: Played, steps: set[str]) -> Person:
    heard = [
        own
        for (name, _, step), own in run.ear.last.items()
        if name == info.name and step in (steps or {step})
    ]
    hold = {address: own for own in heard for address in own.task.plan.hold.values()}
    tiles = [_tile(address, run, own) for address, own in hold.items() if not address.private]
    private = [str(address) for address in hold if address.private]
    kept = run.state.clients[info.name].state.get("private", {}) if info.name in run.state.clients else {}
    home = (*private, *(name.removesuffix(KEPT) for name in kept if name.endswith(KEPT)))
    about = tuple(
        value
        for word in ("device", "model", "cohort")
        if len({client.attribute(word) for client in everyone}) > 1 and (value := info.attribute(word))
    )
    return Person(
        info.name, about, info.samples["train"], tuple(tiles), home, _teacher(info.name, heard, run)
    )


def _tile(address: Address, run: Played, heard: Heard) -> Tile:
    whole = run.state.pool.get(address)
    here = heard.update.blocks.get(address, whole)
    return Tile(str(address), address in heard.update.blocks, here.parameters / max(1, whole.parameters))


def _teacher(client: str, heard: Sequence[Heard], run: Played) -> tuple[Piece, ...]:
    """Return whose blocks the client's last teacher was made of; nothing where none was sent."""
    sent = [own for own in heard if any(address.block == "teacher" for address in own.task.versions)]
    notes = [note for note in run.run.notes or () if note["kind"] == "teacher" and note["client"] == client]
    earlier = [note for own in sent for note in notes if note["round"] < own.task.round]
    return tuple(Piece(f"model@{owner}") for owner, _ in earlier[-1]["blocks"]) if earlier else ()
