"""No link of the documentation is dead: pages, pictures, files, headings; every page is in the navigation, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import DOCS, HOME, PAGES, anchors, links, name_of

MOST_LINES = 120


def _named(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _named(inner)


def dead(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        missing = bool(path) and not (target.exists() and HOME in (target, *target.parents))
        if missing or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_link_is_dead(page):
    assert not dead(page)


def test_a_dead_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One word\n[a](#one-word) [b](#none) ![c](none.png) [d](https://flower.ai)\n`[e](f)`\n")
    assert dead(page) == ["#none", "none.png"]


def test_every_page_is_in_the_navigation_once():
    settings = yaml.safe_load((HOME / "mkdocs.yml").read_text())
    named = list(_named(settings["nav"]))
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_readme_is_short():
    assert len((HOME / "README.md").read_text().splitlines()) < MOST_LINES
