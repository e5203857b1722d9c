"""What hostile clients do to FedAvg and ModFL, and what each merge bears: `python -m benchmarks.attacks`.

    python -m benchmarks.attacks [--out benchmarks/attacks.json] [--part NAME ...] [--tables]

Runs of 20 rounds on scikit-learn's digits, 40 clients; figures are the mean accuracy of the honest clients' own models.
The merge that is recommended was chosen by the part `choice`, on seeds that no other part has. A stopped command goes
on where it was; `--tables` runs nothing and writes the tables of docs/trust/hostile.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.attacks import ATTACKS, LOT, NONE, Case, Record, accuracies, cases_of

RECORD = Path(__file__).with_name("attacks.json")
PAGE = Path(__file__).parents[1] / "docs" / "trust" / "hostile.md"
COMMON: dict[str, Any] = {
    "rounds": 20,
    "model": {"name": "mlp", "hidden": [64, 32]},
    "training": {"lr": 0.2, "epochs": 3, "batch_size": 8},
    "engine": {"name": "local", "workers": 1},
    "evaluation": {"every": 20, "metrics": []},
    "checkpoints": {"every": 20},
}
SKEWED = {"name": "digits"}
MILD = {"name": "digits", "generations": ["8x8"], "labels": 8}
BASES: dict[str, dict[str, Any]] = {
    "FedAvg": {**COMMON, "method": "fedavg", "population": MILD},
    "ModFL": {**COMMON, "method": "modfl", "population": SKEWED},
}
RECOMMENDED = "median, mixing"
GUARDS: dict[str, list[str]] = {
    "mean": [],
    "mean, norm auto": ["defence={norm='auto', norm_times=1.0}"],
    "median": ["merge=median"],
    "multi-krum": ["merge=multi-krum"],
    "trimmed, mixing": ["merge={name='trimmed', mixing=true}"],
    RECOMMENDED: ["merge={name='median', mixing=true}"],
}
MIXED: dict[str, list[str]] = {
    "trimmed, mixing": GUARDS["trimmed, mixing"],
    RECOMMENDED: GUARDS[RECOMMENDED],
    "multi-krum, mixing": ["merge={name='multi-krum', mixing=true}"],
}
HARDEST = [NONE, "flip", "ipm", "alie", "minmax", "free-rider"]
"""The attacks by which the recommended merge was chosen."""
SHOWN = [NONE, "flip", "flip-x5", "ipm"]
"""The attacks that every merge is tried with."""
USUAL = [NONE] + [name for name, attack in ATTACKS.items() if not (attack.answers or attack.one_cohort)]
SEEDS, OTHER_SEEDS = (0,), (100,)
MISSES: dict[str, dict[str, Any]] = {
    "FedAvg, 4 of 10 labels a client": {**COMMON, "method": "fedavg", "population": {**MILD, "labels": 4}},
    "ModFL, 3 holders a cohort": {
        **COMMON,
        "method": "modfl",
        "population": {**SKEWED, "clients": 30, "cohorts": 10},
    },
}
PUBLIC = {"name": "digits", "generations": ["8x8"], "public": 0.1}
POOL = {"name": "module_pool", "features": 64, "hidden": 64}
ANSWERING: dict[str, dict[str, Any]] = {
    "FedMN (gates)": {**COMMON, "method": "fedmn", "population": MILD, "model": POOL},
    "FedMD (scores)": {**COMMON, "method": "fedmd", "population": PUBLIC},
    "FedGH (class means)": {**COMMON, "method": "fedgh", "population": MILD},
}


def parts() -> dict[str, Iterator[Case]]:
    """Return the cases of every part."""
    best = {name: GUARDS[name] for name in ("mean", "trimmed, mixing", RECOMMENDED)}
    both = {name: GUARDS[name] for name in ("mean", RECOMMENDED)}
    return {
        "choice": cases_of(BASES, {"mean": [], **MIXED}, HARDEST, [0.2], OTHER_SEEDS),
        "best": cases_of(BASES, best, USUAL, [0.2], SEEDS),
        "grid": cases_of(BASES, GUARDS, SHOWN, [0.2], SEEDS),
        "misses": _misses(both),
        "tenth": cases_of(BASES, both, SHOWN, [0.1], SEEDS),
        "answers": cases_of(ANSWERING, {"mean": []}, [NONE, "answers"], [0.2], SEEDS),
    }


def _misses(both: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    few = [NONE, "flip-x5", "ipm"]
    yield from cases_of(MISSES, both, few, [0.2], SEEDS)
    yield from cases_of({"ModFL": BASES["ModFL"]}, both, few[1:], [0.2], SEEDS, LOT)
    yield from cases_of({"ModFL": BASES["ModFL"]}, both, ["cohort"], [0.1, 0.2], SEEDS)


def table_of_attacks(
    rows: Iterable[Mapping[str, Any]], base: str, share: float, guards: Sequence[str]
) -> str:
    """Return accuracies, a row an attack and a column a guard."""
    own = [dict(row) for row in rows if row["base"] == base and row["attack"] in USUAL]
    found = accuracies(own, "attack", "share", "guard")
    lines = [(a, share) for a in USUAL if any(key[:2] == (a, share) for key in found)]
    body = [[attack, *(_cell(found, attack, part, guard) for guard in guards)] for attack, part in lines]
    return _markdown([f"{base}, {share:.0%} attackers", *guards], body)


def _cell(found: Mapping[tuple[Any, ...], float], *key: Any) -> str:
    return f"{100 * found[key]:.1f}" if key in found else "-"


def _markdown(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of_misses(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return where the recommended merge does not help, or not enough."""
    own = [
        dict(row) for row in rows if row["base"] in MISSES or row["place"] == LOT or row["attack"] == "cohort"
    ]
    found = accuracies(own, "base", "place", "attack", "share", "guard")
    keys = list(dict.fromkeys((r["base"], r["place"], r["attack"], r["share"]) for r in own))
    body = [
        [
            base + (", attackers by lot" if place == LOT else ""),
            attack,
            f"{share:.0%}",
            *(_cell(found, base, place, attack, share, guard) for guard in ("mean", RECOMMENDED)),
        ]
        for base, place, attack, share in sorted(keys, key=lambda key: (key[0], key[1], key[3], key[2]))
    ]
    return _markdown(["run", "attack", "attackers", "mean", RECOMMENDED], body)


