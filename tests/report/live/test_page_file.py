"""The page in a run's own folder, and what it costs the run."""

from __future__ import annotations

import json

import pytest

import intarsia
from intarsia.report.live import page_file
from intarsia.runs import TABLES
from tests.conftest import SMALL


class Told(intarsia.Observer):
    """Looks at the folder after every round."""

    def __init__(self, folder):
        self.folder, self.pages, self.now, self.rounds = folder, [], [], []

    def playing(self, what):
        self.rounds.append(what)

    def opened(self, folder):
        self.rounds.append(folder)

    def ended(self, summary):
        self.rounds.append(summary["rounds"])

    def replied(self, reply):
        self.now.append((self.folder / "now.json").exists())

    def round_done(self, report):
        self.rounds.append(report.round)
        self.pages.append((self.folder / "page.html").exists())


def test_a_run_with_a_page_is_the_same_run(tmp_path, monkeypatch, small_run):
    plain = small_run(out="plain")
    monkeypatch.setattr(page_file, "SHARE", 1e6)
    folder = tmp_path / "run"
    told = Told(folder)
    with intarsia.PageFile(folder, told) as page:
        done = intarsia.run(SMALL, out=folder, observer=page)
    assert told.rounds == [folder, 1, 2, 3, 3]
    assert told.pages == [False, True, True]  # told before a round's page is drawn
    assert any(told.now)
    assert not (folder / "now.json").exists()
    for table in set(TABLES) - {"seconds"}:
        assert (folder / f"{table}.jsonl").read_bytes() == (plain.path / f"{table}.jsonl").read_bytes()
    assert done.summary["accuracy"] == plain.summary["accuracy"]
    text = (folder / "page.html").read_text()
    assert "8 clients, 3 of 3 rounds" in text
    assert "<h1>FedAvg, run</h1>" in text
    assert intarsia.write_page(done, out=tmp_path / "x.html").read_text() == text
    assert "2 runs" in intarsia.write_page(done, plain.path, out=tmp_path / "two.html").read_text()


def test_pages_have_a_small_part_of_the_time(tmp_path, monkeypatch):
    drawn = []
    clock = iter(range(0, 10_000))
    monkeypatch.setattr(page_file.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(page_file, "draw_page", lambda folder: drawn.append(next(clock)) or True)
    page = intarsia.PageFile(tmp_path)
    report = intarsia.RoundReport(1, 9999, {}, {"up": 0, "down": 0}, [], {})
    for _ in range(1000):
        page.round_done(report)
    spent = 3 * len(drawn)  # each drawing: a tick before, one within, one after
    assert len(drawn) >= 2
    assert spent <= 0.03 * next(clock)


def test_what_goes_wrong_with_a_page_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(page_file, "SHARE", 1e6)
    monkeypatch.setattr(page_file, "page", lambda *_: 1 / 0)
    told = pytest.warns(intarsia.IntarsiaWarning, match=r"not drawn any more \(ZeroDivisionError")
    with told as found, intarsia.PageFile(folder) as page:
        done = intarsia.run(SMALL, out=folder, observer=page)
    assert sum("page.html" in str(warned.message) for warned in found) == 1
    assert done.summary["finished"]
    assert not (folder / "page.html").exists()
    monkeypatch.setattr(page_file, "MOST_BYTES", 10)
    with pytest.warns(intarsia.IntarsiaWarning, match="tables are larger"):
        assert page_file.draw_page(folder) is False


def test_a_run_that_was_stopped_has_a_page_as_far_as_it_came(tmp_path):
    class Stop(intarsia.Observer):
        def wants_stop(self):
            return True

    folder = tmp_path / "run"
    with intarsia.PageFile(folder, Stop()) as page:
        intarsia.run(SMALL, out=folder, observer=page)
    assert "8 clients, 1 of 3 rounds" in (folder / "page.html").read_text()
    with intarsia.PageFile(folder, draws=False) as page:
        intarsia.resume(folder, observer=page)
    assert "1 of 3 rounds" in (folder / "page.html").read_text()


def test_who_has_answered_is_written_while_an_exchange_goes_on(tmp_path):
    from intarsia.engines import Reply

    page = intarsia.PageFile(tmp_path)
    page.exchange_started(4, "train", 2)
    page.replied(Reply("a"))
    page.replied(Reply("<b>"))
    told = json.loads((tmp_path / "now.json").read_text())
    assert (told["round"], told["exchange"], told["asked"], told["count"]) == (4, "train", 2, 2)
    assert told["answered"] == ["a", "<b>"]
