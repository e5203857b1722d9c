"""Runs side by side, in the terminal and as text for others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from intarsia.cli.shown import complain_of, complain_of_lost, show_result, show_verdict
from intarsia.cli.terminal import say, say_table
from intarsia.core.text import mean_and_std, percent

if TYPE_CHECKING:
    from intarsia.experiment import Run


def comparison_text(runs: list[Run], form: str) -> str:
    """Return the comparison as JSON, CSV or LaTeX."""
    from intarsia.experiment import comparison
    from intarsia.judging.comparing import to_csv, to_latex

    rows = comparison(runs)
    if form == "json":
        each = [{"folder": str(run.path), **run.summary} for run in runs]
        return json.dumps({"experiments": rows, "runs": each}, indent=2) + "\n"
    return to_csv(rows) if form == "csv" else to_latex(rows)


def show_runs(runs: list[Run], quiet: bool) -> None:
    """Print what runs came to, one or side by side, and what looks wrong with them (quietly: what was lost alone)."""
    if not quiet:
        show_result(runs)
        show_comparison(runs)
    if len(runs) == 1 and not quiet:
        show_verdict(runs)
        complain_of(runs)
    else:
        complain_of_lost(runs)


def show_comparison(runs: list[Run]) -> None:
    """Print experiments over their seeds, each beside the first."""
    from intarsia.experiment import comparison

    if len(runs) == 1:
        return
    rows = comparison(runs)
    heads = ("experiment", "seeds", "result", "balanced", "parameters", "difference", "p")
    title = "Experiments over their seeds, means over clients; difference from the first, with 95 % interval"
    say_table(title, heads, [_cells(row) for row in rows], right=heads[1:])
    for row in rows[1:]:
        if row.get("pairs") == 0:
            say(f"[dim]{escape(row['experiment'])}: paired with {row['paired']}[/]")
    if tests := sorted({f"{row['test']} test over {row['paired']}" for row in rows if row.get("test")}):
        say(f"[dim]Paired: {', '.join(tests)}.[/]")


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["experiment"],
        str(len(row["seeds"])),
        mean_and_std(row["mean"], row["deviation"], row["measure"]),
        percent(row["balanced_accuracy"]),
        "-" if row["parameters"] is None else f"{row['parameters']:,.0f}",
        _difference(row),
        "-" if row["p"] is None else f"{row['p']:.2g}",
    ]


def _difference(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return "-"
    factor, digits = (100, 1) if row["measure"] == "accuracy" else (1, 3)
    ends = [row["low"], row["high"]]
    sure = "" if None in ends else f" ({' to '.join(f'{factor * end:+.{digits}f}' for end in ends)})"
    return f"{factor * row['difference']:+.{digits}f}{sure}"
