"""Certificates and keys for a trial: a CA, a server certificate, one key pair a node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from intarsia.core import RunFolderError, SettingsError, file_name

DAYS = 365


def make(folder: Path, nodes: Sequence[str], hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> None:
    """Write `ca.crt`, `server.pem`, `server.key` and `keys/NODE`, `keys/NODE.pub` into a folder.

    The CA's own key is not kept: nobody can sign with it later. What is there already is not overwritten.
    """
    if (folder / "ca.crt").exists():
        raise RunFolderError(f"{folder} holds certificates already: choose another folder, or delete them")
    for node in nodes:
        if node != file_name(node) or not node.strip("."):
            raise SettingsError(
                f"site '{node}': its keys are files of this name: choose one without / and \\"
            )
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = _certificate("Intarsia trial CA", ca_key, "Intarsia trial CA", ca_key, ())
    server = _certificate(hosts[0], key, "Intarsia trial CA", ca_key, hosts)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_private(folder / "server.key", key, serialization.PrivateFormat.PKCS8)
    for node in nodes:
        add_node(folder, node)


def add_node(folder: Path, node: str) -> None:
    """Write the key pair of one more node."""
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / "keys").mkdir(parents=True, exist_ok=True)
    _write_private(folder / "keys" / node, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "keys" / f"{node}.pub").write_bytes(public + b"\n")


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    else:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
