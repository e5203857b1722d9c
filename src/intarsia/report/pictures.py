"""Pictures as PNG files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from intarsia.core.text import harmless
from intarsia.data.raw import RawData, Recordings
from intarsia.report.canvas import (
    bar_look,
    in_rounds,
    in_whole_numbers,
    legend_beside,
    line_look,
    new_canvas,
    plain_bar,
    ramp,
    save_canvas,
)
from intarsia.report.held import MANY_CLIENTS, held_by, label_counts
from intarsia.report.styles import plain_style, styles_of_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
MOST_LABELS_NAMED = 20
SHOWN = 8
MOST_BARS = 48
"""How many bars a picture has at most."""


def partition_picture(about: Mapping[str, Any], title: str, path: Path) -> None:
    """Draw who holds what: a stacked bar a client, a colour a label; of many clients, amounts as colours."""
    if len(about["clients"]) < MANY_CLIENTS:
        _held_bars(about, title, path)
    else:
        _held_heat(about, title, path)


def _held_bars(about: Mapping[str, Any], title: str, path: Path) -> None:
    clients, labels = about["clients"], about["labels"]
    figure, axes = new_canvas(max(7.0, 0.2 * len(clients) + 3), 4.5)
    names, colours = list(clients), ramp("labels")
    bottom = np.zeros(len(names))
    for number, label in enumerate(labels):
        counts = np.asarray([label_counts(clients[name])[number] for name in names])
        shown = label if len(labels) <= MOST_LABELS_NAMED else None
        colour = colours((number + 0.5) / len(labels))
        axes.bar(range(len(names)), counts, bottom=bottom, width=0.9, color=colour, label=shown)
        bottom += counts
    axes.set(ylabel="samples", title=title, ylim=(0, 1.05 * max(bottom.max(), 1)))
    axes.margins(x=0.01)
    axes.set_xticks(range(len(names)), [short_name(name) for name in names], rotation=90, fontsize=7)
    if len(labels) <= MOST_LABELS_NAMED:
        legend_beside(axes, title="label")
    save_canvas(figure, path)


def _held_heat(about: Mapping[str, Any], title: str, path: Path) -> None:
    counts, labels = held_by(about), list(map(str, about["labels"]))
    figure, axes = new_canvas(10, max(3.0, min(9.0, 0.28 * len(labels) + 1.6)))
    drawn = np.asarray(list(counts.values())).T
    image = axes.imshow(drawn, cmap=ramp("heat"), vmin=0, aspect="auto", interpolation="nearest")
    shown = range(0, len(labels), -(-len(labels) // 40))
    axes.set_yticks(shown, [labels[place] for place in shown], fontsize=8)
    axes.set(title=title, ylabel="label", xticks=[])
    axes.set_xlabel(f"{len(counts)} clients: those of a cohort, and of a most frequent label, together")
    figure.colorbar(image, ax=axes, label="samples")
    save_canvas(figure, path)


def image_sheet(raw: RawData, title: str, path: Path) -> None:
    """Draw some images of each label, and how many there are."""
    shown = [int(label) for label in np.unique(raw.y)[:MOST_LABELS_NAMED]]
    figure, (sheet, histogram) = new_canvas(11, max(3.0, 0.45 * len(shown) + 1), columns=2)
    rows = [_strip(raw.x[np.flatnonzero(raw.y == label)[:SHOWN]]) for label in shown]
    sheet.imshow(np.concatenate(rows), cmap="gray")
    side = raw.x.shape[1]
    sheet.set_yticks([side * (i + 0.5) for i in range(len(shown))], [raw.labels[i] for i in shown])
    sheet.set_xticks([])
    sheet.set_title(title)
    _histogram(histogram, np.bincount(raw.y, minlength=len(raw.labels)), raw.labels, "images")
    save_canvas(figure, path)


def motion_sheet(raw: Recordings, title: str, path: Path) -> None:
    """Draw some seconds of each activity, and how long each was recorded."""
    seconds = np.zeros(len(raw.labels))
    first: dict[int, Any] = {}
    for recording in raw.items:
        for label in np.unique(recording.y[recording.y >= 0]):
            rows = np.flatnonzero(recording.y == label)
            seconds[label] += len(rows) / raw.rate
            first.setdefault(int(label), recording.signal[rows[: round(5 * raw.rate)]])
    figure, (sheet, histogram) = new_canvas(11, max(3.0, 0.5 * len(first) + 1), columns=2)
    for place, label in enumerate(sorted(first)):
        signal = first[label]
        spread = np.ptp(signal) or 1.0
        times = np.arange(len(signal)) / raw.rate
        sheet.plot(times, (signal - signal.mean(0)) / spread - place, linewidth=0.7)
    sheet.set_yticks([-i for i in range(len(first))], [raw.labels[label] for label in sorted(first)])
    sheet.set_xlabel("seconds")
    sheet.set_title(title)
    _histogram(histogram, seconds, raw.labels, "seconds")
    save_canvas(figure, path)


class Point(NamedTuple):
    """A figure at one column: ours with its deviation, and the published one."""

    column: str
    ours: float | None
    std: float | None
    paper: float | None


def bars(rows: Mapping[str, Sequence[Point]], title: str, x: str, y: str, path: Path) -> None:
    """Draw a group of bars a column, with error bars; published figures are dashes over them. Of many, a field each."""
    columns = sorted({p.column for own in rows.values() for p in own}, key=_place)
    if len(rows) * len(columns) > MOST_BARS:
        _fields(rows, columns, title, x, y, path)
        return
    figure, axes = new_canvas(max(7.0, 0.5 * len(rows) * len(columns) + 2), 4.8)
    width = 0.85 / max(1, len(rows))
    styles = styles_of_names(list(rows))
    for number, (row, points) in enumerate(rows.items()):
        at = {p.column: columns.index(p.column) + (number - (len(rows) - 1) / 2) * width for p in points}
        own = [p for p in points if p.ours is not None]
        axes.bar(
            [at[p.column] for p in own],
            [p.ours for p in own],
            0.92 * width,
            yerr=[p.std or 0.0 for p in own] if any(p.std for p in own) else None,
            label=row,
            **bar_look(styles[row]),
        )
        for p in points:
            if p.paper is not None:
                place = at[p.column]
                axes.plot([place - width / 2, place + width / 2], [p.paper, p.paper], "k--", linewidth=1.4)
    axes.plot([], [], "k--", label="published")
    axes.set_xticks(range(len(columns)), columns)
    _finish(figure, axes, title, x, y, path)


def _fields(
    rows: Mapping[str, Sequence[Point]], columns: Sequence[str], title: str, x: str, y: str, path: Path
) -> None:
    """Draw a field a row and column: our figure as its colour and its text, the published one below it."""
    figure, axes = new_canvas(max(7.0, 0.75 * len(columns) + 4), 0.42 * len(rows) + 1.6)
    points = {(row, p.column): p for row, own in rows.items() for p in own}
    found = [[points.get((row, column)) for column in columns] for row in rows]
    values = np.array([[np.nan if p is None or p.ours is None else p.ours for p in own] for own in found])
    image = axes.imshow(values, cmap=ramp("heat"), aspect="auto")
    dark = 0.4 * np.nanmin(values) + 0.6 * np.nanmax(values) if np.isfinite(values).any() else 0.0
    for (row, column), value in np.ndenumerate(values):
        look: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "fontsize": 7,
            "color": "white" if value > dark else "black",
        }
        axes.text(column, row, _told(found[row][column]), **look)
    axes.set_yticks(range(len(rows)), [short_name(row, 48) for row in rows], fontsize=8)
    axes.set_xticks(
        range(len(columns)),
        [short_name(column, 24) for column in columns],
        fontsize=8,
        rotation=30,
        ha="right",
    )
    axes.set(title=title, xlabel=f"{x}; in brackets: published")
    figure.colorbar(image, ax=axes, label=y)
    save_canvas(figure, path)


def _told(point: Point | None) -> str:
    if point is None:
        return ""
    ours = "" if point.ours is None else f"{point.ours:.4g}"
    return ours if point.paper is None else f"{ours}\n({point.paper:.4g})"


def lines(rows: Mapping[str, Sequence[Point]], title: str, x: str, y: str, path: Path) -> None:
    """Draw a line a row, with its deviation as a band; published figures are crosses."""
    figure, axes = new_canvas(10, 5.2)
    styles = styles_of_names(list(rows))
    for row, points in rows.items():
        colour = styles[row].hex
        own = sorted((float(p.column), p.ours, p.std or 0.0) for p in points if p.ours is not None)
        if own:
            at, mean, std = (np.asarray(values) for values in zip(*own, strict=True))
            axes.plot(at, mean, **line_look(styles[row]), label=row, markersize=3)
            axes.fill_between(at, mean - std, mean + std, color=colour, alpha=0.15)
        for p in points:
            if p.paper is not None:
                axes.plot(
                    float(p.column), p.paper, "x", color=colour, label=None if own else f"{row}, published"
                )
    axes.plot([], [], "kx", label="published")
    if all(float(p.column).is_integer() for own in rows.values() for p in own):
        in_whole_numbers(axes)
    _finish(figure, axes, title, x, y, path)


def draw_all(
    draw: Mapping[str, Callable[[T, str, Path], None]], about: T, title: str, folder: Path
) -> list[Path]:
    """Draw pictures of a run into a folder, each into a file that bears its kind; return the files."""
    paths = {kind: folder / f"{file_stem(title)}-{kind}.png" for kind in draw}
    for kind, path in paths.items():
        draw[kind](about, title, path)
    return list(paths.values())


def points(rows: Mapping[str, Sequence[Point]], title: str, x: str, y: str, path: Path) -> None:
    """Draw a point a row: its first column across, its second one up, both with their deviations."""
    figure, axes = new_canvas(10, 5.2)
    styles = styles_of_names(list(rows))
    for row, (across, up, *_) in rows.items():
        if across.ours is not None and up.ours is not None:
            look = {**line_look(styles[row]), "linestyle": ""}
            axes.errorbar(across.ours, up.ours, xerr=across.std, yerr=up.std, label=row, **look)
        x, y = across.column, up.column
    _finish(figure, axes, title, x, y, path)


def profile(rounds: Mapping[int, Mapping[str, float]], stages: Sequence[str], path: Path) -> None:
    """Draw where the time of every round went, stage upon stage, and what the clients' own work came to."""
    figure, axes = new_canvas(10, 4.8)
    at = sorted(rounds)
    low = np.zeros(len(at))
    for number, stage in enumerate(stages):
        high = np.array([rounds[r].get(stage, 0.0) for r in at])
        total = f"{stage}: {high.sum():.1f} s"
        axes.bar(at, high, bottom=low, width=0.9, label=total, **plain_bar(number))
        low = low + high
    work = [rounds[r].get("clients", 0.0) for r in at]
    axes.plot(at, work, "k.", label=f"clients' own work: {sum(work):.1f} s, in all workers")
    in_rounds(axes)
    _finish(figure, axes, "Where the time went", "round", "seconds", path)


