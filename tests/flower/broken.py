"""A site agent whose client-01 fails, for the tests: `python -m tests.flower.broken SITE.toml`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from intarsia.flower.site import agent_port
from intarsia.flower.site.site_file import Site
from intarsia.training import LocalClient

honest = LocalClient.train


def train(self: LocalClient, *arguments: Any, **options: Any) -> Any:
    if self.info.name == "client-01":
        raise ZeroDivisionError("in the client's own code\x1b[2J\x1b]0;owned\x07\n[intarsia] owned")
    return honest(self, *arguments, **options)


if __name__ == "__main__":
    LocalClient.train = train
    agent_port.serve(Site.load(Path(sys.argv[1])), lambda text: print(text, flush=True))
