"""Writes the generated parts of docs/methods, and its pictures: `python -m benchmarks.method_pages`."""

from __future__ import annotations

import torch
from benchmarks.method_pages.pages import Book

from intarsia.core import write_atomically


def main() -> None:
    """Play every method in little, and write what that shows."""
    torch.set_num_threads(1)
    for path, text in Book.played().files.items():
        if not path.exists() or path.read_text() != text:
            write_atomically(path, text.encode())
            print(path)


if __name__ == "__main__":
    main()
