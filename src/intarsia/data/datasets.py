"""The data sets: where their files are found, how they are read, where they are published."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from intarsia.core import DataError, Registry, suggest
from intarsia.data import packed
from intarsia.data.places import Places, cache_folder, cached
from intarsia.data.published import images, motion
from intarsia.data.raw import RawData, Recordings

Raw = RawData | Recordings | str
Kind = Literal["images", "motion", "text"]


@dataclass(frozen=True)
class Form:
    """One form in which a data set's files may lie in a folder: as published, or packed."""

    name: Literal["published", "packed"]
    needs: Sequence[str]
    """A file or folder of which any one tells that the data set is there."""
    read: Callable[[Path], Raw]
    described: str = ""
    """The files in words, where there are many."""


@dataclass(frozen=True)
class Download:
    """A public file of a data set, with the checksum that is published beside it."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Dataset:
    """A data set and all that is known of its files."""

    name: str
    kind: Kind
    summary: str
    forms: tuple[Form, ...]
    published_at: str = ""
    downloads: tuple[Download, ...] = ()

    def find(self, places: Places) -> Found | None:
        """Return the first place that holds the data set, in any form."""
        for place in places:
            for form in self.forms:
                # Published files have names like "train": they are looked for in a folder of their own only.
                for folder in (place / self.name, *([place] if form.name == "packed" else [])):
                    if any((folder / need).exists() for need in form.needs):
                        return Found(self, form, folder)
        return None

    def locate(self, places: Places) -> Found:
        """Return where the data set is, or say which files go where."""
        found = self.find(places)
        if found is None:
            raise DataError(self._missing(places))
        return found

    def _missing(self, places: Places) -> str:
        forms = ", or ".join(form.described or " or ".join(form.needs) for form in self.forms)
        get = f" or run: intarsia data get {self.name}." if self.downloads else "."
        return (
            f"data set '{self.name}' is not here. Put its files ({forms}) into {places[0] / self.name}{get}\n"
            f"  published at: {self.published_at or 'see the name'}\n"
            f"  looked in: {', '.join(str(p) for p in dict.fromkeys(places))}\n"
            "  (--data DIR or INTARSIA_DATA name another folder)"
        )


@dataclass(frozen=True)
class Found:
    """A data set in a folder."""

    dataset: Dataset
    form: Form
    folder: Path

    def load(self) -> Raw:
        """Return the data; decoded once, then mapped from the cache."""
        return cached(self.dataset.name, self.files(), lambda: self.form.read(self.folder))

    def files(self) -> list[Path]:
        """Return every file that belongs to the data set."""
        if self.form.name == "published":
            return [p for p in sorted(self.folder.rglob("*")) if p.is_file()]
        there = [self.folder / need for need in self.form.needs if (self.folder / need).exists()]
        inside = [p for top in there for p in ([top] if top.is_file() else sorted(top.rglob("*")))]
        return [p for p in inside if p.is_file()]

    def check(self) -> list[str]:
        """Compare every file with its checksum where one is known; return what was checked, or fail."""
        sums = _sums_beside(self.folder)
        known = {d.file: d.md5 for d in self.dataset.downloads}
        checked = []
        for path in self.files():
            relative = path.relative_to(self.folder).as_posix()
            if relative in sums:
                _compare(path, "sha256", sums[relative])
                checked.append(relative)
            elif path.name in known:
                _compare(path, "md5", known[path.name])
                checked.append(relative)
        return checked


def _sums_beside(folder: Path) -> dict[str, str]:
    path = folder / "SHA256SUMS"
    if not path.exists():
        return {}
    lines = (line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip())
    return {name.strip().lstrip("*"): digest for digest, name in lines}


def _compare(path: Path, kind: str, expected: str) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, kind).hexdigest()
    if digest != expected:
        raise DataError(f"{path} is damaged: its {kind} is {digest}, it should be {expected}; get it again")


def get(name: str) -> Dataset:
    """Return a data set by name."""
    if name == "digits":
        raise DataError(
            "'digits' comes with Intarsia and has no files: see it with intarsia data partition digits"
        )
    if name not in DATASETS:
        raise DataError(f"there is no data set '{name}'{suggest(name, DATASETS)}")
    return DATASETS[name]


def download_folder(dataset: Dataset) -> Path:
    """Return where downloaded files of a data set are put."""
    return cache_folder() / "data" / dataset.name


def _idx(prefix: str = "", parts: Sequence[str] = ("train", "t10k")) -> list[str]:
    names = [
        f"{prefix}{part}-{kind}" for part in parts for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    return [name + end for name in names for end in (".gz", "")]


def _idx_downloads(place: str, sums: Sequence[str]) -> tuple[Download, ...]:
    return tuple(Download(f"{place}/{name}", md5) for name, md5 in zip(_idx()[::2], sums, strict=True))


_IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]"
_MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

_ALL = (
    Dataset(
        "mnist",
        "images",
        "70,000 handwritten digits, 28x28",
        (
            Form("published", _idx(), images.read_mnist, _IDX),
            Form("packed", ["mnist.npz.xz"], packed.read_mnist),
        ),
        "http://yann.lecun.com/exdb/mnist",
        _idx_downloads(_MNIST, _MNIST_MD5),
    ),
    Dataset(
        "fashion_mnist",
        "images",
        "70,000 articles of clothing, 28x28 (packed: 30,000)",
        (
            Form("published", _idx(), images.read_fashion_mnist, _IDX),
            Form("packed", ["fashion_mnist_20k.npz.xz"], packed.read_fashion_mnist),
        ),
        "https://github.com/zalandoresearch/fashion-mnist",
        _idx_downloads(_FASHION, _FASHION_MD5),
    ),
    Dataset(
        "emnist",
        "images",
        "EMNIST byclass: 814,255 handwritten characters, 62 classes, 28x28",
        (
            Form(
                "published",
                [
                    *_idx("emnist-byclass-", ("train", "test")),
                    *_idx("gzip/emnist-byclass-", ("train", "test")),
                ],
                images.read_emnist_byclass,
                "emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte[.gz]",
            ),
        ),
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    ),
    Dataset(
        "femnist",
        "images",
        "FEMNIST as LEAF writes it: characters by writer, 62 classes, 28x28",
        (Form("published", ["data/train", "train"], images.read_femnist),),
        "https://github.com/TalwalkarLab/leaf",
    ),
    Dataset(
        "femnist_digits",
        "images",
        "5,997 digits of 12 FEMNIST writers, 28x28",
        (Form("packed", ["femnist_digits_12clients.npz.xz"], packed.read_femnist_digits),),
    ),
    Dataset(
        "chars74k",
        "images",
        "3,410 handwritten characters, 62 classes x 55 writers, 28x28",
        (Form("packed", ["chars74k_hnd_28.npz.xz"], packed.read_chars74k),),
        "http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k",
    ),
    Dataset(
        "cifar10",
        "images",
        "60,000 photographs, 10 classes, 32x32 (packed: 25,000)",
        (
            Form(
                "published",
                ["cifar-10-batches-py", "cifar-10-batches-bin", "data_batch_1", "data_batch_1.bin"],
                images.read_cifar10,
            ),
            Form("packed", ["cifar10_train", "cifar10_test"], packed.read_cifar10),
        ),
        f"{_CIFAR}/cifar.html",
        (Download(f"{_CIFAR}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    ),
    Dataset(
        "cifar100",
        "images",
        "60,000 photographs, 100 classes, 32x32 (packed: 9,999 of the test part)",
        (
            Form("published", ["cifar-100-python", "cifar-100-binary", "train.bin"], images.read_cifar100),
            Form("packed", ["cifar100_test"], packed.read_cifar100),
        ),
        f"{_CIFAR}/cifar.html",
        (Download(f"{_CIFAR}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
    ),
    Dataset(
        "svhn",
        "images",
        "99,289 house-number digits, 32x32 (packed: 5,000 of the test part)",
        (
            Form("published", ["train_32x32.mat", "test_32x32.mat"], images.read_svhn),
            Form("packed", ["svhn_test5000"], packed.read_svhn),
        ),
        _SVHN,
        (
            Download(f"{_SVHN}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            Download(f"{_SVHN}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    Dataset(
        "stl10",
        "images",
        "13,000 photographs, 10 classes, 96x96 (packed: 8,000)",
        (
            Form("published", ["stl10_binary", "train_X.bin"], images.read_stl10),
            Form("packed", ["stl10_train", "stl10_test"], packed.read_stl10),
        ),
        "https://cs.stanford.edu/~acoates/stl10",
        (
            Download(
                "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                "91f7769df0f17e558f3565bffb0c7dfb",
            ),
        ),
    ),
    Dataset(
        "tinyimagenet32",
        "images",
        "22,000 photographs, 200 classes, 32x32",
        (Form("packed", ["tinyimagenet32_train", "tinyimagenet32_val"], packed.read_tinyimagenet32),),
    ),
    Dataset(
        "hapt",
        "motion",
        "accelerometer and gyroscope at 50 Hz, 30 users, 12 activities",
        (
            Form("published", ["RawData", "labels.txt"], motion.read_hapt),
            Form("packed", ["hapt.npz.xz"], packed.read_hapt),
        ),
        "https://archive.ics.uci.edu/dataset/341",
    ),
    Dataset(
        "motionsense",
        "motion",
        "acceleration and rotation rate at 50 Hz, 24 users, 6 activities",
        (
            Form("published", ["A_DeviceMotion_data"], motion.read_motionsense),
            Form("packed", ["motionsense.npz.xz"], packed.read_motionsense),
        ),
        "https://github.com/mmalekzadeh/motion-sense",
    ),
    Dataset(
        "wisdm2019",
        "motion",
        "phone accelerometer at 20 Hz, 51 users, 18 activities (packed: 21 users)",
        (
            Form("published", ["wisdm-dataset", "raw"], motion.read_wisdm_2019),
            Form("packed", ["wisdm2019_phone.npz.xz"], packed.read_wisdm2019),
        ),
        "https://archive.ics.uci.edu/dataset/507",
    ),
    Dataset(
        "wisdm",
        "motion",
        "WISDM v1.1: phone accelerometer at 20 Hz, 36 users, 6 activities",
        (Form("published", ["WISDM_ar_v1.1_raw.txt", "WISDM_ar_v1.1"], motion.read_wisdm_v1),),
        "https://www.cis.fordham.edu/wisdm/dataset.php",
    ),
    Dataset(
        "realworld",
        "motion",
        "RealWorld HAR: accelerometer and gyroscope at 50 Hz, 15 users, 8 activities",
        (Form("published", ["proband1", "realworld2016_dataset"], motion.read_realworld_har),),
        "https://www.uni-mannheim.de/dws/research/projects/activity-recognition",
    ),
    Dataset(
        "tinyshakespeare",
        "text",
        "1.1 MB of Shakespeare's plays, by role",
        (Form("packed", ["tinyshakespeare.txt.xz"], packed.read_tinyshakespeare),),
    ),
)

DATASETS: Registry[Dataset] = Registry("datasets", Dataset, _ALL, objects=True)
