"""The documentation site builds strictly, asks nothing of the network, and finds what is looked for without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zensical", reason="needs Zensical: pip install 'intarsia[docs]'")

from benchmarks import site as site_builder

from tests.report.conftest import browser  # noqa: F401


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, as `make docs` builds it."""
    site_builder.build(site_builder.ROOT / "site")
    return site_builder.ROOT / "site"


def test_the_site_has_every_page_and_what_it_links_to(site):
    assert (site / "trust" / "sent.html").exists()
    assert "def main()" in (site / "files" / "examples" / "own_method.py.txt").read_text()
    assert "intarsia.open_run" in (site / "api.html").read_text()


def test_search_and_pages_work_without_network_or_server(site, browser: Any):  # noqa: F811
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator("button:has-text('Search')").first.click()
    page.get_by_role("combobox").fill("trimmed")
    page.get_by_text("Which merge").wait_for(timeout=20_000)  # a heading of docs/trust/hostile.md
    page.goto((site / "choosing.html").as_uri())
    assert page.locator("img[src$='choosing.svg']").evaluate("picture => picture.naturalWidth") > 0
    page.close()
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def test_what_is_foreign_or_dead_is_noticed(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="none.html">x</a><script src="https://far.example/a.js"></script>'
    )
    (tmp_path / "a.css").write_text(
        "@import 'https://far.example/b.css'; p { background: url(data:image/png;base64,) }"
    )
    assert list(site_builder.dead(tmp_path)) == ["index.html: none.html is not there"]
    assert [fault.partition(": ")[0] for fault in site_builder.foreign(tmp_path)] == ["index.html", "a.css"]
