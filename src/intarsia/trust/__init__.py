"""What guards a federation: bounds on updates, merges that bear hostile ones, privacy, sums under masks."""

from intarsia.trust.clipping import change_norm, clipped

__all__ = ["change_norm", "clipped"]
