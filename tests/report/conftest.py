"""A real browser for tests of pages: the system's Chromium, with nothing but what is on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)
LOCAL = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:", "http://localhost:")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; tests that need it are skipped where it is missing, unless REQUIRE_BROWSER=1.

    It ends with its module: while it is there, its thread counts as one with a running event loop.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        told = "no Chromium on this machine (Debian: apt-get install chromium)"
        pytest.fail(told) if os.environ.get("REQUIRE_BROWSER") else pytest.skip(told)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file or an address; at the end, no page may have asked for anything foreign or reported an error."""
    contexts, complaints = [], []

    def open_(
        what: Path | str, size: tuple[int, int] = DESKTOP, scheme: str = "light", **context: Any
    ) -> Any:
        own = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, **context
        )
        contexts.append(own)
        page = own.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(LOCAL) else complaints.append(asked.url)
        )
        page.goto(what.resolve().as_uri() if isinstance(what, Path) else what)
        return page

    yield open_
    for own in contexts:
        own.close()
    assert complaints == []
