"""The pages of the documentation: their links, their anchors, and marks of blocks that are not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *HOME.glob("*.md")])
MARK = re.compile(r"<!-- not run here(?P<part>, to the end of this part)?: (?P<reason>\S.*?) -->")
FENCED = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
WRITTEN = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)="([^"]+)""")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +\{[^}]*\})? *$", re.MULTILINE)
GIVEN = re.compile(r"""\b(?:id|name)=["']([^"']+)["']|\{[^}]*#([\w.-]+)[^}]*\}""")


def name_of(page: Path) -> str:
    """Return a page as people call it: docs/start.md."""
    return str(page.relative_to(HOME))


def links(page: Path) -> Iterator[str]:
    """Yield where a page's links and pictures lead, those into the world left out."""
    text = FENCED.sub("", page.read_text())
    for target in (*LINK.findall(re.sub(r"`[^`\n]*`", "code", text)), *WRITTEN.findall(text)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """Return what can be linked to on a page: its headings, as sites and forges name them, and what has a name."""
    text = FENCED.sub("", page.read_text())
    found: dict[str, int] = {}
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[\s]", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        found[slug] = found.get(slug, 0) + 1
    again = {f"{slug}-{i}" for slug, count in found.items() for i in range(1, count)}
    given = {first or second for first, second in GIVEN.findall(text)}
    return {*found, *again, *given}


def mark_of(text: str, start: int) -> str:
    """Return why the block that starts here is not run; empty if it is."""
    before = text[:start].rstrip()
    own = [m for m in MARK.finditer(before[-400:]) if m.end() == len(before[-400:])]
    if own:
        return own[0]["reason"]
    part = before[max(before.rfind("\n## "), 0) :]
    whole = [m["reason"] for m in MARK.finditer(part) if m["part"]]
    return whole[-1] if whole else ""
