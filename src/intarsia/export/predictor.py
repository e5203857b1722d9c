"""New samples to predictions: with a run's model, or with one that was exported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.core import DataError, IntarsiaError, RunFolderError, in_words, some
from intarsia.data.packed import arrays
from intarsia.data.preparation import Preparation, window_rows
from intarsia.data.sources.readers import PICTURES
from intarsia.data.tables import TABLES, Table, read_table
from intarsia.export.graph import ExportError, Runner, in_torch, run_onnx, run_pt2
from intarsia.export.inputs import Inputs
from intarsia.export.package import FORMAT, Package
from intarsia.export.predictions import Predictions
from intarsia.export.rows import chosen, notices_of
from intarsia.export.write import FORMATS, MODEL, RECORD, has_onnx

BATCH = 1000
Samples = str | Path | NDArray[Any] | Tensor
"""A table, a folder of images or an .npz archive; or an array of raw samples."""


@dataclass(frozen=True)
class Predictor:
    """Something that runs a model's graph, and what the model says of itself."""

    client: str
    inputs: Inputs
    labels: Sequence[str]
    targets: Sequence[str]
    runner: Runner

    @classmethod
    def of(cls, package: Package) -> Predictor:
        """Return what predicts with a model that is at hand."""
        runner = in_torch(package.deployed)
        return cls(package.client, package.inputs, package.labels, package.targets, runner)

    @classmethod
    def open(cls, path: Path, client: str = "") -> Predictor:
        """Open an exported .onnx or .pt2 file, a folder of one, or a folder of several clients' exports."""
        file = _model_file(path, client)
        runner, about = _opened(file)
        if about.get("format") != FORMAT:
            raise ExportError(
                f"{file} does not say what it is: was it exported by another version of Intarsia?"
            )
        if client and about.get("client") != client:
            raise DataError(f"{file} is the model of client '{about.get('client')}', not of '{client}'")
        try:
            labels, targets = (tuple(map(str, about[key])) for key in ("labels", "targets"))
            return cls(str(about["client"]), Inputs.from_json(about["input"]), labels, targets, runner)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ExportError(f"{file} is damaged: {type(error).__name__}: {error}") from error

    def predict(self, samples: Samples, identity: str = "") -> Predictions:
        """Predict for a table, a folder of images, an .npz archive (its `x`), or an array of raw samples.

        `identity` is a column of the table that comes along into the predictions.
        """
        if not isinstance(samples, str | Path):
            given = samples.numpy() if isinstance(samples, Tensor) else np.asarray(samples)
            return self._of_array(given, "the array")
        path = Path(samples)
        if not path.exists():
            raise DataError(f"{path} does not exist")
        if path.suffix.lower() in TABLES:
            return self.of_table(read_table(path), identity)
        if identity:
            raise DataError(f"{path} is no table: there is no column '{identity}' in it")
        if path.suffix.lower() == ".npz":
            return self._of_archive(path)
        return self._of_pictures(path)

    def of_table(self, table: Table, identity: str = "") -> Predictions:
        """Predict for the client's rows of a table: taken in the order of time, given in that of the file."""
        preparation = self.inputs.preparation
        if preparation is None:
            raise DataError(
                f"{table.source}: the model takes {self._wanted()}, not a table: give that instead"
            )
        if identity:
            table.column(identity)
        own = chosen(table, preparation, self.client)
        ordered = table.rows(own.rows)
        rows = preparation.rows(ordered)
        self._refuse_missing(rows, ordered)
        raw, last = _samples(rows, preparation)
        if not len(raw):
            raise DataError(f"{table.source}: {len(rows)} rows are too few: a sample is {preparation.window}")
        as_in_file = np.argsort(own.rows[last])
        told = ordered.rows(last[as_in_file])
        places = {"line": told.lines, **({identity: told.column(identity)} if identity else {})}
        used = {column.name for column in preparation.columns}
        used |= {identity, preparation.client, preparation.time}
        unused = [name for name in table.header if name not in used]
        notices = (*own.notices, *notices_of(rows, preparation.columns))
        return self._predictions(torch.from_numpy(raw[as_in_file]), places, unused, notices)

    def _refuse_missing(self, rows: NDArray[np.float64], table: Table) -> None:
        assert self.inputs.preparation is not None
        for at, column in enumerate(self.inputs.preparation.columns):
            gaps = np.flatnonzero(np.isnan(rows[:, at]))
            if column.fill is None and len(gaps):
                raise DataError(
                    f"{table.place(int(gaps[0]), column.name)}: the value is missing, and the model was trained "
                    "without a rule for that (population.missing): fill the cell, or leave the line out"
                )

    def _of_archive(self, path: Path) -> Predictions:
        found = arrays(path)
        if "x" not in found:
            raise DataError(f"{path}: there is no array 'x'; there are: {', '.join(found)}")
        return self._of_array(found["x"], f"{path}: x")

    def _of_array(self, raw: NDArray[Any], where: str) -> Predictions:
        samples = self.inputs.checked(raw, where)
        return self._predictions(samples, {"row": list(range(len(samples)))})

    def _of_pictures(self, path: Path) -> Predictions:
        pictures = self.inputs.pictures
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        files = [file for file in files if file.suffix.lower() in PICTURES]
        if not files:
            raise DataError(f"{path}: no table ({', '.join(TABLES)}), no .npz archive and no images in it")
        if pictures is None:
            raise DataError(f"{path}: the model takes {self._wanted()}, not images: give that instead")
        raw = torch.from_numpy(np.ascontiguousarray(pictures.raw(files)))
        names = [str(file.relative_to(path) if path.is_dir() else file.name) for file in files]
        return self._predictions(raw, {"file": names})

    def _wanted(self) -> str:
        if self.inputs.kind == "table":
            return "a table"
        if self.inputs.kind == "images":
            return "images, or an .npz archive of them"
        shape = ", ".join(map(str, self.inputs.shape))
        return f"an .npz archive with x of shape [rows, {shape}]"

    def _predictions(
        self,
        raw: Tensor,
        places: Mapping[str, Sequence[Any]],
        unused: Sequence[str] = (),
        notices: Sequence[str] = (),
    ) -> Predictions:
        if not len(raw):
            raise DataError("there are no samples to predict for")
        found = [self.runner(raw[i : i + BATCH])[1] for i in range(0, len(raw), BATCH)]
        values = torch.cat(found).numpy()
        return Predictions(places, self.labels, values, self.targets, unused, notices)


