"""What clients' devices can do: said in the settings, by kind of device, in a table of one's own, or drawn."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from intarsia.core import DataError, SettingsError, chance, part, some, suggest, warn
from intarsia.data import ClientInfo
from intarsia.data.tables import TABLES, Table, read_table
from intarsia.federation.fleet.draws import Drawn
from intarsia.federation.fleet.hours import Hours

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Chance = Annotated[float, Field(ge=0, lt=1)]
USUAL: Mapping[str, float] = {
    "speed": 1e9,
    "seconds": 0.0,
    "down": 1.25e6,
    "up": 2.5e5,
    "latency": 0.0,
    "dropout": 0.0,
    "shift": 0.0,
}
"""What a device is taken for of which nobody said anything: a small one at 10 Mbit/s down and 2 up."""
WORDS = "available"


@dataclass(frozen=True)
class Profile:
    """What one client's device can do."""

    speed: float
    seconds: float
    down: float
    up: float
    latency: float
    dropout: float
    hours: Hours


@part
class Quantities:
    """What a kind of device can do; a number, or a distribution that each client's is drawn from."""

    speed: Positive | Drawn | None = None
    """Multiplications (with their additions) a second while it trains (not said: 1e9)."""
    seconds: Positive | Drawn | None = None
    """Instead of `speed`: seconds that one sample takes in training with all of the model trained, as measured."""
    down: Positive | Drawn | None = None
    """Bytes a second from the server (not said: 1.25e6, 10 Mbit/s)."""
    up: Positive | Drawn | None = None
    """Bytes a second to the server (not said: 2.5e5, 2 Mbit/s)."""
    latency: NotNegative | Drawn | None = None
    """Seconds that every exchange takes beside: waking up, connecting (not said: 0)."""
    dropout: Chance | Drawn | None = None
    """The chance that it does not answer an exchange (not said: 0)."""
    available: str | None = None
    """When it can be reached: windows of the day, `22:00-06:00 12:00-13:00` (not said: always)."""
    shift: float | Drawn | None = None
    """Hours by which its day is later than the clock's, which begins at midnight (not said: 0)."""

    @model_serializer(mode="wrap")
    def _said(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what was not said."""
        return {key: value for key, value in usual(self).items() if value is not None}

    def said(self) -> dict[str, Any]:
        """Return what was said, by name."""
        names = (field.name for field in dataclasses.fields(Quantities))
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@part
class Fleet(Quantities):
    """The devices of a fleet and how long a server waits for them: a run then has virtual time beside its rounds."""

    devices: dict[str, Quantities] = Field(default_factory=dict)
    """What clients with this `device` can do, where it differs."""
    path: str = ""
    """A table (CSV, Parquet) of one's own: a row a `client` or a `device`, columns as the settings above."""
    deadline: NotNegative = 0.0
    """Seconds after which a round takes no more answers (0: it waits for everyone)."""
    overselect: Annotated[float, Field(ge=1)] = 1.0
    """So many times the clients of a round are asked, and the first ones count."""

    @cached_property
    def table(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What the table says, by `client` or `device` and its name."""
        return _read(Path(self.path)) if self.path else {}

    def hash_of_table(self, known: str = "") -> str:
        """Return what identifies the table (empty: there is none); one that is not the known one is refused."""
        found = (
            hashlib.sha256(json.dumps(self.table, sort_keys=True).encode()).hexdigest() if self.path else ""
        )
        if known not in ("", found):
            raise DataError(
                f"fleet.path: {self.path} does not say what it said when the settings were written (fleet_hash "
                f"{known}, now {found or 'no table'}): put the table right, or start a new run with these settings and "
                "set fleet_hash to nothing to take it as it is"
            )
        return found

    def quantities(self, info: ClientInfo) -> dict[str, Any]:
        """Return what was said of a client's device: what is nearer to the client stands before what is general."""
        kind = self.devices.get(info.device)
        return {
            **self.said(),
            **({} if kind is None else kind.said()),
            **self.table.get("device", {}).get(info.device, {}),
            **dict(info.profile),
            **self.table.get("client", {}).get(info.name, {}),
        }

    def profile(self, info: ClientInfo, seed: int) -> Profile:
        """Return what a client's device can do; what is a distribution is drawn, the same for the same seed."""
        said = self.quantities(info)
        found = {name: _number(name, said, info, seed) for name in USUAL}
        shift = 3600 * found.pop("shift")
        where = f"client '{info.name}', {WORDS}"
        return Profile(hours=Hours.of(str(said.get(WORDS, "")), shift, where), **found)

    def check(self, devices: Mapping[str, Any]) -> None:
        """Refuse kinds of devices that no client has: they would say nothing."""
        unknown = [name for name in self.devices if name not in devices]
        if unknown:
            raise SettingsError(
                f"fleet.devices: no client has the device {some(unknown)}{suggest(unknown[0], devices)}"
            )

    def check_table(self, clients: Collection[str], devices: Collection[str] = ()) -> None:
        """Refuse a table that names nobody who is there; warn of those that are not."""
        for whose, rows in self.table.items():
            there = clients if whose == "client" else devices
            unknown = [name for name in rows if name not in there]
            if len(unknown) == len(rows):
                names = some(list(there), 3)
                raise SettingsError(
                    f"fleet.path: {self.path} names no {whose} that there is; there are: {names}"
                )
            if unknown:
                warn(
                    f"fleet.path: {self.path} names {len(unknown)} of {len(rows)} {whose}s that there are not "
                    f"({some(unknown, 3)}): their rows say nothing"
                )


def _number(name: str, said: Mapping[str, Any], info: ClientInfo, seed: int) -> float:
    """Return a quantity of one client, drawn if it is a distribution; one that cannot be is refused."""
    value = said.get(name, USUAL[name])
    if hasattr(value, "draw"):
        value = value.draw(chance.numpy_generator(seed, "fleet", name, info.name))
        value = min(value, 1 - 2**-20) if name == "dropout" else value
    if not (_possible(name, value) or (name == "seconds" and name not in said)):
        raise SettingsError(
            f"client '{info.name}' has {name} {value:g}, which no device has: see fleet.{name}"
        )
    return float(value)


def _possible(name: str, value: float) -> bool:
    """Return whether a device can have this quantity."""
    low = 0 if name in ("speed", "seconds", "down", "up") else -math.inf if name == "shift" else -5e-324
    return low < value < (1 if name == "dropout" else math.inf)


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Read a table of profiles: by client or by device."""
    if path.suffix.lower() not in TABLES:
        raise DataError(
            f"fleet.path: {path} is no table: give a file {', '.join(TABLES[:-1])} or {TABLES[-1]}"
        )
    table = read_table(path)
    known = [*USUAL, WORDS]
    whose = _whose(table, known)
    rows: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(table.columns[whose]):
        if not name:
            raise DataError(f"{table.place(i, whose)}: there is no name: write one, or leave out the row")
        if name in rows:
            raise DataError(f"{table.line(i)}: {whose} '{name}' stands there twice: leave one row")
        rows[name] = {
            key: _cell(table, i, key) for key in known if key in table.columns and _there(table, i, key)
        }
    return {whose: rows}


def _whose(table: Table, known: Collection[str]) -> str:
    """Return what a table has a row for, `client` or `device`, after looking at its columns."""
    named = [word for word in ("client", "device") if word in table.columns]
    odd = [name for name in table.header if name not in {*known, "client", "device"}]
    wrong = ""
    if odd:
        wrong = f"an unknown column '{odd[0]}'{suggest(odd[0], ['client', 'device', *known])}"
    elif len(named) != 1:
        wrong = "both columns 'client' and 'device': keep one" if named else "no column 'client' or 'device'"
    elif len(table.header) == 1:
        wrong = f"no column beside '{named[0]}': add some of {', '.join(known)}"
    if wrong:
        raise DataError(f"{table.source}: the table of a fleet's profiles has {wrong}")
    return named[0]


def _there(table: Table, row: int, key: str) -> bool:
    return bool(table.columns[key][row].strip())


def _cell(table: Table, row: int, key: str) -> Any:
    cell = table.columns[key][row].strip()
    if key == WORDS:
        Hours.of(cell, where=table.place(row, key))
        return cell
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f"{table.place(row, key)}: {cell!r} is no number") from None
    if not _possible(key, value):
        raise DataError(f"{table.place(row, key)}: no device has {key} = {cell}: see fleet.{key}")
    return value
