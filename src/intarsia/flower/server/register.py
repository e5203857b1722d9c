"""The register: which key is which site, and whose clients, devices and cohorts are whose; kept at the server."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from intarsia.core import DataError, SettingsError, TomlFile
from intarsia.flower.message_schema import Here, Told
from intarsia.flower.server.public_keys import fingerprint


class Owned(BaseModel):
    """What the register says of a client; what it leaves out is the site's word."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str | None = None
    cohort: str | None = None
    capacity: float | None = None
    model: str | None = None
    task: str | None = None
    shape: list[int] | None = None
    samples: Annotated[int, Field(ge=1)] | None = None
    """The most training samples that it may claim."""

    def fault(self, told: Told) -> str:
        """Return what a site says of the client that the register does not (empty: nothing)."""
        for name in ("device", "cohort", "capacity", "model", "task", "shape"):
            mine, yours = getattr(self, name), getattr(told, name)
            if mine is not None and mine != yours:
                return f"has {name} {yours!r}, and {mine!r} in the register"
        if self.samples is not None and told.samples["train"] > self.samples:
            return f"claims {told.samples['train']} training samples, the register allows {self.samples}"
        return ""


def _as_tables(value: Any) -> Any:
    return {name: {} for name in value} if isinstance(value, list) else value


class Owner(BaseModel):
    """A site: its key, and its clients (names, or tables of what is known of them)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    """The public key, as `ssh-keygen` writes it; or the path of its file, relative to the register."""
    clients: Annotated[dict[str, Owned], BeforeValidator(_as_tables), Field(min_length=1)]


class Register(TomlFile):
    """All sites that may take part, by name."""

    sites: dict[str, Owner]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file; a client or a key that is there twice is an error."""
        register = super().load(path)
        register._check(path)
        return register

    def site_of(self, key: bytes) -> str | None:
        """Return the name of the site that has a key."""
        return self._sites.get(fingerprint(key))

    def check(self, here: Here, key: bytes) -> None:
        """Refuse a site that is another one by its key, or says of its clients what the register does not."""
        own = self.site_of(key)
        if own != here.site:
            raise DataError(f"its key is that of site '{own}' in the register, and it says '{here.site}'")
        owned = self.sites[here.site].clients
        for client in here.clients:
            if client.name not in owned:
                raise DataError(f"client '{client.name}' is not one of site '{here.site}' in the register")
            fault = owned[client.name].fault(client)
            if fault:
                raise DataError(f"client '{client.name}' of site '{here.site}' {fault}")

    def key_of_clients(self) -> dict[str, bytes]:
        """Return the key of each client's site."""
        return {client: self._key(site) for site, owner in self.sites.items() for client in owner.clients}

    @cached_property
    def _sites(self) -> dict[object, str]:
        return {fingerprint(self._key(name)): name for name in self.sites}

    def _key(self, site: str) -> bytes:
        """Return the public key of a site."""
        text = self.sites[site].key
        if fingerprint(text.encode()) is not None:
            return text.encode()
        try:
            data = (self.home / text).read_bytes().strip()
        except OSError as error:
            raise SettingsError(
                f"roster: sites.{site}.key is no public key, nor the path of one: {text[:60]!r}"
            ) from error
        if fingerprint(data) is None:
            raise SettingsError(f"roster: sites.{site}.key: {self.home / text} holds no public key")
        return data

    def _check(self, path: Path) -> None:
        seen: dict[str, str] = {}
        for site, owner in self.sites.items():
            for client in owner.clients:
                if client in seen:
                    raise SettingsError(f"{path}: client '{client}' is at '{seen[client]}' and at '{site}'")
                seen[client] = site
        if len(self._sites) < len(self.sites):
            raise SettingsError(f"{path}: two sites have the same key")
