"""The local solver: objectives, optimisers, evaluation. `fast` has what makes it faster."""

from intarsia.training.descent import Descent, Score, Tally, Trained, batches, channels_first, in_order
from intarsia.training.local import LocalClient
from intarsia.training.losses import LOSSES, Loss, check_class_weights, loss_for, weighted
from intarsia.training.objectives import OBJECTIVES, Batch, Extended, Objective, Pass, Proximal, Situation
from intarsia.training.optimisers import OPTIMISERS, optimiser_for
from intarsia.training.precision import Precision, as_usual, instructions, kind_of_machine, through, train_in
from intarsia.training.settings import Training
from intarsia.training.solver import (
    channels_last_layout,
    evaluate,
    predict,
    return_freed_memory,
    train,
    try_model,
    tune_allocator,
    usual_layout,
)

__all__ = [
    "LOSSES",
    "OBJECTIVES",
    "OPTIMISERS",
    "Batch",
    "Descent",
    "Extended",
    "LocalClient",
    "Loss",
    "Objective",
    "Pass",
    "Precision",
    "Proximal",
    "Score",
    "Situation",
    "Tally",
    "Trained",
    "Training",
    "as_usual",
    "batches",
    "channels_first",
    "channels_last_layout",
    "check_class_weights",
    "evaluate",
    "in_order",
    "instructions",
    "kind_of_machine",
    "loss_for",
    "optimiser_for",
    "predict",
    "return_freed_memory",
    "through",
    "train",
    "train_in",
    "try_model",
    "tune_allocator",
    "usual_layout",
    "weighted",
]
