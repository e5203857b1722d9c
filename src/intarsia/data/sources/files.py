"""A user's own files: a table or archive a client, one table with a client column, or folders of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import DataError, chance, part
from intarsia.data.own import make_client
from intarsia.data.partitions.stratified import stratified
from intarsia.data.places import Places
from intarsia.data.population import SPLITS, Client, Population, PopulationSource, Problem, Scaling
from intarsia.data.precision import merged_in_float32
from intarsia.data.sources.readers import (
    ABOUT,
    BYTES,
    PICTURES,
    TABLES,
    OwnRows,
    attribute_of,
    in_words,
    is_number,
    is_whole,
    label_of,
    number_of,
    read_archive,
    read_picture,
    read_table,
)

Share = Annotated[float, Field(ge=0, lt=1)]


@part
class Files(PopulationSource):
    """A folder or file of one's own.

    - a folder of `.npz`, `.csv` or `.parquet` files: one a client, named by the file;
    - one `.csv` or `.parquet` table with a column that names the client;
    - a folder `client/label/*.png` of images.

    An `.npz` holds `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test` (and `_validation`). In a table,
    every column that has no role of its own is a feature. `device`, `cohort`, `capacity` and `model`, as
    columns or as arrays of the archive, become attributes of the client.
    """

    name: ClassVar[str] = "files"
    summary: ClassVar[str] = "own files: .npz, .csv, .parquet or image folders"

    path: str
    target: str = "label"
    """The column to predict (several for regression: separated by commas)."""
    client: str = "client"
    """The column that names the client, in one table for all."""
    split: str = "split"
    """The column that says train, validation or test, where there is one."""
    features: tuple[str, ...] = ()
    """The columns to learn from (none: all without another role)."""
    problem: Problem = "classification"
    task: str = ""
    """The clients' task, where members of a joint population predict different things."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of a client's rows that it is tested on, where the files do not say."""
    validation: Share = 0.0
    order: Literal["random", "time"] = "random"
    """`time`: rows are in the order of time, and the last ones are for testing."""
    size: Annotated[int, Field(ge=0)] = 0
    """Height and width to resize images to (0: as they are)."""
    standardise: bool = False
    """Whether the columns of tables are centred and scaled, by mean and deviation of all clients' training rows."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population."""
        source = Path(self.path)
        if not source.exists():
            raise DataError(f"population.path: {source} does not exist")
        pictures = source.is_dir() and any(p.suffix.lower() in PICTURES for p in source.glob("*/*/*"))
        owners = self._images(source) if pictures else self._tables(source)
        if not pictures and self.problem == "classification":
            _check_labels(owners)
        labels = self._number_labels(owners)
        splits = {
            name: self._split(name, own, np.asarray(own.y), seed) for name, own in sorted(owners.items())
        }
        if not pictures:
            self._to_float32(owners, splits)
        scaling = _for_channels(BYTES, next(iter(owners.values())).x[0].shape[-1]) if pictures else None
        clients = {name: self._client(name, owners[name], rows, scaling) for name, rows in splits.items()}
        outputs = len(labels) or max(c.data["train"].y.shape[1] for c in clients.values())
        return Population(clients, outputs, self.problem, labels)

    def _client(
        self, name: str, own: OwnRows, splits: Mapping[str, NDArray[np.int64]], scaling: Scaling | None
    ) -> Client:
        y, data = np.asarray(own.y), {}
        for split, rows in splits.items():
            if len(rows) == 0:
                continue
            inputs = torch.from_numpy(np.stack([own.x[i] for i in rows]))
            data[split] = (inputs if scaling is None else inputs.permute(0, 3, 1, 2), y[rows])
        return make_client(name, data, self.problem, scaling, task=self.task, **own.about)

    def _to_float32(
        self, owners: Mapping[str, OwnRows], splits: Mapping[str, Mapping[str, NDArray[np.int64]]]
    ) -> None:
        """Standardise inputs if asked to, in float64; then make them float32. Integers may be names: they stay."""
        inputs = {name: np.stack(own.x) for name, own in owners.items()}
        if self.standardise:
            if len({x.shape[1:] for x in inputs.values()}) > 1:
                raise DataError(
                    "population.standardise: clients' inputs differ in shape; scale them yourself"
                )
            rows = np.concatenate([inputs[name][own["train"]] for name, own in splits.items()])
            flat = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
            mean, std = flat.mean(0), np.maximum(flat.std(0), 1e-6)
            inputs = {name: (x - mean) / std for name, x in inputs.items()}
        else:
            wide = [x for x in inputs.values() if x.dtype.kind != "i"]
            advice = "set population.standardise = true, or subtract an offset from the column"
            merged = merged_in_float32(wide, advice, next(iter(owners.values())).columns)
            if merged:
                raise DataError(f"{self.path}: {merged}")
        for name, x in inputs.items():
            owners[name].x = list(x if x.dtype.kind == "i" else x.astype(np.float32))

    def _split(self, name: str, own: OwnRows, y: NDArray[Any], seed: int) -> dict[str, NDArray[np.int64]]:
        every = np.arange(len(own.y))
        if any(own.split):
            if not all(own.split):
                raise DataError(f"client '{name}': some rows say which split they are for and others do not")
            given = np.asarray(own.split)
            return {s: every[given == s] for s in SPLITS if s != "validation" or (given == s).any()}
        train = 1 - self.test
        ways = {
            "train": train * (1 - self.validation),
            "validation": train * self.validation,
            "test": self.test,
        }
        ways = {split: share for split, share in ways.items() if share > 0}
        if self.order == "random" and self.problem == "classification":
            return stratified(y, every, ways, seed, f"files {name}")
        if self.order == "random":
            every = chance.numpy_generator(seed, "files", name).permutation(every)
        borders = np.round(np.cumsum(list(ways.values())) * len(every)).astype(int)
        return dict(zip(ways, np.split(every, borders[:-1]), strict=True))

    def _tables(self, source: Path) -> dict[str, OwnRows]:
        if source.is_file():
            return self._one_table(source)
        files = [p for p in sorted(source.iterdir()) if p.suffix.lower() in (*TABLES, ".npz")]
        if not files:
            raise DataError(
                f"population.path: {source} holds no .npz, .csv or .parquet files and no client/label/*.png"
            )
        owners: dict[str, OwnRows] = {}
        features: tuple[str, ...] = self.features
        for path in files:
            if path.stem in owners:
                raise DataError(f"{source} has two files for client '{path.stem}'")
            if path.suffix.lower() == ".npz":
                owners[path.stem] = read_archive(path)
            else:
                header, rows = read_table(path)
                features = features or self._features(header)
                owners[path.stem] = self._rows(path, header, rows, features)
        return owners

    def _one_table(self, path: Path) -> dict[str, OwnRows]:
        if path.suffix.lower() not in TABLES:
            raise DataError(
                f"{path}: one file for all clients must be a .csv or .parquet table; else give the folder"
            )
        header, rows = read_table(path)
        if self.client not in header:
            raise DataError(
                f"{path}: there is no column '{self.client}' that names the client; {in_words(header)}"
            )
        at = header.index(self.client)
        of_client: dict[str, list[tuple[int, Sequence[str]]]] = {}
        for line, row in rows:
            name = str(row[at]).strip()
            if not name:
                raise DataError(f"{path}, line {line}: the client is missing")
            of_client.setdefault(name, []).append((line, row))
        features = self.features or self._features(header)
        return {name: self._rows(path, header, own, features) for name, own in of_client.items()}

    @property
    def _targets(self) -> list[str]:
        return [column.strip() for column in self.target.split(",")]

    def _features(self, header: Sequence[str]) -> tuple[str, ...]:
        roles = {self.client, self.split, *self._targets, *ABOUT}
        return tuple(column for column in header if column not in roles)

    def _rows(
        self,
        path: Path,
        header: Sequence[str],
        rows: Iterable[tuple[int, Sequence[str]]],
        features: Sequence[str],
    ) -> OwnRows:
        targets = self._targets
        self._check_columns(path, header, features)
        own = OwnRows(columns=tuple(features))
        for line, row in rows:
            cells = dict(zip(header, row, strict=True))
            own.x.append([number_of(path, line, column, cells[column]) for column in features])
            if self.problem == "regression":
                own.y.append([number_of(path, line, column, cells[column]) for column in targets])
            else:
                own.y.append(label_of(path, line, targets[0], cells[targets[0]]))
            own.split.append(_split_name(path, line, cells.get(self.split, "").strip()))
            about = {key: attribute_of(path, line, key, cells[key]) for key in ABOUT if cells.get(key)}
            if own.about not in ({}, about):
                raise DataError(f"{path}, line {line}: {about} differs from {own.about} above it")
            own.about = about
        own.x = list(np.asarray(own.x, dtype=np.float64))
        return own

    def _check_columns(self, path: Path, header: Sequence[str], features: Sequence[str]) -> None:
        missing = [column for column in (*self._targets, *features) if column not in header]
        if missing:
            raise DataError(f"{path}: there is no column '{missing[0]}'; {in_words(header)}")
        if not features:
            raise DataError(f"{path}: there is no column to learn from; {in_words(header)}")
        both = set(features) & set(self._targets)
        if both:
            raise DataError(f"population.features: '{min(both)}' is what is to be predicted")
        surplus = [] if self.features else sorted(set(self._features(header)) - set(features))
        if surplus:
            raise DataError(
                f"{path}: column '{surplus[0]}' is not in the other files; name the columns in features"
            )

    def _images(self, source: Path) -> dict[str, OwnRows]:
        if self.problem == "regression":
            raise DataError("population.problem: folders of images name labels; regression needs a table")
        owners: dict[str, OwnRows] = {}
        paths = sorted(p for p in source.glob("*/*/*") if p.suffix.lower() in PICTURES)
        pictures = {path: read_picture(path, (self.size, self.size) if self.size else None) for path in paths}
        channels = max(pixels.shape[-1] for pixels in pictures.values())
        shape = (*pictures[paths[0]].shape[:2], channels)
        for path, pixels in pictures.items():
            coloured = np.repeat(pixels, channels // pixels.shape[-1], axis=-1)
            if coloured.shape != shape:
                raise DataError(f"{path} is {coloured.shape}, others are {shape}: set population.size")
            own = owners.setdefault(path.parts[-3], OwnRows())
            own.x.append(coloured)
            own.y.append(path.parts[-2])
            own.split.append("")
        return owners

    def _number_labels(self, owners: Mapping[str, OwnRows]) -> tuple[str, ...]:
        """Give labels numbers, the same for all clients; those that are 0, 1, 2, ... keep their own."""
        if self.problem == "regression":
            return ()
        names = {str(label) for own in owners.values() for label in own.y}
        labels = sorted(names)
        if all(is_whole(name) for name in names):
            labels = sorted(names, key=int)
            highest = int(labels[-1])
            if int(labels[0]) >= 0 and highest < 2 * len(labels) + 10:
                labels = [str(i) for i in range(highest + 1)]
        number = {name: i for i, name in enumerate(labels)}
        for own in owners.values():
            own.y = [number[str(label)] for label in own.y]
        return tuple(labels)


def _for_channels(scaling: Scaling, channels: int) -> Scaling:
    return Scaling(scaling.factor, scaling.mean * channels, scaling.std * channels)


def _check_labels(owners: Mapping[str, OwnRows]) -> None:
    """Refuse lists, and numbers of which some are not whole: each would be a class of its own."""
    held = {str(label): (name, label) for name, own in owners.items() for label in own.y}
    numbers = all(is_number(text) for text in held)
    for text, (name, label) in held.items():
        if isinstance(label, list) or (numbers and not float(text).is_integer()):
            raise DataError(
                f"client '{name}': labels must be whole numbers or words, one a sample, not {text}; "
                'for regression set population.problem = "regression"'
            )


def _split_name(path: Path, line: int, cell: str) -> str:
    if cell and cell not in SPLITS:
        raise DataError(f"{path}, line {line}: '{cell}' is no split; write {', '.join(SPLITS)}")
    return cell
