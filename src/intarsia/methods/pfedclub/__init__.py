"""pFedClub, pFedClub+ and pFedHR: teachers put together from clients' blocks."""

from intarsia.methods.pfedclub.pfedclub import PFedClub
from intarsia.methods.pfedclub.pfedclub_plus import PFedClubPlus

__all__ = ["PFedClub", "PFedClubPlus"]
