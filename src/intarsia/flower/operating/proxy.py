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

SERVER = """# SuperNodes reach the SuperLink through this, and nothing but its fleet API. For the http section of nginx:
# Debian reads /etc/nginx/conf.d/*.conf there. Written by: intarsia flower proxy
upstream intarsia_link {{
    server {link};
    keepalive 32;
    keepalive_timeout 3s;
}}

server {{
    listen {listen} ssl;
    ssl_certificate {certs}/server.pem;
    ssl_certificate_key {certs}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    server_tokens off;

    client_max_body_size {body};
    client_body_timeout 60s;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host localhost;
    proxy_set_header Authorization "";
    proxy_ssl_trusted_certificate {certs}/ca.crt;
    proxy_ssl_verify on;
    proxy_ssl_name localhost;
    proxy_read_timeout 300s;

    location / {{ return 403; }}
{locations}}}
"""
LOCATION = """    location = /v1/fleet/{call} {{
        limit_except POST {{ deny all; }}
        proxy_pass https://intarsia_link/v1/fleet/{call};
    }}
"""


def configuration(certs: Path, listen: str, link: str) -> str:
    """Return the configuration: TLS with the server's certificate, each call of the fleet API by its full name."""
    folder = str(certs.resolve())
    if any(mark in folder + listen + link for mark in " ;{}'\"\\\n$"):
        raise SettingsError(
            f"nginx cannot be told of '{folder}', '{listen}' and '{link}': write them plainly"
        )
    locations = "".join(LOCATION.format(call=call) for call in FLEET)
    return SERVER.format(listen=listen, certs=folder, link=link, body=BODY, locations=locations)
