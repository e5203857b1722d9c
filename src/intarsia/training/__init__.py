"""The local solver: objectives, optimisers, evaluation; and how a server tunes stitches."""

from intarsia.training.fast.batched import (
    FEW,
    MOST,
    Chain,
    Learned,
    Lesson,
    rows_of,
    score_together,
    takes,
    train_together,
)
from intarsia.training.fast.folded import foldable
from intarsia.training.fast.stacked import Rule
from intarsia.training.local import LocalClient
from intarsia.training.losses import LOSSES, Loss, check_class_weights, loss_for, weighted
from intarsia.training.objectives import OBJECTIVES, Objective, Proximal, Situation
from intarsia.training.optimisers import OPTIMISERS, optimiser_for
from intarsia.training.settings import Training
from intarsia.training.solver import (
    Score,
    Tally,
    Trained,
    batches,
    channels_first,
    evaluate,
    in_order,
    plain_layout,
    prepare,
    step_weight,
    train,
    trial,
    tune_allocator,
)

__all__ = [
    "FEW",
    "LOSSES",
    "MOST",
    "OBJECTIVES",
    "OPTIMISERS",
    "Chain",
    "Learned",
    "Lesson",
    "LocalClient",
    "Loss",
    "Objective",
    "Proximal",
    "Rule",
    "Score",
    "Situation",
    "Tally",
    "Trained",
    "Training",
    "batches",
    "channels_first",
    "check_class_weights",
    "evaluate",
    "foldable",
    "in_order",
    "loss_for",
    "optimiser_for",
    "plain_layout",
    "prepare",
    "rows_of",
    "score_together",
    "step_weight",
    "takes",
    "train",
    "train_together",
    "trial",
    "tune_allocator",
    "weighted",
]
