"""What makes training faster with the same values: clients side by side, and steps folded into the backward pass.

A client's bits do not depend on who is beside it. What is trained in this way follows from model, settings and what
the objective declares (`Objective.form`), by `chain_for` and `folded` alone.
"""

from intarsia.training.fast.batched import StackMember, TrainedWeights, score_together, train_together
from intarsia.training.fast.chain import FEW, MOST, Chain, chain_for, rows_of
from intarsia.training.fast.folding import foldable, folded

__all__ = [
    "FEW",
    "MOST",
    "Chain",
    "StackMember",
    "TrainedWeights",
    "chain_for",
    "foldable",
    "folded",
    "rows_of",
    "score_together",
    "train_together",
]
