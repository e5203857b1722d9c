"""`intarsia flower ...`: the same federation on Flower."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from intarsia.cli.options import Change, NamedRecipe, NoPage, Out, Seed, changes_of, command, new_group
from intarsia.cli.terminal import say

PLACE = 5
NAME = "flower"
PANEL = "On Flower"
OF_THIS_MACHINE = ("population", "split_hash", "data_folder", "engine", "plugins", "plugin_hashes")
"""Settings that no app takes along."""
group = new_group("Run federations on Flower.")
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Sites = Annotated[list[str], typer.Option("--site", metavar="NAME", help="A site (repeatable).")]


@command(group, "init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    recipe: NamedRecipe = "quickstart",
    change: Change = [],  # noqa: B006 - typer reads the default
    seed: Seed = None,
) -> None:
    """Write a ready app: settings, what `flwr run` needs, and a README with the commands."""
    from intarsia.experiment import load

    with _flower_here():
        from intarsia.flower.operating.app_folder import write_app
    settings = load(recipe, changes_of(change, seed))
    table = settings.model_dump(mode="json", exclude=set(OF_THIS_MACHINE))
    import tomli_w

    config = {"settings": "settings.toml", "folder": "runs/federation", "sites": 2, "wait": 600.0}
    write_app(folder, tomli_w.dumps(table), {**config, "deadline": 3600.0, "keys": "", "roster": ""})
    say(f"App: [bold]{escape(str(folder))}[/]; its README.md has the commands")


@command(group, "certs")
def certs_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    site: Sites = [],  # noqa: B006
    host: Annotated[
        list[str], typer.Option("--host", help="The server's name or address (repeatable).")
    ] = [],  # noqa: B006
) -> None:
    """Make a CA, a server certificate and a key pair a site, for a trial."""
    with _flower_here():
        from intarsia.flower.operating.certs import make
    make(folder, site or ["site-0", "site-1"], [*host, "127.0.0.1", "localhost"])
    say(f"Certificates and keys: [bold]{escape(str(folder))}[/]")


@command(group, "link", context_settings=PASSED_ON)
def link_command(
    context: typer.Context,
    certs: Annotated[Path, typer.Option("--certs", help="Folder of ca.crt, server.pem and server.key.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 8000,
    name: Annotated[str, typer.Option("--name", help="What flwr shall call it.")] = "intarsia",
) -> None:
    """Be the SuperLink, for this machine and its operator alone. Further options: those of flower-superlink."""
    with _flower_here():
        from flwr.supercore.utils import get_flwr_home

        from intarsia.flower import without_torch
        from intarsia.flower.operating.app_folder import write_link
        from intarsia.flower.superexec import HOST
    _check_link(certs, port, context.args)
    write_link(get_flwr_home(), name, f"{HOST}:{port}", certs / "ca.crt")
    say(f"flwr ... [bold]{escape(name)}[/] now means {HOST}:{port}")
    command = without_torch.command(
        "operating.link", "--certs", str(certs), "--port", str(port), *context.args
    )
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _check_link(certs: Path, port: int, more: list[str]) -> None:
    from intarsia.core import SettingsError
    from intarsia.flower.superexec import answers

    for name in ("ca.crt", "server.pem", "server.key"):
        if not (certs / name).is_file():
            raise SettingsError(
                f"--certs: {certs / name} is missing; for a trial: intarsia flower certs {certs}"
            )
    if any(option.split("=")[0] == "--host" for option in more):
        raise SettingsError(
            "--host: the SuperLink listens on this machine alone, since its port also controls it; "
            "nodes of other machines come through a proxy: intarsia flower proxy"
        )
    if answers(port):
        raise SettingsError(
            f"--port: {port} is in use on this machine: end what listens there, or name another"
        )


@command(group, "proxy")
def proxy_command(
    certs: Annotated[Path, typer.Option("--certs", help="Folder of ca.crt, server.pem and server.key.")],
    listen: Annotated[
        str, typer.Option("--listen", help="Where nodes connect: PORT or ADDRESS:PORT.")
    ] = "8443",
    link: Annotated[str, typer.Option("--link", help="Where the SuperLink is.")] = "127.0.0.1:8000",
) -> None:
    """Print a configuration for nginx that lets SuperNodes reach the SuperLink, and nothing else."""
    with _flower_here():
        from intarsia.flower.operating.proxy import configuration
    print(configuration(certs, listen, link), end="")


@command(group, "node", context_settings=PASSED_ON)
def node_command(context: typer.Context) -> None:
    """Be a site's SuperNode, which runs the installed relay alone. Options: --agent, and all of flower-supernode."""
    with _flower_here():
        import flwr  # noqa: F401

        from intarsia.flower import without_torch
    _check_files(context.args, "--root-certificates", "--auth-supernode-private-key", "--token")
    os.execv(sys.executable, without_torch.command("site.node", *context.args))


def _check_files(arguments: list[str], *options: str) -> None:
    """Refuse files among these options that are not there, before anything starts."""
    from intarsia.core import SettingsError

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in options:
        parser.add_argument(option, dest=option, nargs="?")
    for option, path in vars(parser.parse_known_args(arguments)[0]).items():
        if path and not Path(path).expanduser().is_file():
            raise SettingsError(f"{option}: there is no file {path}")


@command(group, "up", None, "intarsia flower up --sites 2 --recipe quickstart --set rounds=5")
def up_command(
    recipe: NamedRecipe = "quickstart",
    sites: Annotated[int, typer.Option("--sites", min=1, help="How many sites.")] = 2,
    change: Change = [],  # noqa: B006
    seed: Seed = None,
    out: Out = None,
    no_page: NoPage = False,
) -> None:
    """Run a whole federation on this machine: TLS, authenticated nodes, one agent a site."""
    from intarsia.core import RunFolderError
    from intarsia.experiment import fresh_folder, load, open_run, population_of, with_plugins
    from intarsia.report.live import draw_page
    from intarsia.runs import is_free

    with _flower_here():
        from intarsia.flower.operating.up import Plan, up
    settings = with_plugins(load(recipe, changes_of(change, seed)))
    path = out or fresh_folder(Path("runs"), settings.name)
    if not is_free(path):
        raise RunFolderError(f"{path} is already used: choose another folder (--out DIR)")
    try:
        up(Plan(settings, population_of(settings), sites, path, not no_page))
    except KeyboardInterrupt:
        more = f" Go on with: intarsia resume {path}" if (path / "settings.toml").exists() else ""
        say(f"Stopped; everything that was started has ended.{escape(more)}")
        raise typer.Exit(130) from None
    if not no_page:
        draw_page(path)
    accuracy = open_run(path).summary["accuracy"].get("mean")
    told = "" if accuracy is None else f"Mean accuracy {accuracy:.2%}. "
    say(f"{told}Run folder: [bold]{escape(str(path))}[/]")


@contextmanager
def _flower_here() -> Iterator[None]:
    from intarsia.core import SettingsError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "cryptography"):
            raise
        raise SettingsError("this needs Flower: pip install 'intarsia[flower]'") from None
