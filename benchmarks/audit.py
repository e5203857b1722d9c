"""What blocks give away, by method, with and without privacy and secure sums: `python -m benchmarks.audit`.

    python -m benchmarks.audit [--cases fedavg modfl] [--protections plain] [--shadows 8] [--pages]

Small runs on scikit-learn's digits, each audited (`intarsia audit`). What is measured is written to
`benchmarks/audit.json` case by case; the same command goes on where it was stopped, and shadow runs are kept in
`benchmarks/.trials/audit`. In the end the tables of `docs/trust/audit.md` are written anew (`--pages`: only that).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import intarsia
from intarsia.audit import ATTACKS, Asked, audit
from intarsia.core import IntarsiaError, write_atomically

RECORD = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "trust" / "audit.md"
WORK = Path(__file__).with_name(".trials") / "audit"
SEED, SHADOWS, STEPS = 0, 8, 150
BASE = {
    "name": "audited",
    "seed": SEED,
    "rounds": 6,
    "population": {"name": "digits", "clients": 20, "cohorts": 2, "generations": ["8x8"], "test": 0.4},
    "model": {"name": "mlp", "hidden": [64]},
    "training": {"lr": 0.5, "batch_size": 16, "epochs": 5},
    "evaluation": {"every": 6},
    "engine": {"name": "debug", "device": "cpu"},
}
CNN = "model={name='cnn', channels=[8, 16], hidden=32}"
CASES: dict[str, list[str]] = {
    "fedavg": ["method=fedavg"],
    "modfl": ["method=modfl"],
    "modfl, cohorts found": ["method=modfl", "sharing.cohorts=found", "sharing.number=2"],
    "fedmn": ["method=fedmn", "model={name='module_pool', features=32, hidden=32}"],
    "pfedclub": [
        "method=pfedclub",
        "population.public=0.05",
        "population.models=['short', 'long']",
        "models.short={name='mlp', hidden=[64]}",
        "models.long={name='mlp', hidden=[64, 32]}",
        "method.tailoring.epochs=1",
        "method.search.most=2",
    ],
    "fedavg, cnn": ["method=fedavg", CNN, "training.lr=0.2"],
    "adapters, cnn": ["method=fedavg", CNN, "adapters=parallel", "training.lr=0.2"],
}
ONLY = {"modfl, cohorts found": ("labels",), "fedavg, cnn": ("labels", "inversion")}
"""Cases that are there for some attacks alone."""
FEWER = {"fedmn": 4, "pfedclub": 4, "adapters, cnn": 4}
"""Cases whose runs take long: so many shadow runs at most."""
PROTECTIONS: dict[str, list[str]] = {
    "plain": [],
    "privacy": ["privacy.clip=1.0", "privacy.noise=1.0"],
    "secure sums": ["secure_sums.on=true"],
}


def measure(case: str, protection: str, shadows: int) -> dict[str, Any]:
    """Run a case, and audit it; a protection that the method cannot have is said in the words of the error.

    With secure sums the models are those of the plain run, to the last bit: no shadow runs are needed.
    """
    place, start = WORK / f"{case}, {protection}", time.perf_counter()
    shutil.rmtree(place / "run", ignore_errors=True)
    try:
        run = intarsia.run(BASE, changes=[*CASES[case], *PROTECTIONS[protection]], out=place / "run")
    except IntarsiaError as error:
        return {"refused": str(error)}
    number = 0 if protection == "secure sums" else shadows
    asked = Asked(ONLY.get(case, ATTACKS), "auto", number, place / "shadows", (1, 4), STEPS)
    record = audit(run, asked)
    summary = run.summary
    return {
        "accuracy": round(summary["accuracy"]["mean"], 4),
        **({"epsilon": round(summary["privacy"]["epsilon"], 2)} if "privacy" in summary else {}),
        **{key: value for key, value in record.items() if key not in ("format", "intarsia", "run", "sent")},
        "seconds": round(time.perf_counter() - start, 1),
    }


Rows = Mapping[str, Mapping[str, Any]]


def tables(rows: Rows) -> dict[str, str]:
    """Return the tables of the page, by name."""
    done = {name: row for name, row in rows.items() if "refused" not in row}
    refused = {name: row for name, row in rows.items() if "refused" in row}
    return {
        "membership": _table(
            "case | accuracy | epsilon | loss: own | loss: single update | online: own | online: single update "
            "| offline: own | offline: single update | found at 1 %: own | found at 1 %: single update "
            "| untrained | by lot",
            (_membership(name, row) for name, row in done.items() if "membership" in row),
        ),
        "labels": _table(
            "case | the server sees | from | distance | control | correlation | control",
            (line for name, row in done.items() for line in _labels(name, row)),
        ),
        "inversion": _table(
            "case | batch | seen | attack | recovered | PSNR (dB) | mean picture (dB)",
            (line for name, row in done.items() for line in _inversion(name, row)),
        ),
        "refused": _table(
            "case | why", ([name, row["refused"].splitlines()[0]] for name, row in refused.items())
        ),
    }


def _table(heads: str, lines: Iterable[list[str]]) -> str:
    count = heads.count("|") + 1
    return "\n".join([f"| {heads} |", f"|{' --- |' * count}", *(f"| {' | '.join(line)} |" for line in lines)])


def _membership(name: str, row: Mapping[str, Any]) -> list[str]:
    found = {(r["attack"], r["target"]): r for r in row["membership"]}

    def told(attack: str, target: str, what: str = "auc") -> str:
        own = found.get((attack, target))
        if own is None:
            return "-"
        low, high = own[f"{what}_interval"]
        return f"{own[what]:.3f} ({low:.3f}-{high:.3f})"

    loss, online, offline = "loss", "LiRA online", "LiRA offline"
    return [
        name,
        f"{100 * row['accuracy']:.1f}",
        f"{row['epsilon']:.1f}" if "epsilon" in row else "-",
        told(loss, "own model"),
        told(loss, "single update"),
        told(online, "own model"),
        told(online, "single update"),
        told(offline, "own model"),
        told(offline, "single update"),
        told(online, "own model", "hits"),
        told(online, "single update", "hits"),
        told(loss, "control: untrained model"),
        told(loss, "control: scores by lot"),
    ]


def _labels(name: str, row: Mapping[str, Any]) -> list[list[str]]:
    names = ("distance", "control_distance", "correlation", "control_correlation")
    return [[name, row["view"], r["source"], *(f"{r[n]:.2f}" for n in names)] for r in row.get("labels", ())]


def _inversion(name: str, row: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            str(r["batch"]),
            r["view"],
            r["attack"],
            f"{100 * r['recovered']:.0f} %",
            f"{r['psnr']:.1f}",
            f"{r['control_psnr']:.1f}",
        ]
        for r in row.get("inversion", ())
    ]


def with_tables(page: str, made: Mapping[str, str]) -> str:
    """Return a page whose tables, between their marks, are these."""
    for name, table in made.items():
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE} has no place for the table '{name}'")
        page = before + start + table + end + after
    return page


def main() -> None:
    """Measure what is not measured yet; write the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--protections", nargs="*", default=list(PROTECTIONS), choices=list(PROTECTIONS))
    parser.add_argument("--shadows", type=int, default=SHADOWS)
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    parser.add_argument("--again", choices=ATTACKS, help="measure one attack anew, where it was measured")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"rows": {}}
    if asked.again:
        _again(record, asked.cases, asked.protections, asked.again)
    record |= {"intarsia": intarsia.__version__, "torch": torch.__version__, "seed": SEED, "settings": BASE}
    for protection in () if asked.pages or asked.again else asked.protections:
        for case in asked.cases:
            _once(record, case, protection, min(asked.shadows, FEWER.get(case, asked.shadows)))
    write_atomically(PAGE, with_tables(PAGE.read_text(), tables(record["rows"])).encode())


