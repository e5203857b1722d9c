"""Who guards the clients of one machine, where the settings ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.core import SettingsError
from intarsia.trust.secure_sums import SecureSums

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard

FOLDER = "secure"
"""Where clients keep what they made masks with, beside their blocks."""


def guard_on_one_machine(rules: SecureSums, folder: Path) -> Guard | None:
    """Return who masks what the clients of a run on one machine send (None: the settings do not ask for it)."""
    if not rules.on:
        return None
    check_installed()
    from intarsia.trust.guard import Guard
    from intarsia.trust.identities import OnOneMachine
    from intarsia.trust.vault import Vault

    return Guard(Vault(folder / FOLDER, lasting=False), OnOneMachine(), rules)


def check_installed() -> None:
    """Raise if what masks are made with is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise SettingsError(
            "secure_sums needs a package that is not here: pip install 'intarsia[secure]'"
        ) from None
