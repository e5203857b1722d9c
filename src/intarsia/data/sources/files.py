"""A user's own files: a table or archive a client, one table with a client column, or folders of images."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import Field

from intarsia.core import DataError, chance, part
from intarsia.data.packed import arrays
from intarsia.data.partitions.rules import stratified
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
from intarsia.data.precision import merged_in_float32

TABLES = (".csv", ".parquet")
MISSING = ("", "nan", "na", "n/a", "none", "null")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
ABOUT = ("device", "cohort", "capacity", "model")
WHOLE_FLOAT = re.compile(r"-?\d+\.0*")
"""A whole number as tables write it once the column had a gap: 1.0 is the label 1."""
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass
class _Own:
    """What was read of one client: rows with targets, the split of each row (""), and attributes."""

    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """The names of the columns of x, where they have names."""


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
        self, name: str, own: _Own, splits: Mapping[str, NDArray[np.int64]], scaling: Scaling | None
    ) -> Client:
        y, data = np.asarray(own.y), {}
        for split, rows in splits.items():
            if len(rows) == 0:
                continue
            inputs = torch.from_numpy(np.stack([own.x[i] for i in rows]))
            data[split] = (inputs if scaling is None else inputs.permute(0, 3, 1, 2), y[rows])
        return make_client(name, data, self.problem, scaling, task=self.task, **own.about)

    def _to_float32(
        self, owners: Mapping[str, _Own], splits: Mapping[str, Mapping[str, NDArray[np.int64]]]
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

    def _split(self, name: str, own: _Own, y: NDArray[Any], seed: int) -> dict[str, NDArray[np.int64]]:
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

    def _tables(self, source: Path) -> dict[str, _Own]:
        if source.is_file():
            return self._one_table(source)
        files = [p for p in sorted(source.iterdir()) if p.suffix.lower() in (*TABLES, ".npz")]
        if not files:
            raise DataError(
                f"population.path: {source} holds no .npz, .csv or .parquet files and no client/label/*.png"
            )
        owners: dict[str, _Own] = {}
        features: tuple[str, ...] = self.features
        for path in files:
            if path.stem in owners:
                raise DataError(f"{source} has two files for client '{path.stem}'")
            if path.suffix.lower() == ".npz":
                owners[path.stem] = _archive(path)
            else:
                header, rows = _table(path)
                features = features or self._features(header)
                owners[path.stem] = self._rows(path, header, rows, features)
        return owners

    def _one_table(self, path: Path) -> dict[str, _Own]:
        if path.suffix.lower() not in TABLES:
            raise DataError(
                f"{path}: one file for all clients must be a .csv or .parquet table; else give the folder"
            )
        header, rows = _table(path)
        if self.client not in header:
            raise DataError(
                f"{path}: there is no column '{self.client}' that names the client; {_there(header)}"
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
    ) -> _Own:
        targets = self._targets
        self._check_columns(path, header, features)
        own = _Own(columns=tuple(features))
        for line, row in rows:
            cells = dict(zip(header, row, strict=True))
            own.x.append([_number(path, line, column, cells[column]) for column in features])
            if self.problem == "regression":
                own.y.append([_number(path, line, column, cells[column]) for column in targets])
            else:
                own.y.append(_label(path, line, targets[0], cells[targets[0]]))
            own.split.append(_split_name(path, line, cells.get(self.split, "").strip()))
            about = {key: _attribute(path, line, key, cells[key]) for key in ABOUT if cells.get(key)}
            if own.about not in ({}, about):
                raise DataError(f"{path}, line {line}: {about} differs from {own.about} above it")
            own.about = about
        own.x = list(np.asarray(own.x, dtype=np.float64))
        return own

    def _check_columns(self, path: Path, header: Sequence[str], features: Sequence[str]) -> None:
        missing = [column for column in (*self._targets, *features) if column not in header]
        if missing:
            raise DataError(f"{path}: there is no column '{missing[0]}'; {_there(header)}")
        if not features:
            raise DataError(f"{path}: there is no column to learn from; {_there(header)}")
        both = set(features) & set(self._targets)
        if both:
            raise DataError(f"population.features: '{min(both)}' is what is to be predicted")
        surplus = [] if self.features else sorted(set(self._features(header)) - set(features))
        if surplus:
            raise DataError(
                f"{path}: column '{surplus[0]}' is not in the other files; name the columns in features"
            )

    def _images(self, source: Path) -> dict[str, _Own]:
        if self.problem == "regression":
            raise DataError("population.problem: folders of images name labels; regression needs a table")
        owners: dict[str, _Own] = {}
        paths = sorted(p for p in source.glob("*/*/*") if p.suffix.lower() in PICTURES)
        pictures = {path: _picture(path, self.size) for path in paths}
        channels = max(pixels.shape[-1] for pixels in pictures.values())
        shape = (*pictures[paths[0]].shape[:2], channels)
        for path, pixels in pictures.items():
            coloured = np.repeat(pixels, channels // pixels.shape[-1], axis=-1)
            if coloured.shape != shape:
                raise DataError(f"{path} is {coloured.shape}, others are {shape}: set population.size")
            own = owners.setdefault(path.parts[-3], _Own())
            own.x.append(coloured)
            own.y.append(path.parts[-2])
            own.split.append("")
        return owners

    def _number_labels(self, owners: Mapping[str, _Own]) -> tuple[str, ...]:
        """Give labels numbers, the same for all clients; those that are 0, 1, 2, ... keep their own."""
        if self.problem == "regression":
            return ()
        names = {str(label) for own in owners.values() for label in own.y}
        labels = sorted(names)
        if all(_is_whole(name) for name in names):
            labels = sorted(names, key=int)
            highest = int(labels[-1])
            if int(labels[0]) >= 0 and highest < 2 * len(labels) + 10:
                labels = [str(i) for i in range(highest + 1)]
        number = {name: i for i, name in enumerate(labels)}
        for own in owners.values():
            own.y = [number[str(label)] for label in own.y]
        return tuple(labels)


BYTES = Scaling(1 / 255, (0.5,), (0.5,))
"""Images of one's own: bytes to -1 ... 1."""


