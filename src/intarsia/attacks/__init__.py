"""Attacks on a federation, as real clients of a run; and what is left of it for the honest ones."""
