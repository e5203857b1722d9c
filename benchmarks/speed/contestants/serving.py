"""The contestants' side of the line protocol: JSON, one message a line, over stdin and stdout.

{"rounds": 3}                 -> {"wall": 1.24}   plays three more rounds
{"rounds": 10, "last": true}  -> {"wall": 4.13}   the same, and then the contestant ends as it always does
{"weights": "FILE"}           -> {}               writes the shared weights there
end of input                                      the contestant ends at once
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

Weights = Callable[[], Mapping[str, Tensor]]


class Turns:
    """Plays rounds only when asked: `begin` before the first round, `done` after each one."""

    def __init__(self) -> None:
        """Take stdout for the messages; make this before anything that might print."""
        self._weights: Weights = dict
        self._left = 0
        self._last = False
        self._start = 0.0
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print must not come between the messages

    def begin(self, weights: Weights) -> None:
        """Say that everything is loaded, and wait for the first rounds."""
        self._weights = weights
        self._reply(ready=True)
        self._listen()

    def done(self, finish: Callable[[], None] = lambda: None) -> None:
        """Note that a round is done; after the last one asked for, answer, and wait if there may be more.

        `finish` then waits for what goes on beside the rounds: it belongs to the time that they took.
        """
        self._left -= 1
        if self._left == 0:
            finish()
            self._reply(wall=time.perf_counter() - self._start)
            if not self._last:
                self._listen()

    def _listen(self) -> None:
        for line in iter(sys.stdin.readline, ""):
            message = json.loads(line)
            if "rounds" in message:
                self._left, self._last = message["rounds"], message.get("last", False)
                self._start = time.perf_counter()
                return
            self._save(Path(message["weights"]))
        raise SystemExit(0)

    def _save(self, path: Path) -> None:
        save_file({name: t.detach().clone().contiguous() for name, t in self._weights().items()}, path)
        self._reply()

    def _reply(self, **fields: Any) -> None:
        self._out.write(json.dumps(fields) + "\n")
        self._out.flush()
