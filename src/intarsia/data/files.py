"""A user's own files: a table or archive a client, one table with a client column, or folders of images."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import Field

from intarsia.blocks import DataError, chance, part
from intarsia.data.packed import arrays
from intarsia.data.partitions import stratified
from intarsia.data.places import Places
from intarsia.data.population import (
    SPLITS,
    Client,
    Population,
    PopulationSource,
    Problem,
    Scaling,
    make_client,
)

TABLES = (".csv", ".parquet")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
ABOUT = ("device", "cohort", "capacity", "model")
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass
class _Own:
    """What was read of one client: rows with targets, the split of each row (""), and attributes."""

    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


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
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of a client's rows that it is tested on, where the files do not say."""
    validation: Share = 0.0
    order: Literal["random", "time"] = "random"
    """`time`: rows are in the order of time, and the last ones are for testing."""
    size: Annotated[int, Field(ge=0)] = 0
    """Height and width to resize images to (0: as they are)."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population."""
        source = Path(self.path)
        if not source.exists():
            raise DataError(f"population.path: {source} does not exist")
        pictures = source.is_dir() and any(p.suffix.lower() in PICTURES for p in source.glob("*/*/*"))
        owners = self._images(source) if pictures else self._tables(source)
        labels = self._number_labels(owners)
        scaling = self._scaling(owners) if pictures else None
        clients = {name: self._client(name, own, seed, scaling) for name, own in sorted(owners.items())}
        outputs = len(labels) or max(c.data["train"].y.shape[1] for c in clients.values())
        return Population(clients, outputs, self.problem, labels)

    def _client(self, name: str, own: _Own, seed: int, scaling: Scaling | None) -> Client:
        y = np.asarray(own.y)
        data = {}
        for split, rows in self._split(name, own, y, seed).items():
            x = np.stack([own.x[i] for i in rows]) if len(rows) else np.zeros(0)
            inputs = torch.from_numpy(x)
            data[split] = (inputs.permute(0, 3, 1, 2) if scaling else inputs, y[rows])
        return make_client(name, data, self.problem, scaling, **own.about)

    def _split(self, name: str, own: _Own, y: NDArray[Any], seed: int) -> dict[str, NDArray[np.int64]]:
        every = np.arange(len(own.y))
        if any(own.split):
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

    def _tables(self, source: Path) -> dict[str, _Own]:
        if source.is_file():
            return self._one_table(source)
        files = [p for p in sorted(source.iterdir()) if p.suffix in (*TABLES, ".npz")]
        if not files:
            raise DataError(
                f"population.path: {source} holds no .npz, .csv or .parquet files and no client/label/*.png"
            )
        owners = {}
        for path in files:
            if path.stem in owners:
                raise DataError(f"{source} has two files for client '{path.stem}'")
            owners[path.stem] = _archive(path) if path.suffix == ".npz" else self._rows(path, *_table(path))
        return owners

    def _one_table(self, path: Path) -> dict[str, _Own]:
        header, rows = _table(path)
        if self.client not in header:
            raise DataError(
                f"{path}: there is no column '{self.client}' that names the client; {_there(header)}"
            )
        at = header.index(self.client)
        of_client: dict[str, list[tuple[int, Sequence[str]]]] = {}
        for line, row in rows:
            of_client.setdefault(str(row[at]), []).append((line, row))
        return {name: self._rows(path, header, own) for name, own in of_client.items()}

    def _rows(self, path: Path, header: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]]) -> _Own:
        targets = [column.strip() for column in self.target.split(",")]
        roles = {self.client, self.split, *targets, *ABOUT}
        features = self.features or tuple(column for column in header if column not in roles)
        missing = [column for column in (*targets, *features) if column not in header]
        if missing:
            raise DataError(f"{path}: there is no column '{missing[0]}'; {_there(header)}")
        own = _Own()
        for line, row in rows:
            cells = dict(zip(header, row, strict=True))
            own.x.append([_number(path, line, column, cells[column]) for column in features])
            if self.problem == "regression":
                own.y.append([_number(path, line, column, cells[column]) for column in targets])
            else:
                own.y.append(_label(path, line, targets[0], cells[targets[0]]))
            own.split.append(_split_name(path, line, cells.get(self.split, "")))
            own.about = {key: _attribute(key, cells[key]) for key in ABOUT if cells.get(key)}
        own.x = list(np.asarray(own.x, dtype=np.float32))
        return own

    def _images(self, source: Path) -> dict[str, _Own]:
        if self.problem == "regression":
            raise DataError("population.problem: folders of images name labels; regression needs a table")
        owners: dict[str, _Own] = {}
        shape: tuple[int, ...] = ()
        for path in sorted(p for p in source.glob("*/*/*") if p.suffix.lower() in PICTURES):
            pixels = _picture(path, self.size)
            shape = shape or pixels.shape
            if pixels.shape != shape:
                raise DataError(f"{path} is {pixels.shape}, others are {shape}: set population.size")
            own = owners.setdefault(path.parts[-3], _Own())
            own.x.append(pixels)
            own.y.append(path.parts[-2])
            own.split.append("")
        return owners

    def _number_labels(self, owners: Mapping[str, _Own]) -> tuple[str, ...]:
        """Give labels numbers, the same for all clients; whole numbers from 0 keep their own."""
        if self.problem == "regression":
            return ()
        names = {str(label) for own in owners.values() for label in own.y}
        if all(name.isdigit() for name in names):
            labels = [str(i) for i in range(max(int(name) for name in names) + 1)]
        else:
            labels = sorted(names)
        number = {name: i for i, name in enumerate(labels)}
        for own in owners.values():
            own.y = [number[str(label)] for label in own.y]
        return tuple(labels)

    def _scaling(self, owners: Mapping[str, _Own]) -> Scaling:
        channels = next(iter(owners.values())).x[0].shape[-1]
        return Scaling(1 / 255, (0.5,) * channels, (0.5,) * channels)


