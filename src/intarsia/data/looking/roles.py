"""Which column names the client, the time and what is to be predicted: told, or guessed from names and cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.core import DataError, suggest
from intarsia.data.cells import is_missing
from intarsia.data.looking.columns import Seen
from intarsia.data.population import SPLITS, Problem
from intarsia.data.sources.readers import ABOUT
from intarsia.data.tables import Table

CLIENTS = (
    "client truck machine maschine vehicle fahrzeug car bus plane ship unit site user patient subject station plant "
    "asset robot meter person node house store shop customer hospital turbine engine pump sensor writer"
)
TIMES = "time timestamp date datetime ts when moment day at"
TARGETS = (
    "label target class y outcome state status fault failure result diagnosis quality condition worn defect anomaly "
    "category score"
)
"""Names that columns of each role often have, the likeliest first."""
FEW_LABELS = 20
"""Whole numbers with more different values than this are something to measure, not labels."""
MOST_WORDS = 100


@dataclass
class Roles:
    """What columns are; `unsure` says what was guessed without a name that tells."""

    client: str = ""
    target: str = ""
    time: str = ""
    problem: Problem = "classification"
    unsure: list[str] = field(default_factory=list)


def roles_of(columns: Mapping[str, Seen], told: Mapping[str, str], one_file: bool, table: Table) -> Roles:
    """Return the roles of columns: as told by option, else guessed."""
    for option, name in told.items():
        if name and name not in columns:
            raise DataError(f"--{option}: there is no column '{name}'{suggest(name, columns)}")
    roles = Roles(told["client"], told["target"], told["time"])
    free = {name: column for name, column in columns.items() if name not in told.values()}
    roles.time = roles.time or _time(list(free.values()))
    free.pop(roles.time, None)
    called = named_for_client(list(free.values()))
    roles.target = roles.target or _target([c for c in free.values() if c.name != called], roles)
    free.pop(roles.target, None)
    if one_file and not roles.client:
        roles.client = _client(list(free.values()), roles)
    roles.problem = _problem(columns[roles.target], roles)
    if one_file and not roles.client:
        raise DataError(
            f"{table.source}: no column seems to name the client (whose row it is); there are: {', '.join(columns)}: "
            f"say which it is with --client COLUMN{_one_client(list(free.values()))}, or give a folder with a file for "
            "each client, which is then called as its file"
        )
    return roles


def _named(columns: Sequence[Seen], usual: str) -> Seen | None:
    """Return the column whose name is first among usual ones; a word of its name may stand for it."""
    names = usual.split()
    for name in names:
        for column in columns:
            if column.name.strip().lower() == name:
                return column
    for column in columns:
        if set(column.name.lower().replace("-", "_").replace(" ", "_").split("_")) & set(names):
            return column
    return None


def named_for_client(columns: Sequence[Seen]) -> str:
    """Return the column that is called as what names clients, or an id that several rows share; else nothing."""
    able = [column for column in columns if _can_be_client(column)]
    found = _named(able, CLIENTS) or next((c for c in able if c.name.lower().endswith("id")), None)
    return "" if found is None else found.name


def _can_be_client(column: Seen) -> bool:
    names = column.kind in ("words", "mixed") or column.whole
    shared = 1 < column.distinct <= column.rows / 2 and not column.missing
    return names and shared and column.name not in (*ABOUT, "split")


def _one_client(columns: Sequence[Seen]) -> str:
    """Say which column makes the whole file one client's, if one can."""
    same = [c.name for c in columns if c.constant and c.kind in ("words", "mixed")]
    return (
        f" ('{same[0]}' is the same in every row: --client {same[0]} makes all rows one client's)"
        if same
        else ""
    )


def _client(columns: Sequence[Seen], roles: Roles) -> str:
    if named := named_for_client(columns):
        return named
    alone = [c for c in columns if c.constant and (c.kind == "words" or c.whole) and c.name not in ABOUT]
    called = _named(alone, CLIENTS) or next((c for c in alone if c.name.lower().endswith("id")), None)
    if called is not None:
        roles.unsure.append(
            f"client: '{called.name}' is '{called.examples[0]}' in every row, so that all rows are one client's; say "
            "otherwise with --client COLUMN, or give a folder with a file for each client"
        )
        return called.name
    words = [column for column in columns if _can_be_client(column) and column.kind == "words"]
    if words:
        roles.unsure.append(f"client: '{words[0].name}' is a guess; say otherwise with --client COLUMN")
        return words[0].name
    return ""


