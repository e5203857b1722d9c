"""Recordings of motion sensors in the files that their authors publish."""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError, warn
from intarsia.data.raw import Recording, Recordings, names

HAPT_LABELS = names(
    """WALKING, WALKING_UPSTAIRS, WALKING_DOWNSTAIRS, SITTING, STANDING, LAYING,
    STAND_TO_SIT, SIT_TO_STAND, SIT_TO_LIE, LIE_TO_SIT, STAND_TO_LIE, LIE_TO_STAND"""
)
WISDM_V1_LABELS = names("Walking, Jogging, Upstairs, Downstairs, Sitting, Standing")
WISDM_2019_LABELS = names(
    """Walking, Jogging, Stairs, Sitting, Standing, Typing, Brushing Teeth, Eating Soup, Eating Chips, Eating Pasta,
    Drinking from Cup, Eating Sandwich, Kicking, Playing Catch, Dribbling, Writing, Clapping, Folding Clothes"""
)
WISDM_2019_LETTERS = tuple("ABCDEFGHIJKLMOPQRS")
"""The letter that stands for each label; there is no N."""
REALWORLD_LABELS = names("climbingdown, climbingup, jumping, lying, running, sitting, standing, walking")
POSITION = "waist"
"""Where on the body the sensors of RealWorld HAR were whose signals are read."""
MOTIONSENSE_FOLDERS = names("dws, ups, sit, std, wlk, jog")
MOTIONSENSE_LABELS = names("downstairs, upstairs, sitting, standing, walking, jogging")
MOTIONSENSE_COLUMNS = tuple(
    f"{sensor}.{axis}" for sensor in ("userAcceleration", "rotationRate") for axis in "xyz"
)

GAP_SECONDS = 1.0
"""A longer silence ends a recording."""


def read_hapt(folder: Path) -> Recordings:
    """Read the raw signals of HAPT (Reyes-Ortiz and others 2016): one recording an experiment.

    Channels: acceleration in g (x, y, z), angular velocity in rad/s (x, y, z).
    """
    place = folder / "RawData" if (folder / "RawData").is_dir() else folder
    spans: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    rows = _table(_lines(place / "labels.txt"), 5, str(place / "labels.txt"))
    for line, (experiment, user, activity, start, end) in enumerate(rows.astype(np.int64).tolist(), 1):
        if not 1 <= activity <= len(HAPT_LABELS):
            raise DataError(f"{place / 'labels.txt'}, line {line}: activity {activity}, not one of 1..12")
        spans.setdefault((experiment, user), []).append((line, activity, start, end))
    items = [_hapt_recording(place, *key, spans[key]) for key in sorted(spans)]
    return Recordings(items, HAPT_LABELS, 50.0)


def read_wisdm_v1(folder: Path) -> Recordings:
    """Read WISDM v1.1 (Kwapisz and others 2010): acceleration in m/s^2 (x, y, z).

    The published file has a few records that are cut short; they are skipped with a warning.
    """
    inner = folder / "WISDM_ar_v1.1"
    path = (inner if inner.is_dir() else folder) / "WISDM_ar_v1.1_raw.txt"
    table = _wisdm_records(path, WISDM_V1_LABELS, tolerated=0.01)
    return Recordings(_stretches(table), WISDM_V1_LABELS, 20.0)


def read_wisdm_2019(folder: Path) -> Recordings:
    """Read the phones' accelerometers of WISDM 2019 (Weiss and others): m/s^2 (x, y, z).

    The gyroscope is left out because it has a clock of its own.
    """
    inner = Path("raw", "phone", "accel")
    places = (folder / "wisdm-dataset" / inner, folder / inner, folder)
    paths = next((found for place in places if (found := sorted(place.glob("data_*_accel_phone.txt")))), [])
    if not paths:
        raise DataError(f"{folder}: missing wisdm-dataset/{inner.as_posix()}/data_*_accel_phone.txt")
    tables = [_wisdm_records(path, WISDM_2019_LETTERS, tolerated=0) for path in paths]
    return Recordings([item for table in tables for item in _stretches(table)], WISDM_2019_LABELS, 20.0)


def read_realworld_har(folder: Path) -> Recordings:
    """Read RealWorld HAR (Sztyler and Stuckenschmidt 2016) at the waist.

    Channels: acceleration in m/s^2 (x, y, z), angular velocity in rad/s (x, y, z), both interpolated
    linearly to one clock of 50 Hz; where either sensor is silent for longer, a recording ends.
    """
    subjects = _numbered(folder, r"proband(\d+)") or _numbered(
        folder / "realworld2016_dataset", r"proband(\d+)"
    )
    if not subjects:
        raise DataError(f"{folder}: missing proband1/data/acc_walking_csv.zip and so on")
    items = [item for number, path in subjects for item in _realworld_subject(path / "data", number)]
    return Recordings(items, REALWORLD_LABELS, 50.0)


