"""Who guards the clients of a site: signs with the site's own key, and knows all others by the operator's register."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.core import SettingsError
from intarsia.flower.server.register import Register
from intarsia.flower.site.site_file import Site
from intarsia.trust import SecureSums
from intarsia.trust.guarding import FOLDER, check_installed

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard


def guard_at_site(site: Site, rules: SecureSums) -> Guard | None:
    """Return who masks what a site's clients send (None: the settings do not ask for it).

    What it keeps is kept for all runs: a client must not sum the same work with others in another run either.
    """
    _insist(site, rules)
    if not rules.on:
        return None
    check_installed()
    from intarsia.trust.guard import Guard
    from intarsia.trust.identities import Listed
    from intarsia.trust.vault import Vault

    for name in ("key", "peers"):
        if not getattr(site, name):
            raise SettingsError(
                f"site '{site.name}': the server asks for secure sums, and the site's file has no {name}: write the "
                "path of the site's private key (key) and of the operator's register of all sites (peers)"
            )
    peers = Register.load(site.home / Path(site.peers).expanduser())
    identities = Listed(site.home / Path(site.key).expanduser(), peers.key_of_clients())
    return Guard(Vault(site.state / FOLDER), identities, rules)


def _insist(site: Site, rules: SecureSums) -> None:
    """Refuse a run whose sums are not as secure as the site's file asks for: the settings are the server's word."""
    wanted = site.secure_sums
    if wanted.on and not rules.on:
        raise SettingsError(
            f"site '{site.name}' takes part in secure sums alone (secure_sums.on in its file), and this run has none"
        )
    for name in ("floor", "threshold"):
        if wanted.on and getattr(rules, name) < getattr(wanted, name):
            raise SettingsError(
                f"site '{site.name}' insists on secure_sums.{name} = {getattr(wanted, name)}, and this run has "
                f"{getattr(rules, name)}"
            )
