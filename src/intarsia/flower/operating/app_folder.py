"""A ready Flower app: what `flwr run` needs, and a README with the commands for server and sites."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from intarsia.core import RunFolderError, write_atomically
from intarsia.flower.operating.link import grant
from intarsia.flower.site import relay
from intarsia.flower.superexec import QUIET

SERVER_APP = '''"""The ServerApp of this federation."""

from pathlib import Path

from intarsia.flower.server.app import make_app

app = make_app(Path(__file__).resolve().parents[1])
'''

SITE = """# A site: its clients, their attributes and their data. Nothing of the data leaves this machine.
name = "north"

[population]
name = "files"          # a folder of .npz, .csv or .parquet files (one a client), or client/label/*.png
path = "data"           # relative to this file
target = "label"

# Attributes of the clients, where the method asks for them (the files' names are the clients' names):
# [attributes.truck-1]
# device = "gen1"
# cohort = "north"
"""

ROSTER = """# The register: which key is which site, and whose clients are whose. Copy it to roster.toml and name it:
#   flwr run . intarsia --stream --run-config 'roster="/full/path/of/roster.toml"'
# A node with another key is not used, nor is a site that says anything else of its clients than this file.

[sites.north]
key = "certs/keys/north.pub"    # the path of a public key, relative to this file; or the key itself
clients = ["ann", "bob"]

[sites.south]
key = "certs/keys/south.pub"

[sites.south.clients.cem]       # what is left out is the site's word
device = "gen1"
cohort = "adults"
samples = 5000                  # the most training samples that it may claim
"""

README = """# An Intarsia federation on Flower

`settings.toml` is what `intarsia run settings.toml` would take, without `[population]`: each site has its own data. All
addresses below are 127.0.0.1, for a trial on one machine; for several, write your server's name instead, and give it to
`intarsia flower certs --host` too.

In every shell in which you use `flwr`:

```
{exports}
```

## On the server

For a trial, make a CA, a server certificate and the keys of two sites; then start the SuperLink. It listens on this
machine alone, and only your own `flwr` controls it:

```
intarsia flower certs certs --site north --site south
intarsia flower link --certs certs
```

In a second shell, tell it which nodes may come:

```
flwr supernode register certs/keys/north.pub intarsia
flwr supernode register certs/keys/south.pub intarsia
```

Sites on other machines come through nginx, which lets through what they need and nothing else:

```
intarsia flower proxy --certs certs --listen 8443 > intarsia.conf     # as root: into /etc/nginx/conf.d/
```

## At each site

Copy `ca.crt` and the site's own private key (`certs/keys/north`) there, and write `site.toml` (see
`site.example.toml`). Start the agent, then, in another shell, the node:

```
intarsia site site.toml
intarsia flower node --agent north.state/agent.sock --root-certificates certs/ca.crt --superlink 127.0.0.1:8000 \\
  --auth-supernode-private-key certs/keys/north
```

Behind nginx, the address is your server's, with port 8443. `intarsia flower node` is Flower's own SuperNode with
shorter waits; it runs the installed relay, whatever app the server sends. A stock `flower-supernode` runs the server's
code.

## Run

```
flwr run . intarsia --stream --run-config 'sites=2 keys="certs/keys"'
```

In earnest, say which key is which site and whose clients are whose: write `roster.toml` (see
`roster.example.toml`), and add `roster="/full/path/of/roster.toml"`.

The run folder is `{folder}`, in the folder that the SuperLink was started in. The same command goes on with a run that
was stopped.
"""


def write_app(folder: Path, settings: str, config: dict[str, Any], name: str = "intarsia-federation") -> None:
    """Write an app into a new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty: choose another folder")
    package = folder / "intarsia_app"
    files = {
        folder / "pyproject.toml": tomli_w.dumps(_pyproject(name, config)),
        folder / "settings.toml": settings,
        folder / "site.example.toml": SITE,
        folder / "roster.example.toml": ROSTER,
        folder / "README.md": README.format(
            exports="\n".join(f"export {key}={value}" for key, value in QUIET.items()),
            folder=config["folder"],
        ),
        package / "__init__.py": '"""The app."""\n',
        package / "server_app.py": SERVER_APP,
        package / "client_app.py": Path(relay.__file__).read_text(),
    }
    for path, text in files.items():
        write_atomically(path, text.encode())


def write_link(home: Path, name: str, address: str, ca: Path) -> None:
    """Name a SuperLink in Flower's configuration, so that `flwr ... NAME` finds it, and may control it."""
    path = home / "config.toml"
    table: dict[str, Any] = tomllib.loads(path.read_text()) if path.exists() else {}
    table.setdefault("superlink", {})[name] = {"address": address, "root-certificates": str(ca.resolve())}
    table["superlink"].setdefault("default", name)
    write_atomically(path, tomli_w.dumps(table).encode())
    grant(home, address)


def _pyproject(name: str, config: dict[str, Any]) -> dict[str, Any]:
    components = {"serverapp": "intarsia_app.server_app:app", "clientapp": "intarsia_app.client_app:app"}
    return {
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": "A federation of Intarsia",
            "license": "Apache-2.0",
            "dependencies": ["flwr>=1.41,<1.42", "intarsia"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "intarsia",
                    # Nothing else goes to the sites, whatever lies beside it: run folders, other sites' files.
                    "fab-include": ["intarsia_app/*.py", "settings.toml"],
                    "components": components,
                    "config": config,
                }
            }
        },
    }
