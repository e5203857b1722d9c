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

TEMPLATES = Path(__file__).with_name("templates")


def write_app(folder: Path, settings: str, config: dict[str, Any], name: str = "intarsia-federation") -> None:
    """Write an app into a new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty: choose another folder")
    package = folder / "intarsia_app"
    exports = "\n".join(f"export {key}={value}" for key, value in QUIET.items())
    files = {
        folder / "pyproject.toml": tomli_w.dumps(_pyproject(name, config)),
        folder / "settings.toml": settings,
        folder / "site.example.toml": (TEMPLATES / "site.example.toml").read_text(),
        folder / "roster.example.toml": (TEMPLATES / "roster.example.toml").read_text(),
        folder / "README.md": (TEMPLATES / "README.md")
        .read_text()
        .format(exports=exports, folder=config["folder"]),
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
