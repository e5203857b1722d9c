"""`intarsia attack`: what hostile clients do to a federation, and what a merge bears."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.options import AsJson, Change, Quiet, command, new_group
from intarsia.cli.terminal import interruptible, say, say_file, say_json, say_table

if TYPE_CHECKING:
    from intarsia.attacks.record import Row

PLACE = 3
PANEL = "More"
group = new_group()

Recipes = Annotated[list[str], typer.Argument(metavar="RECIPE|FILE.toml...", help="Settings to attack.")]
Attacks = Annotated[list[str], typer.Option("--attack", help="An attack, or all; may be repeated.")]
Shares = Annotated[
    list[float], typer.Option("--share", min=0, max=0.5, help="Share of attackers; may be repeated.")
]
Merges = Annotated[list[str], typer.Option("--merge", help="A merge, as in TOML; may be repeated.")]
Place = Annotated[str, typer.Option("--place", help="Attackers: `spread` over groups, or by `lot`.")]


@command(
    group,
    "attack",
    PANEL,
    "intarsia attack quickstart --set method=modfl",
    "intarsia attack mine.toml --attack all --share 0.1 --share 0.2 --merge mean "
    "--merge '{name=\"median\", mixing=true}' --out attacks.json",
)
def attack_command(
    recipe: Recipes,
    attack: Attacks = ["flip"],  # noqa: B006 - typer reads the defaults
    share: Shares = [0.2],  # noqa: B006
    merge: Merges = [],  # noqa: B006
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="So many seeds, from the settings' one.")] = 1,
    place: Place = "spread",
    change: Change = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", help="The JSON record; the same one goes on.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation with hostile clients; show what the honest ones' models score."""
    from intarsia.attacks import ATTACKS, NONE, Record, attack_of, cases_of
    from intarsia.core import SettingsError
    from intarsia.experiment import load

    if place not in ("spread", "lot"):
        raise SettingsError(f"--place: write spread or lot, not '{place}'")
    names = list(ATTACKS) if "all" in attack else attack
    for name in names:
        attack_of(name)
    bases = {name: load(name, change) for name in recipe}
    guards = {text: [f"merge={text}"] for text in merge} or {"as it is": []}
    path = out or Path("attacks.json")
    record = Record(path)
    cases = [
        case
        for base, settings in bases.items()
        for case in cases_of(
            {base: settings},
            guards,
            [NONE, *names],
            share,
            range(settings.seed, settings.seed + seeds),
            place,
        )
    ]
    with interruptible():
        rows = record.play(cases, lambda row: None if quiet or as_json else say(_line(row)))
    if as_json:
        say_json(rows)
    elif not quiet:
        _show(rows)
        say_file("Record", path)


def _line(row: Row) -> str:
    return (
        f"{row['base']}, {row['guard']}, {row['attack']}, {row['attackers']} attackers, seed {row['seed']}: "
        f"{row['honest']:.1%}"
    )


def _show(rows: list[Row]) -> None:
    """Show accuracies: a row an attack and share, a column a merge."""
    from intarsia.attacks import accuracies

    guards = list(dict.fromkeys(row["guard"] for row in rows))
    found = accuracies(rows, "base", "attack", "share", "guard")
    lines = list(dict.fromkeys((row["base"], row["attack"], row["share"]) for row in rows))
    table = [
        [base, attack, f"{share:.0%}", *(f"{found[base, attack, share, guard]:.1%}" for guard in guards)]
        for base, attack, share in lines
    ]
    say_table("Accuracy of the honest clients", ["settings", "attack", "attackers", *guards], table)
