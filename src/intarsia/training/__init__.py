"""The local solver: objectives, optimisers, evaluation; and how a server tunes stitches."""

from intarsia.training.batched import (
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
from intarsia.training.folded import foldable
from intarsia.training.local import LocalClient
from intarsia.training.losses import LOSSES, Loss, loss_for
from intarsia.training.objectives import OBJECTIVES, Objective, Proximal, Situation
from intarsia.training.optimisers import OPTIMISERS, optimiser_for
from intarsia.training.pieces import Each, one_by_one
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
from intarsia.training.stacked import Rule
from intarsia.training.tailoring import (
    Choice,
    Prefixes,
    Tailored,
    Tailoring,
    agreement,
    choose,
    size_change,
    tailor,
)
from intarsia.training.threads import one_thread, threads

__all__ = [
    "FEW",
    "LOSSES",
    "MOST",
    "OBJECTIVES",
    "OPTIMISERS",
    "Chain",
    "Choice",
    "Each",
    "Learned",
    "Lesson",
    "LocalClient",
    "Loss",
    "Objective",
    "Prefixes",
    "Proximal",
    "Rule",
    "Score",
    "Situation",
    "Tailored",
    "Tailoring",
    "Tally",
    "Trained",
    "Training",
    "agreement",
    "batches",
    "channels_first",
    "choose",
    "evaluate",
    "foldable",
    "in_order",
    "loss_for",
    "one_by_one",
    "one_thread",
    "optimiser_for",
    "plain_layout",
    "prepare",
    "rows_of",
    "score_together",
    "size_change",
    "step_weight",
    "tailor",
    "takes",
    "threads",
    "train",
    "train_together",
    "trial",
    "tune_allocator",
]
