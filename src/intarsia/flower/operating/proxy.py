"""A proxy before the SuperLink: a configuration for nginx that lets through what SuperNodes need, and nothing else."""

from __future__ import annotations

from pathlib import Path

from intarsia.core import SettingsError

FLEET = (
    "activate-node",
    "confirm-message-received",
    "deactivate-node",
    "get-fab",
    "get-run",
    "pull-messages",
    "pull-object",
    "push-messages",
    "push-object",
    "send-node-heartbeat",
)
"""What an authenticated SuperNode of Flower 1.41 asks for; it neither registers itself nor starts runs."""
BODY = "64m"
"""The largest request: Flower sends blocks in pieces of 5 MB, and a message's header as one."""

TEMPLATES = Path(__file__).with_name("templates")


def configuration(certs: Path, listen: str, link: str) -> str:
    """Return the configuration: TLS with the server's certificate, each call of the fleet API by its full name."""
    folder = str(certs.resolve())
    if any(mark in folder + listen + link for mark in " ;{}'\"\\\n$"):
        raise SettingsError(
            f"nginx cannot be told of '{folder}', '{listen}' and '{link}': write them plainly"
        )
    server, location = ((TEMPLATES / name).read_text() for name in ("nginx.conf", "nginx.location.conf"))
    locations = "".join(location.format(call=call) for call in FLEET)
    return server.format(listen=listen, certs=folder, link=link, body=BODY, locations=locations)
