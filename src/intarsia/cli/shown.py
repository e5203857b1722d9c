"""Results, plans and searches as tables in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from intarsia.experiment import Run
    from intarsia.report import RunView
    from intarsia.tuning import Tuning
from intarsia.cli.terminal import console, errors


def write_profile(folder: Path, rounds: dict[int, dict[str, float]]) -> None:
    """Draw where the time of each round went."""
    from intarsia.federation import STAGES
    from intarsia.report.pictures import profile

    (folder / "profile.json").write_text(json.dumps(rounds, indent=1))
    profile(rounds, STAGES, folder / "profile.png")
    console.print(f"Where the time went: {escape(str(folder / 'profile.png'))}")


def show_result(runs: list[Run]) -> None:
    """Print the result of a run."""
    from intarsia.report import name_apart, percent, size, view

    table = Table(title="Test accuracy of each client's own model; training bytes sent")
    for head in ("method", "mean", "weighted", "p10", "worst", "loss", "sent", "seconds"):
        table.add_column(head, justify="left" if head == "method" else "right")
    views = name_apart([view(run) for run in runs], runs)
    for shown in views:
        accuracy = shown.summary["accuracy"]
        note = f" [dim]({escape(shown.note)})[/]" if shown.note else ""
        cells = [percent(accuracy.get(key)) for key in ("mean", "weighted", "p10", "worst")]
        loss = shown.summary["loss"].get("mean")
        cells.append("-" if loss is None else f"{loss:.3f}")
        seconds = f"{shown.summary['seconds']['total']:.1f}"
        table.add_row(escape(shown.label) + note, *cells, size(shown.sent), seconds)
    console.print(table)
    for shown, run in zip(views, runs, strict=True):
        if failed := shown.summary.get("failed"):
            where = escape(str(run.path / "events.jsonl"))
            errors.print(
                f"{escape(shown.label)}: {failed} tasks of clients failed, see {where}", style="yellow"
            )
    show_tasks(views)
    if len(runs) == 1:
        show_verdict(runs[0])


def show_verdict(run: Run) -> None:
    """Print what the models of a run are worth, and what looks wrong."""
    from intarsia.report.verdict import verdict_lines

    for line in verdict_lines(run.summary):
        console.print(escape(line), highlight=False, soft_wrap=True)
    for warned in run.summary.get("judged", {}).get("warnings", ()):
        errors.print(f"[yellow]Warning:[/] {escape(warned['message'])}", highlight=False, soft_wrap=True)


def show_tasks(views: Sequence[RunView]) -> None:
    """Print accuracy and loss of each task."""
    from intarsia.report import percent

    if not any(shown.tasks for shown in views):
        return
    table = Table(title="By task")
    for head in ("method", "task", "clients", "accuracy", "loss"):
        table.add_column(head, justify="left" if head in ("method", "task") else "right")
    for shown in views:
        for task, own in shown.tasks.items():
            loss = own["loss"].get("mean")
            scores = (percent(own["accuracy"].get("mean")), "-" if loss is None else f"{loss:.4f}")
            table.add_row(escape(shown.label), escape(task), str(own["clients"]), *scores)
    console.print(table)


def show_tuning(found: Tuning) -> None:
    """Print the trials of a search."""
    from intarsia.report import mean_and_std
    from intarsia.tuning import text_of

    table = Table(title=f"Validation {found.measure} ({found.by} round)")
    for head in ("", "trial", *found.best.point, found.measure):
        table.add_column(head, justify="right" if head in ("trial", found.measure) else "left")
    for trial in found.ranked:
        mark = "best" if trial is found.best else ""
        values = [escape(text_of(value)) for value in trial.point.values()]
        score = "failed" if trial.reason else mean_and_std(trial.mean, trial.std, found.measure)
        style = "bold green" if mark else "dim" if trial.reason else None
        table.add_row(mark, str(trial.number), *values, score, style=style)
    console.print(table)
    for warning in found.warnings:
        console.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    best = escape(str(found.path / "best.toml"))
    console.print(f"Best settings: [bold]{best}[/] (intarsia run {best})", highlight=False, soft_wrap=True)


def show_plan(plan: dict[str, Any]) -> None:
    """Print what the first round would do."""
    from intarsia.models import base_in_words
    from intarsia.report import size

    base = base_in_words(plan["base"])
    adds = f", {base}" if base else ""
    table = Table(title=f"{plan['name']}: {plan['method']}, {plan['rounds']} rounds{escape(adds)}")
    for head in ("clients", "device", "model", "block", "address", "parameters", "down", "up"):
        table.add_column(head, justify="right" if head in ("clients", "parameters", "down", "up") else "left")
    kinds: dict[tuple[Any, ...], int] = {}
    for client in plan["clients"]:
        for b in client["blocks"]:
            key = (
                client["device"],
                client["model"],
                b["block"],
                b["address"],
                b["parameters"],
                b["down"],
                b["up"],
            )
            kinds[key] = kinds.get(key, 0) + 1
    for (device, model, block, address, parameters, down, up), count in kinds.items():
        table.add_row(
            str(count), device, model or "-", block, address, f"{parameters:,}", size(down), size(up)
        )
    console.print(table)
    for key, points in plan["cut_points"].items():
        cuts = ", ".join(f"{p['part']} ({size(p['before'])} | {size(p['from'])})" for p in points)
        console.print(
            f"Cut points of model {escape(key)}: {escape(cuts) or 'none'}", highlight=False, soft_wrap=True
        )
    a_round = plan["bytes_a_round"]
    console.print(
        f"{plan['clients_a_round']} of {len(plan['clients'])} clients a round; the first round sends "
        f"{size(a_round['down'])} down and {size(a_round['up'])} up (tensor bytes)."
    )


def write_page(path: Path, title: str, lead: str, runs: list[Run]) -> None:
    """Write the page of some runs."""
    from intarsia.core import write_atomically
    from intarsia.report import name_apart, page, view

    views = name_apart([view(run) for run in runs], runs)
    write_atomically(path, page(title, lead, views).encode())
    console.print(f"Page: [bold]{escape(str(path.resolve()))}[/]", soft_wrap=True)


def write_pictures(folder: Path, runs: list[Run]) -> None:
    """Draw the pictures of some runs."""
    from intarsia.report import decision_pictures, name_apart, teacher_pictures, view

    drawn = 0
    for shown in name_apart([view(run) for run in runs], runs):
        paths: list[Path] = []
        if shown.decisions is not None:
            paths += decision_pictures(shown.decisions, shown.label, folder)
        if shown.reassembly is not None:
            paths += teacher_pictures(shown.reassembly, shown.label, folder)
        for path in paths:
            console.print(f"Picture: [bold]{escape(str(path.resolve()))}[/]", soft_wrap=True)
        drawn += len(paths)
    if not drawn:
        errors.print(
            "no pictures: there are some of FedMN's networks and pFedClub's teachers alone", style="yellow"
        )
