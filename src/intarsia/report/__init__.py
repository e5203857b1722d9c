"""Tables and pages about runs."""

from intarsia.report.decisions import Decisions, read_decisions
from intarsia.report.page import page
from intarsia.report.parts import html_table
from intarsia.report.pictures import decision_pictures
from intarsia.report.tables import RunView, name_apart, view
from intarsia.report.teacher_pictures import teacher_pictures
from intarsia.report.teachers import Reassembly, read_reassembly
from intarsia.report.words import mean_and_std, percent, size

__all__ = [
    "Decisions",
    "Reassembly",
    "RunView",
    "decision_pictures",
    "html_table",
    "mean_and_std",
    "name_apart",
    "page",
    "percent",
    "read_decisions",
    "read_reassembly",
    "size",
    "teacher_pictures",
    "view",
]