def read_motionsense(folder: Path) -> Recordings:
    """Read MotionSense (Malekzadeh and others 2018): one recording a subject and trial.

    Channels: acceleration without gravity in g (x, y, z), angular velocity in rad/s (x, y, z).
    """
    name = "A_DeviceMotion_data"
    place = next((p for p in (folder / name / name, folder / name) if any(p.glob("*/sub_*.csv"))), folder)
    items = []
    for label, short in enumerate(MOTIONSENSE_FOLDERS):
        trials = [path for _, path in _numbered(place, rf"{short}_(\d+)")]
        files = [found for trial in trials for found in _numbered(trial, r"sub_(\d+)\.csv")]
        if not files:
            raise DataError(f"{folder}: missing {name}/{short}_*/sub_*.csv")
        for subject, path in files:
            signal = _csv(_lines(path), str(path), MOTIONSENSE_COLUMNS)
            items.append(_recording(signal, label, subject))
    return Recordings(items, MOTIONSENSE_LABELS, 50.0)


def _recording(signal: NDArray[np.float64], label: int, subject: int) -> Recording:
    return Recording(signal.astype(np.float32), np.full(len(signal), label, np.int64), subject)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"missing {path}")
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Return the entries of a folder whose whole name fits the pattern, by the number in it."""
    entries = folder.iterdir() if folder.is_dir() else []
    return sorted((int(match[1]), path) for path in entries if (match := re.fullmatch(pattern, path.name)))


def _table(
    lines: Iterable[str], width: int, where: str, separator: str | None = None, first: int = 1
) -> NDArray[np.float64]:
    rows = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        row = _floats(line.split(separator))
        if row is None or len(row) != width:
            raise DataError(f"{where}, line {number}: not {width} numbers: '{line.strip()[:80]}'")
        rows.append(row)
    if not rows:
        raise DataError(f"{where}: holds no samples")
    return np.array(rows, np.float64)


def _floats(fields: Sequence[str]) -> list[float] | None:
    try:
        values = [float(field) for field in fields]
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None


def _csv(lines: list[str], where: str, columns: Sequence[str]) -> NDArray[np.float64]:
    """Return the named columns of a table of numbers with a header."""
    header = [name.strip().strip('"') for name in (lines[0] if lines else "").split(",")]
    absent = [name for name in columns if name not in header]
    if absent:
        raise DataError(f"{where}, line 1: no column {', '.join(absent)}")
    table = _table(lines[1:], len(header), where, ",", first=2)
    return table[:, [header.index(name) for name in columns]]


def _hapt_recording(
    place: Path, experiment: int, user: int, spans: Sequence[tuple[int, int, int, int]]
) -> Recording:
    paths = [place / f"{sensor}_exp{experiment:02d}_user{user:02d}.txt" for sensor in ("acc", "gyro")]
    acc, gyro = (_table(_lines(path), 3, str(path)) for path in paths)
    if len(acc) != len(gyro):
        raise DataError(f"{paths[1]}: {len(gyro)} samples, but {len(acc)} in {paths[0].name}")
    y = np.full(len(acc), -1, np.int64)
    for line, activity, start, end in spans:
        if not 1 <= start <= end <= len(acc):
            raise DataError(
                f"{place / 'labels.txt'}, line {line}: samples {start}..{end}, but {len(acc)} in {paths[0]}"
            )
        y[start - 1 : end] = activity - 1
    return Recording(np.hstack([acc, gyro]).astype(np.float32), y, user)


def _wisdm_records(path: Path, activities: Sequence[str], tolerated: float) -> NDArray[np.float64]:
    """Return a row a record: subject, label, time, x, y, z.

    A line can hold more than one record, and a record a comma too many at its end.
    """
    values, broken, total = array("d"), [], 0
    for number, line in enumerate(_lines(path), 1):
        for piece in filter(str.strip, line.split(";")):
            total += 1
            fields = piece.strip().removesuffix(",").split(",")
            numbers = _floats(fields[:1] + fields[2:])
            if numbers is None or len(fields) != 6:
                broken.append(number)
                continue
            activity = fields[1].strip()
            if activity not in activities:
                raise DataError(f"{path}, line {number}: no activity '{activity}'")
            values.extend((numbers[0], activities.index(activity), *numbers[1:]))
    if len(broken) > tolerated * total:
        raise DataError(
            f"{path}: {len(broken)} of {total} records are not whole, the first in line {broken[0]}"
        )
    if broken:
        warn(
            f"{path}: skipped {len(broken)} of {total} records that are not whole, "
            f"the first in line {broken[0]}"
        )
    if not values:
        raise DataError(f"{path}: holds no samples")
    return np.array(values, np.float64).reshape(-1, 6)


def _stretches(table: NDArray[np.float64]) -> list[Recording]:
    """Cut records where subject or activity changes or the time, in nanoseconds, jumps; 0 is no time."""
    time = table[:, 2]
    jump = (np.abs(np.diff(time)) > GAP_SECONDS * 1e9) & (time[1:] != 0) & (time[:-1] != 0)
    change = (table[1:, :2] != table[:-1, :2]).any(axis=1)
    parts = np.split(table, np.flatnonzero(jump | change) + 1)
    return [_recording(part[:, 3:], int(part[0, 1]), int(part[0, 0])) for part in parts]


def _realworld_subject(data: Path, subject: int) -> Iterator[Recording]:
    files = _realworld_files(data)
    for label, activity in enumerate(REALWORLD_LABELS):
        numbers = sorted({number for _, name, number in files if name == activity})
        if not numbers:
            raise DataError(f"{data}: missing acc_{activity}_{POSITION}.csv, also in acc_{activity}_csv.zip")
        for number in numbers:
            streams = []
            for sensor in ("acc", "gyr"):
                if (sensor, activity, number) not in files:
                    raise DataError(
                        f"{data}: missing {sensor}_{activity}_csv.zip, or in it part {number} for {POSITION}"
                    )
                where, lines = files[sensor, activity, number]
                streams.append(_csv(lines, where, ("attr_time", "attr_x", "attr_y", "attr_z")))
            for signal in _on_one_clock(streams, files["acc", activity, number][0]):
                yield _recording(signal, label, subject)


def _realworld_files(data: Path) -> dict[tuple[str, str, int], tuple[str, list[str]]]:
    """Return where each sensor's, activity's and part's file was found, and its lines.

    The first part has no number, or 1; a file without one in a numbered archive has the archive's.
    """
    files: dict[tuple[str, str, int], tuple[str, list[str]]] = {}
    pattern = re.compile(rf"(acc|gyr|Gyroscope)_([a-z]+?)(?:_(\d+))?_{POSITION}\.csv")
    for where, lines in _realworld_csvs(data, pattern):
        match = pattern.fullmatch(where.rpartition("/")[2])
        archives = re.findall(r"_(\d+)_csv(?:\.zip)?(?=/|$)", where.rpartition("/")[0])
        if match:
            sensor, number = match[1].lower()[:3], match[3] or (archives or ["1"])[-1]
            files.setdefault((sensor, match[2], int(number)), (where, lines))
    return files


def _realworld_csvs(data: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, list[str]]]:
    unpacked = sorted([*data.glob("*.csv"), *data.glob("*_csv/*.csv")])
    yield from ((path.as_posix(), _lines(path)) for path in unpacked if pattern.fullmatch(path.name))
    for path in sorted([*data.glob("acc_*_csv.zip"), *data.glob("gyr_*_csv.zip")]):
        try:
            with zipfile.ZipFile(path) as archive:
                yield from _zipped_csvs(archive, path.as_posix(), pattern)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise DataError(f"{path}: damaged archive: {error}") from error


def _zipped_csvs(
    archive: zipfile.ZipFile, where: str, pattern: re.Pattern[str]
) -> Iterator[tuple[str, list[str]]]:
    for name in sorted(archive.namelist()):
        base = name.rpartition("/")[2]
        if pattern.fullmatch(base):
            yield f"{where}/{base}", archive.read(name).decode("utf-8", errors="replace").splitlines()
        elif base.endswith("_csv.zip") and not base.startswith("."):
            with zipfile.ZipFile(io.BytesIO(archive.read(name))) as inner:
                yield from _zipped_csvs(inner, f"{where}/{base}", pattern)


def _on_one_clock(streams: Sequence[NDArray[np.float64]], where: str) -> list[NDArray[np.float64]]:
    """Interpolate two streams (time in ms, x, y, z) to 50 Hz over the stretches that both cover."""
    streams = [stream[np.unique(stream[:, 0], return_index=True)[1]] for stream in streams]
    start, end = max(s[0, 0] for s in streams), min(s[-1, 0] for s in streams)
    if end < start:
        raise DataError(f"{where}: accelerometer and gyroscope have no time in common")
    clock = start + 20.0 * np.arange(int((end - start) // 20) + 1)
    columns = [np.interp(clock, stream[:, 0], stream[:, axis]) for stream in streams for axis in (1, 2, 3)]
    covered = _covered(streams[0][:, 0], clock) & _covered(streams[1][:, 0], clock)
    cuts = np.flatnonzero(covered[1:] != covered[:-1]) + 1
    parts = zip(np.split(np.stack(columns, axis=1), cuts), np.split(covered, cuts), strict=True)
    return [signal for signal, inside in parts if inside[0]]


def _covered(times: NDArray[np.float64], clock: NDArray[np.float64]) -> NDArray[np.bool_]:
    after = np.clip(np.searchsorted(times, clock), 1, len(times) - 1)
    near = times[after] - times[after - 1] <= GAP_SECONDS * 1000
    covered: NDArray[np.bool_] = near | (times[after] == clock)
    return covered
