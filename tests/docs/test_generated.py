"""Pages that commands write are what these commands would write now; what they are made of is documented."""

from __future__ import annotations

import inspect
import statistics

import pytest
from benchmarks import choosing, reference, sections

import intarsia
from intarsia.cli.catalogue import KINDS, TABLES, explained, settings_rows
from tests.docs.pages import DOCS


@pytest.mark.parametrize(
    ("name", "written"), [("settings", reference.settings_page), ("api", reference.api_page)]
)
def test_the_reference_is_up_to_date(name, written):
    assert (DOCS / f"{name}.md").read_text() == written(), "run: python -m benchmarks.reference"


def test_every_setting_has_a_sentence():
    parts = [(name, where) for where, kinds in KINDS.values() for name in kinds] + [(t, t) for t in TABLES]
    rows = [
        row for name, where in parts for e in explained(name) if e["kind"] == where for row in e["settings"]
    ]
    assert not [row["setting"] for row in (*rows, *settings_rows()) if not row["meaning"]]


def test_every_public_name_has_a_docstring():
    named = {name: getattr(intarsia, name) for name in intarsia.__all__ if name != "__version__"}
    assert not [name for name, found in named.items() if not (inspect.getdoc(found) or "").strip()]
    members = {
        f"{name}.{key}": value
        for name, found in named.items()
        if inspect.isclass(found)
        for key, value in vars(found).items()
        if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }
    assert not [name for name, value in members.items() if not value.__doc__]


def test_the_tables_of_choosing_are_those_of_the_record():
    page, record = choosing.PAGE.read_text(), sections.read(choosing.RECORD)
    assert page == choosing.written(page, record), "run: python -m benchmarks.choosing --page"
    for name, situation in choosing.SITUATIONS.items():
        wanted = {f"{case} / {seed}" for case in situation.cases for seed in choosing.SEEDS}
        assert record[name].keys() == wanted


def test_what_choosing_says_of_its_tables_is_so():
    record = sections.read(choosing.RECORD)

    def figures(situation: str, case: str) -> choosing.Figures:
        return choosing.figures(record[situation], case)

    def accuracy(situation: str, case: str) -> float:
        return statistics.mean(figures(situation, case).accuracy)

    labels, generations = "labels", "generations"
    assert accuracy(labels, "fedavg") < accuracy(labels, "local") < accuracy(labels, "modfl")
    assert figures(labels, "modfl").accuracy == figures(labels, "modfl, cohorts found").accuracy
    assert figures(labels, "clustered_fl").accuracy == figures(labels, "fedavg").accuracy
    cases = choosing.SITUATIONS[generations].cases
    above = [case for case in cases if accuracy(generations, case) > accuracy(generations, "local")]
    assert above == ["modfl"]
    assert max(figures("models", case).behind for case in ("fedmd", "fedkemf")) < 0.1
    sent = {case: figures("models", case).traffic for case in choosing.SITUATIONS["models"].cases}
    assert sorted(sent, key=sent.__getitem__)[:2] == ["local", "fedgh"]


def test_figures_of_choosing_by_hand():
    runs = {
        "local": [[1, 2], [4, 4], [2, 4]],
        "own": [[2, 2], [3, 4], [2, 4]],
    }
    sent = {"up": 6 * choosing.ROUNDS, "down": 3 * choosing.ROUNDS}
    entries = {
        f"{case} / {seed}": {"right": right, "bytes": sent}
        for case, right in runs.items()
        for seed in choosing.SEEDS
    }
    found = choosing.figures(entries, "own")
    assert found.accuracy == pytest.approx((0.75,) * 3)
    assert found.tenth == pytest.approx((0.55,) * 3)
    assert found.behind == pytest.approx(1 / 3)
    assert found.traffic == 3
