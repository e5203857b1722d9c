"""Attacks on a federation, as real clients of a run; and what is left of it for the honest ones."""

from intarsia.attacks.attackers import LOT, SPREAD
from intarsia.attacks.record import NONE, Case, Record, accuracies, attack_of, cases_of
from intarsia.attacks.rules import ATTACKS, Attack

__all__ = [
    "ATTACKS",
    "LOT",
    "NONE",
    "SPREAD",
    "Attack",
    "Case",
    "Record",
    "accuracies",
    "attack_of",
    "cases_of",
]
