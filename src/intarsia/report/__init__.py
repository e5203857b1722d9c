"""Tables and pages about runs."""

from intarsia.report.page import html_table, page
from intarsia.report.tables import RunView, name_apart, view
from intarsia.report.words import percent, size

__all__ = ["RunView", "html_table", "name_apart", "page", "percent", "size", "view"]