def identity(case: str, protection: str, shadows: int) -> str:
    """Return what identifies how a case is measured: what was measured otherwise is measured anew."""
    how = [BASE, CASES[case], PROTECTIONS[protection], ONLY.get(case, ATTACKS), shadows, STEPS]
    how += ["shadow runs with noise of their own"] if protection == "privacy" else []
    return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:16]


def _again(record: dict[str, Any], cases: Iterable[str], protections: Iterable[str], attack: str) -> None:
    """Measure one attack anew in rows that have it."""
    for name, case, protection in ((f"{c}, {p}", c, p) for c in cases for p in protections):
        row = record["rows"].get(name, {})
        if attack not in row:
            continue
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changes = [*CASES[case], *PROTECTIONS[protection]]
            run = intarsia.run(BASE, changes=changes, out=Path(place) / "run")
            row[attack] = audit(run, Asked((attack,), "auto", row.get("shadows", 0), None, (1, 4), STEPS))[
                attack
            ]
        write_atomically(RECORD, (json.dumps(record, indent=1) + "\n").encode())
        print(name, attack, flush=True)


def _once(record: dict[str, Any], case: str, protection: str, shadows: int) -> None:
    name, how = f"{case}, {protection}", identity(case, protection, shadows)
    if record["rows"].get(name, {}).get("measured") == how:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record["rows"][name] = {"measured": how, **measure(case, protection, shadows)}
    write_atomically(RECORD, (json.dumps(record, indent=1) + "\n").encode())
    print(name, record["rows"][name].get("seconds", "refused"), flush=True)


if __name__ == "__main__":
    main()
