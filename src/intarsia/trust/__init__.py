"""What guards a federation: bounds on updates, merges that bear hostile ones, privacy, sums under masks."""

from intarsia.trust.clipping import change_norm, clipped
from intarsia.trust.privacy import Privacy, held_to_bound

__all__ = ["Privacy", "change_norm", "clipped", "held_to_bound"]
