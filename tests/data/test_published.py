"""The readers of published files, on small files in exactly the published formats."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from intarsia.core import DataError
from intarsia.data.published import images, motion
from intarsia.data.published.images import CIFAR100_LABELS, COARSE_OF_FINE
from intarsia.data.published.motion import REALWORLD_LABELS
from intarsia.data.published.restricted import load_plain

CIFAR100_SUPERCLASSES = tuple(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores large_man-made_outdoor_things
    large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people
    reptiles small_mammals trees vehicles_1 vehicles_2
""".split()  # noqa: SIM905
)
READERS = {
    name: function
    for module in (images, motion)
    for name, function in vars(module).items()
    if name.startswith("read_") and name != "read_idx"
}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_every_reader_names_what_is_missing(tmp_path: Path) -> None:
    expected = {
        "read_cifar10": "data_batch_1",
        "read_cifar100": "train",
        "read_emnist_byclass": "emnist-byclass-train-images-idx3-ubyte",
        "read_fashion_mnist": "train-images-idx3-ubyte",
        "read_femnist": "train/\\*.json",
        "read_hapt": "labels.txt",
        "read_mnist": "train-images-idx3-ubyte",
        "read_motionsense": "dws",
        "read_realworld_har": "proband1",
        "read_stl10": "train_X.bin",
        "read_svhn": "train_32x32.mat",
        "read_wisdm_2019": "accel_phone.txt",
        "read_wisdm_v1": "WISDM_ar_v1.1_raw.txt",
    }
    assert sorted(expected) == sorted(READERS)
    for name, file in expected.items():
        with pytest.raises(DataError, match=f"missing.*{file}"):
            READERS[name](tmp_path)


# idx files: MNIST, Fashion-MNIST, EMNIST


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, y: tuple[int, ...] = (3, 9)) -> tuple[np.ndarray, np.ndarray]:
    train, test = noise(len(y), 28, 28), noise(1, 28, 28, seed=1)
    write(folder / "train-images-idx3-ubyte.gz", gzip.compress(idx(train)))
    write(folder / "train-labels-idx1-ubyte.gz", gzip.compress(idx(np.array(y, np.uint8))))
    write(folder / "t10k-images-idx3-ubyte", idx(test))
    write(folder / "t10k-labels-idx1-ubyte", idx(np.array([0], np.uint8)))
    return train, test


def test_mnist(tmp_path: Path) -> None:
    train, test = write_mnist(tmp_path)
    raw = images.read_mnist(tmp_path)
    assert raw.x.shape == (3, 28, 28, 1)
    assert raw.x.dtype == np.uint8
    assert np.array_equal(raw.x[..., 0], np.concatenate([train, test]))
    assert raw.y.tolist() == [3, 9, 0]
    assert raw.y.dtype == np.int64
    assert raw.train.tolist() == [True, True, False]
    assert raw.labels == tuple("0123456789")
    assert raw.natural is None


def test_fashion_mnist_has_names(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    raw = images.read_fashion_mnist(tmp_path)
    assert [raw.labels[y] for y in raw.y] == ["Dress", "Ankle boot", "T-shirt/top"]


@pytest.mark.parametrize("place", [".", "gzip"])
def test_emnist_is_turned_upright(tmp_path: Path, place: str) -> None:
    upright = np.zeros((28, 28), np.uint8)
    upright[2, 5:20] = 200  # a bar near the top
    for part, label in (("train", 10), ("test", 61)):
        name = f"emnist-byclass-{part}"
        write(tmp_path / place / f"{name}-images-idx3-ubyte.gz", gzip.compress(idx(upright.T[np.newaxis])))
        labels = idx(np.array([label], np.uint8))
        write(tmp_path / place / f"{name}-labels-idx1-ubyte.gz", gzip.compress(labels))
    raw = images.read_emnist_byclass(tmp_path)
    assert np.array_equal(raw.x[0, :, :, 0], upright)
    assert raw.x.flags.c_contiguous
    assert len(raw.labels) == 62
    assert [raw.labels[y] for y in raw.y] == ["A", "z"]
    assert raw.train.tolist() == [True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x00\x08\x01\x00\x00\x00\x01\x00", "no idx file"),
        (b"", "no idx file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00", "type 0x0d"),
        (b"\x00\x00\x08\x03\x00\x00", "within its header"),
        (idx(noise(2, 3))[:-1], r"17 bytes.*\(2, 3\) asks for 18"),
        (idx(noise(2, 3)) + b"!", "19 bytes"),
    ],
)
def test_idx_refuses_damage(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "some-idx", content)
    with pytest.raises(DataError, match=f"some-idx: .*{message}"):
        images.read_idx(path)


