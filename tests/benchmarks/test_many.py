"""The figures of very many clients: the page has those of the record, and the record holds what is claimed."""

from __future__ import annotations

import json

from benchmarks.many import METHODS, PAGE, RECORD, SIZES, filled


def test_the_page_has_the_figures_of_the_record():
    page = PAGE.read_text()
    assert filled(page, json.loads(RECORD.read_text())) == page


def test_a_round_and_the_memory_do_not_grow_with_the_clients():
    record = json.loads(RECORD.read_text())
    for method in METHODS:
        ratio, many = record[method]["ratio"], record[method][str(SIZES[-1])]
        assert ratio["round_processor_ms"] <= 1.15
        assert max(ratio["server_mib"], ratio["worker_mib"]) <= 1.15
        assert many["start_processor_seconds"] < 10


def test_the_folder_grows_with_its_tables_and_with_who_took_part():
    """FedAvg keeps nothing of clients but their records; FedPer one head for each that has trained."""
    seen = record_of_long("fedavg")
    assert seen[-1]["state"] <= 0.25 * seen[-1]["tables"]
    head = 4 * (100 * 10 + 10) + 2000
    for one in record_of_long("fedper"):
        assert one["state"] <= min(50 * one["round"], SIZES[-1]) * head + 1e6


def record_of_long(method: str) -> list[dict[str, float]]:
    """Return what was seen of a long run, round by round."""
    seen = json.loads(RECORD.read_text())["long"][method]["by_round"]
    return [{"round": int(at), **own} for at, own in seen.items()]