def table_of_losses(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return what the worst attack costs, in points below the plain mean without one, by seed."""
    body = []
    for base in BASES:
        for seed in (*SEEDS, *OTHER_SEEDS):
            own = [dict(r) for r in rows if (r["base"], r["seed"], r["share"]) == (base, seed, 0.2)]
            found = accuracies(
                [r for r in own if r["place"] != LOT and r["attack"] in USUAL], "guard", "attack"
            )
            line = [base, str(seed)]
            for guard in ("mean", RECOMMENDED):
                worst = min((value, attack) for (whose, attack), value in found.items() if whose == guard)
                line.append(f"{100 * (found['mean', NONE] - worst[0]):.1f} ({worst[1]})")
            body.append(line)
    return _markdown(["method", "seed", "mean", RECOMMENDED], body)


def table_of_answers(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return what poisoned gates, scores and class means do."""
    found = accuracies([dict(r) for r in rows if r["base"] in ANSWERING and r["share"]], "base", "attack")
    body = [[base, *(_cell(found, base, attack) for attack in ("none", "answers"))] for base in ANSWERING]
    return _markdown(["method", "none", "20 % poison"], body)


def tables(record: Record) -> dict[str, str]:
    """Return the tables of the page, by name."""
    grid = [row for row in record.rows.values() if row["seed"] in SEEDS and row["place"] != LOT]
    choice = [row for row in record.rows.values() if row["seed"] in OTHER_SEEDS and row["attack"] in HARDEST]
    found = {
        f"{base.lower()}-{round(100 * share)}": table_of_attacks(grid, base, share, guards)
        for base in BASES
        for share, guards in ((0.1, ["mean", RECOMMENDED]), (0.2, list(GUARDS)))
    }
    found |= {
        f"choice-{base.lower()}": table_of_attacks(choice, base, 0.2, ["mean", *MIXED]) for base in BASES
    }
    rows = [row for row in record.rows.values() if row["seed"] in SEEDS]
    found["losses"] = table_of_losses(record.rows.values())
    return found | {"misses": table_of_misses(rows), "answers": table_of_answers(rows)}


def with_tables(page: str, record: Record) -> str:
    """Return the page with its tables as the record has them."""
    for name, text in tables(record).items():
        marks = re.escape(f"<!-- {name} -->"), re.escape("<!-- end -->")
        page = re.sub(f"{marks[0]}.*?{marks[1]}", f"<!-- {name} -->\n{text}\n<!-- end -->", page, flags=re.S)
    return page


def main() -> None:
    """Run what is missing, then write the page's tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--part", choices=list(parts()), action="append")
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    record = Record(asked.out)
    for name, cases in {} if asked.tables else parts().items():
        if not asked.part or name in asked.part:
            record.play(
                cases, lambda row: print({k: v for k, v in row.items() if k != "settings"}, flush=True)
            )
    PAGE.write_text(with_tables(PAGE.read_text(), record))


if __name__ == "__main__":
    main()