def test_idx_refuses_a_cut_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "some.gz", gzip.compress(idx(noise(20, 30)))[:-20])
    with pytest.raises(DataError, match=r"some.gz"):
        images.read_idx(path)


def test_mnist_refuses_what_does_not_fit(tmp_path: Path) -> None:
    write_mnist(tmp_path, y=(3, 10))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: sample 1 has label 10"):
        images.read_mnist(tmp_path)
    write_mnist(tmp_path)
    write(tmp_path / "t10k-labels-idx1-ubyte", idx(np.zeros(2, np.uint8)))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte: labels of shape \(2,\) for 1 images"):
        images.read_mnist(tmp_path)
    write(tmp_path / "t10k-images-idx3-ubyte", idx(noise(2, 28, 27)))
    with pytest.raises(DataError, match=r"t10k-images.*\(2, 28, 27\)"):
        images.read_mnist(tmp_path)


# CIFAR


def python2_array(array: np.ndarray) -> bytes:
    """Pickle as numpy did under Python 2: text as strings of bytes, the old name of the module."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    rows, columns = (b"J" + struct.pack("<i", size) for size in array.shape)
    new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return new + b"(K\x01" + rows + columns + b"\x86" + kind + b"\x89" + text(array.tobytes()) + b"tb"


def test_pickle_of_python_2(tmp_path: Path) -> None:
    data = noise(2, 5)
    body = b"\x80\x02}(U\x04data" + python2_array(data) + b"U\x06labels](K\x01K\x02eu."
    content = load_plain(write(tmp_path / "batch", body))
    assert np.array_equal(content[b"data"], data)
    assert content[b"labels"] == [1, 2]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


class Pointers:
    """An object array over bytes of the file's choice."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((1,), np.dtype("O"), b"AAAAAAAA")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": Evil()}, 2), "it names __builtin__.print"),
        (pickle.dumps({b"data": Evil()}, 4), "it names builtins.print"),
        (pickle.dumps({b"data": Pointers()}, 2), "data.*not a pickle of plain"),
        (pickle.dumps({b"data": np.zeros(2, np.float64)}, 2), "an array of 'f8'"),
        (pickle.dumps([1, 2], 2), "a list and not a dictionary"),
        (pickle.dumps({b"data": noise(9)}, 2)[:-9], "not a pickle"),
        (b"", "not a pickle"),
    ],
)
def test_malicious_or_damaged_pickles_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = write(tmp_path / "data_batch_1", content)
    with pytest.raises(DataError, match=message):
        load_plain(path)
    assert capsys.readouterr().out == ""


def write_cifar10(folder: Path, form: str) -> tuple[np.ndarray, list[int]]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    rows, labels = noise(12, 3072), [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 0, 9]
    for at, name in enumerate(names):
        data, y = rows[2 * at : 2 * at + 2], labels[2 * at : 2 * at + 2]
        if form == "python":
            batch = {
                b"batch_label": b"a batch",
                b"labels": y,
                b"data": data,
                b"filenames": [b"a.png", b"b.png"],
            }
            write(folder / name, pickle.dumps(batch, 2))
        else:
            write(folder / f"{name}.bin", b"".join(bytes([y[i]]) + data[i].tobytes() for i in range(2)))
    return rows, labels


@pytest.mark.parametrize(
    ("place", "form"),
    [("cifar-10-batches-py", "python"), ("cifar-10-batches-bin", "binary"), (".", "python"), (".", "binary")],
)
def test_cifar10(tmp_path: Path, place: str, form: str) -> None:
    rows, labels = write_cifar10(tmp_path / place, form)
    raw = images.read_cifar10(tmp_path)
    assert raw.x.shape == (12, 32, 32, 3)
    assert raw.x[5, 4, 7, 2] == rows[5, 2 * 1024 + 4 * 32 + 7]  # blue, fifth row, eighth column
    assert np.array_equal(raw.x.transpose(0, 3, 1, 2).reshape(12, -1), rows)
    assert raw.y.tolist() == labels
    assert raw.train.tolist() == [True] * 10 + [False] * 2
    assert raw.labels[:2] == ("airplane", "automobile")
    assert raw.labels[9] == "truck"


