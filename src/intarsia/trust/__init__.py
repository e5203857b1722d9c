"""What guards a federation: bounds on updates, merges that bear hostile ones, privacy, sums under masks."""

from intarsia.trust.clipping import change_norm, clipped
from intarsia.trust.defence import Defence
from intarsia.trust.masked_fold import COUNTER, MaskedFold
from intarsia.trust.privacy import Privacy, held_to_bound
from intarsia.trust.robust import CentredClipping, Krum, Median, MultiKrum, Robust, Trimmed, few_holders
from intarsia.trust.secure_sums import STEPS, SecureSums, answers

ROBUST: tuple[type[Robust], ...] = (Median, Trimmed, Krum, MultiKrum, CentredClipping)
"""The merges that bear hostile updates."""

__all__ = [
    "COUNTER",
    "ROBUST",
    "STEPS",
    "Defence",
    "MaskedFold",
    "Privacy",
    "Robust",
    "SecureSums",
    "answers",
    "change_norm",
    "clipped",
    "few_holders",
    "held_to_bound",
]
