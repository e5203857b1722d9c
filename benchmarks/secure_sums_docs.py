"""Puts the figures of `secure_sums.json` into docs/trust/secure_sums.md: `python -m benchmarks.secure_sums_docs`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.secure_sums import RECORD

from intarsia.cli.catalogue import secure_sums_rows
from intarsia.core import write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "trust" / "secure_sums.md"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cost(record: dict[str, Any]) -> str:
    """Return what masks cost, case by case."""
    sides = ["plain", "masked"]
    heads = ["clients and model", "s, plain", "masked", "ratio", "processor, ms"]
    heads += [f"kB {way}, {side}" for way in ("up", "down") for side in sides]
    rows = []
    for name, found in record["cost"].items():
        (up, down), (masked_up, masked_down) = found["plain kB"], found["masked kB"]
        sizes = [f"{size:,.0f}" for size in (up, masked_up, down, masked_down)]
        seconds = [f"{found[side]:.2f}" for side in ("plain seconds", "masked seconds")]
        rows.append(
            [name, *seconds, f"{found['ratio']:.1f}", f"{found['more processor ms a client']:.0f}", *sizes]
        )
    return table(heads, rows)


def agreement(record: dict[str, Any]) -> str:
    """Return whether runs agree bit for bit, whoever drops out."""
    rows = [
        [name, str(found["failed"][1]), "yes" if found["equal"] else "**no**"]
        for name, found in record["agreement"].items()
    ]
    return table(["clients", "failed in 3 rounds", "equal"], rows)


def methods() -> str:
    """Return which methods can use it, and why others cannot."""
    rows = [[f"`{row['name']}`", row["secure sums"], row["summary"]] for row in secure_sums_rows()]
    return table(["method", "secure sums", "why not"], rows)


def filled(page: str, record: dict[str, Any]) -> str:
    """Return the page with all tables in their places."""
    for name, text in {"cost": cost(record), "agreement": agreement(record), "methods": methods()}.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
    return page


def main() -> None:
    """Write the tables into the page."""
    write_atomically(PAGE, filled(PAGE.read_text(), json.loads(RECORD.read_text())).encode())


if __name__ == "__main__":
    main()
