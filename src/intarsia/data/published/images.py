"""Image data sets in the files that their authors publish.

Samples within a file are counted from 0 in error messages.
"""

from __future__ import annotations

import gzip
import json
import math
import string
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError
from intarsia.data.published.restricted import load_plain
from intarsia.data.raw import RawData, names

Part: TypeAlias = "tuple[NDArray[np.uint8], NDArray[np.int64]]"
"""Images of shape (n, height, width, channels) and their labels."""

DIGITS = tuple(string.digits)
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
FASHION_LABELS = names("T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot")
CIFAR10_LABELS = names("airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck")
STL10_LABELS = names("airplane, bird, car, cat, deer, dog, horse, monkey, ship, truck")
CIFAR100_LABELS = names(
    """apple, aquarium_fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle,
    bowl, boy, bridge, bus, butterfly, camel, can, castle, caterpillar, cattle,
    chair, chimpanzee, clock, cloud, cockroach, couch, crab, crocodile, cup, dinosaur,
    dolphin, elephant, flatfish, forest, fox, girl, hamster, house, kangaroo, keyboard,
    lamp, lawn_mower, leopard, lion, lizard, lobster, man, maple_tree, motorcycle, mountain,
    mouse, mushroom, oak_tree, orange, orchid, otter, palm_tree, pear, pickup_truck, pine_tree,
    plain, plate, poppy, porcupine, possum, rabbit, raccoon, ray, road, rocket,
    rose, sea, seal, shark, shrew, skunk, skyscraper, snail, snake, spider,
    squirrel, streetcar, sunflower, sweet_pepper, table, tank, telephone, television, tiger, tractor,
    train, trout, tulip, turtle, wardrobe, whale, willow_tree, wolf, woman, worm"""
)
# fmt: off
COARSE_OF_FINE = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3,
    3, 14, 9, 18, 7, 11, 3, 9, 7, 11,
    6, 11, 5, 10, 7, 6, 13, 15, 3, 15,
    0, 11, 1, 10, 12, 14, 16, 9, 11, 5,
    5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
    10, 3, 2, 12, 12, 16, 12, 1, 9, 19,
    2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
    16, 19, 2, 4, 6, 19, 5, 5, 8, 19,
    18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)
# fmt: on
"""The superclass of each of CIFAR-100's classes."""


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in an idx file, plain or compressed with gzip (`.gz`)."""
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{path}: no idx file: it begins with {content[:4]!r}")
    if content[2] != 8:
        raise DataError(f"{path}: holds idx type 0x{content[2]:02x} and not unsigned bytes (0x08)")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path}: ends within its header")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise DataError(
            f"{path}: {len(content)} bytes, but the shape {shape} asks for {start + math.prod(shape)}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mnist(folder: Path) -> RawData:
    """Read MNIST (LeCun and others 1998): `train-images-idx3-ubyte` and so on, plain or `.gz`."""
    return _mnist_like(folder, DIGITS)


def read_fashion_mnist(folder: Path) -> RawData:
    """Read Fashion-MNIST (Xiao and others 2017), which has the files of MNIST."""
    return _mnist_like(folder, FASHION_LABELS)


def read_emnist_byclass(folder: Path) -> RawData:
    """Read EMNIST ByClass (Cohen and others 2017) in idx files, with the images turned upright."""
    place = folder / "gzip" if (folder / "gzip").is_dir() else folder
    parts = []
    for part in ("train", "test"):
        name = f"emnist-byclass-{part}-{{}}-ubyte"
        x, y = _idx_part(place, name.format("images-idx3"), name.format("labels-idx1"), len(CHARACTERS))
        parts.append((x.swapaxes(1, 2), y))  # published with rows and columns exchanged
    return _assemble(parts[:1], parts[1:], CHARACTERS)


def read_cifar10(folder: Path) -> RawData:
    """Read CIFAR-10 (Krizhevsky 2009): the python batches or the binary ones, whichever are there."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    paths = _batches(
        folder, {"cifar-10-batches-py": names, "cifar-10-batches-bin": [f"{n}.bin" for n in names]}
    )
    parts = [_cifar10_part(path) for path in paths]
    return _assemble(parts[:-1], parts[-1:], CIFAR10_LABELS)


def read_cifar100(folder: Path) -> RawData:
    """Read CIFAR-100 (Krizhevsky 2009) with its fine labels: the python or the binary version."""
    names = ["train", "test"]
    paths = _batches(folder, {"cifar-100-python": names, "cifar-100-binary": [f"{n}.bin" for n in names]})
    parts = [_cifar100_part(path) for path in paths]
    return _assemble(parts[:1], parts[1:], CIFAR100_LABELS)


