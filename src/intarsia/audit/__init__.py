"""What a block gives away: attacks on a run, as somebody could try them who sees what is sent."""

from intarsia.audit.audit import ATTACKS, AUDIT, Asked, audit

__all__ = ["ATTACKS", "AUDIT", "Asked", "audit"]
