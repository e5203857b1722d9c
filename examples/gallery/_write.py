"""Run the gallery: pictures, results, and the page that shows them (docs/gallery.md).

Run it with: python examples/gallery/_write.py [NAME ...]; without names, every example is run. What an example prints
is kept in docs/pictures/gallery/results.json with the hash of its program; the page has it from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PICTURES, PAGE = ROOT / "docs" / "pictures" / "gallery", ROOT / "docs" / "gallery.md"
RESULTS = PICTURES / "results.json"
BLOCK = re.compile(r"(python examples/gallery/(\w+)\.py\n```\n\n)```\n.*?```\n", re.DOTALL)


def names() -> list[str]:
    """Return the examples that there are."""
    return sorted(path.stem for path in HERE.glob("[!_]*.py"))


def program(name: str) -> str:
    """Return the hash of an example, with all that it has in common with the others."""
    text = b"".join(path.read_bytes() for path in (HERE / f"{name}.py", HERE / "_show.py"))
    return hashlib.sha256(text).hexdigest()


def play(name: str) -> dict[str, str]:
    """Run an example; return what it printed, without the line that names the picture."""
    place = {**os.environ, "GALLERY_PICTURES": str(PICTURES)}
    command = [sys.executable, "-W", "ignore", str(HERE / f"{name}.py")]
    done = subprocess.run(command, env=place, check=True, stdout=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Picture:")]
    return {"program": program(name), "printed": "\n".join(lines)}


def filled(page: str, results: dict[str, dict[str, str]]) -> str:
    """Return the page with what examples printed, of those that are recorded."""

    def result(at: re.Match[str]) -> str:
        return f"{at[1]}```\n{results[at[2]]['printed']}\n```\n" if at[2] in results else at[0]

    return BLOCK.sub(result, page)


def main() -> None:
    """Run the examples that are named, or all; write what came of them."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or names():
        played = play(name)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        text = json.dumps({**results, name: played}, indent=2, sort_keys=True) + "\n"
        RESULTS.write_text(text)
        print(f"{name}:\n{played['printed']}")
    if PAGE.exists():
        PAGE.write_text(filled(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
