"""Puts the figures of the records of studies into the documentation: `python -m benchmarks.papers_page`.

A page has a place for a table: a comment `<!-- figures: {...} -->`, whose JSON is a `Sheet` (or `{"claims": PAPER}`,
`{"tuned": FILES}`, `{"coverage": true}`, or `{"others": true}`, for all records that no other place of the page shows),
and a comment that ends it. What stands between is written by this command from `benchmarks/papers/`, where
`intarsia papers run NAME --record FILE` leaves what every run gave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from intarsia.core import DataError, write_atomically
from intarsia.judging.metrics import mean_interval
from intarsia.papers import STUDIES, Study, get
from intarsia.papers.record import Record, by_seed, read_record
from intarsia.papers.study import Place

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "papers"
PAGES = (ROOT / "docs" / "papers.md", ROOT / "docs" / "evidence.md")
PLACE = re.compile(r"(<!-- figures: (\{.*?\}) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
CHOICES = (
    "seeds",
    "sets",
    "methods",
    "rates",
    "norms",
    "kinds",
    "groups",
    "populations",
    "partitions",
    "settings",
    "splits",
    "zoos",
    "public",
)
"""What of a scale says which runs there are, not how they are; rates and norms are chosen for each set, and named with
it."""
Seeds = Mapping[int, float]
"""A figure by seed."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def recorded(pattern: str) -> dict[str, Record]:
    """Return the records of this name, by the names of their files."""
    found = {path.name: read_record(path) for path in sorted(RECORDS.glob(f"{pattern}.json"))}
    if not found:
        raise DataError(f"no record '{pattern}.json' lies in benchmarks/papers")
    return found


def figures(records: Mapping[str, Record]) -> tuple[Study, dict[Place, dict[int, float]]]:
    """Return the study of these records, and every figure by seed, with those that follow from several runs."""
    names = {record.study for record in records.values()}
    if len(names) > 1:
        raise DataError(f"one table cannot have records of several studies: {', '.join(sorted(names))}")
    check_scales(records)
    study = get(names.pop())
    found = by_seed(records.values())
    for seed in sorted({seed for own in found.values() for seed in own}):
        of_seed = {place: [own[seed]] for place, own in found.items() if seed in own}
        for place, values in study.derived(of_seed).items():
            found.setdefault(place, {})[seed] = values[0]
    return study, found


def scale_in(words: str) -> dict[str, str]:
    """Return what a scale's words say, by name, without what only chooses rows and columns."""
    said = re.findall(r"(\w+) (\[.*?\]|\{.*?\}|[^,]*)(?:, |$)", words.partition(": ")[2])
    return {key: value for key, value in said if key not in CHOICES}


def check_scales(records: Mapping[str, Record]) -> None:
    """Refuse records of different scales; what one of them does not know yet does not count."""
    (first, *others) = ((name, scale_in(record.scale)) for name, record in records.items())
    for name, scale in others:
        unlike = [key for key in first[1].keys() & scale.keys() if first[1][key] != scale[key]]
        if unlike:
            raise DataError(
                f"{first[0]} and {name} are of different scales ({min(unlike)}): name them in tables of their own"
            )


def gap(ours: Seeds, theirs: Seeds, digits: int = 1) -> str:
    """Return by how much one is above the other with the same seeds, with its interval (95 %)."""
    gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not gaps:
        return "-"
    around = mean_interval(gaps)
    half = f" ± {(around[1] - around[0]) / 2:.{digits}f}" if around else " (1 seed)"
    return f"{fmean(gaps):+.{digits}f}{half}"


@dataclass(frozen=True)
class Sheet:
    """What a page shows of some records."""

    records: str
    """Names of files in `benchmarks/papers`, without `.json`; `*` stands for anything."""
    rows: Sequence[str] = ()
    """Which rows, in which order (empty: all that are about what the study measures)."""
    columns: Sequence[str] = ()
    ending: str = ""
    """Only rows that end with this, which their names then leave out."""
    turned: bool = False
    """Whether the study's columns are rows here."""
    against: str = ""
    """A row: below the table stands by how much it is above every other."""
    digits: int = 1

    def text(self) -> str:
        """Return the table, differences, and where it all comes from."""
        return self.of(recorded(self.records))

    def of(self, records: Mapping[str, Record]) -> str:
        """Return the same of these records."""
        study, found = figures(records)
        cells = {self._seen(place): own for place, own in found.items() if self._shown(study, place)}
        paper = {self._seen(place): value for place, value in study.paper.items()}
        order = [
            self._seen(place)
            for place in study.order({place: list(own.values()) for place, own in found.items()})
        ]
        rows = self.rows or dict.fromkeys(row for row, column in order if (row, column) in cells)
        columns = self.columns or dict.fromkeys(c for r, c in order if (r, c) in cells)
        most = max(map(len, cells.values()))
        body = [
            [r, *(self._cell(cells.get((r, c), {}), paper.get((r, c)), most) for c in columns)] for r in rows
        ]
        text = table(["", *columns], body)
        if self.against:
            text += "\n" + self._differences(cells, rows, columns)
        return f"\n{text}\n{self._note(cells, paper)}{sources(records)}"

    def _seen(self, place: Place) -> Place:
        row, column = place[0].removesuffix(self.ending) if self.ending else place[0], place[1]
        return (column, row) if self.turned else (row, column)

    def _shown(self, study: Study, place: Place) -> bool:
        named = bool(self.columns if self.turned else self.rows)
        wanted = place[0].endswith(self.ending) if self.ending else named or not study.beside(place[0])
        row, column = self._seen(place)
        return wanted and (not self.rows or row in self.rows) and (not self.columns or column in self.columns)

    def _cell(self, own: Seeds, paper: float | None, most: int) -> str:
        if not own:
            return "-"
        values = list(own.values())
        text = f"{fmean(values):.{self.digits}f}"
        text += f" ± {stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        text += f" ({paper:.{self.digits}f})" if paper is not None else ""
        return text + (f" [{seeds_of(own)}]" if len(values) < most else "")

    def _differences(self, cells: Mapping[Place, Seeds], rows: Iterable[str], columns: Iterable[str]) -> str:
        others = [row for row in rows if row != self.against]
        body = [
            [
                row,
                *(
                    gap(cells.get((self.against, c), {}), cells.get((row, c), {}), self.digits)
                    for c in columns
                ),
            ]
            for row in others
        ]
        return table([f"{self.against} minus", *columns], body)

    def _note(self, cells: Mapping[Place, Seeds], paper: Mapping[Place, float]) -> str:
        words = ["Mean and deviation over seeds" if max(map(len, cells.values())) > 1 else "One seed"]
        words += ["in brackets the published figure"] if cells.keys() & paper.keys() else []
        words += ["differences: pairs of the same seed, with 95 % intervals"] if self.against else []
        return "; ".join(words) + ".\n"


