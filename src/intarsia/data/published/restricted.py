"""Pickles that hold plain values and arrays of bytes, read without running anything they name.

`pickle.load` calls whatever a file names. numpy's own constructors are no safe exception: a dtype and a
buffer from the file make an object array whose pointers the file has chosen. So each name that an array of
bytes needs gets a stand-in that only keeps the bytes, and every other name is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError


class _Bytes:
    """Stands for an array: takes the state that numpy writes, and only for unsigned bytes."""

    value: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _Kind):
            raise pickle.UnpicklingError("an array without a kind")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C")


class _Kind:
    """Stands for a dtype, which can only be the unsigned byte."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of {code!r} and not of bytes")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment mean nothing for bytes."""


def _array(*_: object) -> _Bytes:
    return _Bytes()


def _latin(text: str, *_: object) -> bytes:
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): _Bytes,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _latin,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _STAND_INS[module, name]


def load_plain(path: Path) -> dict[Any, Any]:
    """Return the dictionary in a pickle of Python 2 (text as bytes), with its arrays of bytes.

    Raises:
        DataError: if the pickle is damaged, is no dictionary, or names anything but an array of bytes.
    """
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"a {type(content).__name__} and not a dictionary")
        return {key: value.value if isinstance(value, _Bytes) else value for key, value in content.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path}: not a pickle of plain values and arrays of bytes: {error}") from error
