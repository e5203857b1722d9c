"""Who takes part, the plan, the round loop."""

from intarsia.federation.fleet import Clock, Fleet
from intarsia.federation.judge import known_before, words_of
from intarsia.federation.loop import Federation, Rules, RunStopped
from intarsia.federation.observers import Observers
from intarsia.federation.plan import Planner, Sampling, new_run_id
from intarsia.federation.summary import STAGES, WARNING, Observer, RoundReport, accuracy_of, loss_of

__all__ = [
    "STAGES",
    "WARNING",
    "Clock",
    "Federation",
    "Fleet",
    "Observer",
    "Observers",
    "Planner",
    "RoundReport",
    "Rules",
    "RunStopped",
    "Sampling",
    "accuracy_of",
    "known_before",
    "loss_of",
    "new_run_id",
    "words_of",
]
