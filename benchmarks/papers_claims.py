"""What is claimed of the methods, held against the records: a line a claim, and a verdict that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.papers_page import RECORDS, figures, seeds_of, table

from intarsia.judging.metrics import mean_interval
from intarsia.papers.pfedclub.plus import RATIO
from intarsia.papers.record import Record, read_record
from intarsia.papers.study import Place

PLUS, OPEN, ON = "FedMN+ (ours)", "FedMN, open start", "Always on"
MB = ", MB sent"
ENOUGH = 3
"""So many seeds can settle a claim."""


@dataclass(frozen=True)
class Claim:
    """One figure, or the difference of two with the same seeds, and what it should be at least."""

    says: str
    records: str
    ours: Place
    theirs: Place | None = None
    least: float = 0.0
    saved: bool = False
    """Whether the figure is by how many per cent `ours` is below `theirs`, or below 1: bytes, shares of seconds."""
    since: int = 0
    """The first seed that counts: the claim was made after those before it had been seen."""

    def values(self) -> dict[int, float]:
        """Return the figure by seed, as far as there are records."""
        records = _there(self.records)
        found = figures(records)[1] if records else {}
        ours = {seed: own for seed, own in found.get(self.ours, {}).items() if seed >= self.since}
        if self.theirs is None:
            return {seed: 100 * (1 - own) if self.saved else own for seed, own in ours.items()}
        theirs = found.get(self.theirs, {})
        same = sorted(ours.keys() & theirs.keys())
        if self.saved:
            return {seed: 100 * (1 - ours[seed] / theirs[seed]) for seed in same}
        return {seed: ours[seed] - theirs[seed] for seed in same}


def _there(pattern: str) -> dict[str, Record]:
    paths: list[Path] = sorted(RECORDS.glob(f"{pattern}.json"))
    return {path.name: read_record(path) for path in paths}


def verdict(values: Sequence[float], least: float) -> str:
    """Return what an interval (95 %) says of a bound: it holds, it does not, or the seeds do not settle it."""
    around = mean_interval(values)
    if around is None or len(values) < ENOUGH:
        return f"not settled: {('one seed', 'two seeds')[len(values) - 1]}" if values else "not measured yet"
    if around[0] >= least:
        return "**holds**"
    return "**does not hold**" if around[1] < least else "not settled"


TABLE2 = {"MNIST": "fedmn-table2-mnist*", "FEMNIST digits": "fedmn-table2-femnist-digits*"}
"""The records of every data set, at the rates that its own validation data chose."""


def _above(dataset: str, ours: str, theirs: str, least: float = 0.0) -> Claim:
    words = f"at most {-least} points below" if least else "above"
    says = f"{ours} {words} {theirs}, {dataset}"
    return Claim(says, TABLE2[dataset], (dataset, ours), (dataset, theirs), least)


def _saves(dataset: str) -> Claim:
    says = f"{PLUS} sends at least 25 % fewer bytes than {ON}, {dataset} (in %)"
    return Claim(says, TABLE2[dataset], (dataset + MB, PLUS), (dataset + MB, ON), 25.0, saved=True)


def _cohorts(population: str, ours: str, theirs: str, least: float = 0.0) -> Claim:
    """Return a claim about cohorts; of no rival, the figure itself."""
    says = f"{ours} above {theirs}, {population}" if theirs else f"{ours} reaches {least:g} %, {population}"
    other = (theirs, population) if theirs else None
    return Claim(says, "fedmn-cohorts-*", (ours, population), other, least)


PUBLISHED_ORDER = (("FedMN", "FedEM"), ("FedMN", "FedAvg"), ("FedEM", "FedAvg"), ("FedAvg", "Local"))
RIVALS = ("FedEM", "FedAvg", "FedEM, rounds of a pool", "FedAvg, rounds of a pool")
"""Whom FedMN with an open start and FedMN+ are to beat: as they are, and for as many rounds as a pool has."""


def _table2(dataset: str) -> list[Claim]:
    return [
        *(_above(dataset, *pair) for pair in PUBLISHED_ORDER),
        *(_above(dataset, OPEN, theirs) for theirs in ("FedMN", *RIVALS, ON)),
        *(_above(dataset, PLUS, theirs) for theirs in RIVALS),
        _above(dataset, PLUS, ON, -0.3),
        _saves(dataset),
    ]


CLUB, CLUB_PLUS = "pFedClub, labelled", "pFedClub+ (ours), labelled"
CLUB_RIVALS = (
    "Local",
    "Local + public data",
    "FedMD",
    "Uniform teacher, labelled",
    "Own model as teacher, labelled",
    "Local + public data and mixup",
)
"""Whom pFedClub+ is to beat: the first three were asked for, the others tell what its teachers are worth."""
TAUGHT = tuple(f"{dataset} {split}" for dataset in ("CIFAR-10", "SVHN") for split in ("IID", "Non-IID"))
PLUS_RECORDS = "pfedclub-plus-[!t]*"
TWENTY, TWENTY_FEW = "CIFAR-10 IID, 20 clients", "CIFAR-10 Non-IID, 20 clients"
"""Twenty clients; with two labels each, four of them hold each label."""
TWENTY_RECORDS = "pfedclub-plus-twenty-*"
BARE = "pFedClub+ (ours), unlabelled"
BARE_RIVALS = (
    "Local",
    "FedMD without labels",
    "FedMD",
    "Uniform teacher, unlabelled",
    "Own model as teacher, unlabelled",
    "pFedClub, unlabelled",
)
"""Whom pFedClub+ is to beat where public samples have no labels: what it teaches then is what clients know. FedMD as it
stands in the tables begins with their labels all the same."""
SEEN = 42
"""The first seed whose figures without labels had not been seen when the claims about them were written."""


def _taught(row: str, ours: str, theirs: str, records: str = PLUS_RECORDS, since: int = 0) -> Claim:
    return Claim(f"{ours} above {theirs}, {row}", records, (row, ours), (row, theirs), since=since)


def _cheap(row: str) -> Claim:
    says = f"pFedClub+'s server computes at least 50 % less than its clients, {row} (in %)"
    return Claim(says, PLUS_RECORDS, (row + RATIO, CLUB_PLUS), least=50.0, saved=True)


CLAIMS: Mapping[str, Sequence[Claim]] = {
    "fedmn": [
        *_table2("MNIST"),
        *_table2("FEMNIST digits"),
        _cohorts("permuted labels", PLUS, "", 92.0),
        *(_cohorts("permuted labels", PLUS, theirs) for theirs in ("FedEM, M = 2", "Local", "FedAvg")),
        *(_cohorts("shifted inputs", ours, "FedEM, M = 2") for ours in (PLUS, f"{PLUS}, 2 encoders")),
    ],
    "modfl": [
        Claim(
            f"ModFL above {other}, {device}, P = {window}",
            "modfl-table1-*",
            (f"ModFL {device}", window),
            (f"{other} {device}", window),
        )
        for window in ("3", "6")
        for device in ("cifar", "stl")
        for other in ("FedX", "Local", "Random cohorts")
    ],
    "adapters": [
        Claim(
            f"{kind} at most 3 points below full training, {partition}",
            "adapters-table1-*",
            (f"Cross-Silo Cifar10 {partition}", f"FedAvg {kind}"),
            (f"Cross-Silo Cifar10 {partition}", "FedAvg w/o adapter"),
            -3.0,
        )
        for partition in ("Dir(0.5)", "Gau(0.1)", "#M = 2")
        for kind in ("w/ adapter", "w/ adapter, zero init")
    ],
    "pfedclub": [
        *(
            _taught(row, ours, theirs)
            for row in TAUGHT
            for ours, theirs in ((CLUB, "Local"), *((CLUB_PLUS, rival) for rival in CLUB_RIVALS))
        ),
        *(_cheap(row) for row in TAUGHT),
        *(_taught(row, BARE, rival, since=SEEN) for row in TAUGHT for rival in BARE_RIVALS),
        *(_taught(TWENTY, BARE, rival, TWENTY_RECORDS) for rival in BARE_RIVALS[:-1]),
        *(_taught(TWENTY_FEW, BARE, BARE_RIVALS[number], TWENTY_RECORDS) for number in (0, 1, 3)),
    ],
}


def claims(paper: str) -> str:
    """Return the claims of one paper: figure, interval, seeds, verdict."""
    rows = []
    for claim in CLAIMS[paper]:
        own = claim.values()
        values = list(own.values())
        around = mean_interval(values)
        half = f" ± {(around[1] - around[0]) / 2:.1f}" if around else ""
        sign = "+" if claim.theirs and not claim.saved else ""
        figure = f"{fmean(values):{sign}.1f}{half}" if values else "-"
        rows.append([claim.says, figure, seeds_of(own) if own else "-", verdict(values, claim.least)])
    return "\n" + table(["claim", "measured (95 %)", "", "verdict"], rows)
