"""The notebook runs, cell by cell, in a kernel of this interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_steps.ipynb"


def played(notebook, folder):
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    return ["".join(_texts(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def _texts(cell):
    for output in cell.outputs:
        yield from [output.text] if "text" in output else output.get("data", {}).values()


def test_the_notebook_runs_and_shows_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit it"
    which = nbformat.v4.new_code_cell("import sys\nprint(sys.executable)")
    notebook.cells.append(which)
    told = played(notebook, tmp_path)
    assert "mean accuracy" in told[0]
    assert "ModFL" in "".join(told)
    assert told[-1].strip() == sys.executable
    assert (tmp_path / "runs" / "client-03.safetensors").exists()


def test_a_cell_that_fails_is_noticed(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        played(notebook, tmp_path)
