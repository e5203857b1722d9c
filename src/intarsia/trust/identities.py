"""Who signs for whom: keys that everyone knows before a run, so that no server can put its own in their place."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from intarsia.core import SettingsError
from intarsia.trust.masks import derived

PrivateKey = EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = EllipticCurvePublicKey | Ed25519PublicKey
MOST_KNOWN = 10_000
"""How many signatures are remembered as true."""


class Identities(ABC):
    """Signs for the clients that are here, and knows the signatures of all."""

    def __init__(self) -> None:
        self._known: set[tuple[str, bytes, bytes]] = set()

    @abstractmethod
    def private(self, client: str) -> PrivateKey:
        """Return the key that a client of this place signs with."""

    @abstractmethod
    def public(self, client: str) -> PublicKey | None:
        """Return the key that a client's signatures are known by (None: nobody listed it)."""

    def sign(self, client: str, text: bytes) -> bytes:
        """Sign a text for a client of this place."""
        key = self.private(client)
        return key.sign(text) if isinstance(key, Ed25519PrivateKey) else key.sign(text, ECDSA(SHA256()))

    def signed(self, client: str, text: bytes, signature: bytes) -> bool:
        """Return whether a client signed a text; what was found true is not worked out again."""
        entry = (client, text, signature)
        if entry not in self._known and not self._verify(*entry):
            return False
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._known.add(entry)
        return True

    def _verify(self, client: str, text: bytes, signature: bytes) -> bool:
        key = self.public(client)
        try:
            if isinstance(key, Ed25519PublicKey):
                key.verify(signature, text)
            elif key is not None:
                key.verify(signature, text, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return key is not None


class OnOneMachine(Identities):
    """The clients of a run on one machine: nobody lists their keys, they follow from a secret of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self._secret = secrets.token_bytes(32)

    def private(self, client: str) -> Ed25519PrivateKey:
        """Return a client's key."""
        return Ed25519PrivateKey.from_private_bytes(derived(self._secret, b"", "identity", client))

    def public(self, client: str) -> Ed25519PublicKey:
        """Return a client's public key."""
        return self.private(client).public_key()


class Listed(Identities):
    """The clients of a federation of sites: each site signs with its own key, the operator's list has all of them."""

    def __init__(self, key: Path, keys: Mapping[str, bytes]) -> None:
        super().__init__()
        self.path = key
        self.keys = keys
        """The public key of each client's site."""

    def private(self, client: str) -> PrivateKey:
        """Return the key of the site."""
        return self._private

    def public(self, client: str) -> PublicKey | None:
        """Return the listed key of a client's site."""
        return None if client not in self.keys else _public(self.keys[client])

    @cached_property
    def _private(self) -> PrivateKey:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise SettingsError(f"key: cannot read {self.path}: {error.strerror}") from error
        for load in (load_ssh_private_key, load_pem_private_key):
            try:
                key = load(data, None)
            except (ValueError, TypeError, UnsupportedAlgorithm):
                continue
            if isinstance(key, EllipticCurvePrivateKey | Ed25519PrivateKey):
                return key
        raise SettingsError(
            f"key: {self.path} is no private key that signs (elliptic curve or Ed25519, without a password)"
        )


def _public(data: bytes) -> PublicKey | None:
    for load in (load_ssh_public_key, load_pem_public_key):
        try:
            key = load(data)
        except (ValueError, UnsupportedAlgorithm):
            continue
        if isinstance(key, EllipticCurvePublicKey | Ed25519PublicKey):
            return key
    return None
