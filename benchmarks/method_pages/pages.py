"""The pages as they must be: prose as it stands, and in its places what the code says now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.method_pages import parts
from benchmarks.method_pages.described import PAGES, PICTURES, Described, described
from benchmarks.method_pages.drawing import draw
from benchmarks.method_pages.scene import Scene, play

from intarsia.cli.catalogue import explained
from intarsia.core import DataError
from intarsia.methods import METHODS
from intarsia.report.about import described_method

INDEX = PAGES / "index.md"
PROBLEMS = {
    "baselines": "One model for all, or none",
    "own": "One shared model, and one's own beside it",
    "groups": "Clients that fall into groups",
    "pool": "Networks from a pool of modules",
    "bytes": "Less to train and to send",
    "models": "Clients with different models",
    "scores": "Models that have nothing in common",
}
"""The sections of the list of methods."""


@dataclass(frozen=True)
class Book:
    """All pages, from one small run a method."""

    scenes: Mapping[str, Scene]

    @classmethod
    def played(cls) -> Book:
        """Play all runs."""
        return cls({page: play(own) for page, own in described().items()})

    @cached_property
    def files(self) -> dict[Path, str]:
        """Every file with what must stand in it."""
        found = {PICTURES / f"{page}.svg": draw(scene) for page, scene in self.scenes.items()}
        for page, own in described().items():
            path = PAGES / f"{page}.md"
            found[path] = filled(path, self._parts(own))
        found[INDEX] = filled(INDEX, self._index())
        return found

    def _parts(self, own: Described) -> dict[str, str]:
        told = {
            "picture": parts.picture(own, self.scenes[own.page]),
            "settings": parts.settings(own),
            "run": parts.command(own),
            "results": parts.measured(own),
            "deviations": parts.deviations(own),
        }
        if own.method:
            told["travels"] = parts.travels(own)
        if own.explained:
            told["description"] = parts.description(own)
        return told

    def _index(self) -> dict[str, str]:
        told = described().values()
        lists = {
            key: parts.table(
                ["method", "", "a client's own model", "the server needs"],
                [self._row(own) for own in told if own.problem == key],
            )
            for key in PROBLEMS
        }
        tune = parts.table(
            ["method", "options of `intarsia tune`"], [[_link(o), parts.tuned(o)] for o in told]
        )
        common = next(kind for kind in explained("all") if kind["kind"] == "sharing")["settings"]
        every = parts.table(parts.SETTINGS, [parts.setting(row) for row in common])
        return lists | {"tune": tune, "every": every}

    def _row(self, own: Described) -> list[str]:
        if not own.method:
            summary, needs = "Small layers beside a frozen network, under almost any method.", "as the method"
            return [_link(own), summary, own.own, needs]
        summary = described_method(own.method)[0]
        told = (row[-1].partition(" (")[0] for row in parts.sent_rows()[own.method])
        needs = ", ".join(dict.fromkeys(told))
        return [_link(own), parts.in_cell(summary), parts.in_cell(own.own), needs]


def _link(own: Described) -> str:
    return f"[{own.title}]({own.page}.md)" + (f" `{own.method}`" if own.method else "")


def filled(path: Path, told: Mapping[str, str]) -> str:
    """Return a page with all parts in their places; each must have one."""
    page = path.read_text()
    for name, text in told.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page, places = place.subn(lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", page)  # type: ignore[misc]
        if places != 1:
            raise DataError(f"{path} must have one place '<!-- {name} -->', and has {places}")
    return page


def lacking() -> list[str]:
    """Return the methods in the box that have no page."""
    box = {name for name, kind in METHODS.items() if kind.__module__.startswith("intarsia.")}
    return sorted(box - {own.method for own in described().values()})