def _place(column: str) -> tuple[float, str]:
    return (float(column), "") if column.replace(".", "", 1).isdigit() else (float("inf"), column)


def _finish(figure: Figure, axes: Axes, title: str, x: str, y: str, path: Path) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", alpha=0.3)
    legend_beside(axes)
    save_canvas(figure, path)


def _strip(images: np.ndarray) -> np.ndarray:
    blank = np.full((SHOWN - len(images), *images.shape[1:]), 255, dtype=np.uint8)
    row = np.concatenate([*images, *blank], axis=1)
    return row[..., 0] if row.shape[-1] == 1 else row


def _histogram(axes: Axes, counts: np.ndarray, labels: Sequence[str], unit: str) -> None:
    if len(labels) <= MOST_LABELS_NAMED:
        axes.barh(range(len(labels)), counts, color=plain_style(0).hex)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(unit)
    else:
        axes.bar(range(len(labels)), counts, color=plain_style(0).hex, width=1.0)
        axes.set_xlabel("label")
        axes.set_ylabel(unit)
    axes.set_title(f"{unit} of each label")


def file_stem(title: str) -> str:
    """Return what a file is called that is about something of this title."""
    return re.sub(r"[^a-z0-9+]+", "-", title.lower()).strip("-") or "run"


def short_name(text: str, most: int = 18) -> str:
    """Return a name as it can be drawn: short, and nothing in it is a formula."""
    text = harmless(text)
    return (text if len(text) <= most else f"{text[: most - 1]}…").replace("$", r"\$")
