"""Public keys of nodes: read from files, and compared however they are written."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

from intarsia.core import SettingsError


def public_keys(path: Path) -> list[bytes]:
    """Return the public keys in a folder (`*.pub`) or in a file with one a line."""
    files = sorted(path.glob("*.pub")) if path.is_dir() else [path]
    try:
        lines = [line.strip() for file in files for line in file.read_bytes().splitlines()]
    except OSError as error:
        raise SettingsError(f"keys: cannot read {path}: {error.strerror}") from error
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise SettingsError(f"keys: {path} holds no public key")
    for key in keys:
        if fingerprint(key) is None:
            raise SettingsError(f"keys: {path} holds a line that is no public key: {key[:40]!r}")
    return keys


def fingerprint(key: bytes) -> tuple[str, int, int] | None:
    """Return what a public key is, however it is written; None if it is none of ours."""
    for load in (load_ssh_public_key, load_pem_public_key):
        try:
            public = load(key)
        except (ValueError, UnsupportedAlgorithm):
            continue
        if isinstance(public, ec.EllipticCurvePublicKey):
            numbers = public.public_numbers()
            return numbers.curve.name, numbers.x, numbers.y
    return None
