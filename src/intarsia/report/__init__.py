"""Tables, pages and pictures about runs."""

from intarsia.report.elements import html_page, html_section, html_table
from intarsia.report.page import page
from intarsia.report.run_view import RunView, view, views_of
from intarsia.report.sections import SECTIONS, Section

__all__ = [
    "SECTIONS",
    "RunView",
    "Section",
    "html_page",
    "html_section",
    "html_table",
    "page",
    "view",
    "views_of",
]