def test_cifar10_names_the_batch_that_is_missing(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin", "binary")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"missing \S*cifar-10-batches-bin/data_batch_3.bin \("):
        images.read_cifar10(tmp_path)


def test_cifar10_refuses_damage(tmp_path: Path) -> None:
    write_cifar10(tmp_path, "binary")
    write(tmp_path / "data_batch_2.bin", bytes(3072))
    with pytest.raises(DataError, match=r"data_batch_2.bin: 3072 bytes"):
        images.read_cifar10(tmp_path)
    write(tmp_path / "data_batch_2.bin", bytes(3073) + b"\x0a" + bytes(3072))
    with pytest.raises(DataError, match=r"data_batch_2.bin: sample 1 has label 10"):
        images.read_cifar10(tmp_path)
    write_cifar10(tmp_path, "python")
    for batch, message in (
        ({b"data": noise(2, 3072), b"labels": [1, -1]}, "sample 1 has label -1"),
        ({b"data": noise(2, 3072), b"labels": [1, "cat"]}, "no list of whole numbers"),
        ({b"data": noise(2, 3071), b"labels": [1, 1]}, "shape"),
        ({b"data": noise(2, 3072)}, "labels"),
    ):
        write(tmp_path / "test_batch", pickle.dumps(batch, 2))
        with pytest.raises(DataError, match=f"test_batch: .*{message}"):
            images.read_cifar10(tmp_path)


def write_cifar100(folder: Path, form: str, fine: list[int], coarse: list[int]) -> np.ndarray:
    rows = noise(4, 3072)
    for name, part in (("train", slice(0, 3)), ("test", slice(3, 4))):
        if form == "python":
            batch = {
                b"filenames": [b"a.png"] * len(fine[part]),
                b"fine_labels": fine[part],
                b"coarse_labels": coarse[part],
                b"data": rows[part],
            }
            write(folder / name, pickle.dumps(batch, 2))
        else:
            records = zip(coarse[part], fine[part], rows[part], strict=True)
            write(folder / f"{name}.bin", b"".join(bytes([c, f]) + row.tobytes() for c, f, row in records))
    return rows


@pytest.mark.parametrize(
    ("place", "form"),
    [("cifar-100-python", "python"), ("cifar-100-binary", "binary"), (".", "python"), (".", "binary")],
)
def test_cifar100(tmp_path: Path, place: str, form: str) -> None:
    fine = [0, 99, 51, 30]
    rows = write_cifar100(tmp_path / place, form, fine, [COARSE_OF_FINE[f] for f in fine])
    raw = images.read_cifar100(tmp_path)
    assert np.array_equal(raw.x.transpose(0, 3, 1, 2).reshape(4, -1), rows)
    assert [raw.labels[y] for y in raw.y] == ["apple", "worm", "mushroom", "dolphin"]
    assert raw.train.tolist() == [True, True, True, False]


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar100_refuses_labels_that_do_not_fit(tmp_path: Path, form: str) -> None:
    write_cifar100(tmp_path, form, [0, 100, 51, 30], [4, 0, 4, 0])
    with pytest.raises(DataError, match=r"train.*sample 1 has label 100"):
        images.read_cifar100(tmp_path)
    write_cifar100(tmp_path, form, [0, 51, 51, 30], [4, 4, 5, 0])
    with pytest.raises(DataError, match=r"train.*sample 2 has label 51, but superclass 5"):
        images.read_cifar100(tmp_path)


def test_cifar100_superclasses_are_the_published_ones() -> None:
    members = {
        "aquatic_mammals": "beaver dolphin otter seal whale",
        "fish": "aquarium_fish flatfish ray shark trout",
        "flowers": "orchid poppy rose sunflower tulip",
        "food_containers": "bottle bowl can cup plate",
        "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
        "household_electrical_devices": "clock keyboard lamp telephone television",
        "household_furniture": "bed chair couch table wardrobe",
        "insects": "bee beetle butterfly caterpillar cockroach",
        "large_carnivores": "bear leopard lion tiger wolf",
        "large_man-made_outdoor_things": "bridge castle house road skyscraper",
        "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
        "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
        "medium_mammals": "fox porcupine possum raccoon skunk",
        "non-insect_invertebrates": "crab lobster snail spider worm",
        "people": "baby boy girl man woman",
        "reptiles": "crocodile dinosaur lizard snake turtle",
        "small_mammals": "hamster mouse rabbit shrew squirrel",
        "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
        "vehicles_1": "bicycle bus motorcycle pickup_truck train",
        "vehicles_2": "lawn_mower rocket streetcar tank tractor",
    }
    assert tuple(sorted(members)) == CIFAR100_SUPERCLASSES
    superclass = {name: coarse for coarse, names in members.items() for name in names.split()}
    assert tuple(sorted(superclass)) == CIFAR100_LABELS
    assert [CIFAR100_SUPERCLASSES[c] for c in COARSE_OF_FINE] == [
        superclass[name] for name in CIFAR100_LABELS
    ]


# SVHN and STL-10


def write_svhn(folder: Path, y: tuple[int, ...] = (1, 10, 9)) -> np.ndarray:
    x = noise(32, 32, 3, 5)
    labels = np.array([*y, 10, 2], np.uint8)[:, np.newaxis]
    scipy.io.savemat(folder / "train_32x32.mat", {"X": x[..., :3], "y": labels[:3]}, do_compression=True)
    scipy.io.savemat(folder / "test_32x32.mat", {"X": x[..., 3:], "y": labels[3:]}, do_compression=True)
    return x


def test_svhn(tmp_path: Path) -> None:
    x = write_svhn(tmp_path)
    raw = images.read_svhn(tmp_path)
    assert raw.x.shape == (5, 32, 32, 3)
    assert np.array_equal(raw.x[4], x[..., 4])
    assert raw.y.tolist() == [1, 0, 9, 0, 2]
    assert raw.train.tolist() == [True, True, True, False, False]


def test_svhn_refuses_damage(tmp_path: Path) -> None:
    write_svhn(tmp_path, y=(1, 0, 9))
    with pytest.raises(DataError, match=r"train_32x32.mat: sample 1 has label 0, not one of 1\.\.10"):
        images.read_svhn(tmp_path)
    for content, message in (
        ({"X": noise(32, 32, 3, 2), "y": np.ones((3, 1), np.uint8)}, "3 labels for 2 images"),
        ({"X": noise(32, 31, 3, 2), "y": np.ones((2, 1), np.uint8)}, "shape"),
        ({"X": noise(32, 32, 3, 2)}, "no variables X and y"),
    ):
        scipy.io.savemat(tmp_path / "train_32x32.mat", content)
        with pytest.raises(DataError, match=f"train_32x32.mat: .*{message}"):
            images.read_svhn(tmp_path)
    write(tmp_path / "train_32x32.mat", b"<html>not found</html>" * 20)
    with pytest.raises(DataError, match=r"train_32x32.mat: no MATLAB file"):
        images.read_svhn(tmp_path)


@pytest.mark.parametrize("place", [".", "stl10_binary"])
def test_stl10_is_stored_column_by_column(tmp_path: Path, place: str) -> None:
    upright = np.zeros((96, 96, 3), np.uint8)
    upright[2, 10:80, 1] = 200  # a green bar near the top
    stored = b"".join(upright[:, :, channel].tobytes(order="F") for channel in range(3))
    write(tmp_path / place / "train_X.bin", stored * 2)
    write(tmp_path / place / "train_y.bin", bytes([1, 10]))
    write(tmp_path / place / "test_X.bin", stored)
    write(tmp_path / place / "test_y.bin", bytes([3]))
    raw = images.read_stl10(tmp_path)
    assert raw.x.shape == (3, 96, 96, 3)
    assert all(np.array_equal(image, upright) for image in raw.x)
    assert [raw.labels[y] for y in raw.y] == ["airplane", "truck", "car"]
    assert raw.train.tolist() == [True, True, False]


def test_stl10_refuses_damage(tmp_path: Path) -> None:
    write(tmp_path / "train_X.bin", bytes(27648 * 2 - 1))
    write(tmp_path / "train_y.bin", bytes([1, 11]))
    with pytest.raises(DataError, match=r"train_X.bin: 55295 bytes"):
        images.read_stl10(tmp_path)
    write(tmp_path / "train_X.bin", bytes(27648 * 2))
    with pytest.raises(DataError, match=r"train_y.bin: sample 1 has label 11"):
        images.read_stl10(tmp_path)
    write(tmp_path / "train_y.bin", bytes([1]))
    with pytest.raises(DataError, match=r"train_y.bin: 1 labels for 2 images"):
        images.read_stl10(tmp_path)


# FEMNIST


def leaf(path: Path, writers: dict[str, tuple[np.ndarray, list[int]]]) -> None:
    content = {
        "users": list(writers),
        "num_samples": [len(y) for _, y in writers.values()],
        "user_data": {name: {"x": (x / 255).tolist(), "y": y} for name, (x, y) in writers.items()},
    }
    write(path, json.dumps(content))


@pytest.mark.parametrize("place", ["data", "."])
def test_femnist(tmp_path: Path, place: str) -> None:
    x = noise(6, 784)
    leaf(tmp_path / place / "train" / "a.json", {"f9": (x[:2], [0, 10]), "f1": (x[2:3], [61])})
    leaf(tmp_path / place / "train" / "b.json", {"f5": (x[3:4], [36])})
    leaf(tmp_path / place / "test" / "a.json", {"f9": (x[4:5], [9]), "f2": (x[5:], [35])})
    raw = images.read_femnist(tmp_path)
    assert np.array_equal(raw.x, x.reshape(6, 28, 28, 1))
    assert raw.x.dtype == np.uint8
    assert "".join(raw.labels[y] for y in raw.y) == "0Aza9Z"
    assert raw.train.tolist() == [True] * 4 + [False] * 2
    assert raw.natural is not None
    assert raw.natural.tolist() == [3, 3, 0, 2, 3, 1]  # f1 f2 f5 f9


def femnist_json(**changes: Any) -> str:
    user = {"x": [[0.5] * 784, [1.0] * 784], "y": [1, 2], **changes}
    return json.dumps({"users": ["f1"], "num_samples": [2], "user_data": {"f1": user}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (femnist_json(y=[1, 62]), "user f1: sample 1 has label 62"),
        (femnist_json(y=[1]), "user f1: .*not the 2"),
        (femnist_json(y=[1, 2.5]), "user f1: .*whole numbers"),
        (femnist_json(y=[1, [2]]), "user f1: .*numbers"),
        (femnist_json(x=[[0.5] * 784, [1.0] * 783]), "user f1: sample 1 has no 784 pixels"),
        (femnist_json(x=[[0.5] * 784, [1.5] * 784]), "user f1: sample 1 has a pixel outside"),
        (femnist_json(x=[[0.5] * 784, ["dark"] * 784]), "user f1: .*no numbers"),
        (json.dumps({"users": ["f1"], "num_samples": [2]}), "no LEAF file.*user_data"),
        ("{", "no LEAF file"),
    ],
)
def test_femnist_refuses_damage(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path / "train" / "a.json", content)
    write(tmp_path / "test" / "a.json", femnist_json())
    with pytest.raises(DataError, match=f"a.json.*{message}"):
        images.read_femnist(tmp_path)


# HAPT


def write_hapt(folder: Path, labels: str) -> np.ndarray:
    signal = np.arange(60, dtype=np.float64).reshape(10, 6) / 7
    for name in ("exp01_user01", "exp12_user06"):
        for sensor, part in (("acc", signal[:, :3]), ("gyro", signal[:, 3:])):
            rows = "".join(" ".join(f"{v:.16f}" for v in row) + " \n" for row in part)
            write(folder / f"{sensor}_{name}.txt", rows)
    write(folder / "labels.txt", labels)
    return signal


@pytest.mark.parametrize("place", ["RawData", "."])
def test_hapt(tmp_path: Path, place: str) -> None:
    signal = write_hapt(tmp_path / place, "1 1 5 2 4\n1 1 12 5 5\n12 6 1 1 10\n")
    data = motion.read_hapt(tmp_path)
    assert data.rate == 50
    assert len(data.labels) == 12
    assert [item.subject for item in data.items] == [1, 6]
    first, second = data.items
    assert first.signal.dtype == np.float32
    assert np.allclose(first.signal, signal)
    assert first.y.tolist() == [-1, 4, 4, 4, 11, -1, -1, -1, -1, -1]
    assert data.labels[4] == "STANDING"
    assert data.labels[11] == "LIE_TO_STAND"
    assert second.y.tolist() == [0] * 10


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("1 1 5 2 4\n1 1 13 5 5\n", "labels.txt, line 2: activity 13"),
        ("1 1 5 2 11\n", r"labels.txt, line 1: samples 2\.\.11"),
        ("1 1 5 0 3\n", r"labels.txt, line 1: samples 0\.\.3"),
        ("1 1 5 2\n", "labels.txt, line 1: not 5 numbers"),
        ("", "labels.txt: holds no samples"),
        ("2 1 5 2 4\n", "missing .*acc_exp02_user01.txt"),
    ],
)
def test_hapt_refuses_labels_that_do_not_fit(tmp_path: Path, labels: str, message: str) -> None:
    write_hapt(tmp_path, labels)
    with pytest.raises(DataError, match=message):
        motion.read_hapt(tmp_path)


