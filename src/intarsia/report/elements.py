"""What pages are made of: sections, tables, and the frame around them."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TypeVar

from intarsia.report.charts import chart_library
from intarsia.report.styles import theme_rules

T = TypeVar("T")
SCRIPTS = ("page.js", "drawing.js", "client.js", "clients.js", "mosaic.js", "flow.js")
"""What makes pages live, in this order."""
STYLES = ("page.css", "people.css")
FIGURE = re.compile(r"(loss )?[-+]?\d[\d.,]*( ± [\d.,]+)?( ?(%|[kMG]?B|points))?|-?")
"""What stands in a column of figures."""
PLAIN = re.compile(r"[\w\s:,.()?=-]*", re.ASCII)
"""A heading that a link can be made of."""


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names the rows; columns of figures stand right, all others left."""
    listed = list(rows)
    looks = [_look(cells) for cells in zip(*listed, strict=True)] or [""] * len(heads)
    head = "".join(
        f"<th scope='col'{look}>{html.escape(h)}</th>" for h, look in zip(heads, looks, strict=True)
    )
    body = "".join(
        f"<tr><th scope='row'>{html.escape(first)}</th>"
        + "".join(f"<td{look}>{html.escape(cell)}</td>" for cell, look in zip(rest, looks[1:], strict=True))
        + "</tr>"
        for first, *rest in listed
    )
    return table_of(head, body)


def _look(cells: Sequence[str]) -> str:
    return "" if all(FIGURE.fullmatch(cell) for cell in cells) else " class='words'"


def folded(title: str, content: str, opened: bool = False) -> str:
    """Return what is shown when it is asked for, or at once; both are HTML already."""
    return f"<details{' open' if opened else ''}><summary>{title}</summary>{content}</details>"


def chip(colour: str) -> str:
    """Return a dot in a colour of the theme, which stands before a name."""
    return f"<span class='chip' style='--own:var({colour})'></span>"


def table_of(head: str, body: str) -> str:
    """Return a table that scrolls where it is too wide; its head and body are HTML already."""
    return f"<div class='wide' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def at_least_wide(content: str) -> str:
    """Return a drawing that scrolls within its card where that is too narrow for it; it is HTML already."""
    return f"<div class='wide' tabindex='0'><div class='least'>{content}</div></div>"


def html_section(heading: str, content: str) -> str:
    """Return a section of a page; its heading and content are HTML already. A live page takes over what is newer."""
    version = hashlib.sha256(content.encode(errors="replace")).hexdigest()[:16]
    title = f"<h2>{heading}</h2>" if heading else ""
    return (
        f'<section id="{_named(html.unescape(heading))}" data-version="{version}">{title}{content}</section>'
    )


def _named(heading: str) -> str:
    """Return what a section is called in links; headings that differ in what links cannot have differ in a hash."""
    name = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
    return (
        name
        if PLAIN.fullmatch(heading)
        else f"{name}-{hashlib.sha256(heading.encode(errors='replace')).hexdigest()[:6]}"
    )


def html_page(title: str, heading: str, lead: str, body: str, scripts: Sequence[str] = SCRIPTS) -> str:
    """Return a page in our style that asks nobody for anything; the lead and the body are HTML already.

    It allows no script but those that it carries, so that a name can never become one.
    """
    room = resources.files("intarsia.report")
    texts = [chart_library(), *((room / "script" / name).read_text() for name in scripts)]
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in texts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{theme_rules()}{_styles()}</style>"
        + "".join(f"<script>{text}</script>" for text in texts)
        + '</head><body><header><button type="button" id="theme" data-part="theme">Colours</button>'
        + f"<h1>{html.escape(heading)}</h1><p class='lead'>{lead}</p>"
        + '<nav id="contents" aria-label="Contents" data-part="contents"></nav></header>'
        + f"<main>{body}</main></body></html>\n"
    )


def _styles() -> str:
    return "".join((resources.files("intarsia.report") / name).read_text() for name in STYLES)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def evenly(items: Sequence[T], number: int) -> list[T]:
    """Return as many items, evenly spread from the first to the last; all where there are no more."""
    if len(items) <= number:
        return list(items)
    return [items[i * (len(items) - 1) // (number - 1)] for i in range(number)]
