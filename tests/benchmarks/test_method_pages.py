"""The pages of methods say what the code does: pictures, settings, commands, what travels, deviations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.method_pages import parts
from benchmarks.method_pages.described import PAGES, PICTURES, described
from benchmarks.method_pages.drawing import draw
from benchmarks.method_pages.pages import INDEX, PROBLEMS, Book, filled, lacking
from benchmarks.method_pages.scene import Scene

from intarsia.core import DataError
from tests.golden.plays import RECORD, platform_words

ROOT = PAGES.parents[1]
BY_WEIGHTS = {"clustered_fl", "fedmn", "fedmn_plus", "pfedclub", "pfedclub_plus", "pfedhr"}
"""Pages whose pictures depend on what was learned: on another platform than ours they may differ."""


@pytest.fixture(scope="module")
def book() -> Book:
    return Book.played()


@pytest.fixture(scope="module")
def here() -> bool:
    return json.loads(RECORD.read_text())["platform"] == platform_words()


def test_every_page_and_picture_is_what_the_code_does(book, here):
    written = {p: text for p, text in book.files.items() if here or p.stem not in BY_WEIGHTS}
    assert len(written) > 20
    stale = [path.name for path, text in written.items() if not path.exists() or path.read_text() != text]
    assert not stale, "run: python -m benchmarks.method_pages"


def test_every_method_has_a_page_and_every_page_a_method():
    assert not lacking(), "write docs/methods/NAME.md like the others, and its table in methods.toml"
    told = described()
    assert {path.stem for path in PAGES.glob("*.md")} == {INDEX.stem, *told}
    assert {path.stem for path in PICTURES.iterdir()} == told.keys()
    assert {own.problem for own in told.values()} == PROBLEMS.keys()


def test_a_run_that_shares_otherwise_is_seen(book):
    scene = book.scenes["modfl"]
    moved = replace(scene.people[0], tiles=scene.people[1].tiles)
    other = Book({**book.scenes, "modfl": replace(scene, people=(moved, *scene.people[1:]))})
    changed = {path.name for path, text in other.files.items() if text != book.files[path]}
    assert changed == {"modfl.svg", "modfl.md"}


def test_a_page_without_a_place_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n")
    with pytest.raises(DataError, match=r"one place '<!-- run -->', and has 0"):
        filled(page, {"run": "intarsia"})


def shared_with(scene: Scene) -> dict[str, set[str]]:
    return {
        address: {person.name for person in scene.people for tile in person.tiles if tile.address == address}
        for address in scene.pool
    }


def test_pictures_show_who_shares_what(book):
    assert shared_with(book.scenes["modfl"]) == {
        "configuration@4x4": {"client-02", "client-03"},
        "configuration@8x8": {"client-00", "client-01"},
        "operation@cohort-0": {"client-00", "client-02"},
        "operation@cohort-1": {"client-01", "client-03"},
    }
    assert {person.home for person in book.scenes["fedper"].people} == {("head@me",)}
    assert {person.home for person in book.scenes["pfedme"].people} == {("personal",)}
    assert book.scenes["adapters"].trips[0].once == ("frozen",)
    assert {round(tile.share, 1) for p in book.scenes["heterofl"].people for tile in p.tiles} == {0.5, 1.0}
    assert any(len({p.owner for p in person.teacher}) > 1 for person in book.scenes["pfedhr"].people)
    for scene in book.scenes.values():
        assert not any("@me" in address for address in scene.pool)
        assert not {name.partition("@")[0] for p in scene.people for name in p.home} & {
            name for trip in scene.trips for name in (*trip.up, *trip.down) if name != "gates"
        }


def test_a_colour_is_an_address(book):
    """In the drawing itself: tiles of one colour bear one address, and the server's chip has it, too."""
    tile = re.compile(r'class="tile (c\d)"/>\n<text [^>]*>([^<]*)</text>(?:\n<text [^>]*>(@[^<]*)</text>)?')
    drawn = {"".join(found[1:]): found[0] for found in tile.findall(draw(book.scenes["modfl"]))}
    assert drawn.keys() == set(book.scenes["modfl"].pool)
    assert len(set(drawn.values())) == len(drawn)


def test_settings_have_sentences_and_searches_name_settings():
    for own in described().values():
        rows = [row for kind in parts.explained_of(own) for row in kind]
        assert all(row["meaning"] for row in rows), own.page
        searched = set(re.findall(r"--grid (\S+?)=\S+", own.tune))
        assert searched, own.page
        assert searched <= {"training.lr", *(row["setting"] for row in rows)}, own.page


def test_clauses_end_at_full_stops_and_semicolons_outside_brackets():
    text = "a b (c; d. E); f = 1.5; see eq. 3. `g` is h: i."
    assert parts.clauses(text) == ["a b (c; d. E).", "f = 1.5.", "see eq. 3.", "`g` is h: i."]


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
