"""Runs under attack, one after the other, kept in a JSON record that a stopped command goes on with."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from intarsia._version import __version__
from intarsia.attacks.attacked import play
from intarsia.attacks.attackers import SPREAD
from intarsia.attacks.rules import ATTACKS, Attack
from intarsia.blocks.plain import read_json
from intarsia.core import SettingsError, WireError, suggest, write_atomically
from intarsia.experiment import Settings, load
from intarsia.experiment.settings import Source

NONE = "none"
"""The attack of a run without one."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One run under attack: settings and the guard that is put on them, by words for tables."""

    base: str
    guard: str
    settings: Settings
    attack: str
    share: float
    place: str = SPREAD

    @property
    def about(self) -> Row:
        """What tells it from all other cases."""
        plain = self.settings.model_dump(mode="json", exclude={"engine", "name", "data_folder"})
        sealed = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
        own = {"base": self.base, "guard": self.guard, "attack": self.attack, "share": self.share}
        return {**own, "place": self.place, "seed": self.settings.seed, "settings": sealed}

    def play(self) -> Row:
        """Run it; return what came of it."""
        return {**self.about, **play(self.settings, attack_of(self.attack), self.share, self.place)}


class Record:
    """Rows by case, written after every run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {_key(row): row for row in _read(path)} if path.exists() else {}

    def play(self, cases: Iterable[Case], tell: Callable[[Row], None] = lambda row: None) -> list[Row]:
        """Run the cases that are not there yet; return the rows of all."""
        found = []
        for case in cases:
            key = _key(case.about)
            if key not in self.rows:
                self.rows[key] = case.play()
                self._write()
            tell(self.rows[key])
            found.append(self.rows[key])
        return found

    def _write(self) -> None:
        made = {"intarsia": __version__, "torch": torch.__version__, "python": platform.python_version()}
        rows = [self.rows[key] for key in sorted(self.rows)]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        text = f'{{"versions": {json.dumps(made)},\n "rows": [\n  {lines}\n]}}\n'
        write_atomically(self.path, text.encode())


def cases_of(
    bases: Mapping[str, Source],
    guards: Mapping[str, Sequence[str]],
    attacks: Sequence[str],
    shares: Sequence[float],
    seeds: Sequence[int],
    place: str = SPREAD,
) -> Iterator[Case]:
    """Yield every combination; without attackers there is one case, whatever the attacks."""
    for seed in seeds:
        for base, source in bases.items():
            for guard, changes in guards.items():
                settings = load(source, [*changes, f"seed={seed}"])
                for share in shares:
                    for attack in [NONE] if share == 0 else attacks:
                        yield Case(base, guard, settings, attack, share, place)


def attack_of(name: str) -> Attack | None:
    """Return the attack of a name; none of `none`."""
    if name != NONE and name not in ATTACKS:
        raise SettingsError(f"attack: there is no '{name}'{suggest(name, ATTACKS)}")
    return ATTACKS.get(name)


def accuracies(rows: Iterable[Row], *by: str) -> dict[tuple[Any, ...], float]:
    """Return the honest clients' mean accuracy over seeds, by these columns."""
    grouped: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        grouped.setdefault(tuple(row[name] for name in by), []).append(row["honest"])
    return {key: fmean(own) for key, own in grouped.items()}


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps([row[k] for k in ("base", "guard", "attack", "share", "place", "seed", "settings")])


def _read(path: Path) -> list[Row]:
    try:
        rows = read_json(path.read_bytes(), str(path))["rows"]
        for row in rows:
            _key(row)
    except (WireError, KeyError, TypeError):
        raise SettingsError(f"{path} is no record of attacks: name another file") from None
    return list(rows)