def test_hapt_refuses_ragged_signals(tmp_path: Path) -> None:
    write_hapt(tmp_path, "1 1 5 1 2\n")
    write(tmp_path / "gyro_exp01_user01.txt", "1 2 3\n")
    with pytest.raises(DataError, match=r"gyro_exp01_user01.txt: 1 samples, but 10 in acc_exp01"):
        motion.read_hapt(tmp_path)
    for row in ("4 5", "4 5 x", "4 5 nan"):
        write(tmp_path / "acc_exp01_user01.txt", f"1 2 3\n{row}\n")
        with pytest.raises(DataError, match=r"acc_exp01_user01.txt, line 2: not 3 numbers"):
            motion.read_hapt(tmp_path)


# WISDM


def wisdm(user: int, activity: str, start: int, count: int, step: int = 50_000_000) -> list[str]:
    return [f"{user},{activity},{start + step * i},{i}.5,-9.8,0.1;" for i in range(count)]


def test_wisdm_v1_reads_what_is_whole(tmp_path: Path) -> None:
    lines = [
        *wisdm(33, "Jogging", 49_105_962_326_000, 100),
        "",
        "33,Jogging,49110962326000,1,2,3;33,Jogging,49111012326000,4,5,6;",  # two on one line
        "33,Jogging,49111062326000,7,8,9,;",  # a comma too many
        "33,Jogging,49111112326000,7,8,;",  # no z
        "33,Jogging,49111162326000,10,11,12",  # no semicolon
        ";",
        *wisdm(33, "Walking", 49_111_212_326_000, 50),
        *wisdm(33, "Walking", 60_000_000_000_000, 20),  # after a gap
        *wisdm(8, "Walking", 0, 30, step=0),  # no times at all
        *wisdm(8, "Walking", 70_000_000_000_000, 1),
    ]
    write(tmp_path / "WISDM_ar_v1.1_raw.txt", "\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match=r"skipped 1 of 206 records.*line 104"):
        data = motion.read_wisdm_v1(tmp_path)
    assert data.rate == 20
    found = [(item.subject, data.labels[item.y[0]], len(item.y)) for item in data.items]
    assert found == [(33, "Jogging", 104), (33, "Walking", 50), (33, "Walking", 20), (8, "Walking", 31)]
    jogging = data.items[0].signal
    assert jogging.dtype == np.float32
    assert np.allclose(jogging[:2], [[0.5, -9.8, 0.1], [1.5, -9.8, 0.1]])
    assert jogging[100:].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert all((item.y == item.y[0]).all() for item in data.items)


def test_wisdm_v1_refuses_a_file_with_many_broken_lines(tmp_path: Path) -> None:
    good = wisdm(1, "Sitting", 10**12, 97)
    path = tmp_path / "WISDM_ar_v1.1" / "WISDM_ar_v1.1_raw.txt"
    write(path, "\n".join([*good, "1,Sitting,9,1,2;", "1,Sitting,9,1,2,nan;", "broken", ""]))
    with pytest.raises(DataError, match=r"raw.txt: 3 of 100 records are not whole, the first in line 98"):
        motion.read_wisdm_v1(tmp_path)
    write(path, "\n".join([*good, "1,Swimming,9,1,2,3;"]))
    with pytest.raises(DataError, match=r"raw.txt, line 98: no activity 'Swimming'"):
        motion.read_wisdm_v1(tmp_path)
    write(path, "\n")
    with pytest.raises(DataError, match=r"raw.txt: holds no samples"):
        motion.read_wisdm_v1(tmp_path)


@pytest.mark.parametrize("place", ["wisdm-dataset/raw/phone/accel", "raw/phone/accel", "."])
def test_wisdm_2019(tmp_path: Path, place: str) -> None:
    lines = [*wisdm(1600, "A", 252_207_666_810_782, 5), *wisdm(1600, "S", 252_208_000_000_000, 4)]
    write(tmp_path / place / "data_1600_accel_phone.txt", "\n".join(lines))
    write(tmp_path / place / "data_1650_accel_phone.txt", "\n".join(wisdm(1650, "O", 10**18, 3)))
    data = motion.read_wisdm_2019(tmp_path)
    found = [(item.subject, data.labels[item.y[0]], item.signal.shape) for item in data.items]
    assert found == [
        (1600, "Walking", (5, 3)),
        (1600, "Folding Clothes", (4, 3)),
        (1650, "Playing Catch", (3, 3)),
    ]
    assert data.rate == 20
    assert len(data.labels) == 18


def test_wisdm_2019_refuses_damage(tmp_path: Path) -> None:
    good = wisdm(1600, "A", 10**12, 500)
    write(tmp_path / "data_1600_accel_phone.txt", "\n".join([*good, "1600,A,9,1,2;"]))
    with pytest.raises(DataError, match=r"data_1600_accel_phone.txt: 1 of 501 .*line 501"):
        motion.read_wisdm_2019(tmp_path)
    write(tmp_path / "data_1600_accel_phone.txt", "\n".join([*good, "1600,N,9,1,2,3;"]))
    with pytest.raises(DataError, match=r"data_1600_accel_phone.txt, line 501: no activity 'N'"):
        motion.read_wisdm_2019(tmp_path)


# RealWorld HAR


def realworld_csv(times: list[int], slope: float = 0.01) -> str:
    rows = [f"{i},{t},{t * slope},{t * slope + 1},{t * slope + 2}\n" for i, t in enumerate(times, 1)]
    return "id,attr_time,attr_x,attr_y,attr_z\n" + "".join(rows)


def zipped(members: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def write_realworld(data: Path, position: str = "waist") -> None:
    for activity in REALWORLD_LABELS:
        for sensor, name, times in (
            ("acc", "acc", range(1000, 1401, 20)),
            ("gyr", "Gyroscope", range(1010, 1500, 25)),
        ):
            members: dict[str, str | bytes] = {
                f"{name}_{activity}_{position}.csv": realworld_csv(list(times)),
                f"{name}_{activity}_head.csv": "must not be read",
                "readMe": "some text",
            }
            write(data / f"{sensor}_{activity}_csv.zip", zipped(members))


def test_realworld_har(tmp_path: Path) -> None:
    for subject in (2, 11):
        write_realworld(tmp_path / f"proband{subject}" / "data")
    data = motion.read_realworld_har(tmp_path)
    assert data.rate == 50
    assert data.labels == REALWORLD_LABELS
    assert [item.subject for item in data.items] == [2] * 8 + [11] * 8
    assert [item.y[0] for item in data.items] == [*range(8)] * 2
    clock = np.arange(1010, 1401, 20)
    expected = np.stack([clock * 0.01 + axis for axis in (0, 1, 2, 0, 1, 2)], axis=1)
    for item in data.items:
        assert item.signal.dtype == np.float32
        assert np.allclose(item.signal, expected)


def test_realworld_har_reads_parts_however_they_are_packed(tmp_path: Path) -> None:
    data = tmp_path / "realworld2016_dataset" / "proband4" / "data"
    write_realworld(data)
    parts = {n: realworld_csv(list(range(1000 * n, 1000 * n + 20 * (n + 1), 20))) for n in (1, 2, 3)}
    for sensor, name, first in (("acc", "acc", "_1"), ("gyr", "Gyroscope", "")):  # archives within an archive
        inner: dict[str, str | bytes] = {
            f"{sensor}_climbingup{first}_csv.zip": zipped({f"{name}_climbingup_waist.csv": parts[1]}),
            f"{sensor}_climbingup_2_csv.zip": zipped({f"{name}_climbingup_2_waist.csv": parts[2]}),
            f"{sensor}_climbingup_3_csv.zip": zipped({f"{name}_climbingup_waist.csv": parts[3]}),
        }
        write(data / f"{sensor}_climbingup_csv.zip", zipped(inner))
        write(data / f"{sensor}_walking_csv.zip", zipped({f"{name}_walking_2_waist.csv": parts[2]}))
        write(data / f"{sensor}_lying_2_csv.zip", zipped({f"{name}_lying_2_waist.csv": parts[2]}))
        (data / f"{sensor}_jumping_csv.zip").unlink()
        write(data / f"{sensor}_jumping_waist.csv", parts[3])  # unpacked beside
        (data / f"{sensor}_running_csv.zip").unlink()
        write(data / f"{sensor}_running_csv" / f"{name}_running_waist.csv", parts[1])  # unpacked in a folder
    found = [(REALWORLD_LABELS[item.y[0]], len(item.y)) for item in motion.read_realworld_har(tmp_path).items]
    assert found == [
        ("climbingdown", 20),
        ("climbingup", 2),
        ("climbingup", 3),
        ("climbingup", 4),
        ("jumping", 4),
        ("lying", 20),
        ("lying", 3),
        ("running", 2),
        ("sitting", 20),
        ("standing", 20),
        ("walking", 3),
    ]


def test_realworld_har_does_not_bridge_a_silence(tmp_path: Path) -> None:
    data = tmp_path / "proband1" / "data"
    write_realworld(data)
    steady = realworld_csv(list(range(0, 10_001, 20)))
    silent = realworld_csv([10_000, *range(0, 1001, 20), *range(5000, 9981, 20), 9980])  # unsorted, repeated
    write(data / "acc_standing_waist.csv", steady)
    write(data / "Gyroscope_standing_waist.csv", silent)
    items = [item for item in motion.read_realworld_har(tmp_path).items if item.y[0] == 6]
    assert [len(item.y) for item in items] == [51, 251]
    assert np.allclose(items[1].signal[0], [50, 51, 52] * 2)


def test_realworld_har_is_read_at_the_waist_alone(tmp_path: Path) -> None:
    write_realworld(tmp_path / "proband6" / "data", "thigh")
    with pytest.raises(
        DataError, match=r"missing acc_climbingdown_waist.csv, also in acc_climbingdown_csv.zip"
    ):
        motion.read_realworld_har(tmp_path)


def break_missing_gyroscope(data: Path) -> None:
    (data / "gyr_lying_csv.zip").unlink()


def break_archive(data: Path) -> None:
    write(data / "gyr_lying_csv.zip", b"not an archive")


def break_row(data: Path) -> None:
    write(data / "acc_lying_waist.csv", realworld_csv([0, 20]) + "3,40,1.0\n")


def break_header(data: Path) -> None:
    write(data / "acc_lying_waist.csv", "id,attr_x,attr_y,attr_z\n1,2,3,4\n")


def break_clock(data: Path) -> None:
    write(data / "acc_lying_waist.csv", realworld_csv([0, 20]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_missing_gyroscope, "proband1/data: missing gyr_lying_csv.zip"),
        (break_archive, "gyr_lying_csv.zip: damaged archive"),
        (break_row, "acc_lying_waist.csv, line 4: not 5 numbers"),
        (break_header, "acc_lying_waist.csv, line 1: no column attr_time"),
        (break_clock, "acc_lying_waist.csv: accelerometer and gyroscope have no time in common"),
    ],
)
def test_realworld_har_refuses_damage(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write_realworld(tmp_path / "proband1" / "data")
    damage(tmp_path / "proband1" / "data")
    with pytest.raises(DataError, match=message):
        motion.read_realworld_har(tmp_path)


# MotionSense

MOTIONSENSE_HEADER = (
    ",attitude.roll,attitude.pitch,attitude.yaw,gravity.x,gravity.y,gravity.z,"
    "rotationRate.x,rotationRate.y,rotationRate.z,"
    "userAcceleration.x,userAcceleration.y,userAcceleration.z\n"
)


def write_motionsense(folder: Path) -> None:
    for trial in ("dws_1", "dws_11", "ups_3", "sit_5", "std_6", "wlk_7", "jog_9"):
        rows = "".join(
            ",".join(str(v) for v in [i, *(i + c / 16 for c in range(1, 13))]) + "\n" for i in range(3)
        )
        write(folder / trial / "sub_1.csv", MOTIONSENSE_HEADER + rows)
        write(folder / trial / "sub_10.csv", MOTIONSENSE_HEADER + rows)


@pytest.mark.parametrize("place", ["A_DeviceMotion_data", "A_DeviceMotion_data/A_DeviceMotion_data", "."])
def test_motionsense(tmp_path: Path, place: str) -> None:
    write_motionsense(tmp_path / place)
    data = motion.read_motionsense(tmp_path)
    assert data.rate == 50
    assert data.labels == ("downstairs", "upstairs", "sitting", "standing", "walking", "jogging")
    assert [item.subject for item in data.items] == [1, 10] * 7
    assert [int(item.y[0]) for item in data.items[::2]] == [0, 0, 1, 2, 3, 4, 5]
    signal = data.items[0].signal
    assert signal.dtype == np.float32
    assert (signal[2] * 16 - 32).tolist() == [10, 11, 12, 7, 8, 9]  # acceleration first, then rotation


def test_motionsense_refuses_damage(tmp_path: Path) -> None:
    write_motionsense(tmp_path)
    write(tmp_path / "ups_3" / "sub_10.csv", MOTIONSENSE_HEADER + "0,1,2\n")
    with pytest.raises(DataError, match=r"ups_3/sub_10.csv, line 2: not 13 numbers"):
        motion.read_motionsense(tmp_path)
    write(tmp_path / "ups_3" / "sub_10.csv", "")
    with pytest.raises(DataError, match=r"ups_3/sub_10.csv, line 1: no column userAcceleration.x"):
        motion.read_motionsense(tmp_path)
    for path in (tmp_path / "ups_3").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="missing A_DeviceMotion_data/ups_"):
        motion.read_motionsense(tmp_path)
