"""Results, plans, searches and bases as tables in the terminal; pages and pictures of runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from intarsia.cli.terminal import complain, console, say, say_file, say_json, say_pairs, say_table
from intarsia.core.text import duration, lasting, mean_and_std, percent, size

if TYPE_CHECKING:
    from intarsia.experiment import Run
    from intarsia.models import Base
    from intarsia.report import RunView
    from intarsia.tuning import Tuning


def write_profile(folder: Path, rounds: dict[int, dict[str, float]]) -> Path:
    """Draw where the time of each round went; return the picture."""
    from intarsia.federation import STAGES
    from intarsia.report.pictures import profile

    (folder / "profile.json").write_text(json.dumps(rounds, indent=1))
    profile(rounds, STAGES, folder / "profile.png")
    return folder / "profile.png"


def show_result(runs: list[Run]) -> None:
    """Print the result of a run."""
    from intarsia.report import views_of

    views = views_of(runs)
    rows: list[tuple[str | Text, ...]] = []
    clocked = any(shown.virtual for shown in views)
    for shown in views:
        accuracy = shown.summary["accuracy"]
        note = f" ({shown.note})" if shown.note else ""
        cells = [percent(accuracy.get(key)) for key in ("mean", "weighted", "p10", "worst")]
        seconds = f"{shown.summary['seconds']['total']:.1f}"
        label = Text.assemble(shown.label, (note, "dim"))
        spent = [duration(shown.summary["virtual_seconds"])] if shown.virtual else ["-"] * clocked
        rows.append((label, *cells, _loss(shown.summary, 3), size(shown.sent), *spent, seconds))
    virtual = ("virtual",) * clocked
    heads = ("method", "mean", "weighted", "p10", "worst", "loss", "sent", *virtual, "seconds")
    title = "Test accuracy of each client's own model: mean over clients, weighted by samples (pooled); bytes sent"
    say_table(title, heads, rows, right=heads[1:])
    _show_tasks(views)


def show_verdict(runs: Sequence[Run]) -> None:
    """Print what the models of a run are worth, or of runs that differ in their seed."""
    from intarsia.report.sections.privacy import privacy_line
    from intarsia.report.verdict import seeds_lines, verdict_lines

    one = len(runs) == 1
    lines = verdict_lines(runs[0].summary) if one else seeds_lines([(r.summary, r.judged) for r in runs])
    for line in [*lines, *dict.fromkeys(filter(None, (privacy_line(run.summary) for run in runs)))]:
        say(escape(line))


def complain_of(runs: Sequence[Run]) -> None:
    """Tell, as errors are told, of lost updates and of what looks wrong: once for all seeds that have it."""
    complain_of_lost(runs)
    found: dict[str, list[tuple[int, str]]] = {}
    for run in runs:
        for warned in run.summary.get("judged", {}).get("warnings", ()):
            found.setdefault(warned["kind"], []).append((run.settings.seed, warned["message"]))
    for told in found.values():
        if len(runs) == 1:
            complain(told[0][1])
        else:
            seeds = ", ".join(str(seed) for seed, _ in told)
            complain(told[0][1], f"Warning (seed{'s' if len(told) > 1 else ''} {seeds})")


def complain_of_lost(runs: Sequence[Run]) -> None:
    """Tell of updates that failed or were refused."""
    for run in runs:
        counts = {"tasks of clients failed": "failed", "updates were refused": "refused"}
        lost = [f"{count} {what}" for what, key in counts.items() if (count := run.summary.get(key, 0))]
        if lost:
            complain(f"{', '.join(lost)}, see {run.path / 'events.jsonl'}", run.path.name)


def _show_tasks(views: Sequence[RunView]) -> None:
    """Print accuracy and loss of each task."""
    rows = [
        (shown.label, task, str(own["clients"]), percent(own["accuracy"].get("mean")), _loss(own, 4))
        for shown in views
        for task, own in shown.tasks.items()
    ]
    if rows:
        heads = ("method", "task", "clients", "accuracy", "loss")
        say_table("By task", heads, rows, right=heads[2:])


def _loss(scores: Mapping[str, Any], digits: int) -> str:
    loss = scores["loss"].get("mean")
    return "-" if loss is None else f"{loss:.{digits}f}"


def show_tuning(found: Tuning) -> None:
    """Print the trials of a search."""
    from intarsia.tuning import text_of

    rows = []
    for trial in found.ranked:
        score = "failed" if trial.reason else mean_and_std(trial.mean, trial.std, found.measure)
        mark = "best" if trial is found.best else ""
        style = "bold green" if mark else "dim" if trial.reason else ""
        cells = (mark, str(trial.number), *map(text_of, trial.point.values()), score)
        rows.append([Text(cell, style) for cell in cells])
    heads = ("", "trial", *found.best.point, found.measure)
    title = f"Validation {found.measure} ({found.by} round)"
    say_table(title, heads, rows, right=("trial", found.measure))
    for warning in found.warnings:
        say(f"[yellow]Warning:[/] {escape(warning)}")
    best = escape(str(found.path / "best.toml"))
    say(f"Best settings: [bold]{best}[/] (intarsia run {best})")


def show_plan(plan: dict[str, Any]) -> None:
    """Print what the first round would do."""
    from intarsia.models import base_in_words

    base = base_in_words(plan["base"])
    named = any(client["model"] for client in plan["clients"])
    kinds = Counter(
        (
            client["device"],
            *([client["model"] or "-"] if named else []),
            *(block[key] for key in ("address", "parameters", "down", "up")),
        )
        for client in plan["clients"]
        for block in client["blocks"]
    )
    rows = [
        (str(count), *words, f"{parameters:,}", size(down), size(up))
        for (*words, parameters, down, up), count in kinds.items()
    ]
    numbers = ("parameters", "down", "up")
    heads = ("clients", "device", *(["model"] if named else []), "address", *numbers)
    title = f"{plan['name']}: {plan['method']}, {plan['rounds']} rounds{f', {base}' if base else ''}"
    say_table(title, heads, rows, right=("clients", *numbers), whole=("address",))
    for key, points in plan["cut_points"].items():
        cuts = ", ".join(f"{p['part']} ({size(p['before'])} | {size(p['from'])})" for p in points)
        say(f"Cut points of model {escape(key)}: {escape(cuts) or 'none'}")
    a_round = plan["bytes_a_round"]
    console.print(
        f"{plan['clients_a_round']} of {len(plan['clients'])} clients a round; the first round sends "
        f"{size(a_round['down'])} down and {size(a_round['up'])} up (tensor bytes)."
    )
    if "fleet" in plan:
        _show_fleet(plan["fleet"])


def _show_fleet(fleet: Mapping[str, Any]) -> None:
    """Print how long a round takes on each kind of device, and which of them is waited for."""
    stages = ("down", "compute", "up", "round", "slowest", "first_round")
    rows = [
        (own["device"], str(own["clients"]), *(lasting(own[s]) for s in stages)) for own in fleet["devices"]
    ]
    heads = ("device", "clients", *(stage.replace("_", " ") for stage in stages))
    say_table("A round on this fleet (means over clients)", heads, rows, right=heads[1:])
    stage = {"down": "download", "up": "upload"}.get(fleet["because_of"], fleet["because_of"])
    who = f"{escape(fleet['slowest'])} ({escape(fleet['bottleneck'])})"
    if fleet["waits"]:
        say(f"A round waits {lasting(fleet['round'])} for {who}, mostly for its {stage}.")
    else:
        say(
            f"The slowest, {who}, takes {lasting(fleet['round'])}, mostly for its {stage}; nobody waits for it."
        )
    if "in_time" in fleet:
        say(f"{fleet['in_time']} of the clients of a round are in time for the deadline.")


def show_card(base: Base, as_json: bool) -> None:
    """Print a base's hash and its card."""
    about = {"file": str(base.path), "sha256": base.sha256, **base.card}
    if as_json:
        say_json(about)
        return
    shown = {key: value for key, value in about.items() if key not in ("history", "settings")}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in shown.items()}
    say_pairs((key, text or "not stated") for key, text in texts.items())
    if not base.card:
        say("The file has no card: it was not written by Intarsia.")


def write_page(path: Path, title: str, lead: str, runs: list[Run], quiet: bool = False) -> None:
    """Write the page of some runs."""
    from intarsia.core import write_atomically
    from intarsia.report import page, views_of

    write_atomically(path, page(title, lead, views_of(runs)).encode())
    if not quiet:
        say_file("Page", path)


def write_pictures(folder: Path, runs: list[Run], quiet: bool = False) -> None:
    """Draw the pictures of some runs: their curves, mosaics, and what their methods have to show."""
    from intarsia.report import views_of
    from intarsia.report.run_pictures import run_pictures

    for path in run_pictures(views_of(runs), folder):
        if not quiet:
            say_file("Picture", path)
