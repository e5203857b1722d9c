"""pFedClub: the published experiments."""
