"""What guards a federation: bounds on updates, merges that bear hostile ones, privacy, sums under masks."""

from intarsia.trust.clipping import change_norm, clipped
from intarsia.trust.defence import Defence
from intarsia.trust.robust import CentredClipping, Krum, Median, MultiKrum, Robust, Trimmed, few_holders

ROBUST: tuple[type[Robust], ...] = (Median, Trimmed, Krum, MultiKrum, CentredClipping)
"""The merges that bear hostile updates."""

__all__ = ["ROBUST", "Defence", "Robust", "change_norm", "clipped", "few_holders"]
