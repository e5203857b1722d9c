"""The data of a client that joins later: read and prepared as that of the run's clients was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.core import DataError, build_part, chance, in_words, suggest
from intarsia.data import POPULATIONS, Client, ClientInfo, Examples
from intarsia.data.cells import is_missing
from intarsia.data.partitions.stratified import stratified
from intarsia.data.population import SPLITS, Goal
from intarsia.data.preparation import Column, Preparation, Prepared
from intarsia.data.recorded import Form
from intarsia.data.sources.files import Files
from intarsia.data.sources.readers import PICTURES, read_archive
from intarsia.data.tables import TABLES, Table, read_table
from intarsia.export import Inputs

VALIDATION, TEST = 0.2, 0.2
"""Shares of training rows to choose by, and of all rows to test on, where neither data nor settings say."""
Data = str | Path | Mapping[str, Any] | tuple[Any, Any]
"""A table, an .npz archive or a folder of images; or arrays: (x, y), or {"train": (x, y), "test": (x, y)}."""


@dataclass(frozen=True)
class Kin:
    """A client of the run that a newcomer may be like: what its model is made for."""

    info: ClientInfo
    form: Form
    prepared: Prepared | None
    goal: Goal
    columns: tuple[Column, ...] = ()
    """The raw columns of its table, where it has one."""


@dataclass(frozen=True)
class Joining:
    """A newcomer's data, and how it became what it is."""

    client: Client
    prepared: Prepared | None


def joining(data: Data, name: str, kin: Kin, population: Mapping[str, Any], seed: int) -> Joining:
    """Read a newcomer's data for a model like this client's; whatever does not fit is refused."""
    if not isinstance(data, str | Path):
        return _of_arrays(_pairs(data), name, kin, seed, "the newcomer's data")
    path = Path(data)
    if path.suffix.lower() in TABLES or (path.suffix.lower() == ".npz" and kin.columns):
        return _of_files(path, name, kin, population, seed)
    if path.suffix.lower() == ".npz":
        held = read_archive(path)
        parts = {s: [i for i, own in enumerate(held.split) if own == s] for s in dict.fromkeys(held.split)}
        pairs = {split: (held.x[rows], [held.y[i] for i in rows]) for split, rows in parts.items()}
        return _of_arrays(pairs, name, kin, seed, str(path))
    return _of_pictures(path, name, kin, seed)


def table_of(data: Data, population: Mapping[str, Any]) -> Table | None:
    """Return the table that a newcomer's data is, if it is one."""
    if not isinstance(data, str | Path | Mapping | tuple):
        raise DataError(f"data: give a path, or arrays (x, y), not {in_words(data)}")
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if not path.exists():
        raise DataError(f"{path} does not exist: put right the path of the newcomer's data")
    if path.suffix.lower() not in TABLES:
        return None
    return read_table(path, population.get("decimal", "auto"), population.get("gaps", ()))


def name_in(data: Data, population: Mapping[str, Any]) -> str:
    """Return what a newcomer is called that nobody named: as the column of clients says, or else as its file."""
    table = table_of(data, population)
    said = set(table.columns.get(population.get("client", ""), ())) if table else set()
    if len(said) == 1 and "" not in said:
        return str(next(iter(said)))
    return Path(data).stem if isinstance(data, str | Path) else "newcomer"


def lacking(kin: Kin, table: Table) -> list[str]:
    """Return the columns of a client's device that a table does not have, or has no value in."""
    names = dict.fromkeys(column.name for column in kin.columns)
    return [name for name in names if all(map(is_missing, table.columns.get(name, ())))]


def _of_files(path: Path, name: str, kin: Kin, population: Mapping[str, Any], seed: int) -> Joining:
    source = _source(path, kin, population)
    loaded = source.load(seed, ())
    if len(loaded) > 1:
        raise DataError(
            f"{path} holds several clients ({', '.join(list(loaded.clients)[:5])}): give the rows of one alone"
        )
    ((own, client),) = loaded.clients.items()
    prepared = loaded.preparations.get(own)
    _check_columns(path, prepared, kin, source.scale_by == "client")
    if own != name and isinstance(prepared, Preparation):
        prepared = replace(prepared, client="")  # the table calls it otherwise
    data = client.data
    if kin.goal.problem == "classification":
        words = list(loaded.labels)
        data = {s: replace(e, y=_numbers([words[i] for i in e.y], kin.goal, path)) for s, e in data.items()}
    return Joining(_client(name, data, kin, seed), prepared)


