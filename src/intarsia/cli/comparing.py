"""Runs side by side, in the terminal and as text for others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from intarsia.cli.terminal import console

if TYPE_CHECKING:
    from intarsia.experiment import Run, SeedRuns


def comparison_text(runs: list[Run], form: str) -> str:
    """Return the comparison as JSON, CSV or LaTeX."""
    from intarsia.experiment import comparison
    from intarsia.judging.comparing import to_csv, to_latex

    rows = comparison(runs)
    if form == "json":
        each = [{"folder": str(run.path), **run.summary} for run in runs]
        return json.dumps({"experiments": rows, "runs": each}, indent=2) + "\n"
    return to_csv(rows) if form == "csv" else to_latex(rows)


def show_seeds(found: SeedRuns) -> None:
    """Print what the runs of several seeds come to."""
    from intarsia.cli.shown import show_result

    show_result(list(found.runs))
    show_comparison(list(found.runs))
    console.print(f"Run folders: [bold]{escape(str(found.path))}[/]", soft_wrap=True)


def show_comparison(runs: list[Run]) -> None:
    """Print experiments over their seeds, each beside the first."""
    from intarsia.experiment import comparison

    if len(runs) == 1:
        return
    rows = comparison(runs)
    table = Table(title="Experiments over their seeds; difference from the first, with 95 % interval")
    for head in ("experiment", "seeds", "result", "balanced", "parameters", "difference", "p"):
        table.add_column(head, justify="left" if head == "experiment" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in rows[1:]:
        if row.get("pairs") == 0:
            console.print(f"{escape(row['experiment'])}: paired with {row['paired']}", style="dim")
    if tests := sorted({f"{row['test']} test over {row['paired']}" for row in rows if row.get("test")}):
        console.print(f"Paired: {', '.join(tests)}.", style="dim", highlight=False)


def _cells(row: dict[str, Any]) -> list[str]:
    from intarsia.report import mean_and_std, percent

    return [
        escape(row["experiment"]),
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
