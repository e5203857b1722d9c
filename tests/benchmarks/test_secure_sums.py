"""The figures of docs/trust/secure_sums.md are those of the record, and its list of methods is that of the code."""

from __future__ import annotations

import json

from benchmarks import secure_sums, secure_sums_docs


def test_the_page_has_the_figures_of_the_record():
    page, record = secure_sums_docs.PAGE.read_text(), json.loads(secure_sums.RECORD.read_text())
    assert secure_sums_docs.filled(page, record) == page
    assert "yes" in secure_sums_docs.agreement(record)


def test_a_figure_that_changed_is_seen():
    page, record = secure_sums_docs.PAGE.read_text(), json.loads(secure_sums.RECORD.read_text())
    next(iter(record["cost"].values()))["ratio"] += 1
    assert secure_sums_docs.filled(page, record) != page


def test_every_run_that_was_compared_was_equal():
    record = json.loads(secure_sums.RECORD.read_text())
    assert all(found["equal"] for part in record.values() for found in part.values())
    for found in record["agreement"].values():
        assert found["failed"][0] == found["failed"][1]


def test_a_case_is_measured_once(tmp_path, monkeypatch):
    """What the record has is not measured again; the smallest case is, for real."""
    monkeypatch.setattr(secure_sums, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(secure_sums, "CLIENTS", (4,))
    monkeypatch.setattr(secure_sums, "SHARES", (0.1,))
    monkeypatch.setattr(secure_sums, "MODELS", {"10 thousand": [8]})
    record: secure_sums.Record = {"cost": {}, "agreement": {}}
    secure_sums.measure(record, 1)
    assert record["agreement"]["4 clients, 10% drop out"]["equal"]
    found = record["cost"]["4 clients, 10 thousand parameters"]
    assert found["equal"]
    assert found["masked kB"][0] > found["plain kB"][0]
    before = json.dumps(record)
    secure_sums.measure(record, 1)
    assert json.dumps(record) == before == json.dumps(json.loads((tmp_path / "record.json").read_text()))
