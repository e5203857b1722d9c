"""The report of a study: one table, paper beside ours, one picture, one page."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from pathlib import Path

from intarsia.core import write_atomically
from intarsia.papers.runner import Results
from intarsia.papers.study import Cell
from intarsia.report import html_page, html_section, html_table, pictures


def number(value: float | None) -> str:
    """Return a figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


def spread(cell: Cell) -> str:
    """Return our mean and deviation, and what must be said with it."""
    deviation = f" ± {cell.std:.2f}" if cell.std is not None else ""
    return number(cell.ours) + deviation + (f" ({cell.remark})" if cell.remark else "")


def write_report(results: Results, out: Path) -> Path:
    """Write the picture and the page beside `table.json`; return the page."""
    study, cells = results.study, results.cells()
    picture = out / "figure.png"
    lines = _lines(_drawn([c for c in cells if not study.beside(c.row)]))
    draw = {"bars": pictures.bars, "lines": pictures.lines, "points": pictures.points}[study.picture]
    draw(lines, study.title, study.columns, study.values, picture)
    image = base64.b64encode(picture.read_bytes()).decode()
    left = "".join(f"<li>{html.escape(f'{t}: {why}')}</li>" for t, why in results.left_out.items())
    lead = (
        f"Scale {html.escape(results.scale)}. {html.escape(study.values)}; ours: mean and deviation over seeds, "
        "after the last round."
    )
    body = (
        html_section("Paper and ours", _table(cells, study.columns))
        + html_section(
            "Picture", f"<img alt='{html.escape(study.title)}' src='data:image/png;base64,{image}'>"
        )
        + (html_section("Left out", f"<ul>{left}</ul>") if left else "")
    )
    text = html_page(study.name, study.title, lead, body)
    write_atomically(out / "index.html", text.encode())
    return out / "index.html"


def _drawn(cells: list[Cell]) -> list[Cell]:
    """Return the cells of a picture: of rows and columns that have a figure of ours, if any has."""
    ours = [cell for cell in cells if cell.ours is not None]
    rows, columns = {cell.row for cell in ours}, {cell.column for cell in ours}
    return [cell for cell in cells if cell.row in rows and cell.column in columns] or cells


def _lines(cells: Iterable[Cell]) -> dict[str, list[pictures.Point]]:
    lines: dict[str, list[pictures.Point]] = {}
    for cell in cells:
        lines.setdefault(cell.row, []).append(pictures.Point(cell.column, cell.ours, cell.std, cell.paper))
    return lines


def _table(cells: list[Cell], columns: str) -> str:
    rows = [(c.row, c.column, number(c.paper), spread(c), str(c.seeds)) for c in cells]
    return html_table(("", columns, "paper", "ours", "seeds"), rows)
