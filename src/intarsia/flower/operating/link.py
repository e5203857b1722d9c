"""Flower's own SuperLink, closed: only the operator's `flwr` controls it, and only the installed ServerApp runs.

Flower 1.41 serves nodes, operator and ServerApps on one port, asks none but the nodes who they are, and runs whatever
app it is sent. Here it listens on this machine alone (`proxy.py` lets nodes of other machines through), its control API
wants the operator's token, and its runtime API the secret of our own SuperExec. Imports no torch (`without_torch.py`).
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import ACCESS_TOKEN_KEY, AuthnType
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

from intarsia.flower.superexec import HOST, QUIET, ServerApps, put_in_place, start_superexec

CREDENTIALS = "credentials.yaml"
OTHER_DOORS = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")
"""Settings that would open ports of their own, on every address."""


class OperatorAlone(NoOpControlAuthnPlugin):
    """Lets whoever brings the operator's token control the SuperLink (Flower's own plugin lets everybody)."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self._token = token

    def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[bool, Any]:
        """Return whether a request brings the token, and for whom it then acts."""
        brought = str(dict(metadata).get(ACCESS_TOKEN_KEY, "")).encode()
        if not secrets.compare_digest(brought, self._token):
            return False, None
        valid, account = super().validate_tokens_in_metadata(metadata)
        return bool(valid), account

    def refresh_tokens(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[None, None]:
        """Give no other token to anybody."""
        return None, None


def grant(home: Path, address: str) -> None:
    """Write a new token for a SuperLink's operator where `flwr` looks for it: only this user can read the file."""
    home.mkdir(parents=True, exist_ok=True)
    store = FileCredentialStore(home / CREDENTIALS)
    token = secrets.token_hex(32).encode()
    store.set(AUTHN_TYPE_STORE_KEY % address, str(AuthnType.OIDC).encode())
    store.set(ACCESS_TOKEN_STORE_KEY % address, token)
    store.set(REFRESH_TOKEN_STORE_KEY % address, token)


def granted(home: Path, address: str) -> bytes:
    """Return the token of the operator of a SuperLink."""
    token = FileCredentialStore(home / CREDENTIALS).get(ACCESS_TOKEN_STORE_KEY % address)
    if not token:
        sys.exit(f"{home / CREDENTIALS} holds no token for {address}: start it with: intarsia flower link")
    return bytes(token)


def answers_alone() -> None:
    """Let a node send answers in its own name: Flower also takes messages to others that it writes as the server."""
    from fastapi import HTTPException
    from flwr.superlink.servicer.fleet import fleet_handlers

    push = fleet_handlers.push_messages

    def checked(request: Any, state: Any) -> Any:
        for about in (message.metadata for message in request.messages_list):
            if about.src_node_id != request.node.node_id or not about.reply_to_message_id:
                raise HTTPException(403, "a node answers messages that it got, in its own name")
        return push(request=request, state=state)

    put_in_place(fleet_handlers, push_messages=checked)


def main(arguments: list[str]) -> None:
    """Be a SuperLink."""
    parser = argparse.ArgumentParser(prog="intarsia flower link", allow_abbrev=False)
    parser.add_argument("--certs", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    mine, rest = parser.parse_known_args(arguments)
    os.environ.update(QUIET)
    for name in OTHER_DOORS:
        os.environ.pop(name, None)
    ca = str(mine.certs.resolve() / "ca.crt")
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
    secret = start_superexec(mine.port, ServerApps(), ca)
    sys.argv = [
        "flower-superlink",
        *rest,
        *("--ssl-ca-certfile", ca, "--ssl-certfile", str(mine.certs / "server.pem")),
        *("--ssl-keyfile", str(mine.certs / "server.key"), "--enable-supernode-auth"),
        *("--host", HOST, "--port", str(mine.port), "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", secret),
    ]
    _start_link(mine.port)


def _start_link(port: int) -> None:
    from flwr.supercore.utils import get_flwr_home
    from flwr.superlink.cli import flower_superlink as start

    token = granted(get_flwr_home(), f"{HOST}:{port}")
    put_in_place(sys.modules[start.__module__], load_control_authn_plugin=lambda: OperatorAlone(token))
    answers_alone()
    start()