def read_svhn(folder: Path) -> RawData:
    """Read SVHN (Netzer and others 2011), cropped digits: `train_32x32.mat` and `test_32x32.mat`."""
    parts = [_svhn_part(_file(folder, f"{part}_32x32.mat")) for part in ("train", "test")]
    return _assemble(parts[:1], parts[1:], DIGITS)


def read_stl10(folder: Path) -> RawData:
    """Read the labelled part of STL-10 (Coates and others 2011) from its binary files."""
    place = folder / "stl10_binary" if (folder / "stl10_binary").is_dir() else folder
    parts = [_stl10_part(place, part) for part in ("train", "test")]
    return _assemble(parts[:1], parts[1:], STL10_LABELS)


def read_femnist(folder: Path) -> RawData:
    """Read FEMNIST as LEAF (Caldas and others 2018) writes it: `train/*.json` and `test/*.json`.

    A writer's natural id is the place of its name among all writers, sorted.
    """
    files = {part: _leaf_files(folder, part) for part in ("train", "test")}
    writers: dict[str, list[tuple[str, Part]]] = {
        part: [found for path in paths for found in _leaf_writers(path)] for part, paths in files.items()
    }
    shares = writers["train"] + writers["test"]
    if not shares:
        raise DataError(f"{folder}: the json files hold no samples")
    number = {name: at for at, name in enumerate(sorted({name for name, _ in shares}))}
    natural = np.concatenate([np.full(len(y), number[name], np.int64) for name, (_, y) in shares])
    train, test = ([share for _, share in writers[part]] for part in ("train", "test"))
    return _assemble(train, test, CHARACTERS, natural)


def _assemble(
    train: Sequence[Part],
    test: Sequence[Part],
    labels: tuple[str, ...],
    natural: NDArray[np.int64] | None = None,
) -> RawData:
    parts = [*train, *test]
    y = np.concatenate([y for _, y in parts])
    # without `out` numpy keeps the order of transposed parts, and the result is not contiguous
    x = np.empty((len(y), *parts[0][0].shape[1:]), np.uint8)
    np.concatenate([x for x, _ in parts], out=x)
    return RawData(x, y, labels, np.arange(len(y)) < sum(len(y) for _, y in train), natural)


def _file(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder}: missing {' or '.join(names)}")


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _labels(values: object, path: Path | str, count: int, first: int = 0) -> NDArray[np.int64]:
    """Return labels as they are, after checking that they lie in first..first + count - 1."""
    try:
        labels = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{path}: labels that are no list of numbers") from error
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{path}: labels that are no list of whole numbers")
    wrong = np.flatnonzero((labels < first) | (labels >= first + count))
    if len(wrong):
        raise DataError(
            f"{path}: sample {wrong[0]} has label {labels[wrong[0]]}, not one of {first}..{first + count - 1}"
        )
    return labels.astype(np.int64)