def _time(columns: Sequence[Seen]) -> str:
    """Return a column of times; numbers count as such if they are called so and differ from row to row."""
    dated = [column for column in columns if column.kind == "time" and column.distinct > 1]
    ticking = [c for c in columns if c.kind == "number" and c.distinct > c.rows / 20 and not c.missing]
    found = _named(dated, TIMES) or next(iter(dated), None) or _named(ticking, TIMES)
    return found.name if found is not None and not found.missing else ""


def _target(columns: Sequence[Seen], roles: Roles) -> str:
    able = [c for c in columns if c.distinct > 1 and c.name not in (*ABOUT, "split") and c.kind != "time"]
    able = [c for c in able if not c.counts]
    if not able:
        raise DataError("no column is left that could be predicted: say which it is with --target COLUMN")
    named = _named(able, TARGETS)
    if named is not None:
        return named.name
    words = [c for c in able if c.kind == "words" and c.distinct <= FEW_LABELS]
    found = (words or able)[-1]
    roles.unsure.append(f"target: '{found.name}' is a guess; say otherwise with --target COLUMN")
    return found.name


def _problem(target: Seen, roles: Roles) -> Problem:
    if target.kind == "number" and (not target.whole or target.distinct > FEW_LABELS):
        return "regression"
    if target.kind == "number" and target.distinct > 10:
        roles.unsure.append(
            f"problem: '{target.name}' holds {target.distinct} whole numbers, taken for labels; for amounts set "
            'population.problem = "regression"'
        )
    return "classification"


def assign(columns: Mapping[str, Seen], roles: Roles, of_client: Mapping[str, Table]) -> dict[str, str]:
    """Give every column its role; return those to be left out, with the reason."""
    given = {roles.client: "client", roles.target: "target", roles.time: "time"}
    left: dict[str, str] = {}
    for column in columns.values():
        column.role = given.get(column.name, "feature")
        if column.role != "feature":
            continue
        if column.name == "split" and set(map(str.lower, column.examples)) <= set(SPLITS):
            column.role = "split"
        elif column.name in ABOUT and _one_each(column.name, of_client) and column.name != "model":
            column.role = column.name
        else:
            column.why = _reason_to_leave(column)
            if column.why and column.kind != "empty":
                left[column.name] = column.why
            column.role = "left out" if column.why else "feature"
    return left


def _one_each(name: str, of_client: Mapping[str, Table]) -> bool:
    tables = [table.columns.get(name, ()) for table in of_client.values()]
    return all(len({cell for cell in cells if not is_missing(cell)}) < 2 for cells in tables)


def _reason_to_leave(column: Seen) -> str:
    if column.kind == "empty":
        return "it is empty"
    if column.constant:
        return "it is the same in every row"
    if column.name == "model":
        return "a column 'model' names clients' networks; rename it to learn from it"
    if column.name in (*ABOUT, "split"):
        return f"a column '{column.name}' says something of clients, but differs within one; rename it to learn from it"
    if column.kind == "time":
        return "it holds times (population.time takes one such column)"
    if column.kind == "mixed":
        return f"it holds words among numbers, such as {column.odd}: put that right and take it in again"
    if column.counts and (column.kind == "words" or _steps(column)):
        return "it is another in every row, as a number of the row is"
    if column.kind == "words" and column.distinct > MOST_WORDS:
        return f"it holds {column.distinct} different words, too many for categories"
    return ""


def _steps(column: Seen) -> bool:
    """Return whether whole numbers, each once, fill their range as counting does, or are called so."""
    dense = column.high is not None and column.low is not None and column.high - column.low < 2 * column.rows
    return dense or column.name.lower().endswith(("id", "number", "nr", "index"))
