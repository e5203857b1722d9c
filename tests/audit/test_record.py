"""The page of audits is what its record says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.audit import CASES, PAGE, PROTECTIONS, RECORD, tables, with_tables


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())["rows"]
    return found


def test_the_tables_are_those_of_the_record(rows: dict[str, Any]) -> None:
    page = PAGE.read_text()
    assert page == with_tables(page, tables(rows)), "run: python -m benchmarks.audit --pages"


def test_every_case_was_tried_with_every_protection(rows: dict[str, Any]) -> None:
    assert rows.keys() == {f"{case}, {protection}" for case in CASES for protection in PROTECTIONS}


def test_every_audit_is_of_the_run_itself_and_found_no_own_block_in_a_message(rows: dict[str, Any]) -> None:
    done = {name: row for name, row in rows.items() if "refused" not in row}
    assert done
    for name, row in done.items():
        assert row["replayed"] == "to the last bit", name
        assert row["own_blocks_in_messages"] == [], name


def test_secure_sums_take_single_updates_from_the_server(rows: dict[str, Any]) -> None:
    for name, row in rows.items():
        if name.endswith("secure sums") and "refused" not in row:
            assert row["view"] == "sum", name
            assert "single update" not in {r["target"] for r in row.get("membership", ())}, name
