"""Live pages in a real browser, while real runs go on."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.report.live import Watching, pages, watching
from tests.conftest import SMALL
from tests.report.conftest import PHONE

METHODS = ("fedavg", "fedper", "modfl")
FOUND = {"cohorts": "found", "number": 2, "after": 2}
"""Groups that change, so that the mosaic has a slider."""
ENOUGH = "enough"
PATIENCE = 90
"""Seconds that something may take on a machine that has much to do."""
EVIL = "<script>alert(1)<"


class Slow(intarsia.Observer):
    """Lets every round take its time, until somebody has seen enough."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wants_stop(self) -> bool:
        """Wait a moment."""
        time.sleep(0.4)
        return (self.folder.parent / ENOUGH).exists()


def play(folder: str, method: str) -> None:
    """Run a federation that takes its time."""
    path = Path(folder)
    sharing = FOUND if method == "modfl" else SMALL["sharing"]
    with intarsia.PageFile(path, Slow(path), draws=False) as told:
        intarsia.run({**SMALL, "rounds": 500, "method": method, "sharing": sharing}, out=path, observer=told)


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def going_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which three runs are going on, and one has ended before anybody watched."""
    home = tmp_path_factory.mktemp("runs")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["intarsia.api", "intarsia.report.live.drawing", "intarsia.report"])
    names = [*METHODS[:2], EVIL]
    players = [
        context.Process(target=play, args=(str(home / name), method))
        for name, method in zip(names, METHODS, strict=True)
    ]
    for player in players:
        player.start()
    intarsia.run(SMALL, out=home / "earlier")
    tables = [home / name / "seconds.jsonl" for name in names]
    until(lambda: all(table.exists() and table.stat().st_size for table in tables), "the runs begin")
    yield home
    (home / ENOUGH).touch()
    for player in players:
        player.join(60)
        player.kill()


@pytest.fixture
def shown(going_on: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    monkeypatch.setattr(pages, "SHARE", 1.0)
    server = watching([going_on])
    yield server
    server.close()


def rounds(page: Any) -> dict[str, int]:
    """Return how far the runs are that a page shows as running, by name, in its order."""
    rows = page.locator("#runs-table tr.running").all_inner_texts()
    named = page.locator("#runs-table tr.running a").all_inner_texts()
    told = page.locator("#runs-table tr.running [data-cell='round']").all_inner_texts()
    assert len(rows) == len(named) == len(told)
    return {name: int(text.split()[0]) for name, text in zip(named, told, strict=True)}


def test_the_overview_follows_three_runs_by_itself(shown, opened):
    page = opened(shown.address)
    page.locator("#runs-table tr.running").nth(2).wait_for()
    assert page.locator("#runs-table tr.finished a").all_inner_texts() == ["earlier"]
    page.locator("th[data-key='name'] button").click()
    page.locator("th[data-key='name'] button").click()
    page.locator("#runs-table tr input").nth(1).check()
    before = until(lambda: rounds(page), "runs are shown")
    assert list(before) == sorted(before, reverse=True)
    assert EVIL in before
    after = until(
        lambda: (now := rounds(page)) and all(now[n] > before[n] + 1 for n in before) and now, "all go on"
    )
    assert list(after) == list(before)
    assert page.locator("th[data-key='name']").get_attribute("aria-sort") == "descending"
    assert page.locator("#runs-table input:checked").count() == 1
    told = page.locator("#runs-table tr.running [data-cell='counted']").all_inner_texts()
    assert told == ["8 of 8 counted"] * 3
    page.locator("#runs input[type=search]").fill("fedper")
    until(lambda: page.locator("#runs-table tbody tr").count() == 1, "one is found")
    small = opened(shown.address, PHONE)
    small.locator("#runs-table tr.running").nth(2).wait_for()
    assert small.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_the_page_of_a_run_takes_newer_sections_in_and_keeps_what_was_opened(shown, opened):
    page = opened(shown.address)
    page.locator("#runs-table tr.running").nth(2).wait_for()
    until(lambda: rounds(page)[EVIL] > FOUND["after"], "groups are found")
    page.locator("#runs-table tr.running a", has_text=EVIL).click()
    page.locator("#clients-table tbody tr").nth(7).wait_for()
    page.locator("#clients-table th[data-key='client'] button").click()
    page.locator("#clients input[type=search]").fill("client-0")
    page.locator("#settings details summary").first.click()
    page.evaluate("window.same = document.querySelector('#settings')")
    page.locator("#mosaic input[type=range]").fill("1")
    page.locator("#clients-table tbody button").nth(2).click()
    name = page.locator("#client-name").inner_text()

    def version() -> str:
        return str(page.locator("#clients").get_attribute("data-version"))

    before, lead = version(), page.locator("header .lead").inner_text()
    until(lambda: version() != before, "newer sections come")
    until(lambda: page.locator("header .lead").inner_text() != lead, "the lead says how far it is")
    assert page.locator("#client-name").inner_text() == name
    page.locator("dialog .close").click()
    sorted_by = page.locator("#clients-table th[aria-sort]")
    assert sorted_by.get_attribute("data-key") == "client"
    assert page.locator("#clients input[type=search]").input_value() == "client-0"
    assert page.locator("#mosaic input[type=range]").input_value() == "1"
    assert page.locator("#settings details").first.get_attribute("open") is not None
    assert page.evaluate("window.same.isConnected"), "what did not change was not replaced"
    until(lambda: "8 of 8 clients counted" in page.locator("#standing").inner_text(), "the strip")


def test_runs_are_compared_live_in_the_dark(shown, opened):
    page = opened(shown.address, scheme="dark")
    for name in METHODS[:2]:
        page.get_by_label(f"Compare {name}", exact=True).check()
    page.locator("a.button").click()
    page.locator("#accuracy-by-round .plot .main-svg").first.wait_for()
    assert page.locator("#standing .head").count() == 2
    before = page.locator("#result").get_attribute("data-version")
    until(lambda: page.locator("#result").get_attribute("data-version") != before, "it goes on")


def test_a_page_says_when_the_server_is_gone_and_comes_back_by_itself(going_on, browser):
    first = watching([going_on])
    port = int(first.address.rstrip("/").rpartition(":")[2])
    page = browser.new_page()
    page.goto(first.address)
    page.locator("#runs-table tr.running").nth(2).wait_for()
    first.close()
    page.locator("#gone").wait_for(timeout=30_000)
    before = rounds(page)
    again = watching([going_on], port=port)
    page.locator("#gone").wait_for(state="detached", timeout=30_000)
    until(lambda: (now := rounds(page)) and all(now[n] > before[n] for n in before), "it goes on")
    page.close()
    again.close()
