"""Archives and pictures of own files, as arrays; labels and attributes as cells name them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from intarsia.core import DataError
from intarsia.data.cells import number
from intarsia.data.own import OF_DEVICE
from intarsia.data.packed import arrays
from intarsia.data.population import PROFILE, SPLITS, Scaling
from intarsia.data.preparation import Column
from intarsia.data.tables import Table, in_words

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
ABOUT = ("device", "cohort", "capacity", "model", *(OF_DEVICE + name for name in PROFILE))
"""Columns that say something of a client and are no features."""
WHOLE_FLOAT = re.compile(r"-?\d+\.0*")
"""A whole number as tables write it once the column had a gap: 1.0 is the label 1."""

BYTES = Scaling(1 / 255, (0.5,), (0.5,))
"""Images of one's own: bytes to -1 ... 1."""


@dataclass
class Holding:
    """What was read of one client: rows with targets, the split of each row (""), and attributes."""

    x: NDArray[Any]
    """Raw inputs, one row a sample: of tables and archives numbers with NaN where one is missing, of pictures bytes."""
    y: list[Any]
    split: list[str]
    about: dict[str, Any] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    """What the last dimension of x is, where it can be prepared."""
    table: Table | None = None
    seconds: NDArray[np.float64] | None = None
    """The time of every row, where a column says it."""
    time_form: str = ""
    """How that column writes it."""

    def rows(self, kept: NDArray[np.int64]) -> Holding:
        """Return some of the rows."""
        return Holding(
            self.x[kept],
            [self.y[i] for i in kept],
            [self.split[i] for i in kept],
            self.about,
            self.columns,
            None if self.table is None else self.table.rows(kept),
            None if self.seconds is None else self.seconds[kept],
            self.time_form,
        )


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


def read_archive(path: Path, gaps: bool = False) -> Holding:
    """Read a client's arrays from a .npz file; `gaps`: values may be missing (NaN)."""
    data = arrays(path)
    for kind in ("x", "y"):
        if f"{kind}_val" in data:
            data[f"{kind}_validation"] = data.pop(f"{kind}_val")
    about = {key: attribute_of(str(path), key, str(data[key].reshape(-1)[0])) for key in ABOUT if key in data}
    parts = [f"_{split}" for split in SPLITS if f"x_{split}" in data] or [""]
    inputs: list[NDArray[Any]] = []
    targets: list[Any] = []
    splits: list[str] = []
    for end in parts:
        missing = [name for name in (f"x{end}", f"y{end}") if name not in data]
        if missing:
            raise DataError(
                f"{path}: there is no array '{missing[0]}'; {in_words(list(data))}: save it with x and y"
            )
        x, y = _inputs(path, data[f"x{end}"], gaps), _archived_targets(path, data[f"y{end}"])
        if len(x) != len(y):
            raise DataError(f"{path}: {len(x)} rows in x{end} but {len(y)} in y{end}: save one y for every x")
        if inputs and len(x) and x.shape[1:] != inputs[0].shape[1:]:
            raise DataError(
                f"{path}: rows of x{end} have shape {x.shape[1:]}, those before have {inputs[0].shape[1:]}: "
                "save them in one shape"
            )
        inputs += [x] if len(x) else []
        targets += y
        splits += [end[1:]] * len(y)
    if not inputs:
        raise DataError(f"{path} has no rows in x: save some, or take the file away")
    return Holding(np.concatenate(inputs), targets, splits, about)


def _inputs(path: Path, x: NDArray[Any], gaps: bool) -> NDArray[Any]:
    if x.ndim == 0 or x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x must be numbers, one row a sample, not {x.dtype} {list(x.shape)}")
    fine = ~np.isinf(x) if gaps else np.isfinite(x)
    fine = fine.all(axis=tuple(range(1, x.ndim)))
    if not fine.all():
        row = int(np.flatnonzero(~fine)[0])
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


def label_of(cell: str) -> str:
    """Return a cell of a table as a label."""
    text = cell.strip()
    return str(int(text.partition(".")[0])) if WHOLE_FLOAT.fullmatch(text) else text


def attribute_of(where: str, key: str, cell: str) -> Any:
    """Return a cell of a table as a client's attribute: a number for what can be counted, else a word."""
    if key != "capacity" and not (key.startswith(OF_DEVICE) and key != f"{OF_DEVICE}available"):
        return cell.strip()
    value = number(cell)
    if value is None:
        raise DataError(f"{where}, column '{key}': {cell!r} is no finite number: write one")
    return value


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
    except Exception as error:  # a damaged picture can raise anything
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
