"""`intarsia flower ...` and `intarsia site`: the same federation on Flower."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

flower = typer.Typer(help="Run federations on Flower.", no_args_is_help=True)
console = Console()

Change = Annotated[list[str], typer.Option("--set", metavar="a.b=c", help="Change a setting (repeatable).")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of every random draw.")]
Sites = Annotated[list[str], typer.Option("--site", metavar="NAME", help="A site (repeatable).")]


@flower.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    recipe: Annotated[str, typer.Option("--recipe", metavar="RECIPE|FILE.toml")] = "quickstart",
    change: Change = [],  # noqa: B006 - typer reads the default
    seed: Seed = None,
) -> None:
    """Write a ready app: settings, what `flwr run` needs, and a README with the commands."""
    from intarsia.settings import load

    with _flower_here():
        from intarsia.flower.project import write_app
    settings = load(recipe, [*change, *([f"seed={seed}"] if seed is not None else [])])
    table = settings.model_dump(mode="json", exclude={"population", "split_hash", "data_folder", "engine"})
    import tomli_w

    config = {"settings": "settings.toml", "folder": "runs/federation", "sites": 2, "wait": 600.0}
    write_app(folder, tomli_w.dumps(table), {**config, "deadline": 3600.0, "keys": ""})
    console.print(f"App: [bold]{escape(str(folder))}[/]; its README.md has the commands", soft_wrap=True)


@flower.command("certs")
def certs_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    site: Sites = [],  # noqa: B006
    host: Annotated[
        list[str], typer.Option("--host", help="The server's name or address (repeatable).")
    ] = [],  # noqa: B006
) -> None:
    """Make a CA, a server certificate and a key pair a site, for a trial."""
    with _flower_here():
        from intarsia.flower.certs import make
    make(folder, site or ["site-0", "site-1"], [*host, "127.0.0.1", "localhost"])
    console.print(f"Certificates and keys: [bold]{escape(str(folder))}[/]", soft_wrap=True)


@flower.command("link")
def link_command(
    address: Annotated[str, typer.Option("--address", help="The SuperLink's host:port.")],
    ca: Annotated[Path, typer.Option("--ca", help="The certificate of the CA.", exists=True)],
    name: Annotated[str, typer.Option("--name", help="The name to give it.")] = "intarsia",
) -> None:
    """Tell the command flwr where the SuperLink is (in Flower's own configuration)."""
    from intarsia.blocks import SettingsError

    with _flower_here():
        from flwr.supercore.utils import get_flwr_home

        from intarsia.flower.project import write_link
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise SettingsError(f"--address {address}: write host:port, for example 127.0.0.1:8000")
    write_link(get_flwr_home(), name, address, ca)
    console.print(f"flwr ... [bold]{escape(name)}[/] now means {escape(address)}", soft_wrap=True)


@flower.command("node", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def node_command(context: typer.Context) -> None:
    """Be a site's SuperNode: flower-supernode with shorter waits. Options: --agent, and all of flower-supernode."""
    with _flower_here():
        import flwr  # noqa: F401
    _check_files(context.args, "--root-certificates", "--auth-supernode-private-key", "--token")
    script = str(Path(__file__).parent / "flower" / "node.py")
    os.execv(sys.executable, [sys.executable, script, *context.args])


def _check_files(arguments: list[str], *options: str) -> None:
    """Refuse files among these options that are not there, before anything starts."""
    from intarsia.blocks import SettingsError

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in options:
        parser.add_argument(option, dest=option, nargs="?")
    for option, path in vars(parser.parse_known_args(arguments)[0]).items():
        if path and not Path(path).expanduser().is_file():
            raise SettingsError(f"{option}: there is no file {path}")


@flower.command("up")
def up_command(
    recipe: Annotated[str, typer.Option("--recipe", metavar="RECIPE|FILE.toml")] = "quickstart",
    sites: Annotated[int, typer.Option("--sites", min=1, help="How many sites.")] = 2,
    change: Change = [],  # noqa: B006
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the run.")] = None,
) -> None:
    """Run a whole federation on this machine: TLS, authenticated nodes, one agent a site."""
    from intarsia.blocks import RunFolderError
    from intarsia.experiment import fresh_folder, open_run, population_of
    from intarsia.settings import load

    with _flower_here():
        from intarsia.flower.up import Plan, up
    settings = load(recipe, [*change, *([f"seed={seed}"] if seed is not None else [])])
    path = out or fresh_folder(Path("runs"), settings.name)
    if path.exists() and any(path.iterdir()):
        raise RunFolderError(f"{path} is already used: choose another folder (--out DIR)")
    try:
        up(Plan(settings, population_of(settings), sites, path))
    except KeyboardInterrupt:
        more = f" Go on with: intarsia resume {path}" if (path / "settings.toml").exists() else ""
        console.print(f"Stopped; everything that was started has ended.{escape(more)}", soft_wrap=True)
        raise typer.Exit(130) from None
    accuracy = open_run(path).summary["accuracy"].get("mean")
    told = "" if accuracy is None else f"Mean accuracy {accuracy:.2%}. "
    console.print(f"{told}Run folder: [bold]{escape(str(path))}[/]", soft_wrap=True)


def site_command(
    file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="What is at this site.")],
) -> None:
    """Be a site's agent: keeps data, models and the clients' own blocks; answers its SuperNode."""
    from intarsia.flower.agent import serve
    from intarsia.flower.site import Site

    serve(Site.load(file), lambda text: print(text, flush=True))


@contextmanager
def _flower_here() -> Iterator[None]:
    from intarsia.blocks import SettingsError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "cryptography"):
            raise
        raise SettingsError("this needs Flower: pip install 'intarsia[flower]'") from None
