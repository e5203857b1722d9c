"""What is at which address: the overview, pages of runs, and their sections alone."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any

from intarsia.report.elements import SCRIPTS, html_page
from intarsia.report.figures import as_data
from intarsia.report.live.folders import Found
from intarsia.report.live.guard import NOTHING, OF_PAGES
from intarsia.report.live.pages import Shown
from intarsia.report.live.watch import Watch

HTML = "text/html; charset=utf-8"
MOST_COMPARED = 12
"""How many runs one page compares."""
MARKS = ("\x00title\x00", "\x00heading\x00", "\x00lead\x00", "\x00body\x00")
Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Answer:
    """What a browser gets."""

    body: bytes
    kind: str = HTML
    policy: str = OF_PAGES
    version: str = ""
    status: HTTPStatus = HTTPStatus.OK


class Refusal(Exception):  # noqa: N818 - it is an answer
    """Why somebody gets nothing."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def answer_to(path: str, query: Query, watch: Watch) -> Answer:
    """Return what is at an address; whatever names nothing that is watched is not there."""
    match path.split("/")[1:]:
        case [""]:
            return overview(watch)
        case ["run", key]:
            return _page(watch, [_run(key, watch)])
        case ["run", key, "sections"]:
            return _sections(watch, [_run(key, watch)])
        case ["compare"]:
            return _page(watch, _runs(query, watch))
        case ["compare", "sections"]:
            return _sections(watch, _runs(query, watch))
    raise _nothing()


def keys_in(query: Query, watch: Watch) -> tuple[str, ...]:
    """Return the runs that a query names."""
    return tuple(found.key for found in _runs(query, watch)) if "run" in query else ()


def _nothing() -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, "there is nothing here: all runs are at /")


def _run(key: str, watch: Watch) -> Found:
    found = watch.find(key)
    if found is None:
        raise _nothing()
    return found


def _runs(query: Query, watch: Watch) -> list[Found]:
    keys = list(dict.fromkeys(query.get("run", ())))
    if not 1 <= len(keys) <= MOST_COMPARED:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"name from 1 to {MOST_COMPARED} runs: ?run=...&run=...")
    return [_run(key, watch) for key in keys]


def overview(watch: Watch) -> Answer:
    """Return the page of all runs."""
    about = {
        "runs": watch.standings(),
        "id": f"{watch.boot}-{watch.number}",
        "cut": watch.folders.cut,
        "most": MOST_COMPARED,
    }
    where = ", ".join(html.escape(str(root)) for root in watch.folders.roots)
    body = f'<section id="runs" data-version="live"><div data-part="runs">{as_data(about)}</div></section>'
    return Answer(_framed("Runs", "Runs", f"below {where}", body))


def _page(watch: Watch, runs: Sequence[Found]) -> Answer:
    """Return the page of one run, or of several side by side: the one that `intarsia compare` writes, and a strip."""
    shown = _drawn(watch, runs)
    return Answer(_framed(shown.drawn.title, shown.drawn.title, shown.drawn.lead, _body(watch, runs, shown)))


def _sections(watch: Watch, runs: Sequence[Found]) -> Answer:
    """Return what may be newer on such a page."""
    shown = _drawn(watch, runs)
    title = html.escape(shown.drawn.title)
    text = f"<!doctype html><title>{title}</title><p class='lead'>{shown.drawn.lead}</p>"
    body = f"{text}<main>{_body(watch, runs, shown)}</main>"
    return Answer(body.encode(errors="replace"), HTML, NOTHING, shown.version)


def _drawn(watch: Watch, runs: Sequence[Found]) -> Shown:
    return watch.pages.get([found.path for found in runs])


def _body(watch: Watch, runs: Sequence[Found], shown: Shown) -> str:
    keys = [found.key for found in runs]
    standings: dict[str, Any] = {own["key"]: own for own in watch.standings()}
    about = {
        "runs": [standings[key] for key in keys if key in standings],
        "id": f"{watch.boot}-{watch.number}",
        "page": shown.version,
        "sections": f"/run/{keys[0]}/sections" if len(keys) == 1 else "/compare/sections",
    }
    strip = f'<section id="standing" data-version="live"><div data-part="standing">{as_data(about)}</div></section>'
    return strip + shown.drawn.body


@cache
def _frame() -> str:
    text = html_page(*MARKS, scripts=(*SCRIPTS, "live.js", "overview.js"))
    head, close, body = text.rpartition("</head>")
    return (
        f"{head}<style>{(resources.files('intarsia.report') / 'live.css').read_text()}</style>{close}{body}"
    )


def _framed(title: str, heading: str, lead: str, body: str) -> bytes:
    text = _frame()
    for mark, own in zip(MARKS, (html.escape(title), html.escape(heading), lead, body), strict=True):
        before, _, after = text.partition(mark)
        text = f"{before}{own}{after}"
    return text.encode(errors="replace")
