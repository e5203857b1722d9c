"""A look at own files: roles, findings, and settings that were tried on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia.core import DataError
from intarsia.data.cells import likely_gaps
from intarsia.data.looking.columns import Seen, seen
from intarsia.data.looking.findings import (
    of_archives,
    of_cells,
    of_clients,
    of_labels,
    of_scales,
    sizes_of,
)
from intarsia.data.looking.roles import Roles, assign, named_for_client, roles_of
from intarsia.data.population import ClientInfo, Population, who_holds_what
from intarsia.data.sources.files import Files, pictures_in
from intarsia.data.sources.readers import read_archive
from intarsia.data.sources.tabular import Tabular, files_in
from intarsia.data.tables import TABLES, Table, joined, read_table


@dataclass
class Look:
    """What was seen, what is odd about it, and the settings that follow."""

    paths: tuple[Path, ...]
    form: str
    """`tables`, `archives` or `pictures`."""
    settings: dict[str, Any]
    """The population that fits."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a setting is what it is."""
    columns: list[Seen] = field(default_factory=list)
    roles: Roles = field(default_factory=Roles)
    findings: list[str] = field(default_factory=list)
    rows: int = 0
    population: Population | None = None
    trouble: str = ""
    """Why these files cannot be used yet, if they cannot."""

    def put(self, setting: str, value: Any, why: str) -> None:
        """Choose a setting of the population, with the reason."""
        self.settings[setting] = value
        self.reasons[setting] = why

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "files": [str(path) for path in self.paths],
            "form": self.form,
            "rows": self.rows,
            "client": self.roles.client,
            "target": self.roles.target,
            "time": self.roles.time,
            "problem": self.settings.get("problem", "classification"),
            "unsure": self.roles.unsure,
            "columns": [column.to_json() for column in self.columns],
            "findings": self.findings,
            "trouble": self.trouble,
            "population": self.settings,
            **({} if self.population is None else {"holds": who_holds_what(self.population)}),
        }


def look(paths: Sequence[Path], client: str = "", target: str = "", time: str = "") -> Look:
    """Look at a file, a folder or several files; roles of columns are guessed where they are not told."""
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist: put right the path")
    named = str(paths[0]) if len(paths) == 1 else [str(one) for one in paths]
    seen_here = Look(tuple(paths), "tables", {"name": "files", "path": named})
    tables = [table for one in paths for table in files_in(one, TABLES)]
    if any(pictures_in(one) for one in paths if one.is_dir()):
        _look_at_pictures(seen_here)
    elif tables:
        told = {"client": client, "target": target, "time": time}
        _look_at_tables(seen_here, tables, told)
    else:
        _look_at_archives(seen_here)
    _try(seen_here)
    return seen_here


def _look_at_tables(found: Look, paths: Sequence[Path], told: dict[str, str]) -> None:
    with _noting(found):
        tables = [read_table(path) for path in paths]
    gaps = list(likely_gaps(joined(tables).columns).values())
    if gaps:
        said = ", ".join(map(repr, gaps))
        found.put("gaps", gaps, "the same word among the numbers of several columns")
        found.findings.append(f"{said} among the numbers of several columns: taken for missing values")
    tables = [table.emptied(gaps) for table in tables]
    whole = joined(tables)
    found.rows = len(whole)
    columns = {name: seen(whole, name) for name in whole.columns}
    found.columns = list(columns.values())
    found.roles = roles = roles_of(columns, told, _one_for_all(found, tables, columns, told["client"]), whole)
    of_client = _by_client(found, tables, paths)
    left = assign(columns, roles, of_client)
    if roles.client:
        found.put("client", roles.client, f"{len(of_client)} clients")
    found.put("target", roles.target, "what is predicted")
    found.put("problem", roles.problem, "numbers" if roles.problem == "regression" else "labels")
    if left:
        found.put("ignore", list(left), "; ".join(f"{name}: {why}" for name, why in left.items()))
        found.findings += [f"column '{name}' is left out: {why}" for name, why in left.items()]
    for dropped in {name for table in tables for name in table.dropped}:
        found.findings.append(f"a column without a name that counts rows is left out ({dropped})")
    of_labels(found, whole)
    of_clients(found, of_client)
    of_cells(found, of_client)
    of_scales(found)


def _one_for_all(found: Look, tables: Sequence[Table], columns: Mapping[str, Seen], told: str) -> bool:
    """Return whether a column names the client: in one table, or in several of which one holds several clients."""
    if len(found.paths) == 1 and found.paths[0].is_file():
        return True
    name = told or named_for_client(list(columns.values()))
    cells = [table.columns.get(name, ()) for table in tables]
    return all(cells) and any(len(set(own)) > 1 for own in cells)


def _by_client(found: Look, tables: Sequence[Table], paths: Sequence[Path]) -> dict[str, Table]:
    reader = Tabular(path=found.settings["path"], client=found.roles.client or "client")
    return reader.by_client(tables, paths)


def _look_at_archives(found: Look) -> None:
    found.form = "archives"
    archives = [path for one in found.paths for path in files_in(one, (".npz",))]
    if not archives:
        raise DataError(
            f"{found.paths[0]} holds no .csv, .tsv, .parquet or .npz files and no client/label/*.png: name the folder "
            "with your files, or save a table as .csv"
        )
    holdings = {path.stem: read_archive(path, gaps=True) for path in archives}
    found.rows = sum(len(own.x) for own in holdings.values())
    of_archives(found, holdings)


def _look_at_pictures(found: Look) -> None:
    found.form = "pictures"
    pictures = [p for one in found.paths for p in pictures_in(one)]
    found.rows = len(pictures)
    sizes_of(found, pictures)


def _try(found: Look) -> None:
    """Read the files with the settings that were chosen; what is said on the way is a finding."""
    path = found.settings["path"]
    options = {key: value for key, value in found.settings.items() if key not in ("name", "path")}
    with _noting(found):
        try:
            source = Files(path=path if isinstance(path, str) else tuple(path), **options)
            found.population = source.load(0, ())
        except DataError as error:
            found.trouble = str(error)
    if found.population is not None:
        found.trouble = _unlike(found.population)


@contextmanager
def _noting(found: Look) -> Iterator[None]:
    """Take warnings for findings, each once."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    texts = dict.fromkeys(str(warning.message) for warning in said)
    found.findings += [text for text in texts if text not in found.findings]


def _unlike(population: Population) -> str:
    """Say that clients of one device differ in their inputs, if they do: no network takes both."""
    first: dict[str, ClientInfo] = {}
    for info in population.infos:
        other = first.setdefault(info.device, info)
        if other.shape != info.shape:
            return (
                f"clients '{other.name}' and '{info.name}' have inputs of shape {list(other.shape)} and "
                f"{list(info.shape)}, but no device: save an array device (a word) in each archive"
            )
    return ""
