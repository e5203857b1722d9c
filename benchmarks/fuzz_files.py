"""What `benchmarks.fuzz` throws at the readers of files: run folders, settings, own data, published data, exports.

Each reader gets real files of its kind, damaged by bytes or by values; where a file is sealed with a hash, half of the
damage is sealed again, as somebody would do who means it.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import tomli_w
from PIL import Image
from tests.conftest import NEEDS, SMALL

import intarsia
from intarsia.data.packed import arrays
from intarsia.data.preparation import preparations_of
from intarsia.data.published import images
from intarsia.data.published.restricted import load_plain
from intarsia.data.recorded import form_from, population_from
from intarsia.data.sources.readers import read_archive, read_picture
from intarsia.data.tables import read_table
from intarsia.experiment import load
from intarsia.experiment.kept import OwnModels
from intarsia.experiment.plugged import plug_in_again, plugins_of
from intarsia.export.predictor import Predictor
from intarsia.models.weights import read_safetensors
from intarsia.runs import RunFolder

if TYPE_CHECKING:
    from benchmarks.fuzz import Frames

DIALECTS = {
    "comma": ["a,b,word,y", *(f"{i / 7:.3f},{i % 5},{'uvw'[i % 3]},{i % 2}" for i in range(12))],
    "semicolon": ["a;b;word;y", *(f"{i},5;{i % 5};{'uvw'[i % 3]};{i % 2}" for i in range(12))],
    "quoted": ['"a","b, too","y"', *(f'"{i}","x ""{i}""",{i % 2}' for i in range(12))],
    "tab": ["when\ta\ty", *(f"2024-01-{i + 1:02d} 10:00\t{i}\t{i % 2}" for i in range(12))],
    "gaps": ["a,b,y", *(f"{'NA' if i % 4 else i},{'' if i % 3 else i},{i % 2}" for i in range(12))],
}


PLUGIN = b"""
import intarsia


@intarsia.part
class Fuzzed(intarsia.Method):
    \"\"\"FedAvg by another name.\"\"\"

    name = "fuzzed"
    title = "Fuzzed"
"""


def sealed_manifest(text: bytes) -> bytes:
    """Return a manifest with a seal that fits."""
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n"


def sealed_line(text: bytes) -> bytes:
    """Return a line of a journal with a seal that fits."""
    return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"