def seeds_of(own: Iterable[int]) -> str:
    """Name seeds."""
    numbers = sorted(own)
    return ("seed " if len(numbers) == 1 else "seeds ") + ", ".join(map(str, numbers))


def sources(records: Mapping[str, Record]) -> str:
    """Return for each record its command, seeds, scale and versions."""
    lines = []
    for name, record in records.items():
        remark = f" **{record.remark}.**" if record.remark else ""
        versions = ", ".join(f"{package} {number}" for package, number in record.versions.items())
        seeds = seeds_of({entry.seed for entry in record.entries})
        lines.append(f"- `{name}`: `{record.command}`; {seeds}; {versions}.{remark} Scale {record.scale}.\n")
    return "\n" + "".join(lines)


def coverage() -> str:
    """Return for every study which of its figures have ours, and from which records."""
    records = [(path.stem, read_record(path)) for path in sorted(RECORDS.glob("*.json"))]
    rows = []
    for name, study in STUDIES.items():
        own = {stem: record for stem, record in records if record.study == name}
        found = by_seed(own.values()) if len({r.scale for r in own.values()}) == 1 else _all(own.values())
        beside = f"{len(found.keys() & study.paper.keys())} of {len(study.paper)}" if study.paper else "-"
        most = max(map(len, found.values()), default=0)
        told = ", ".join(f"`{stem}`" for stem in own) or f"none yet: `{first_command(study)}`"
        rows.append([f"`{name}`", study.title, str(len(found)), beside, str(most), told])
    heads = ["study", "what it is", "figures of ours", "published cells met", "seeds at most", "records"]
    return "\n" + table(heads, rows)


def first_command(study: Study) -> str:
    """Return what would write a study's first record."""
    scale = "medium" if "medium" in study.scales else next(iter(study.scales))
    file = f"benchmarks/papers/{study.name}-{scale}.json"
    return f"intarsia papers run {study.name} --scale {scale} --first-seed 10 --record {file}"


def _all(records: Iterable[Record]) -> dict[Place, dict[int, float]]:
    """Return figures of records at several scales: only how many there are counts."""
    found: dict[Place, dict[int, float]] = {}
    for record in records:
        for place, own in by_seed([record]).items():
            found.setdefault(place, {}).update(own)
    return found


def others(page: str) -> str:
    """Return a table for each study and scale whose records no other place of a page shows."""
    asked = [json.loads(found[2]) for found in PLACE.finditer(page)]
    shown = {path for own in asked if "records" in own for path in RECORDS.glob(f"{own['records']}.json")}
    groups: dict[tuple[str, str], dict[str, Record]] = {}
    for path in sorted(set(RECORDS.glob("*.json")) - shown):
        record = read_record(path)
        scale = json.dumps(scale_in(record.scale), sort_keys=True)
        groups.setdefault((record.study, scale), {})[path.name] = record
    return "".join(
        f"\n#### {get(study).title}\n{Sheet('').of(own)}" for (study, _), own in sorted(groups.items())
    )


def tuned(pattern: str) -> str:
    """Return what `intarsia tune` found on validation data, by file, and its commands."""
    found = {
        path.stem: json.loads(path.read_text())
        for path in sorted((RECORDS / "tuned").glob(f"{pattern}.json"))
    }
    rates = {
        stem: {t["point"]["training.lr"]: t["mean"] for t in own["trials"]} for stem, own in found.items()
    }
    heads = sorted({lr for own in rates.values() for lr in own})
    rows = [
        [stem, *(f"{100 * own[lr]:.1f}" if lr in own else "-" for lr in heads)] for stem, own in rates.items()
    ]
    commands = "".join(f"- `tuned/{stem}.json`: `{own['command']}`\n" for stem, own in found.items())
    return f"\n{table(['validation accuracy, % by learning rate', *map(str, heads)], rows)}\n{commands}"


def written(asked: Mapping[str, Any], page: str) -> str:
    """Return what stands in one place of a page."""
    from benchmarks.papers_claims import claims

    if asked.keys() == {"coverage"}:
        return coverage()
    if asked.keys() == {"others"}:
        return others(page)
    if asked.keys() == {"tuned"}:
        return tuned(asked["tuned"])
    return claims(asked["claims"]) if asked.keys() == {"claims"} else Sheet(**asked).text()


def filled(page: str) -> str:
    """Return a page with the figures of the records."""
    return PLACE.sub(lambda found: found[1] + written(json.loads(found[2]), page) + found[3], page)


if __name__ == "__main__":
    for path in PAGES:
        write_atomically(path, filled(path.read_text()).encode())
