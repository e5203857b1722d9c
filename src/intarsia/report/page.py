"""One HTML page about one or several runs; it needs nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from intarsia.report.about import about_parts
from intarsia.report.elements import html_page, html_section
from intarsia.report.holdings import holdings_parts
from intarsia.report.notices import notice_parts
from intarsia.report.people import people_parts
from intarsia.report.quality import quality_parts
from intarsia.report.results import result_table, task_table
from intarsia.report.run_view import RunView
from intarsia.report.sections.base import Part
from intarsia.report.series import series_of
from intarsia.report.traffic import traffic_parts
from intarsia.report.verdict import verdict_section


def page(title: str, lead: str, views: Sequence[RunView]) -> str:
    """Return the page: warnings, results, curves, traffic, what methods have to show, data, and how it was made."""
    body = "".join(html_section(name, content) for name, content in page_parts(views))
    return html_page(title, title, html.escape(lead), body)


def page_parts(views: Sequence[RunView]) -> list[Part]:
    """Return the sections of a page, from the top."""
    series = series_of(views)
    tables = {
        "Result": result_table(series),
        "By task": task_table(views) if any(view.tasks for view in views) else "",
        "Is it any good?": verdict_section(series),
    }
    return [
        *notice_parts(views),
        *((name, content) for name, content in tables.items() if content),
        *quality_parts(series),
        *people_parts(views),
        *traffic_parts(series),
        *(part for view in views for section in view.sections for part in section.parts(view.label)),
        *holdings_parts(views),
        *about_parts(series),
    ]
