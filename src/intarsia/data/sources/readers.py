"""Tables, archives and pictures of own files, as arrays."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from intarsia.core import DataError
from intarsia.data.packed import arrays
from intarsia.data.population import SPLITS, Scaling

TABLES = (".csv", ".parquet")
MISSING = ("", "nan", "na", "n/a", "none", "null")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
ABOUT = ("device", "cohort", "capacity", "model")
WHOLE_FLOAT = re.compile(r"-?\d+\.0*")
"""A whole number as tables write it once the column had a gap: 1.0 is the label 1."""


@dataclass
class OwnRows:
    """What was read of one client: rows with targets, the split of each row (""), and attributes."""

    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """The names of the columns of x, where they have names."""


BYTES = Scaling(1 / 255, (0.5,), (0.5,))
"""Images of one's own: bytes to -1 ... 1."""


def is_number(text: str) -> bool:
    """Return whether a cell of a table can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_whole(name: str) -> bool:
    """Return whether a cell of a table is a whole number."""
    try:
        return str(int(name)) == name
    except ValueError:
        return False


def read_archive(path: Path) -> OwnRows:
    """Read a client's arrays from a .npz file."""
    data = arrays(path)
    for kind in ("x", "y"):
        if f"{kind}_val" in data:
            data[f"{kind}_validation"] = data.pop(f"{kind}_val")
    about = {key: attribute_of(path, 1, key, str(data[key].reshape(-1)[0])) for key in ABOUT if key in data}
    own = OwnRows(about=about)
    parts = [f"_{split}" for split in SPLITS if f"x_{split}" in data] or [""]
    for end in parts:
        missing = [name for name in (f"x{end}", f"y{end}") if name not in data]
        if missing:
            raise DataError(f"{path}: there is no array '{missing[0]}'; {in_words(list(data))}")
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


def read_table(path: Path) -> tuple[list[str], list[tuple[int, Sequence[str]]]]:
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


def number_of(path: Path, line: int, column: str, cell: str) -> float:
    """Return a cell of a table as a number."""
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"{path}, line {line}, column '{column}': {cell!r} is no finite number")
    return value


def label_of(path: Path, line: int, column: str, cell: str) -> str:
    """Return a cell of a table as a label."""
    text = cell.strip()
    if text.lower() in MISSING:
        raise DataError(f"{path}, line {line}, column '{column}': the label is missing")
    return str(int(text.partition(".")[0])) if WHOLE_FLOAT.fullmatch(text) else text


def attribute_of(path: Path, line: int, key: str, cell: str) -> Any:
    """Return a cell of a table as a client's attribute."""
    return number_of(path, line, key, cell) if key == "capacity" else cell.strip()


MODES = {1: "L", 3: "RGB"}


def read_picture(path: Path, size: tuple[int, int] | None, channels: int = 0) -> NDArray[np.uint8]:
    """Read a picture as bytes, of this height and width if they are given, and with so many channels (0: as it is)."""
    try:
        with Image.open(path) as picture:
            sized = _eight_bits(picture)
            if channels:
                sized = sized.convert(MODES[channels])
            if size and sized.size != size[::-1]:
                sized = sized.resize(size[::-1], Image.Resampling.BILINEAR)
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


def in_words(names: Sequence[str]) -> str:
    """Say which names there are."""
    return f"there are: {', '.join(names)}"
