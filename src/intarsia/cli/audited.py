"""An audit, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.cli.terminal import say, say_file, say_table


def show_audit(record: Mapping[str, Any], folder: Path) -> None:
    """Print what attacks got."""
    from intarsia.audit import AUDIT

    seen = "every update" if record["view"] == "single" else "sums alone"
    say(f"[bold]{record['run']}[/]: {record['method']}, round {record['round']}; the server sees {seen}\n")
    _show_membership(record.get("membership", ()))
    _show_labels(record.get("labels", ()))
    _show_inversion(record.get("inversion", ()))
    rows = [[s["step"], ", ".join(s["up"]), ", ".join(s["down"])] for s in record["sent"]]
    say_table("Sent beside blocks", ("step", "to the server", "to clients"), rows, whole=("step",))
    say_file("Audit", folder / AUDIT)


def _show_membership(rows: Any) -> None:
    if not rows:
        return
    heads = ("attack", "target", "AUC (0.5: nothing)", "found at 1 % false alarms")
    lines = [
        [
            r["attack"],
            r["target"],
            _within(r["auc"], r["auc_interval"]),
            _within(r["hits"], r["hits_interval"]),
        ]
        for r in rows
    ]
    say_table("Who was trained on", heads, lines, whole=("attack", "target"))


def _within(value: float, interval: list[float]) -> str:
    return f"{value:.3f} ({interval[0]:.3f} ... {interval[1]:.3f})"


def _show_labels(rows: Any) -> None:
    if not rows:
        return
    heads = ("from", "distance (0: exact)", "control", "correlation", "control ")
    names = ("distance", "control_distance", "correlation", "control_correlation")
    lines = [[r["source"], *(f"{r[name]:.2f}" for name in names)] for r in rows]
    say_table(
        "Which labels clients have (control: those of all clients together)", heads, lines, whole=("from",)
    )


def _show_inversion(rows: Any) -> None:
    if not rows:
        return
    heads = ("attack", "batch", "seen", "recovered", "PSNR (dB)", "mean picture (dB)")
    lines = [
        [
            r["attack"],
            str(r["batch"]),
            r["view"],
            f"{100 * r['recovered']:.0f} %",
            f"{r['psnr']:.1f}",
            f"{r['control_psnr']:.1f}",
        ]
        for r in rows
    ]
    say_table("What samples look like, from one step", heads, lines, whole=("attack",))
