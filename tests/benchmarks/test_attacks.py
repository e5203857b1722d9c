"""What the page on hostile clients says is what the record has."""

from __future__ import annotations

from benchmarks.attacks import BASES, GUARDS, PAGE, RECOMMENDED, RECORD, USUAL, tables, with_tables

from intarsia.attacks import ATTACKS, Record


def test_the_page_has_the_tables_of_the_record():
    record = Record(RECORD)
    page = PAGE.read_text()
    assert with_tables(page, record) == page
    for text in tables(record).values():
        assert text in page


def test_every_attack_is_on_the_page():
    page = PAGE.read_text()
    assert all(name in page for name in ATTACKS)


def test_the_recommended_merge_was_measured_with_every_attack():
    rows = Record(RECORD).rows.values()
    found = {(row["base"], row["guard"], row["attack"]) for row in rows if row["share"] == 0.2}
    for base in BASES:
        for guard in ("mean", RECOMMENDED):
            assert found >= {(base, guard, attack) for attack in USUAL}
    assert RECOMMENDED in GUARDS