class FileReaders:
    """The readers of files, by name, each with real files to damage."""

    def __init__(self, home: Path, frames: Frames) -> None:
        self.home, self.frames = home, frames
        self.run = _small_run(home / "run")
        self.files = {path: path.read_bytes() for path in self.run.rglob("*") if path.is_file()}
        self.settings = (self.run / "settings.toml").read_text()
        self.tables = _tables()
        self.archives = [
            _npz(x=np.zeros((4, 3), np.float32), y=np.arange(4)),
            _npz(x_train=np.ones((2, 2)), y_train=["a", "b"], device="d"),
        ]
        kinds = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
        self.pictures = [_picture(kind, mode) for kind in kinds for mode in ("L", "RGB")]
        self.weighty = [data for path, data in self.files.items() if path.suffix == ".safetensors"]
        self.published = _published()
        self.plugin = home / "plugin.py"
        self.plugin.write_bytes(PLUGIN)
        intarsia.plug_in(self.plugin)
        self.exported = home / "export"
        self.exports = _exports(self.run, self.exported)
        self.parts: dict[str, tuple[Callable[[], None], int]] = {
            "manifest": (self.manifest, 10),
            "journal": (self.journal, 8),
            "table of a run": (self.table, 10),
            "records of a run": (self.records, 8),
            "own models": (self.own_models, 6),
            "settings": (self.read_settings, 6),
            "plug-ins": (self.plugins, 2),
            "own table": (self.own_table, 12),
            "parquet": (self.parquet, 6),
            "archive": (self.archive, 8),
            "picture": (self.picture, 8),
            "published data": (self.read_published, 12),
            "population of files": (self.population, 2),
            "weights": (self.weights, 8),
            "export": (self.export, 1),
        }

    def _pick(self, items: Sequence[Any]) -> Any:
        return self.frames.chance.choice(items)

    def _values(self, text: bytes) -> bytes:
        """Damage some values of a JSON text."""
        return json.dumps(self.frames.in_values(json.loads(text))).encode("utf8", "surrogatepass")

    def _changed(self, pattern: str, change: Callable[[bytes], bytes], then: Callable[[], Any]) -> None:
        """Let a file of the run folder be another one for a moment."""
        path = self._pick([path for path in self.files if path.match(pattern)])
        path.write_bytes(change(self.files[path]))
        try:
            then()
        finally:
            path.write_bytes(self.files[path])

    def manifest(self) -> None:
        """Read the state of a checkpoint."""

        def change(data: bytes) -> bytes:
            if self.frames.chance.random() < 0.3:
                return self.frames.in_bytes(data)
            text = data.partition(b"\n")[2].removesuffix(b"\n")
            hard = self.frames.chance.random() < 0.2
            return sealed_manifest(self.frames.in_bytes(text) if hard else self._values(text))

        self._changed("state/checkpoint-*.json", change, RunFolder(self.run).state_at)

    def journal(self) -> None:
        """Read the clients' journal, with a checkpoint that names it as it is."""
        folder = RunFolder(self.run)
        manifest = folder._manifests()[-1]
        content = json.loads(self.files[manifest].partition(b"\n")[2])
        files = folder._journals.files(content["clients"]["number"])
        lines = [line.partition(b" ")[2] for line in self.files[files[0]].splitlines()]
        at = self.frames.chance.randrange(len(lines))
        change = self._values if self.frames.chance.random() < 0.7 else self.frames.in_bytes
        lines[at] = change(lines[at])
        whole = [sealed_line(line.replace(b"\n", b" ")) for line in lines]
        seal = ""
        for line in whole:
            seal = hashlib.sha256(seal.encode() + line).hexdigest()
        content["clients"] |= {"length": sum(map(len, whole)), "seal": seal}
        manifest.write_bytes(sealed_manifest(json.dumps(content).encode()))
        for file in files:
            file.write_bytes(b"".join(whole))
        try:
            folder.state_at()
        finally:
            for file in (manifest, *files):
                file.write_bytes(self.files[file])

    def table(self) -> None:
        """Read a table of a run, as Python and the report do."""
        name = self._pick(("metrics", "traffic", "events", "judged", "groups", "notes", "seconds"))
        self._changed(f"{name}.jsonl", self._line, lambda: RunFolder(self.run).rows(name))

    def _line(self, data: bytes) -> bytes:
        if not data or self.frames.chance.random() < 0.4:
            return self.frames.in_bytes(data)
        lines = data.splitlines()[:20]
        at = self.frames.chance.randrange(len(lines))
        lines[at] = self._values(lines[at])
        return b"\n".join(lines)

    def records(self) -> None:
        """Read what a run folder says of its result and of who holds what."""

        def change(data: bytes) -> bytes:
            return self.frames.in_bytes(data) if self.frames.chance.random() < 0.3 else self._values(data)

        def read() -> None:
            folder = RunFolder(self.run)
            folder.summary()
            about = folder.population()
            population_from(about)
            preparations_of(about)
            form_from(about, "client-00")

        self._changed(self._pick(("summary.json", "population.json")), change, read)

    def own_models(self) -> None:
        """Read the own models that a run keeps."""

        def change(data: bytes) -> bytes:
            return self.frames.in_bytes(data) if self.frames.chance.random() < 0.3 else self._values(data)

        state = RunFolder(self.run).state_at()
        self._changed("state/own.json", change, lambda: OwnModels(self.run).read(state, "client-00"))

    def read_settings(self) -> None:
        """Read a settings file."""
        path = self.home / "settings.toml"
        path.write_bytes(self._toml())
        load(path)

    def _toml(self) -> bytes:
        if self.frames.chance.random() < 0.4:
            return self.frames.in_bytes(self.settings.encode())
        try:
            return tomli_w.dumps(self.frames.in_values(tomllib.loads(self.settings))).encode()
        except (TypeError, UnicodeEncodeError):
            return b"x ="

    def plugins(self) -> None:
        """Open settings that name plug-ins."""
        named = {"plugins": [str(self.plugin)], "plugin_hashes": [hashlib.sha256(PLUGIN).hexdigest()]}
        table = {**tomllib.loads(self.settings), **named}
        changed = self.frames.in_values({key: table[key] for key in ("plugins", "plugin_hashes", "method")})
        settings = load({**table, **changed})
        plugins_of(settings)
        plug_in_again(settings, self.run)

    def own_table(self) -> None:
        """Read a table of one's own, of several dialects."""
        self._file("own.csv", self._pick(self.tables), lambda path: read_table(path))

    def parquet(self) -> None:
        """Read a table of parquet."""
        self._file("own.parquet", _parquet(), lambda path: read_table(path))

    def archive(self) -> None:
        """Read arrays of one's own."""
        self._file("own.npz", self._pick(self.archives), read_archive)

    def picture(self) -> None:
        """Read a picture."""
        self._file("own.png", self._pick(self.pictures), lambda path: read_picture(path, (8, 8), 1))

    def read_published(self) -> None:
        """Read a file of a published data set."""
        name = self._pick(sorted(self.published))
        data, read = self.published[name]
        self._file(name, data, read)

    def _file(self, name: str, data: bytes, read: Callable[[Path], Any]) -> None:
        path = self.home / name
        path.write_bytes(self.frames.in_bytes(data))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)

    def population(self) -> None:
        """Read clients from files of one's own, as a run does."""
        folder = self.home / "clients"
        folder.mkdir(exist_ok=True)
        for name in ("ann", "bob"):
            data = "\n".join(DIALECTS["comma"]).encode()
            (folder / f"{name}.csv").write_bytes(self.frames.in_bytes(data) if name == "bob" else data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            intarsia.preview(
                {"rounds": 1, "population": {"name": "files", "path": str(folder), "target": "y"}}
            )

    def weights(self) -> None:
        """Read weights from safetensors."""
        path = self.home / "weights.safetensors"
        path.write_bytes(self.frames.block(self._pick(self.weighty)))
        read_safetensors(path)

    def export(self) -> None:
        """Open an exported model of which the record, or what the graph says of itself, is damaged."""
        name = self._pick(("model.json", "model.onnx"))
        data = self.exports[name]
        hard = self.frames.chance.random() < 0.3
        if name == "model.json":
            changed = self.frames.in_bytes(data) if hard else self._values(data)
        else:
            changed = self.frames.in_bytes(data) if hard else self._described(data)
        (self.exported / name).write_bytes(changed)
        try:
            Predictor.open(self.exported, "client-00")
        finally:
            (self.exported / name).write_bytes(data)

    def _described(self, data: bytes) -> bytes:
        """Damage what an ONNX file says of itself."""
        proto = onnx.load_from_string(data)
        (own,) = (entry for entry in proto.metadata_props if entry.key == "intarsia")
        own.value = json.dumps(self.frames.in_values(json.loads(own.value)))
        return bytes(proto.SerializeToString())


def _small_run(folder: Path) -> Path:
    """A run with clients' own blocks, groups, notes and own models that it keeps."""
    changes = ["method=fedavg+", "rounds=2", "engine.name=debug", *NEEDS.get("fedavg+", ())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return intarsia.run(SMALL, changes=changes, out=folder).path


def _tables() -> list[bytes]:
    texts = ["\n".join(lines) for lines in DIALECTS.values()]
    return [text.encode(kind) for text in texts for kind in ("utf8", "utf-16", "cp1252")]


def _npz(**content: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in content.items()})
    return file.getvalue()


def _picture(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8, 8), 100 if mode == "L" else (1, 2, 3)).save(file, kind)
    return file.getvalue()