def _archive(path: Path) -> _Own:
    data = arrays(path)
    own = _Own(about={key: _attribute(key, str(data[key])) for key in ABOUT if key in data})
    parts = [f"_{split}" for split in SPLITS if f"x_{split}" in data] or [""]
    for end in parts:
        missing = [name for name in (f"x{end}", f"y{end}") if name not in data]
        if missing:
            raise DataError(f"{path}: there is no array '{missing[0]}'; {_there(list(data))}")
        x, y = data[f"x{end}"], data[f"y{end}"]
        if len(x) != len(y):
            raise DataError(f"{path}: {len(x)} rows in x{end} but {len(y)} in y{end}")
        own.x += list(x)
        own.y += y.tolist()
        own.split += [end[1:]] * len(y)
    return own


def _table(path: Path) -> tuple[list[str], list[tuple[int, Sequence[str]]]]:
    """Return the header and the rows with their line numbers."""
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(reader.line_num, row) for reader in [csv.reader(file)] for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(lines) < 2:
        raise DataError(f"{path} has no rows below its header")
    header = [column.strip() for column in lines[0][1]]
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}: {len(row)} cells, the header has {len(header)}")
    return header, list(lines[1:])


def _parquet(path: Path) -> tuple[list[str], list[tuple[int, Sequence[str]]]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: to read .parquet files, pip install 'intarsia[parquet]'") from None
    try:
        columns = pyarrow.parquet.read_table(path).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    rows = zip(*columns.values(), strict=True)
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    return list(columns), list(enumerate(cells, 1))


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"{path}, line {line}, column '{column}': {cell!r} is no finite number")
    return value


def _label(path: Path, line: int, column: str, cell: str) -> str:
    text = cell.strip()
    if not text or text.lower() == "nan":
        raise DataError(f"{path}, line {line}, column '{column}': the label is missing")
    return text


def _split_name(path: Path, line: int, cell: str) -> str:
    if cell and cell not in SPLITS:
        raise DataError(f"{path}, line {line}: '{cell}' is no split; write {', '.join(SPLITS)}")
    return cell


def _attribute(key: str, cell: str) -> Any:
    return float(cell) if key == "capacity" else cell


def _picture(path: Path, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as picture:
            grey = picture.mode in ("1", "L", "I", "F")
            sized = picture.convert("L" if grey else "RGB")
            if size:
                sized = sized.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(sized)
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{path} is no image that can be read: {error}") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _there(names: Sequence[str]) -> str:
    return f"there are: {', '.join(names)}"
