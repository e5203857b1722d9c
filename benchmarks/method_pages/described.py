"""What is told by hand of every method, as plain data: how to run it, what to tune, where it is measured."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from intarsia.methods import METHODS

HERE = Path(__file__).parent
PAGES = HERE.parents[1] / "docs" / "methods"
PICTURES = PAGES / "pictures"


@dataclass(frozen=True)
class Described:
    """One page."""

    page: str
    """The name of its file, without the ending."""
    problem: str
    """Which section of the list of methods it stands in."""
    server: str
    """What the server does."""
    clients: str
    """What clients do."""
    own: str
    """What a client's own model is."""
    runs: Sequence[str]
    """What the page's command changes in the recipe."""
    tune: str
    """What is worth a search, as options of `intarsia tune`."""
    papers: str
    """The section of docs/papers.md that has figures."""
    studies: Sequence[str]
    """The studies that have it."""
    method: str = ""
    """The method, as settings name it (empty: the page is about something that any method can have)."""
    called: str = ""
    """What the tables of docs/papers.md call it, if not by its title."""
    explained: bool = False
    """Whether the page has the method's description in the code."""
    drawn: Sequence[str] = ()
    """What the run of the picture changes beyond that."""
    keep: str = ""
    """What to keep to while tuning."""

    @property
    def title(self) -> str:
        """The method as people write it."""
        return METHODS[self.method].title if self.method else self.page.capitalize()

    @property
    def changes(self) -> list[str]:
        """Every change of the recipe that the page's command makes."""
        return [f"method={self.method}", *self.runs] if self.method else list(self.runs)


def described() -> dict[str, Described]:
    """Return what is told of every method, by page."""
    told = tomllib.loads((HERE / "methods.toml").read_text())
    return {page: Described(page, **own) for page, own in told.items()}
