"""Runs while they go on: a server that shows them, and the page in a run's own folder."""

from intarsia.report.live.page_file import PAGE, PageFile, draw_page, write_page
from intarsia.report.live.server import Watching, watching

__all__ = ["PAGE", "PageFile", "Watching", "draw_page", "watching", "write_page"]
