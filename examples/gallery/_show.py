"""What the examples of the gallery have in common: results in lines, one picture each.

Pictures go where GALLERY_PICTURES says (by default beside the reader), GALLERY_ROUNDS makes every run shorter.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn.datasets import load_digits

import intarsia
from intarsia.core.text import size
from intarsia.report.pictures import new_canvas, save_canvas
from intarsia.report.styles import Style, method_style, styles_of_names

Runs = Mapping[str, intarsia.Run]
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (7, 3))}
MARKS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "x"}
_places: list[tempfile.TemporaryDirectory[str]] = []


def rounds(usual: int) -> int:
    """Return how many rounds runs have: as many as usual, or as GALLERY_ROUNDS says."""
    return int(os.environ.get("GALLERY_ROUNDS", usual))


def folder() -> Path:
    """Return a folder for runs that is gone when the program has ended."""
    _places.append(tempfile.TemporaryDirectory())
    return Path(_places[-1].name)


def digits(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 1,797 real handwritten digits of scikit-learn, shuffled: pictures of 8x8, and labels."""
    raw = load_digits()
    rows = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(seed)).numpy()
    return torch.tensor(raw.images[rows] / 16).float().unsqueeze(1), torch.tensor(raw.target[rows])


def share(x: torch.Tensor, y: torch.Tensor, train: int, **attributes: str) -> dict[str, Any]:
    """Return a client's data: its first samples to train on, the others to test on."""
    return {"train": (x[:train], y[:train]), "test": (x[train:], y[train:]), **attributes}


def by_client(run: intarsia.Run, chosen: set[str] | None = None) -> list[float]:
    """Return the test accuracy of every client's own model after the last round (of these clients alone)."""
    frame = run.frame("metrics")
    last = frame[(frame["round"] == run.summary["rounds"]) & (frame.split == "test") & (frame.stage == "own")]
    return [float(row.accuracy) for row in last.itertuples() if chosen is None or row.client in chosen]


def mean(run: intarsia.Run, clients: set[str]) -> float:
    """Return the mean accuracy of these clients, in percent."""
    return 100 * fmean(by_client(run, clients))


def tell(runs: Runs) -> None:
    """Print the result of each run: the mean over clients, the worst of them, what was sent."""
    first = next(iter(runs.values())).summary
    print(f"Test accuracy of {first['clients']} clients' own models after {first['rounds']} rounds:")
    width = max(map(len, runs))
    for name, run in runs.items():
        each, sent = by_client(run), sum(run.summary["bytes"].values())
        scores = f"mean {100 * fmean(each):5.1f} %  worst {100 * min(each):5.1f} %"
        print(f"  {name:{width}}  {scores}  sent {size(sent)}")


def canvas(title: str, columns: int = 1) -> tuple[Any, list[Any]]:
    """Return an empty picture and its axes, side by side."""
    figure, axes = new_canvas(9.6 if columns > 1 else 8.2, 3.7, columns)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    found = list(axes) if columns > 1 else [axes]
    for each in found:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.3)
    return figure, found


def curves(runs: Runs, title: str) -> Any:
    """Draw the mean over clients in every round; beside it, every client after the last one."""
    figure, (left, right) = canvas(title, 2)
    styles = styles_of_names(list(runs))
    for name, style in styles.items():
        frame = runs[name].frame("metrics")
        mean = 100 * frame[(frame.split == "test") & (frame.stage == "own")].groupby("round").accuracy.mean()
        left.plot(mean.index, mean, color=style.hex, linestyle=DASHES[style.dash])
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set(xlabel="round", ylabel="test accuracy, mean over clients, %")
    right.yaxis.tick_right()
    _dots(right, runs, styles)
    return figure


def cost(runs: Runs, title: str) -> Any:
    """Draw every client after the last round; beside it, what was sent in all. Runs have their method's colour."""
    figure, (left, right) = canvas(title, 2)
    styles = {name: method_style(run.summary["method"]) for name, run in runs.items()}
    _dots(left, runs, styles)
    sent = [sum(run.summary["bytes"].values()) for run in runs.values()]
    bars = right.barh([-n for n in range(len(runs))], sent, 0.5, color=[styles[name].hex for name in runs])
    right.bar_label(bars, [size(count) for count in sent], padding=3, fontsize=9)
    right.set_ylim(left.get_ylim())
    right.set_xlim(0, 1.3 * max(sent))
    right.set(yticks=[], xticks=[], xlabel="sent in all")
    return figure


def _dots(axes: Any, runs: Runs, styles: Mapping[str, Style]) -> None:
    """Draw a row a run: a dot a client, a stroke at their mean."""
    for number, (name, style) in enumerate(styles.items()):
        each = [100 * score for score in by_client(runs[name])]
        axes.plot(each, [-number] * len(each), "o", color=style.hex, alpha=0.35, markersize=6, mew=0)
        axes.plot([fmean(each)] * 2, [-number - 0.3, -number + 0.3], color=style.hex)
    axes.set_yticks([-number for number in range(len(runs))], list(runs))
    for label, style in zip(axes.get_yticklabels(), styles.values(), strict=True):
        label.set_color(style.hex)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(-len(runs) + 0.4, 0.6)
    axes.set_xlabel("test accuracy at the end, %\n(a dot a client, a stroke their mean)")


def lines(at: Sequence[float], rows: Mapping[str, Sequence[float]], title: str, x: str) -> Any:
    """Draw a line a row, over counts of which each is twice the one before."""
    figure, (axes,) = canvas(title)
    for name, style in styles_of_names(list(rows)).items():
        look = {"color": style.hex, "linestyle": DASHES[style.dash], "marker": MARKS[style.symbol]}
        axes.plot(at, rows[name], **look, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [str(count) for count in at])
    axes.set(xlabel=x, ylabel="test accuracy, %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


def save(figure: Any, name: str) -> None:
    """Write the picture."""
    path = Path(os.environ.get("GALLERY_PICTURES", ".")) / f"{name}.png"
    save_canvas(figure, path)
    print(f"Picture: {path.name}")