def _mnist_like(folder: Path, labels: tuple[str, ...]) -> RawData:
    parts = [
        _idx_part(folder, f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte", len(labels))
        for part in ("train", "t10k")
    ]
    return _assemble(parts[:1], parts[1:], labels)


def _idx_part(folder: Path, images: str, labels: str, count: int) -> Part:
    image_path = _file(folder, images, f"{images}.gz")
    label_path = _file(folder, labels, f"{labels}.gz")
    x, y = read_idx(image_path), read_idx(label_path)
    if x.shape[1:] != (28, 28):
        raise DataError(f"{image_path}: shape {x.shape} and not (n, 28, 28)")
    if y.shape != x.shape[:1]:
        raise DataError(f"{label_path}: labels of shape {y.shape} for {len(x)} images")
    return x[..., np.newaxis], _labels(y, label_path, count)


def _batches(folder: Path, forms: dict[str, list[str]]) -> list[Path]:
    """Return the files of the first form that is complete, in its own folder or in `folder` itself."""
    choices = [
        [place / name for name in names] for sub, names in forms.items() for place in (folder / sub, folder)
    ]
    missing = [[path for path in paths if not path.is_file()] for paths in choices]
    for paths, absent in zip(choices, missing, strict=True):
        if not absent:
            return paths
    nearest = ", ".join(str(path) for path in min(missing, key=len))
    raise DataError(f"missing {nearest} (the folders {' or '.join(forms)} in {folder} would do)")


def _cifar10_part(path: Path) -> Part:
    if path.suffix == ".bin":
        rows = _rows(path, 1 + 3072)
        return _planes(rows[:, 1:]), _labels(rows[:, 0], path, 10)
    batch = load_plain(path)
    return _batch_images(batch, b"labels", path), _labels(batch[b"labels"], path, 10)


def _cifar100_part(path: Path) -> Part:
    if path.suffix == ".bin":
        rows = _rows(path, 2 + 3072)
        return _planes(rows[:, 2:]), _fine_labels(rows[:, 1], rows[:, 0], path)
    batch = load_plain(path)
    x = _batch_images(batch, b"fine_labels", path)
    return x, _fine_labels(batch[b"fine_labels"], batch.get(b"coarse_labels"), path)


def _fine_labels(fine: object, coarse: object, path: Path) -> NDArray[np.int64]:
    labels, superclasses = _labels(fine, path, 100), _labels(coarse, path, 20)
    if len(labels) != len(superclasses):
        raise DataError(f"{path}: {len(superclasses)} superclasses for {len(labels)} labels")
    wrong = np.flatnonzero(superclasses != np.array(COARSE_OF_FINE)[labels])
    if len(wrong):
        at = wrong[0]
        raise DataError(f"{path}: sample {at} has label {labels[at]}, but superclass {superclasses[at]}")
    return labels


def _rows(path: Path, width: int) -> NDArray[np.uint8]:
    content = np.frombuffer(_content(path), np.uint8)
    if not len(content) or len(content) % width:
        raise DataError(f"{path}: {len(content)} bytes are no whole number of {width}-byte records")
    return content.reshape(-1, width)


def _batch_images(batch: dict[Any, Any], key: bytes, path: Path) -> NDArray[np.uint8]:
    data, labels = batch.get(b"data"), batch.get(key)
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise DataError(f"{path}: no batch with an array 'data' and a list '{key.decode()}'")
    if data.shape != (len(labels), 3072):
        raise DataError(f"{path}: data of shape {data.shape} and not ({len(labels)}, 3072)")
    return _planes(data)


def _planes(flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    images: NDArray[np.uint8] = flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images


def _svhn_part(path: Path) -> Part:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path}: no MATLAB file that can be read: {error}") from error
    if "X" not in content or "y" not in content:
        raise DataError(f"{path}: no variables X and y")
    pixels, y = content["X"], content["y"].ravel()
    if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3) or pixels.dtype != np.uint8:
        raise DataError(
            f"{path}: X is {pixels.dtype} of shape {pixels.shape} and not uint8 of (32, 32, 3, n)"
        )
    x: NDArray[np.uint8] = np.moveaxis(pixels, 3, 0)
    if len(y) != len(x):
        raise DataError(f"{path}: {len(y)} labels for {len(x)} images")
    return x, _labels(y, path, 10, first=1) % 10  # 10 means the digit 0


def _stl10_part(folder: Path, part: str) -> Part:
    image_path, label_path = _file(folder, f"{part}_X.bin"), _file(folder, f"{part}_y.bin")
    x = _rows(image_path, 3 * 96 * 96).reshape(-1, 3, 96, 96)
    y = _labels(_rows(label_path, 1)[:, 0], label_path, 10, first=1)
    if len(x) != len(y):
        raise DataError(f"{label_path}: {len(y)} labels for {len(x)} images")
    return x.transpose(0, 3, 2, 1), y - 1  # each channel is stored column by column


def _leaf_files(folder: Path, part: str) -> list[Path]:
    for place in (folder / "data" / part, folder / part):
        if found := sorted(place.glob("*.json")):
            return found
    raise DataError(f"{folder}: missing data/{part}/*.json or {part}/*.json")


def _leaf_writers(path: Path) -> Iterator[tuple[str, Part]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        shares = [
            (user, count, data[user]["x"], data[user]["y"]) for user, count in zip(users, counts, strict=True)
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: no LEAF file with users, num_samples and user_data: {error!r}") from error
    for user, count, x, y in shares:
        where = f"{path}, user {user}"
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
            raise DataError(f"{where}: images or labels that are not the {count} that num_samples says")
        if count:
            yield user, (_leaf_images(x, where), _labels(y, where, len(CHARACTERS)))


def _leaf_images(rows: list[Any], where: str) -> NDArray[np.uint8]:
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 784:
            raise DataError(f"{where}: sample {number} has no 784 pixels")
    try:
        pixels = np.array(rows, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: pixels that are no numbers: {error}") from error
    wrong = np.flatnonzero(~((pixels >= 0) & (pixels <= 1)).all(axis=1))
    if len(wrong):
        raise DataError(f"{where}: sample {wrong[0]} has a pixel outside 0..1")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 28, 28, 1)
