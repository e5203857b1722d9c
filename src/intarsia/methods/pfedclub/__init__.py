"""pFedClub and pFedHR: teachers put together from clients' blocks."""

from intarsia.methods.pfedclub.pfedclub import PFedClub

__all__ = ["PFedClub"]