def _for_channels(scaling: Scaling, channels: int) -> Scaling:
    return Scaling(scaling.factor, scaling.mean * channels, scaling.std * channels)


def _check_labels(owners: Mapping[str, _Own]) -> None:
    """Refuse lists, and numbers of which some are not whole: each would be a class of its own."""
    held = {str(label): (name, label) for name, own in owners.items() for label in own.y}
    numbers = all(_is_number(text) for text in held)
    for text, (name, label) in held.items():
        if isinstance(label, list) or (numbers and not float(text).is_integer()):
            raise DataError(
                f"client '{name}': labels must be whole numbers or words, one a sample, not {text}; "
                'for regression set population.problem = "regression"'
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(name: str) -> bool:
    try:
        return str(int(name)) == name
    except ValueError:
        return False


def _archive(path: Path) -> _Own:
    data = arrays(path)
    for kind in ("x", "y"):
        if f"{kind}_val" in data:
            data[f"{kind}_validation"] = data.pop(f"{kind}_val")
    about = {key: _attribute(path, 1, key, str(data[key].reshape(-1)[0])) for key in ABOUT if key in data}
    own = _Own(about=about)
    parts = [f"_{split}" for split in SPLITS if f"x_{split}" in data] or [""]
    for end in parts:
        missing = [name for name in (f"x{end}", f"y{end}") if name not in data]
        if missing:
            raise DataError(f"{path}: there is no array '{missing[0]}'; {_there(list(data))}")
        x, y = _inputs(path, data[f"x{end}"]), _archived_targets(path, data[f"y{end}"])
        if len(x) != len(y):
            raise DataError(f"{path}: {len(x)} rows in x{end} but {len(y)} in y{end}")
        if own.x and len(x) and x.shape[1:] != own.x[0].shape:
            raise DataError(
                f"{path}: rows of x{end} have shape {x.shape[1:]}, those before have {own.x[0].shape}"
            )
        own.x += list(x)
        own.y += y
        own.split += [end[1:]] * len(y)
    if not own.x:
        raise DataError(f"{path} has no rows in x")
    return own


def _inputs(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    if x.ndim == 0 or x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x must be numbers, one row a sample, not {x.dtype} {list(x.shape)}")
    finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise DataError(f"{path}: row {row} holds a NaN or an infinity; clean it or leave the row out")
    return x


def _archived_targets(path: Path, y: NDArray[Any]) -> list[Any]:
    """Return targets as plain values: whole numbers as such, words as words."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 0:
        raise DataError(f"{path}: y must have one row a sample, not a single value")
    if y.dtype.kind == "f" and y.ndim == 1 and np.isfinite(y).all() and (y == np.round(y)).all():
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8")
    return list(y.tolist())


def _table(path: Path) -> tuple[list[str], list[tuple[int, Sequence[str]]]]:
    """Return the header and the rows with their line numbers."""
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(reader.line_num, row) for reader in [csv.reader(file)] for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(lines) < 2:
        raise DataError(f"{path} has no rows below its header")
    header = [column.strip() for column in lines[0][1]]
    if len(header) == 1 and ";" in header[0]:
        raise DataError(f"{path} has semicolons between its cells: write commas")
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise DataError(f"{path} has two columns '{twice[0]}'")
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
    if text.lower() in MISSING:
        raise DataError(f"{path}, line {line}, column '{column}': the label is missing")
    return str(int(text.partition(".")[0])) if WHOLE_FLOAT.fullmatch(text) else text


def _split_name(path: Path, line: int, cell: str) -> str:
    if cell and cell not in SPLITS:
        raise DataError(f"{path}, line {line}: '{cell}' is no split; write {', '.join(SPLITS)}")
    return cell


def _attribute(path: Path, line: int, key: str, cell: str) -> Any:
    return _number(path, line, key, cell) if key == "capacity" else cell.strip()


def _picture(path: Path, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as picture:
            sized = _eight_bits(picture)
            if size:
                sized = sized.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(sized)
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is no image that can be read: {error}") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Return a picture in grey or colour with 8 bits a channel; 16 bits are scaled, not cut off."""
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.float64) / 257
        return Image.fromarray(np.round(values).clip(0, 255).astype(np.uint8))
    if picture.mode == "F":
        raise ValueError("pixels that are no whole numbers")
    return picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")


def _there(names: Sequence[str]) -> str:
    return f"there are: {', '.join(names)}"