def _parquet() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table({"a": [1.5, None, 2.0], "word": ["x", "y", "z"], "y": [0, 1, 0]}), file
    )
    return file.getvalue()


def _published() -> dict[str, tuple[bytes, Callable[[Path], Any]]]:
    idx = struct.pack(">HBB3I", 0, 8, 3, 2, 3, 3) + bytes(18)
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}
    leaf = {"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[0.0] * 784], "y": [3]}}}
    return {
        "images-idx3-ubyte": (idx, images.read_idx),
        "plain.pickle": (pickle.dumps({b"a": [1, b"x", 2.5], b"b": {b"c": None}}, 2), load_plain),
        "data_batch_1": (pickle.dumps(batch, 2), images._cifar10_part),
        "data_batch_1.bin": (bytes(3073 * 2), images._cifar10_part),
        "leaf.json": (json.dumps(leaf).encode(), lambda path: list(images._leaf_writers(path))),
        "packed.npz": (_npz(y=np.arange(3)), arrays),
    }


def _exports(run: Path, folder: Path) -> dict[str, bytes]:
    """Export a client's model; only what says something of it, and the graph, stays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intarsia.open_run(run).client("client-00").export(folder)
    (folder / "model.pt2").unlink()
    return {name: (folder / name).read_bytes() for name in ("model.json", "model.onnx")}
