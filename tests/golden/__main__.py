"""Renews the golden record: `make golden REASON="what changes results, and why"`.

The reason goes into the changelog. Plays whose digests stay the same are not touched; the others are named.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch

import intarsia
from tests.conftest import SMALL
from tests.golden.plays import PLAYS, RECORD, digests, platform_words

CHANGELOG = RECORD.parents[2] / "CHANGELOG.md"
HEADING = "## Golden record"


def main(reason: str) -> None:
    """Play everything, write the record and the reason, and say what changed."""
    torch.set_num_threads(1)
    before = json.loads(RECORD.read_text())["plays"] if RECORD.exists() else {}
    plays = {name: _play(name) for name in PLAYS}
    record = {"reason": reason, "platform": platform_words(), "plays": plays}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    for name in sorted({*before, *plays}):
        if before.get(name) != plays.get(name):
            differing = [k for k, v in plays.get(name, {}).items() if before.get(name, {}).get(k) != v]
            print(f"{name}: {', '.join(differing) or 'gone'}")
    _tell(reason)


def _play(name: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INTARSIA_CACHE"] = folder
        return digests(intarsia.run(SMALL, changes=PLAYS[name], out=Path(folder) / "run"))


def _tell(reason: str) -> None:
    text = CHANGELOG.read_text()
    if HEADING not in text:
        text = f"{text.rstrip()}\n\n{HEADING}\n\nWhen and why results of every method changed (`tests/golden`).\n"
    CHANGELOG.write_text(f"{text.rstrip()}\n- {reason}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].strip():
        sys.exit('say why results change: make golden REASON="..."')
    main(sys.argv[1].strip())
