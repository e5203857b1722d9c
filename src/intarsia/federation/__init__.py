"""Who takes part, the plan, the round loop."""

from intarsia.federation.loop import (
    STAGES,
    Federation,
    Observer,
    RoundReport,
    Rules,
    RunStopped,
    accuracy_of,
    loss_of,
    new_run_id,
)
from intarsia.federation.planner import Planner, Sampling

__all__ = [
    "STAGES",
    "Federation",
    "Observer",
    "Planner",
    "RoundReport",
    "Rules",
    "RunStopped",
    "Sampling",
    "accuracy_of",
    "loss_of",
    "new_run_id",
]
