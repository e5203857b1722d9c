"""What docs/fleet.md says of its table is what the record says."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
from benchmarks import fleet_clock, sections

RECORD = sections.read(fleet_clock.RECORD)


def ends(case: str) -> list[dict[str, Any]]:
    return [RECORD["runs"][f"{case} / {seed}"] for seed in fleet_clock.SEEDS]


def hours(case: str, target: float | None = None) -> float:
    """Return mean hours to an accuracy, or in all; endless where a seed never came there."""
    found = [
        fleet_clock.hours_to(run["curve"], target) if target else run["curve"][-1][0] for run in ends(case)
    ]
    return float("inf") if None in found else fmean(found)


def last(case: str) -> float:
    return fmean(run["curve"][-1][1] for run in ends(case))


def sent(case: str) -> float:
    return fmean(sum(run["bytes"].values()) for run in ends(case))


def test_the_table_is_that_of_the_record_and_the_record_that_of_the_settings():
    page = fleet_clock.PAGE.read_text()
    assert page == fleet_clock.written(page, RECORD), "run: python -m benchmarks.fleet_clock --page"
    assert RECORD["settings"] == {"common": fleet_clock.COMMON, "cases": dict(fleet_clock.CASES)}
    assert set(RECORD["runs"]) == {f"{c} / {s}" for c in fleet_clock.CASES for s in fleet_clock.SEEDS}


def test_what_the_page_says_is_so():
    one, unwaiting, adapted = "fedavg", "fedbuff, modfl's sharing", "modfl, adapters"
    assert sent("modfl") == sent(one)
    assert hours("modfl") == hours(one)
    assert all(hours("modfl", mark) < hours(one, mark) for mark in fleet_clock.TARGETS)
    assert all(fleet_clock.hours_to(run["curve"], 0.9) is None for run in ends(one))
    for mark in fleet_clock.TARGETS:
        assert hours(unwaiting, mark) == min(hours(case, mark) for case in fleet_clock.CASES)
    assert last("modfl") - 0.02 < last(unwaiting) < last("modfl")
    assert hours(adapted) < hours("modfl") / 2
    assert sent(adapted) == pytest.approx(sent("modfl") / 4, rel=0.1)
    assert last(adapted) < last("modfl")
    assert hours(adapted, 0.7) == pytest.approx(hours("modfl", 0.7), rel=0.1)
    assert all(hours("fedmn", mark) >= hours(case, mark) for case in (one, "modfl") for mark in (0.7, 0.8))
    assert sent("fedmn") == pytest.approx(3 * sent(one), rel=0.1)
    first, late = "fedavg, the first 20 of 30", "fedavg, 40 seconds"
    assert hours(first) == pytest.approx(hours(one) / 3, rel=0.05)
    assert all(0.33 < run["counted"]["4x4"][0] / run["counted"]["4x4"][1] < 0.4 for run in ends(first))
    assert hours(late) == pytest.approx(hours(one) / 2, rel=0.05)


def test_hours_to_an_accuracy_by_hand():
    assert fleet_clock.hours_to([[1.0, 0.5], [2.0, 0.8], [3.0, 0.7]], 0.7) == 2.0
    assert fleet_clock.hours_to([[1.0, 0.5]], 0.7) is None
