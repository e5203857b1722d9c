"""Another number of rounds for a run that is there: what may be, and what then differs from a run of that length."""

from __future__ import annotations

from typing import Any

from intarsia.core import SettingsError, in_words, warn
from intarsia.experiment.build import Experiment
from intarsia.experiment.settings import Settings, check, table_of
from intarsia.runs import RunFolder, RunState


def of_length(settings: Settings, rounds: Any, folder: RunFolder) -> Settings:
    """Return settings with this number of rounds (None: as they are); fewer than are played are refused."""
    if rounds is None:
        return settings
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        raise SettingsError(f"rounds: give a number, for example 300, not {in_words(rounds)}")
    if rounds < folder.played:
        raise SettingsError(
            f"rounds: {folder.path} has played {folder.played} rounds already, {rounds} are fewer: give "
            f"{folder.played} or more, or start a new run with --set rounds={rounds}"
        )
    return check({**table_of(settings), "rounds": rounds})


def tell_what_length_changes(experiment: Experiment, folder: RunFolder, state: RunState) -> None:
    """Warn where rounds that are played would have gone otherwise, had the run had its length from the start."""
    before, now = folder.written_for, experiment.settings.rounds
    if not before or before == now or not state.round:
        return
    setup = experiment.setup
    for setting in (
        *setup.training.stretched(state.round, before, now),
        *setup.method.stretched(state.round, before, now),
    ):
        warn(
            f"{setting} depends on the number of rounds: the {state.round} that are played went as in a run of "
            f"{before}, the others go as in one of {now}; start a new run with rounds={now} if that matters"
        )
    if state.round in (before, now):
        warn(
            f"round {state.round} was played as in a run of {before} rounds, and is evaluated so: checkpoints.keep = "
            f"{experiment.settings.checkpoints.keep} has left no checkpoint before it to play it anew from"
        )
