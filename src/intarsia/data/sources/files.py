"""A user's own files: a table or archive a client, one table for all, several tables, or folders of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import DataError, chance, part, warn
from intarsia.data.cells import look_alike
from intarsia.data.own import make_client
from intarsia.data.partitions.stratified import stratified
from intarsia.data.places import Places
from intarsia.data.population import SPLITS, Client, Population, PopulationSource, Scaling
from intarsia.data.preparation import Column, Pictures, Preparation, Prepared, window_rows
from intarsia.data.sources.prepared import Fitted, Rows, carried_on
from intarsia.data.sources.readers import (
    BYTES,
    PICTURES,
    Holding,
    is_number,
    is_whole,
    read_archive,
    read_picture,
)
from intarsia.data.sources.tabular import Tabular, files_in
from intarsia.data.tables import TABLES

Share = Annotated[float, Field(ge=0, lt=1)]


@part
class Files(Tabular):
    """A folder, a file or several files of one's own.

    - a folder of `.npz`, `.csv`, `.tsv` or `.parquet` files: one a client, named by the file;
    - one such table, or several, with a column that names the client;
    - a folder `client/label/*.png` of images.

    An `.npz` holds `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test` (and `_validation`). In a table,
    every column that has no role of its own is a feature. `device`, `cohort`, `capacity` and `model`, as
    columns or as arrays of the archive, become attributes of the client. A column that is empty for a client is one
    that its device does not have: where no column `device` says who is alike, clients with the same columns are one
    device.
    """

    name: ClassVar[str] = "files"
    summary: ClassVar[str] = "own files: .csv, .tsv, .parquet, .npz or image folders"

    task: str = ""
    """The clients' task, where members of a joint population predict different things."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of a client's rows that it is tested on, where the files do not say."""
    validation: Share = 0.0
    """Share of a client's training data that is kept for choosing."""
    order: Literal["random", "time"] = "random"
    """`time`: the last rows are for testing; rows are in the order of the column `time`, or as they stand."""
    scale: Literal["none", "standard"] = "none"
    """`standard`: numbers are centred and scaled, by mean and deviation of training rows."""
    scale_by: Literal["client", "device", "all"] = "all"
    """Whose training rows mean and deviation are of: the client's own, those of its device, or all."""
    scales: dict[str, tuple[float, Annotated[float, Field(gt=0)]]] = Field(default_factory=dict)
    """Mean and deviation of columns, where they are known beforehand: they stand in place of fitted ones."""
    target_scale: Literal["none", "standard"] = "none"
    """Regression: `standard` learns targets in deviations from their mean, over all clients' training rows."""
    window: Annotated[int, Field(ge=0)] = 0
    """Rows of a sample, one after the other in time (0: each row is a sample). The last row has its label."""
    stride: Annotated[int, Field(ge=0)] = 0
    """Rows between the beginnings of two windows (0: as many as a window has)."""
    gap: Annotated[float, Field(ge=0)] = 0.0
    """Seconds without a row that no window reaches across (0: any number)."""
    size: Annotated[int, Field(ge=0)] = 0
    """Height and width to resize images to (0: as they are)."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population."""
        pictures = [p for path in self.paths if path.is_dir() for p in pictures_in(path)]
        holdings = self._images(pictures) if pictures else self._numbers()
        if not pictures and self.problem == "classification":
            _check_labels(holdings)
        labels = self._number_labels(holdings)
        rows = {
            name: self._split(name, own, np.asarray(own.y), seed) for name, own in sorted(holdings.items())
        }
        made = self._pictured(holdings, rows) if pictures else self._prepared(holdings, rows)
        clients, preparations = made
        outputs = len(labels) or max(c.data["train"].y.shape[1] for c in clients.values())
        return Population(clients, outputs, self.problem, labels, preparations=preparations)

    def _numbers(self) -> dict[str, Holding]:
        """Read tables and archives."""
        tables = [table for path in self.paths for table in files_in(path, TABLES)]
        archives = [archive for path in self.paths for archive in files_in(path, (".npz",))]
        if not tables and not archives:
            raise DataError(
                f"population.path: {self.paths[0]} holds no .npz, .csv, .tsv or .parquet files and no "
                "client/label/*.png: name the folder with your files, or save a table as .csv"
            )
        found = self.of_tables(tables)
        for path in archives:
            if path.stem in found:
                raise DataError(f"{path.parent} has two files for client '{path.stem}': rename or remove one")
            found[path.stem] = read_archive(path, gaps=self.missing != "refuse")
        return {name: self._without_gaps(name, own) for name, own in found.items()}

    def _without_gaps(self, name: str, own: Holding) -> Holding:
        if self.missing == "drop" and own.x.dtype.kind == "f":
            own = own.rows(np.flatnonzero(~np.isnan(own.x).reshape(len(own.x), -1).any(1)))
        if not len(own.x):
            raise DataError(
                f"client '{name}': every row misses a value, so that none is left: set population.missing = "
                '"mean", leave out columns with many gaps (population.ignore), or leave out the client'
            )
        return own

    def _prepared(
        self, holdings: Mapping[str, Holding], rows: Mapping[str, Rows]
    ) -> tuple[dict[str, Client], dict[str, Prepared]]:
        """Return clients with inputs as models see them, and how these were made of raw values."""
        self._check_order(holdings)
        fitted = Fitted(
            self.missing,
            self.scale,
            self.scale_by,
            self.scales,
            self.window,
            self._stride,
            self.client,
            self.time,
        )
        targets = fitted.targets(self.targets, holdings, rows, self.target_scale) if self._regression else ()
        made = fitted.preparations(holdings, rows, targets, self.path)
        found = {name: replace(own, gaps=self.gaps) for name, own in made.items()}
        clients = {}
        for name, own in rows.items():
            samples = {split: self._samples(holdings[name], kept, own) for split, kept in own.items()}
            self._check_windows(name, own, samples)
            data = self._data(holdings[name], samples, own, found.get(name))
            clients[name] = make_client(name, data, self.problem, task=self.task, **holdings[name].about)
        return clients, dict(found)

    def _data(
        self,
        holding: Holding,
        samples: Mapping[str, NDArray[np.int64]],
        rows: Rows,
        prepared: Preparation | None,
    ) -> dict[str, tuple[Any, Any]]:
        """Return inputs and targets of each split; a sample is a row, or a window that has its last row's target."""
        y, x = np.asarray(holding.y), holding.x
        if prepared is not None:
            x = carried_on(x, prepared, self._stretches(holding, rows))
            if self._regression:
                y = (y.reshape(len(y), -1) - [c.offset for c in prepared.targets]) / [
                    c.scale for c in prepared.targets
                ]
        data = {}
        for split, kept in samples.items():
            if len(kept):
                inputs = x[kept] if prepared is None else prepared.apply(x[kept])
                data[split] = (_as_float32(inputs), y[kept if kept.ndim == 1 else kept[:, -1]])
        return data

    @property
    def fits(self) -> bool:
        """Whether anything is fitted to training rows: means, deviations."""
        return self.scale != "none" or self.missing in ("mean", "carry")

    @property
    def _regression(self) -> bool:
        return self.problem == "regression"

    @property
    def _stride(self) -> int:
        return self.stride or max(1, self.window)

    def _check_order(self, holdings: Mapping[str, Holding]) -> None:
        """Refuse rows by chance where their order counts."""
        what = "window" if self.window else "missing" if self.missing == "carry" else ""
        told = all(all(own.split) for own in holdings.values())
        if what and self.order == "random" and not told:
            raise DataError(
                f"population.{what}: rows must stay in the order of time for it, but are split by chance: set "
                'population.order = "time" (and population.time to the column that says when)'
            )
        if self.gap and not self.time:
            raise DataError("population.gap: say which column holds the time (population.time)")

    def _stretches(self, holding: Holding, rows: Rows) -> Iterator[NDArray[np.int64]]:
        """Yield rows that follow one another: of one split, without a gap in time."""
        of_row = np.full(len(holding.y), -1)
        for number, kept in enumerate(rows.values()):
            of_row[kept] = number
        breaks = np.diff(of_row) != 0
        if self.gap and holding.seconds is not None:
            breaks |= np.diff(holding.seconds) > self.gap
        yield from np.split(np.arange(len(of_row)), np.flatnonzero(breaks) + 1)

    def _samples(self, holding: Holding, kept: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
        """Return the rows of every sample of a split: one each, or a window within a stretch."""
        if not self.window:
            return kept
        held = set(kept.tolist())
        windows = [
            stretch[window_rows(len(stretch), self.window, self._stride)]
            for stretch in self._stretches(holding, rows)
            if int(stretch[0]) in held
        ]
        return np.concatenate(windows) if windows else np.zeros((0, self.window), dtype=np.int64)

    def _check_windows(self, name: str, rows: Rows, samples: Rows) -> None:
        for split, kept in rows.items():
            if self.window and len(kept) and not len(samples[split]):
                raise DataError(
                    f"client '{name}' has no {self.window} {split} rows in a row for a window: set population.window "
                    "to fewer, or population.min_rows to leave out clients with few rows"
                )

    def _split(self, name: str, own: Holding, y: NDArray[Any], seed: int) -> dict[str, NDArray[np.int64]]:
        every = np.arange(len(own.y))
        if any(own.split):
            if not all(own.split):
                raise DataError(
                    f"client '{name}': some rows say which split they are for and others do not: fill or empty "
                    f"the column '{self.split}'"
                )
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

    def _images(self, paths: Sequence[Path]) -> dict[str, Holding]:
        if self.problem == "regression":
            raise DataError(
                "population.problem: folders of images name labels; regression needs a table: set it to classification"
            )
        size = (self.size, self.size) if self.size else None
        pictures = {path: read_picture(path, size) for path in paths}
        channels = max(pixels.shape[-1] for pixels in pictures.values())
        shape = (*pictures[paths[0]].shape[:2], channels)
        found: dict[str, list[tuple[Any, str]]] = {}
        for path, pixels in pictures.items():
            coloured = np.repeat(pixels, channels // pixels.shape[-1], axis=-1)
            if coloured.shape != shape:
                raise DataError(f"{path} is {coloured.shape}, others are {shape}: set population.size")
            found.setdefault(path.parts[-3], []).append((coloured, path.parts[-2]))
        return {
            name: Holding(np.stack([x for x, _ in own]), [y for _, y in own], [""] * len(own))
            for name, own in found.items()
        }

    def _pictured(
        self, holdings: Mapping[str, Holding], rows: Mapping[str, Rows]
    ) -> tuple[dict[str, Client], dict[str, Prepared]]:
        """Return clients with pictures as bytes, and how these become inputs."""
        height, width, channels = next(iter(holdings.values())).x.shape[1:]
        scaling = _for_channels(BYTES, channels)
        clients = {}
        for name, own in rows.items():
            x, y = holdings[name].x, np.asarray(holdings[name].y)
            data = {
                split: (torch.from_numpy(x[kept]).permute(0, 3, 1, 2), y[kept])
                for split, kept in own.items()
                if len(kept)
            }
            clients[name] = make_client(
                name, data, self.problem, scaling, task=self.task, **holdings[name].about
            )
        return clients, dict.fromkeys(clients, Pictures(height, width, channels, scaling))

    def _number_labels(self, holdings: Mapping[str, Holding]) -> tuple[str, ...]:
        """Give labels numbers, the same for all clients; those that are 0, 1, 2, ... keep their own."""
        if self.problem == "regression":
            return ()
        for own in holdings.values():
            own.y = [self.relabel.get(str(label), str(label)) for label in own.y]
        names = {label for own in holdings.values() for label in own.y}
        _warn_of_twins(names)
        labels = sorted(names)
        if all(is_whole(name) for name in names):
            labels = sorted(names, key=int)
            highest = int(labels[-1])
            if int(labels[0]) >= 0 and highest < 2 * len(labels) + 10:
                labels = [str(i) for i in range(highest + 1)]
        number = {name: i for i, name in enumerate(labels)}
        for own in holdings.values():
            own.y = [number[label] for label in own.y]
        return tuple(labels)


def check_alone(source: PopulationSource, population: Population, devices_elsewhere: bool) -> None:
    """Refuse a site's own files that would be prepared in another way than those of other sites.

    `devices_elsewhere`: something else than the files says which device a client is.
    """
    members: Mapping[str, PopulationSource] = getattr(source, "members", {})
    for member in (source, *members.values()):
        if isinstance(member, Files):
            _check_alone(member, population)
            if devices_elsewhere and member.scale_by == "device" and member.fits:
                raise DataError(
                    'population.scale_by: "device" needs the devices in the files, as a column or an array device; the '
                    'site\'s attributes are read later: move them there, or set it to "client"'
                )


def _check_alone(source: Files, population: Population) -> None:
    together = source.scale_by == "all" and source.fits
    for own in population.preparations.values():
        for column in own.columns if isinstance(own, Preparation) else ():
            if column.kind == "words" and not source.words.get(column.name):
                raise DataError(
                    f"column '{column.name}' holds words; sites must agree on them: write them all, in the same "
                    f'order at every site (population.words = {{ "{column.name}" = {list(column.words)!r} }})'
                )
            if together and column.kind != "words" and column.name not in source.scales:
                raise DataError(
                    'population.scale_by: "all" would be this site\'s clients alone: set it to "client" or "device", '
                    f"or give mean and deviation, the same at every site ({_as_scale(column)})"
                )
        for target in own.targets if isinstance(own, Preparation) else ():
            if source.target_scale != "none" and target.name not in source.scales:
                raise DataError(
                    "population.target_scale: sites must agree on it: give mean and deviation of the target, the same "
                    f"at every site ({_as_scale(target)})"
                )


def _as_scale(column: Column) -> str:
    return f'population.scales = {{ "{column.name}" = [{column.offset!r}, {column.scale!r}] }}'


def _warn_of_twins(labels: set[str]) -> None:
    for group in look_alike(labels):
        rest = ", ".join(f'"{word}" = "{group[-1]}"' for word in group[:-1])
        shown = " and ".join(f"'{word}'" for word in group)
        warn(
            f"labels {shown} look alike but count as different: population.relabel = {{ {rest} }} makes them one"
        )


def _as_float32(x: NDArray[Any]) -> torch.Tensor:
    """Return inputs as float32; signed integers may be names, and stay."""
    return torch.from_numpy(np.ascontiguousarray(x if x.dtype.kind == "i" else x.astype(np.float32)))


def pictures_in(folder: Path) -> list[Path]:
    """Return the images of a folder client/label/*.png."""
    return sorted(p for p in folder.glob("*/*/*") if p.suffix.lower() in PICTURES)


def _for_channels(scaling: Scaling, channels: int) -> Scaling:
    return Scaling(scaling.factor, scaling.mean * channels, scaling.std * channels)


def _check_labels(holdings: Mapping[str, Holding]) -> None:
    """Refuse lists, and numbers of which some are not whole: each would be a class of its own."""
    held = {str(label): (name, label) for name, own in holdings.items() for label in own.y}
    numbers = all(is_number(text) for text in held)
    for text, (name, label) in held.items():
        if isinstance(label, list) or (numbers and not float(text).is_integer()):
            raise DataError(
                f"client '{name}': labels must be whole numbers or words, one a sample, not {text}; "
                'for regression set population.problem = "regression"'
            )
