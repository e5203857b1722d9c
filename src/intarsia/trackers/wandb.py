"""Weights & Biases: a run on this machine, unless its user says otherwise."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from intarsia.trackers.tracker import Begun, Result, Tracker

if TYPE_CHECKING:
    from wandb import Run

PROJECT = "intarsia"


class WeightsAndBiases(Tracker):
    """Writes `RUN/wandb` and sends nothing, unless `WANDB_MODE=online` is set; `wandb sync` uploads it later."""

    title: ClassVar[str] = "Weights & Biases"
    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"
    _run: Run

    def begin(self, run: Begun) -> str:
        """Start a run with the settings as its configuration; one that goes on has the same name."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        identity = run.identity or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            mode=None if os.environ.get("WANDB_MODE") else "offline",
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            id=identity,
            name=run.name,
            resume="allow",
            reinit="create_new",
            config=dict(run.settings),
            settings=quiet,
        )
        return identity

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Add a point to every curve."""
        self._run.log(dict(figures), step=round)

    def end(self, result: Result) -> None:
        """Note the summary, the verdict and the warnings."""
        self._run.summary.update(
            {**result.figures, "verdict": result.verdict, "warnings": list(result.warnings)}
        )
        self._run.finish(exit_code=0 if result.finished else 1)
