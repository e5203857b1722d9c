"""The page on privacy says what the record and the code say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import privacy

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "trust" / "privacy.md"


@pytest.fixture(scope="module")
def record():
    return json.loads((HOME / "benchmarks" / "privacy.json").read_text())


def test_the_page_has_the_tables_of_the_record(record):
    page = PAGE.read_text()
    assert privacy.tables(record) in page
    assert privacy.noise_table(record) in page


def test_the_page_says_which_methods_are_covered():
    assert privacy.covered_table() in PAGE.read_text()


def test_every_run_is_there_and_kept_within_its_budget_by_both_accountants(record):
    runs = record["runs"].values()
    for method, bound in record["chosen"].items():
        for seed in privacy.SEEDS[method]:
            asked = {
                r["asked"]
                for r in runs
                if (r["method"], r["seed"]) == (method, seed) and r["bound"] in (0, bound)
            }
            assert asked == {0.0, *privacy.BUDGETS}
    for run in (r for r in runs if r["asked"]):
        assert run["epsilon"] <= run["asked"]
        assert run["second"] == pytest.approx(run["epsilon"], abs=0.03)
        assert run["releases"] == privacy.ROUNDS
