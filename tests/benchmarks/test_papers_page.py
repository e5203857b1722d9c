"""Figures in the documentation of published experiments are those of the records."""

from __future__ import annotations

import re

import pytest
from benchmarks import papers_claims, papers_page
from benchmarks.papers_page import PLACE, Sheet, coverage, filled, gap

from intarsia.core import DataError
from intarsia.papers import STUDIES
from intarsia.papers.record import Entry, Record, read_record

MODFL, FEDX = ("ModFL cifar", "3"), ("FedX cifar", "3")


@pytest.mark.parametrize("path", papers_page.PAGES, ids=lambda path: path.name)
def test_the_page_has_the_figures_of_the_records(path):
    page = path.read_text()
    assert filled(page) == page, "python -m benchmarks.papers_page"
    assert page.count("<!-- figures") == len(PLACE.findall(page)) > 0


def test_the_evidence_has_no_figure_by_hand():
    """Outside of what is generated, and of commands, no number has a decimal point or an interval."""
    by_hand = re.sub(r"```.*?```", "", PLACE.sub("", papers_page.PAGES[1].read_text()), flags=re.DOTALL)
    assert not re.findall(r"\d\.\d|±", by_hand)


def test_every_record_is_of_a_study_and_says_where_it_comes_from():
    for path in papers_page.RECORDS.glob("*.json"):
        record = read_record(path)
        assert record.study in STUDIES
        assert record.command.startswith(f"intarsia papers run {record.study} --scale ")
        assert {"intarsia", "torch", "python"} <= record.versions.keys()
        assert record.entries
        assert all(len(entry.metrics) == 16 and entry.seed >= 10 for entry in record.entries), path.name


@pytest.fixture
def three_seeds(tmp_path, monkeypatch):
    """Records of ModFL's first table, made up: ModFL 70, 72, 74; FedX 69, 70, 71; Local with one seed."""
    monkeypatch.setattr(papers_page, "RECORDS", tmp_path)
    monkeypatch.setattr(papers_claims, "RECORDS", tmp_path)
    record = Record("modfl-table1", "tiny: clients 2", "intarsia papers run modfl-table1", "random base")
    for seed, ours, theirs in ((10, 70.0, 69.0), (11, 72.0, 70.0), (12, 74.0, 71.0)):
        record.entries.append(Entry("ModFL P=3", seed, "a", "b", [(*MODFL, ours)]))
        record.entries.append(Entry("FedPer P=3", seed, "a", "b", [(*FEDX, theirs)]))
    record.entries.append(Entry("Local P=3", 11, "a", "b", [("Local cifar", "3", 60.0)]))
    record.write(tmp_path / "modfl-table1-a.json")
    return tmp_path


def test_a_sheet_has_mean_deviation_paper_and_paired_differences(three_seeds):
    """Differences 1, 2, 3: mean 2, deviation 1, Student's 4.303 of two degrees: 4.303 / sqrt(3) = 2.5."""
    text = Sheet("modfl-table1-*", against="ModFL cifar").text()
    assert "| ModFL cifar | 72.0 ± 2.0 (78.3) |" in text
    assert "| FedX cifar | 70.0 ± 1.0 (71.2) |" in text
    assert "| Local cifar | 60.0 [seed 11] |" in text
    assert "| ModFL cifar minus | 3 |\n| --- | --- |\n| FedX cifar | +2.0 ± 2.5 |\n" in text
    assert "| Local cifar | +12.0 (1 seed) |" in text
    assert "`intarsia papers run modfl-table1`; seeds 10, 11, 12;" in text
    assert "**random base.**" in text
    assert gap({1: 1.0}, {2: 1.0}) == "-"
    assert "| 3 | 70.0 ± 1.0 (71.2) | 72.0" in Sheet("modfl-table1-*", turned=True).text()


def test_records_that_disagree_or_are_missing_are_refused(three_seeds):
    other = Record(
        "modfl-table1",
        "tiny: kinds [c], clients 2",
        entries=[Entry("ModFL P=3", 10, "a", "b", [(*MODFL, 71.0)])],
    )
    other.write(three_seeds / "modfl-table1-b.json")
    with pytest.raises(DataError, match="disagree about ModFL cifar, 3 with seed 10"):
        Sheet("modfl-table1-*").text()
    other = Record("modfl-table1", "tiny: clients 3, kinds [a, b]", entries=other.entries)
    other.write(three_seeds / "modfl-table1-b.json")
    with pytest.raises(
        DataError, match=r"a\.json and modfl-table1-b\.json are of different scales \(clients\)"
    ):
        Sheet("modfl-table1-*").text()
    with pytest.raises(DataError, match=r"no record 'modfl-table2\.json'"):
        Sheet("modfl-table2").text()


def test_records_that_no_place_shows_have_tables_of_their_own(three_seeds):
    """Two scales make two tables; what a place of the page shows already is left out."""
    Record(
        "modfl-table1", "tiny: clients 4", "c", entries=[Entry("ModFL P=3", 10, "a", "b", [(*MODFL, 50.0)])]
    ).write(three_seeds / "modfl-table1-b.json")
    rest = '<!-- figures: {"others": true} -->\n<!-- end of figures -->\n'
    page = filled(rest)
    assert page.count("#### ModFL, Table I") == 2
    assert "| ModFL cifar | 72.0 ± 2.0 (78.3) |" in page
    assert "| ModFL cifar | 50.0 (78.3) |" in page
    page = filled('<!-- figures: {"records": "modfl-table1-a"} -->\n<!-- end of figures -->\n' + rest)
    assert page.count("#### ModFL, Table I") == 1
    assert filled(page) == page


def test_verdicts_follow_from_intervals(three_seeds):
    """ModFL minus FedX is 2 ± 2.5: not settled against 0, below 5, above -1."""
    rows = papers_claims.claims("modfl")
    assert "| ModFL above FedX, cifar, P = 3 | +2.0 ± 2.5 | seeds 10, 11, 12 | not settled |" in rows
    assert "| ModFL above Local, cifar, P = 3 | +12.0 | seed 11 | not settled: one seed |" in rows
    assert "| ModFL above FedX, stl, P = 6 | - | - | not measured yet |" in rows
    gaps = (1.0, 2.0, 3.0)
    assert papers_claims.verdict(gaps, 5.0) == "**does not hold**"
    assert papers_claims.verdict(gaps, -1.0) == "**holds**"
    assert papers_claims.verdict(gaps[:2], -99.0) == "not settled: two seeds"
    assert papers_claims.Claim("later", "modfl-table1-*", MODFL, FEDX, since=11).values() == {
        11: 2.0,
        12: 3.0,
    }
    saved = papers_claims.Claim("bytes", "modfl-table1-*", FEDX, MODFL, saved=True).values()
    assert saved == {10: pytest.approx(100 / 70), 11: pytest.approx(200 / 72), 12: pytest.approx(300 / 74)}
    share = papers_claims.Claim("seconds", "modfl-table1-*", MODFL, saved=True).values()
    assert share[10] == pytest.approx(-6900)
    assert "| 3 | 2 of 14 | 3 | `modfl-table1-a` |" in coverage()
    first = "modfl-table2 --scale medium --first-seed 10 --record benchmarks/papers/modfl-table2-medium.json"
    assert f"| 0 | 0 of 18 | 0 | none yet: `intarsia papers run {first}` |" in coverage()
