"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from intarsia.trackers.tracker import Begun, Result, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""The folder, in the run's, of the event files."""


class TensorBoard(Tracker):
    """Writes `RUN/tensorboard`: `tensorboard --logdir runs` shows all runs in a folder side by side."""

    title: ClassVar[str] = "TensorBoard"
    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"
    _writer: SummaryWriter

    def begin(self, run: Begun) -> str:
        """Open an event file; one that is there already stays, and TensorBoard reads both as one."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / FOLDER))
        if not run.identity:
            self._writer.add_text("settings", f"```toml\n{run.text}\n```", 0)
        return FOLDER

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Add a point to every curve; it is on disk when this returns."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, result: Result) -> None:
        """Add the verdict and the warnings as texts, the summary's figures as single points."""
        rounds = int(result.summary["rounds"])
        for name, value in result.figures.items() if result.finished else ():
            self._writer.add_scalar(name, value, rounds)
        texts = {"verdict": result.verdict, "warnings": "\n".join(f"- {text}" for text in result.warnings)}
        for name, text in texts.items():
            if text:
                self._writer.add_text(name, text, rounds)
        self._writer.close()