def _samples(
    rows: NDArray[np.float64], preparation: Preparation
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return raw samples, a row or a window of rows each, and the row that each ends with."""
    if not preparation.window:
        return rows, np.arange(len(rows))
    windows = window_rows(len(rows), preparation.window, preparation.stride)
    return rows[windows], windows[:, -1]


def _opened(file: Path) -> tuple[Runner, dict[str, Any]]:
    """Return what runs a file, and what it says of itself."""
    try:
        runner, about = (run_onnx if file.suffix == ".onnx" else run_pt2)(file.read_bytes())
        return runner, dict(about)
    except IntarsiaError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ExportError(f"{file} cannot be run: {str(error)[:300]}; export it again") from error


def is_export(path: Path) -> bool:
    """Return whether a path is an exported model, or a folder of exports."""
    return path.suffix.lower() in FORMATS or (path.is_dir() and bool(_records(path)))


def _records(folder: Path) -> list[Path]:
    own = folder / RECORD
    return [own] if own.exists() else sorted(folder.glob(f"*/{RECORD}"))


def _model_file(path: Path, client: str) -> Path:
    """Return the file to run: the path itself, or the one in a folder."""
    if not isinstance(path, Path):
        raise DataError(f"give the path of an export, not {in_words(path)}")
    if path.is_dir():
        folder = _folder_of(path, client)
        there = [folder / f"{MODEL}{suffix}" for suffix in (".onnx", ".pt2")]
        usable = [file for file in there if file.exists() and (file.suffix != ".onnx" or has_onnx())]
        if not usable:
            raise RunFolderError(f"{folder} holds no model.onnx or model.pt2 that can be run here")
        return usable[0]
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.suffix.lower() not in (".onnx", ".pt2"):
        raise DataError(
            f"{path} cannot be run by itself (weights have no network): give the .onnx, the .pt2 or the folder"
        )
    return path


def _folder_of(path: Path, client: str) -> Path:
    """Return the folder of one export among these."""
    found = {_client_of(record): record.parent for record in _records(path)}
    if not found:
        raise RunFolderError(f"{path} holds no export: there is no {RECORD} in it")
    if not client and len(found) == 1:
        return next(iter(found.values()))
    if not client:
        raise DataError(f"{path} holds several models: say whose (--client NAME): {some(list(found))}")
    if client not in found:
        raise DataError(f"{path} holds no model of client '{client}'; there are: {some(list(found))}")
    return found[client]


def _client_of(record: Path) -> str:
    try:
        return str(json.loads(record.read_text("utf8"))["client"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{record} is damaged: {error}; export the model again") from error
