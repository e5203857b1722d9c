"""What docs/speed.md says of bf16's accuracy is what the record says."""

from __future__ import annotations

import pytest
from benchmarks import precision, sections


def made_up(**accuracies):
    runs = {
        f"{name} / {seed}": {"accuracy": accuracy, "loss": 1.0}
        for name, own in accuracies.items()
        for seed, accuracy in zip(precision.SEEDS, own, strict=True)
    }
    return {"runs": runs}


def test_the_difference_is_paired_by_seed():
    record = made_up(fp32=(0.5, 0.6, 0.7), bf16=(0.51, 0.6, 0.69))
    found = precision.difference(record)
    assert found.mean == pytest.approx(0.0)
    assert found.interval == pytest.approx([-2.484, 2.484], abs=1e-3)  # 4.303 * 1 / sqrt(3)
    assert "| bf16 | 51.00 % (loss 1.000) |" in precision.table(record)
    begin, end = precision.MARKS
    page = precision.written(f"before\n{begin}\nold\n{end}\nafter", record)
    assert page == f"before\n{begin}\n{precision.table(record)}\n{end}\nafter"


def test_the_page_has_the_table_of_the_record():
    record = sections.read(precision.RECORD)
    assert record["settings"] == precision.SETTINGS
    assert {run["arithmetic"] for run in record["runs"].values()} != {""}
    assert precision.table(record) in precision.PAGE.read_text()
