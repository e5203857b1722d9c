"""The figures of docs/trust/faults.md are those of the records."""

from __future__ import annotations

from benchmarks import faults_page, sections


def test_the_page_has_the_figures_of_the_records():
    page = faults_page.PAGE.read_text()
    assert faults_page.filled(page) == page, "python -m benchmarks.faults_page"
    assert page.count("<!-- figures") == len(faults_page.PARTS)


def test_the_records_show_no_fault():
    kills, fuzz = (sections.read(faults_page.ROOT / "benchmarks" / f"{n}.json") for n in ("kills", "fuzz"))
    parts = ("kills", "damages", "disks", "clocks", "flower")
    assert not [entry for part in parts for entry in kills.get(part, []) if entry["found"]]
    assert not {name: own["foreign"] for name, own in fuzz["decoders"].items() if own["foreign"]}