def _source(path: Path, kin: Kin, population: Mapping[str, Any]) -> Files:
    """Return how the run's files were read, for this one: with the columns, words and numbers that the run keeps."""
    if population.get("name") != Files.name:
        raise DataError(
            f"{path}: the run's clients had no tables: give an .npz archive with x and y, or arrays"
        )
    learned = set(population.get("features", ()))
    names = [c.name for c in kin.columns if c.kind != "time" or c.name in learned]
    times = [c.form for c in kin.columns if c.kind == "time"]
    changed = {
        "path": [str(path)],
        "features": list(dict.fromkeys(names)) if path.suffix.lower() in TABLES else [],
        "ignore": [],
        "words": {c.name: list(c.words) for c in kin.columns if c.kind == "words"},
        "scales": {**population.get("scales", {}), **_known(kin, population)},
        "time_form": times[0] if times else population.get("time_form", ""),
        "validation": population.get("validation") or VALIDATION,
        "min_rows": 0,
    }
    source = build_part(POPULATIONS, {**population, **changed}, "population")
    assert isinstance(source, Files)
    return source


def _known(kin: Kin, population: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the means and deviations that the run keeps; where each client has its own, those of targets alone."""
    kept = kin.prepared
    assert isinstance(kept, Preparation)
    targets = {c.name: [c.offset, c.scale] for c in kept.targets}
    if population.get("scale_by") == "client":
        return targets
    scaled = population.get("scale", "none") != "none"
    columns = {
        c.inputs[0]: [c.offset, c.scale] if scaled else [c.fill or 0.0, 1.0]
        for c in kin.columns
        if c.kind != "words"
    }
    return columns | targets


def _check_columns(path: Path, prepared: Prepared | None, kin: Kin, refitted: bool) -> None:
    """Refuse columns that are something else than the model was trained on."""
    made = prepared.columns if isinstance(prepared, Preparation) else ()
    for column, kept in zip(made, kin.columns, strict=False):
        same = (column.name, column.kind, column.words) == (kept.name, kept.kind, kept.words)
        if not same or not (refitted or column == kept):
            raise DataError(
                f"{path}: column '{kept.name}' does not hold {_kind(kept)}, as in the run: put it right"
            )
    if len(made) != len(kin.columns):
        raise DataError(
            f"{path}: {len(made)} columns, the run's device '{kin.info.device}' has {len(kin.columns)}"
        )


def _kind(column: Column) -> str:
    return {"number": "numbers", "words": "words", "time": "times"}[column.kind]


def _of_pictures(path: Path, name: str, kin: Kin, seed: int) -> Joining:
    """Read a folder label/*.png; one folder of a client above is passed through."""
    pictures = Inputs.of(kin.form, kin.prepared).pictures
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in PICTURES) if path.is_dir() else []
    if not files or pictures is None:
        wanted = (
            "a folder label/*.png"
            if pictures
            else "a table"
            if kin.columns
            else "an .npz archive with x and y"
        )
        raise DataError(f"{path}: the run's models take {wanted}: give that instead")
    if len({file.parent.parent for file in files}) > 1:
        raise DataError(
            f"{path} holds images of several clients: give the folder of one, with a folder a label"
        )
    pair = (pictures.raw(files), [file.parent.name for file in files])
    return _of_arrays({"": pair}, name, kin, seed, str(path))


def _pairs(data: Mapping[str, Any] | tuple[Any, Any]) -> dict[str, tuple[Any, Any]]:
    """Return arrays by split ("": not split)."""
    found = dict(data) if isinstance(data, Mapping) else {"": data}
    wrong = [split for split in found if split not in ("", *SPLITS)]
    if wrong or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in found.values()):
        raise DataError(
            "data: give (x, y), or a dict of them by split: train, test and, if you like, validation"
        )
    return found


def _of_arrays(pairs: Mapping[str, tuple[Any, Any]], name: str, kin: Kin, seed: int, where: str) -> Joining:
    """Take raw arrays, as `predict` does."""
    if kin.columns:
        raise DataError(
            f"{where}: the run's models were made of files with columns: give a table, or an .npz archive"
        )
    inputs = Inputs.of(kin.form, kin.prepared)
    data = {}
    for split, (x, y) in pairs.items():
        found = inputs.checked(_array(x), f"{where}: {split or 'x'}")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise DataError(f"{where}: x holds a NaN or an infinity: clean it, or leave such rows out")
        if len(found) != len(_array(y)):
            raise DataError(
                f"{where}: {len(found)} rows in x but {len(_array(y))} in y: give one y for every x"
            )
        data[split] = Examples(found, _targets(y, kin.goal, where), kin.form.scaling)
    if "" in data:
        data = _dealt(data[""], kin.goal, {"train": 1 - TEST, "test": TEST}, seed, name)
    return Joining(_client(name, data, kin, seed), kin.prepared)


def _array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _targets(y: Any, goal: Goal, where: str) -> Tensor:
    if goal.problem == "classification":
        return _numbers(_array(y).tolist(), goal, where)
    values = torch.from_numpy(_array(y).astype(np.float32)).reshape(len(y), -1)
    if values.shape[1] != goal.outputs or not torch.isfinite(values).all():
        raise DataError(f"{where}: y must be {goal.outputs} finite number(s) a row, as in the run")
    return values


def _numbers(labels: Sequence[Any], goal: Goal, where: str | Path) -> Tensor:
    """Return labels as the run numbers them; one that it does not know is refused by name."""
    place = {word: i for i, word in enumerate(goal.columns)}
    if not all(str(label) in place for label in labels):
        place |= {
            str(i): i for i in range(goal.outputs) if not any(isinstance(label, str) for label in labels)
        }
    unknown = [label for label in labels if str(label) not in place]
    if unknown:
        known = ", ".join(goal.columns[:20])
        raise DataError(
            f"{where}: label '{unknown[0]}' is not among the run's ({known}), and a model cannot learn it now"
            f"{suggest(str(unknown[0]), goal.columns)}: put it right, or leave such rows out"
        )
    return torch.tensor([place[str(label)] for label in labels])


def _client(name: str, data: Mapping[str, Examples], kin: Kin, seed: int) -> Client:
    """Return the newcomer, with a share of its training rows to choose by."""
    data = {split: data[split] for split in SPLITS if split in data and len(data[split])}
    if "train" in data and "validation" not in data:
        shares = {"train": 1 - VALIDATION, "validation": VALIDATION}
        data |= _dealt(data["train"], kin.goal, shares, seed, f"{name} validation")
    few = [split for split in SPLITS if split not in data]
    if few:
        raise DataError(
            f"the newcomer has no {few[0]} rows: give more rows (some to train on, some to choose by, some to test on)"
        )
    shape = tuple(data["train"].x.shape[1:])
    if shape != kin.info.shape:
        raise DataError(f"the newcomer's samples have shape {shape}, the run's models take {kin.info.shape}")
    samples = {split: len(own) for split, own in data.items()}
    return Client(replace(kin.info, name=name, samples=samples), data)


def _dealt(
    examples: Examples, goal: Goal, shares: Mapping[str, float], seed: int, purpose: str
) -> dict[str, Examples]:
    """Split rows by keyed chance, labels in proportion."""
    rows, labels = np.arange(len(examples)), np.zeros(len(examples), np.int64)
    if goal.problem == "classification":
        labels = examples.y.numpy()
    parts = stratified(labels, rows, shares, chance.key(seed, "newcomer"), purpose)
    return {
        split: replace(examples, x=examples.x[kept], y=examples.y[kept])
        for split, kept in parts.items()
        if len(kept)
    }
