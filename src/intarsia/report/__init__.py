"""Tables and pages about runs."""

from intarsia.report.page import page
from intarsia.report.tables import RunView, name_apart, view
from intarsia.report.words import percent, size

__all__ = ["RunView", "name_apart", "page", "percent", "size", "view"]
