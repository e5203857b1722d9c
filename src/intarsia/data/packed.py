"""Readers of packed copies: images stacked in lossless WebP files, arrays in xz-compressed npz files."""

from __future__ import annotations

import io
import itertools
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from intarsia.core import DataError
from intarsia.data.published.images import CIFAR10_LABELS, DIGITS, FASHION_LABELS, STL10_LABELS
from intarsia.data.published.motion import (
    HAPT_LABELS,
    MOTIONSENSE_FOLDERS,
    MOTIONSENSE_LABELS,
    WISDM_2019_LABELS,
)
from intarsia.data.raw import RawData, Recording, Recordings

Arrays = dict[str, NDArray[Any]]


def arrays(path: Path) -> Arrays:
    """Return the arrays of an `.npz` or `.npz.xz` file."""
    try:
        data = path.read_bytes()
        plain = lzma.decompress(data) if path.suffix == ".xz" else data
        with np.load(io.BytesIO(plain), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path} cannot be read: {error}") from error


def stacked_images(folder: Path, side: int) -> tuple[NDArray[np.uint8], Arrays]:
    """Return the images that lie one under another in `x_*.webp`, and what `y.npz` says of them."""
    about = arrays(folder / "y.npz")
    sheets = []
    for path in sorted(folder.glob("x_*.webp")):
        try:
            sheet = np.asarray(Image.open(path).convert("RGB"))
        except Exception as error:  # a damaged picture can raise anything
            raise DataError(f"{path} is no image that can be read: {error}") from error
        sheets.append(sheet.reshape(-1, side, side, 3))
    found = sum(len(sheet) for sheet in sheets)
    if found != len(about["y"]):
        raise DataError(f"{folder} holds {found} images for {len(about['y'])} labels: files are missing")
    return np.concatenate(sheets), about


def read_split_images(folder: Path, name: str, side: int, labels: tuple[str, ...]) -> RawData:
    """Read `NAME_train` and `NAME_test` (or `_val`)."""
    test = next(n for n in ("test", "val") if (folder / f"{name}_{n}").is_dir())
    x_train, train = stacked_images(folder / f"{name}_train", side)
    x_test, tests = stacked_images(folder / f"{name}_{test}", side)
    return RawData(
        np.concatenate([x_train, x_test]),
        np.concatenate([train["y"], tests["y"]]).astype(np.int64),
        labels or tuple(str(n) for n in train["names"]),
        np.arange(len(x_train) + len(x_test)) < len(x_train),
    )


def read_cifar10(folder: Path) -> RawData:
    """Read 20,000 + 5,000 images of CIFAR-10."""
    return read_split_images(folder, "cifar10", 32, CIFAR10_LABELS)


def read_stl10(folder: Path) -> RawData:
    """Read 5,000 + 3,000 images of STL-10."""
    return read_split_images(folder, "stl10", 96, STL10_LABELS)


def read_tinyimagenet32(folder: Path) -> RawData:
    """Read 200 classes of TinyImageNet at 32x32; classes of one name (crane, ...) stay apart."""
    _, about = stacked_images(folder / "tinyimagenet32_train", 32)
    names = [f"{n} ({w})" for n, w in zip(about["names"], about["wnids"], strict=True)]
    return read_split_images(folder, "tinyimagenet32", 32, tuple(names))


def read_cifar100(folder: Path) -> RawData:
    """Read 9,999 images of CIFAR-100's test part; none of them is from the training part."""
    x, about = stacked_images(folder / "cifar100_test", 32)
    return RawData(
        x, about["y"].astype(np.int64), tuple(str(n) for n in about["names"]), np.zeros(len(x), dtype=bool)
    )


def read_svhn(folder: Path) -> RawData:
    """Read 5,000 digits of SVHN's test part; digits of one picture overlap: split by picture."""
    x, about = stacked_images(folder / "svhn_test5000", 32)
    y, picture = about["y"].astype(np.int64), about["picture"].astype(np.int64)
    return RawData(x, y, DIGITS, np.zeros(len(x), dtype=bool), picture, overlapping=True)


