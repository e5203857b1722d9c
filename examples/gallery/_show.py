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
from intarsia.report.styles import styles_of_names

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


def canvas(title: str, x: str, y: str) -> tuple[Any, Any]:
    """Return an empty picture and its axes."""
    figure, axes = new_canvas(8.2, 4.0)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def curves(runs: Runs, title: str) -> tuple[Any, Any]:
    """Draw the accuracy of every round: the mean over clients, and the 10th to the 90th percentile as a band."""
    figure, axes = canvas(title, "round", "test accuracy, %")
    for name, style in styles_of_names(list(runs)).items():
        frame = runs[name].frame("metrics")
        own = frame[(frame.split == "test") & (frame.stage == "own")]
        each = 100 * own.pivot(index="round", columns="client", values="accuracy")
        axes.plot(each.index, each.mean(axis=1), color=style.hex, linestyle=DASHES[style.dash], label=name)
        low, high = each.quantile(0.1, axis=1), each.quantile(0.9, axis=1)
        axes.fill_between(each.index, low, high, color=style.hex, alpha=0.1, linewidth=0)
    return figure, axes


def lines(at: Sequence[float], rows: Mapping[str, Sequence[float]], title: str, x: str) -> tuple[Any, Any]:
    """Draw a line a row."""
    figure, axes = canvas(title, x, "test accuracy, %")
    for name, style in styles_of_names(list(rows)).items():
        look = {"color": style.hex, "linestyle": DASHES[style.dash], "marker": MARKS[style.symbol]}
        axes.plot(at, rows[name], **look, label=name)
    return figure, axes


def bytes_and_accuracy(runs: Runs, title: str) -> tuple[Any, Any]:
    """Draw a point a run: what was sent in all, and what was reached."""
    figure, axes = canvas(title, "sent in all, MB", "test accuracy, %")
    for name, style in styles_of_names(list(runs)).items():
        sent, each = sum(runs[name].summary["bytes"].values()) / 1e6, by_client(runs[name])
        mark = {"color": style.hex, "marker": MARKS[style.symbol], "linestyle": "", "markersize": 8}
        axes.plot(sent, 100 * fmean(each), **mark, label=name)
    return figure, axes


def save(figure: Any, axes: Any, name: str) -> None:
    """Write the picture, with its legend beside it."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    path = Path(os.environ.get("GALLERY_PICTURES", ".")) / f"{name}.png"
    save_canvas(figure, path)
    print(f"Picture: {path.name}")
