"""What guards a federation: bounds on updates, merges that bear hostile ones, privacy, sums under masks."""

from intarsia.trust.clipping import change_norm, clipped
from intarsia.trust.masked_fold import COUNTER, MaskedFold
from intarsia.trust.privacy import Privacy, held_to_bound
from intarsia.trust.secure_sums import STEPS, SecureSums, answers

__all__ = [
    "COUNTER",
    "STEPS",
    "MaskedFold",
    "Privacy",
    "SecureSums",
    "answers",
    "change_norm",
    "clipped",
    "held_to_bound",
]