def _train_and_test(path: Path, labels: tuple[str, ...]) -> RawData:
    data = arrays(path)
    x = np.concatenate([data["x_train"], data["x_test"]])[..., None]
    y = np.concatenate([data["y_train"], data["y_test"]]).astype(np.int64)
    return RawData(x, y, labels, np.arange(len(x)) < len(data["x_train"]))


def read_mnist(folder: Path) -> RawData:
    """Read all of MNIST."""
    return _train_and_test(folder / "mnist.npz.xz", DIGITS)


def read_fashion_mnist(folder: Path) -> RawData:
    """Read 20,000 + 10,000 images of FashionMNIST."""
    return _train_and_test(folder / "fashion_mnist_20k.npz.xz", FASHION_LABELS)


def _written(path: Path, writer: str, labels: tuple[str, ...]) -> RawData:
    data = arrays(path)
    y, by = data["y"].astype(np.int64), data[writer].astype(np.int64)
    return RawData(data["x"][..., None], y, labels, np.ones(len(y), dtype=bool), by)


def read_femnist_digits(folder: Path) -> RawData:
    """Read 5,997 digits of 12 writers of FEMNIST, black on white."""
    return _written(folder / "femnist_digits_12clients.npz.xz", "client", DIGITS)


def read_chars74k(folder: Path) -> RawData:
    """Read 62 characters by 55 writers, white on black."""
    path = folder / "chars74k_hnd_28.npz.xz"
    return _written(path, "writer", tuple(str(n) for n in arrays(path)["names"]))


def _recordings(
    signal: NDArray[Any],
    y: NDArray[np.int64],
    subject: NDArray[Any],
    part: NDArray[Any],
) -> list[Recording]:
    """Cut one long table where the subject or the part changes."""
    marks = (
        np.flatnonzero((np.diff(subject.astype(np.int64)) != 0) | (np.diff(part.astype(np.int64)) != 0)) + 1
    )
    edges = [0, *marks.tolist(), len(y)]
    return [
        Recording(signal[a:b].astype(np.float32), y[a:b], int(subject[a]))
        for a, b in itertools.pairwise(edges)
    ]


def read_hapt(folder: Path) -> Recordings:
    """Read HAPT: accelerometer and gyroscope, 30 users, 12 activities."""
    data = arrays(folder / "hapt.npz.xz")
    y = data["y"].astype(np.int64) - 1
    return Recordings(_recordings(data["x"] * data["scale"], y, data["user"], data["exp"]), HAPT_LABELS, 50.0)


def read_motionsense(folder: Path) -> Recordings:
    """Read MotionSense: user acceleration and rotation rate, 24 users, 6 activities."""
    data = arrays(folder / "motionsense.npz.xz")
    word = dict(zip(MOTIONSENSE_FOLDERS, MOTIONSENSE_LABELS, strict=True))
    labels = tuple(word[str(n)] for n in data["names"])
    part = data["trial"].astype(np.int64) * len(labels) + data["y"]
    signal = data["x"] * data["scale"]
    return Recordings(_recordings(signal, data["y"].astype(np.int64), data["user"], part), labels, 50.0)


def read_wisdm2019(folder: Path) -> Recordings:
    """Read the accelerometer of WISDM 2019's phones: 18 activities; its gyroscope has a clock of its own."""
    data = arrays(folder / "wisdm2019_phone.npz.xz")
    y = data["accel_y"].astype(np.int64)
    signal = data["accel_x"] * data["scale"][0]
    return Recordings(_recordings(signal, y, data["accel_user"], y), WISDM_2019_LABELS, 20.0)


def read_tinyshakespeare(folder: Path) -> str:
    """Read the text."""
    path = folder / "tinyshakespeare.txt.xz"
    try:
        return lzma.decompress(path.read_bytes()).decode()
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
