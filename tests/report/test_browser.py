"""Pages in a real browser: they fit, sort, search, open clients, go through rounds, and obey the keyboard."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.report import html_page, html_section, page, views_of
from intarsia.report.figures import MOST_SERIES, chart, lines_figure
from tests.report.conftest import PHONE
from tests.report.sample import HOSTILE, NAMES, found_and_alone, hostile

Axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
DRAWN = "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[intarsia.Run]:
    return found_and_alone(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def both(runs: list[intarsia.Run]) -> Path:
    """The page of a run beside the same clients alone."""
    path = runs[0].path.parent / "both.html"
    path.write_text(page("Both", "lead", views_of(runs)))
    return path


@pytest.fixture(scope="module")
def found(runs: list[intarsia.Run]) -> Path:
    """The page of the run alone that found cohorts."""
    path = runs[0].path.parent / "found.html"
    path.write_text(page("Found", "lead", views_of(runs[:1])))
    return path


def rows(run: intarsia.Run, table: str) -> list[dict[str, Any]]:
    """Return a table of the run folder, read without any code of ours."""
    return [json.loads(line) for line in (run.path / f"{table}.jsonl").read_text().splitlines()]


def accuracies(run: intarsia.Run, last: int = 3) -> dict[str, float]:
    return {
        r["client"]: r["accuracy"]
        for r in rows(run, "metrics")
        if (r["round"], r["split"], r["stage"]) == (last, "test", "own")
    }


def draw_all(shown: Any) -> None:
    """Scroll to the end, so that every chart is drawn."""
    shown.evaluate("document.querySelectorAll('details').forEach((own) => (own.open = true))")
    for section in shown.locator("main > section").all():
        section.scroll_into_view_if_needed()
    shown.wait_for_function(DRAWN)


def test_a_page_fits_and_can_be_used_by_everybody(opened, both):
    """Light and dark on a desk, dark on a phone: nothing sticks out, and axe-core finds nothing serious."""
    shown = opened(both)
    draw_all(shown)
    assert sticking_out(shown) == []
    assert complaints(shown) == []
    light = ground(shown)
    shown.emulate_media(color_scheme="dark")
    assert (light, ground(shown)) == ("rgb(246, 245, 242)", "rgb(22, 24, 27)")
    assert complaints(shown, runOnly=["color-contrast"]) == []
    shown.set_viewport_size(dict(zip(("width", "height"), PHONE, strict=True)))
    shown.wait_for_function("document.querySelector('.plot .main-svg').clientWidth < 390")
    assert sticking_out(shown) == []


def ground(shown: Any) -> str:
    return str(shown.evaluate("getComputedStyle(document.body).backgroundColor"))


def sticking_out(shown: Any) -> list[str]:
    """Return what is wider than the window, or than its card."""
    wide = "[...document.querySelectorAll('section')].filter((own) => own.scrollWidth > own.clientWidth)"
    return [*([] if shown.evaluate(FITS) else ["page"]), *shown.evaluate(f"{wide}.map((own) => own.id)")]


def complaints(shown: Any, **options: Any) -> list[tuple[str, str]]:
    """Return what axe-core finds serious; what is within a drawing is one image to those who cannot see it."""
    asked = {"resultTypes": ["violations"], **options}
    found = Axe().run(shown, context={"exclude": [[".main-svg"]]}, options=asked).response["violations"]
    return [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]


def test_clients_are_sorted_searched_and_opened(opened, both, runs):
    shown = opened(both)
    names = "[...document.querySelectorAll('#clients-table tbody tr')].map((tr) => tr.dataset.client)"
    own, alone = accuracies(runs[0]), accuracies(runs[1])
    best = runs[0] if sum(own.values()) >= sum(alone.values()) else runs[1]
    assert (
        shown.locator("#clients select").input_value() == {"modfl": "ModFL", "local": "Local"}[best.path.name]
    )
    shown.locator("#clients select").select_option("ModFL")
    worst_first = shown.evaluate(names)
    assert [own[name] for name in worst_first] == sorted(own.values())
    shown.get_by_role("button", name="Accuracy", exact=True).click()
    assert [own[name] for name in shown.evaluate(names)] == sorted(own.values(), reverse=True)
    assert shown.locator("th[data-key=accuracy]").get_attribute("aria-sort") == "descending"
    shown.get_by_role("button", name="Client", exact=True).click()
    assert shown.evaluate(names) == sorted(own)
    gains = shown.evaluate(
        "[...document.querySelectorAll('#clients-table tbody tr')].map((tr) => tr.children[[...document.querySelectorAll"
        "('#clients-table thead th')].findIndex((th) => th.dataset.key === 'gain-accuracy')].textContent)"
    )
    told = [f"{100 * (own[name] - alone[name]):+.1f}".replace("-", "\N{MINUS SIGN}") for name in sorted(own)]
    assert gains == [text if text != "+0.0" else "0.0" for text in told]
    shown.get_by_role("searchbox").fill("CLIENT-03")
    assert shown.evaluate(names) == ["client-03"]
    assert shown.get_by_role("status").first.inner_text() == "1 client of 8"
    shown.get_by_role("searchbox").fill("nobody")
    assert shown.evaluate(names) == []


def test_an_opened_client_tells_what_its_run_folder_says(opened, found, runs):
    shown = opened(found)
    (row,) = [
        r
        for r in rows(runs[0], "judged")
        if (r["client"], r["split"], r["stage"]) == ("client-03", "test", "own")
    ]
    button = shown.get_by_role("button", name="client-03", exact=True)
    button.focus()
    shown.keyboard.press("Enter")
    dialog = shown.locator("dialog.client")
    assert dialog.locator("h2").inner_text() == "client-03"
    table = dialog.locator("table.confusion")
    said = [h.inner_text() for h in table.locator("thead th").all()][1:]
    counted = Counter[tuple[str, str]]()
    for line in table.locator("tbody tr").all():
        label, *cells = line.locator("th, td").all_inner_texts()
        counted.update({(label, s): int(n) for s, n in zip(said, cells, strict=True) if n != "·"})
    assert counted == {(str(t), str(s)): n for t, s, n in row["tally"]["confusion"]}
    facts = dict(
        zip(dialog.locator("dt").all_inner_texts(), dialog.locator("dd").all_inner_texts(), strict=True)
    )
    assert facts["Accuracy"] == f"{100 * row['metrics']['accuracy']:.1f} %"
    assert facts["Majority label"] == f"{100 * row['usual']['accuracy']:.1f} %"
    blocks = dialog.locator("svg.graph .name").all_text_contents()
    assert blocks == ["configuration", "operation"]
    dialog.locator("#client-course .main-svg").first.wait_for()
    assert complaints(shown) == []
    drawn = shown.evaluate("document.querySelector('#client-course .plot').data.map((own) => [own.x, own.y])")
    history = [r for r in rows(runs[0], "metrics") if (r["split"], r["stage"]) == ("test", "own")]
    assert drawn[1][0] == [1, 2, 3]
    assert drawn[1][1] == pytest.approx(
        [r["accuracy"] for r in history if r["client"] == "client-03"], abs=5e-4
    )
    means = [sum(r["accuracy"] for r in history if r["round"] == n) / 8 for n in (1, 2, 3)]
    assert drawn[0][1] == pytest.approx(means, abs=5e-4)
    shown.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert shown.evaluate("document.activeElement.textContent") == "client-03"


COLOURS = """(canvas) => {
  const pen = canvas.getContext("2d");
  const [many, row] = [8, 44];
  const at = (client, block) => [((client + 0.5) * canvas.width) / many, (block * row + 6) * devicePixelRatio];
  return [0, 1].map((block) => [...Array(many).keys()].map((client) => [...pen.getImageData(...at(client, block), 1, 1).data].join()));
}"""


def test_the_slider_goes_through_the_rounds(opened, found, runs):
    """Cohorts are found after the second round: before, everyone shares the operation module."""
    shown = opened(found)
    canvas, slider = shown.locator(".mosaic canvas"), shown.locator(".mosaic input[type=range]")
    clients = json.loads(shown.locator("#mosaic-part > script").text_content())[0]["clients"]
    moves = [
        (r["round"], r["client"], r["group"]) for r in rows(runs[0], "groups") if r["block"] == "operation"
    ]
    assert {round for round, _, _ in moves} == {2}
    after = {client: group for _, client, group in moves}
    devices = {
        n: c["device"]
        for n, c in json.loads((runs[0].path / "population.json").read_text())["clients"].items()
    }
    assert slider.input_value() == "3"
    for round, groups in (
        (3, after),
        (2, after),
        (1, dict.fromkeys(clients, "all")),
        (0, dict.fromkeys(clients, "all")),
    ):
        slider.fill(str(round))
        configuration, operation = canvas.evaluate(COLOURS)
        assert _alike(configuration) == _alike([devices[name] for name in clients])
        assert _alike(operation) == _alike([groups[name] for name in clients])
    slider.fill("2")
    canvas.focus()
    for place, name in enumerate(clients):
        shown.keyboard.press("ArrowRight")
        if place == 0:
            shown.keyboard.press("ArrowDown")
        others = sum(group == after[name] for group in after.values()) - 1
        whom = f"group {after[name]}: shared with {others} other" if others else "kept by the server"
        assert f"{name}, operation: {whom}" in shown.locator("#mosaic-words").inner_text()
    shown.get_by_role("button", name=f"Open {clients[-1]}").click()
    assert shown.locator("dialog.client h2").inner_text() == clients[-1]
    shown.keyboard.press("Escape")
    flow = shown.locator(".flow-of svg")
    assert flow.locator("text.round").all_text_contents() == ["start", "round 2"]
    sizes = Counter(after.values())
    assert flow.locator(".bar title").all_text_contents()[1:] == [
        f"{group}: {count} client{'s' if count > 1 else ''}" for group, count in sorted(sizes.items())
    ]


def _alike(values: list[str]) -> list[int]:
    """Return which of some values are the same, by when each came first."""
    return [values.index(value) for value in values]


def test_series_and_themes_are_switched(opened, tmp_path):
    many = [(f"line {n}", [(1, n / 10), (2, n / 12)]) for n in range(MOST_SERIES + 2)]
    path = tmp_path / "lines.html"
    path.write_text(html_page("t", "t", "", html_section("Lines", chart(lines_figure("y", many)))))
    shown = opened(path)
    shown.locator(".plot .main-svg").first.wait_for()
    drawn = "document.querySelector('.plot').data.map((own) => [own.name, own.visible, own.line.color, own.line.width])"
    first = shown.evaluate(drawn)
    assert len({colour for _, _, colour, _ in first[:MOST_SERIES]}) == MOST_SERIES
    assert {(colour, width) for _, _, colour, width in first[MOST_SERIES:]} == {(first[-1][2], 1)}
    shown.get_by_role("button", name="line 3").click()
    assert [own[0] for own in shown.evaluate(drawn) if own[1] is False] == ["line 3"]
    shown.get_by_role("button", name="line 3").press("Enter")
    assert all(own[1] for own in shown.evaluate(drawn))
    shown.get_by_text("2 more, drawn in grey").click()
    shown.get_by_role("button", name="line 9").click()
    assert shown.evaluate(drawn)[9][3] == 2
    theme = shown.get_by_role("button", name="Colours")
    grounds = []
    for _ in range(3):
        theme.click()
        grounds.append((theme.inner_text(), ground(shown)))
    light, dark = "rgb(246, 245, 242)", "rgb(22, 24, 27)"
    assert grounds == [("Colours: light", light), ("Colours: dark", dark), ("Colours: auto", light)]
    theme.click()
    theme.click()
    assert shown.evaluate(drawn)[0][2] != first[0][2]


def test_a_newer_page_takes_over_what_changed_and_keeps_what_was_chosen(opened, found, runs):
    """What `Intarsia.update` inserts is wired up as the page itself is."""
    shown = opened(found)
    shown.get_by_role("button", name="Client", exact=True).click()
    shown.locator(".mosaic input[type=range]").fill("1")
    shown.evaluate("void (window.kept = document.getElementById('settings'))")
    text = found.read_text().replace("client-03", "client-09")
    start = text.index('<section id="clients"')
    newer = text[:start] + text[start:].replace('data-version="', 'data-version="newer', 2)
    shown.evaluate("(text) => Intarsia.update(text)", newer)
    names = shown.evaluate(
        "[...document.querySelectorAll('#clients-table tbody tr')].map((tr) => tr.dataset.client)"
    )
    assert names == sorted(name.replace("client-03", "client-09") for name in runs[0].clients)
    assert shown.locator(".mosaic input[type=range]").input_value() == "1"
    assert shown.evaluate("window.kept === document.getElementById('settings')")
    shown.get_by_role("button", name="client-09", exact=True).click()
    assert shown.locator("dialog.client h2").inner_text() == "client-09"


def test_names_do_nothing(opened, tmp_path_factory):
    run = hostile(tmp_path_factory.mktemp("evil"))
    path = run.path.parent / "evil.html"
    path.write_text(page(HOSTILE, "lead", views_of([run])))
    shown = opened(path, PHONE)
    draw_all(shown)
    for name in NAMES:
        button = shown.locator("#clients-table button.link").filter(has_text=name)
        button.click()
        assert shown.locator("dialog.client h2").text_content() == name
        shown.keyboard.press("Escape")
    shown.locator(".mosaic canvas").hover(position={"x": 5, "y": 5})
    shown.locator("main .plot").last.hover()
    assert shown.evaluate("typeof hacked") == "undefined"
    assert shown.locator("img").count() == 0
    assert shown.evaluate(FITS)
    assert shown.title() == HOSTILE
