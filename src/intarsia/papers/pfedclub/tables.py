"""pFedClub: accuracies (Tables 1 to 5), and, ours, where it gains over clients that learn alone.

Wang et al. 2024, "Controllable heterogeneous model aggregation for personalized federated learning". The paper has no
row for clients that learn alone: here `Local` stands in every table, and with it Local with the public data added, a
teacher that knows nothing, and FedMD. What is about sizes of teachers and about
time is in `figures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from intarsia.core import SettingsError, part
from intarsia.papers.pfedclub.published import TABLE1, TABLE2, TABLE3, TABLE4, TABLE5
from intarsia.papers.pfedclub.runs import (
    CLUB,
    CONTROLS,
    EITHER,
    HOMOGENEOUS,
    IID,
    LABELLED,
    LOCAL,
    MODELS,
    NON_IID,
    SLICED,
    UNLABELLED,
    Case,
    ClubScale,
    cases,
    chosen,
    one_each,
    run_of,
    scales,
    settings,
    usual_scale,
)
from intarsia.papers.study import Count, Readings, StudyRun, reads_mean, study


@study(
    "pfedclub-table1", "pFedClub, Table 1: clients with different models", "method", scales(), paper=TABLE1
)
def table1(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Table 1: clients with different models; HeteroFL and FlexiFed with zoo III alone, as published."""
    for case in cases(scale):
        if case.method not in SLICED or case.zoo == "III":
            yield run_of(scale, case, f"zoo {case.zoo} {case.dataset} {case.split}", case.column)


IMPOSSIBLE = {("MobileNetV2", "PFedBayes")}
"""What cannot be run here: batch norms have no Gaussian form."""


@study(
    "pfedclub-table2",
    "pFedClub, Table 2: clients with the same model, two labels each",
    "method",
    scales(
        splits=(NON_IID,),
        public=(LABELLED,),
        methods=HOMOGENEOUS,
        zoos={"small": ("CNN2",), "medium": ("CNN2",), "paper": tuple(MODELS)},
    ),
    paper=TABLE2,
)
def table2(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Table 2: all clients have the same model, two labels each; public data has labels."""
    for model in scale.zoos:
        chosen(MODELS, model, "zoos")
    for case in cases(replace(scale, public=(LABELLED,))):
        if (case.zoo, case.method) not in IMPOSSIBLE:
            row = f"{case.zoo} {case.dataset}" + (f" {IID}" if case.split == IID else "")
            yield run_of(scale, case, row, case.method)


VARIANTS: dict[str, dict[str, Any]] = {
    CLUB: {},
    "max": {"search": {"anchor": "max"}},
    "min": {"search": {"anchor": "min"}},
    "noc": {"search": {"noc": True}},
    "nbc": {"search": {"nbc": True}},
}
"""The ablations: the most similar anchor, the one of the smallest index, no order, no completion."""


SVHN_TOO = {"small": ("CIFAR-10",), "medium": ("SVHN", "CIFAR-10"), "paper": ("SVHN", "CIFAR-10")}
"""The sets of Tables 3 and 5."""


@study(
    "pfedclub-table3",
    "pFedClub, Table 3: without parts of it",
    "data",
    scales(public=(UNLABELLED,), methods=(*CONTROLS, *VARIANTS), zoos=("III",), sets=SVHN_TOO),
    paper=TABLE3,
)
def table3(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Table 3: pFedClub without parts of it; zoo III, public data without labels (so its figures say)."""
    one_each(scale, "pfedclub-table3", "zoos", "public")
    for dataset, split, name in product(scale.sets, scale.splits, scale.methods):
        yield run_of(scale, _variant(scale, dataset, split, name), name, f"{dataset} {split}")


def _variant(scale: ClubScale, dataset: str, split: str, name: str) -> Case:
    (zoo,), (public,) = scale.zoos, scale.public
    if name in CONTROLS:
        return Case(dataset, split, name, zoo, public if name in EITHER else "")
    words = "" if name == CLUB else name
    return Case(dataset, split, CLUB, zoo, public, words, chosen(VARIANTS, name, "methods"))


@part
class CrowdScale(ClubScale):
    """A scale of the table about numbers of clients: all of them share what `clients` would have."""

    numbers: tuple[Count, ...]
    ratios: tuple[Count, ...]
    """Clients of a round, in per cent."""


def _crowds(name: str, numbers: tuple[int, ...], ratios: tuple[int, ...]) -> CrowdScale:
    methods = (*CONTROLS, CLUB)
    usual = usual_scale(name, sets=("SVHN",), zoos=("III",), public=(UNLABELLED,), methods=methods)
    return CrowdScale(**vars(usual), numbers=numbers, ratios=ratios)


@study(
    "pfedclub-table4",
    "pFedClub, Table 4: numbers of clients, and of those in a round (SVHN, zoo III)",
    "clients of a round",
    {
        "small": _crowds("small", (10, 20), (10, 30)),
        "medium": _crowds("medium", (30, 50), (10, 20, 30)),
        "paper": _crowds("paper", (30, 50, 100), (10, 20, 30)),
    },
    paper=TABLE4,
)
def table4(scale: CrowdScale, seed: int) -> Iterator[StudyRun]:
    """Table 4: more clients of the same samples, and more of them in a round, alone and together; SVHN, zoo III."""
    one_each(scale, "pfedclub-table4", "sets", "zoos", "public")
    every = product(scale.sets, scale.splits, scale.numbers, scale.ratios, scale.methods)
    for dataset, split, number, ratio, method in every:
        case = _variant(scale, dataset, split, method)
        table = settings(scale, case)
        table["population"] |= {"clients": number}
        table["sampling"] = {"clients": max(1, round(number * ratio / 100))}
        row = f"{split} N = {number}" + ("" if method == CLUB else f", {method}")
        yield StudyRun(f"{case.name} N {number} {ratio} percent", table, reads_mean(row, f"{ratio} %"))


@study(
    "pfedclub-table5",
    "pFedClub, Table 5: numbers of functional groups",
    "data",
    scales(methods=(*CONTROLS, "K = 3", "K = 4", "K = 5"), zoos=("III",), sets=SVHN_TOO),
    paper=TABLE5,
)
def table5(scale: ClubScale, seed: int) -> Iterator[StudyRun]:
    """Table 5: how many functional groups there are, with and without labels; zoo III."""
    one_each(scale, "pfedclub-table5", "zoos")
    for dataset, split, zoo, method in product(scale.sets, scale.splits, scale.zoos, scale.methods):
        for public in scale.public if method not in CONTROLS or method in EITHER else ("",):
            own = (method, zoo, public) if method in CONTROLS else (CLUB, zoo, public, *_groups(method))
            row = ", ".join(filter(None, (public, method)))
            yield run_of(scale, Case(dataset, split, *own), row, f"{dataset} {split}")


def _groups(name: str) -> tuple[str, dict[str, Any]]:
    """Return a number of groups in words and as a change; four is the usual number."""
    number = name.removeprefix("K = ")
    if not number.isdigit():
        raise SettingsError(f"scale.methods: '{name}' is no number of groups: write K = 4, or {LOCAL}")
    return ("", {}) if number == "4" else (f"K {number}", {"k": int(number)})


@part
class MapScale(ClubScale):
    """A scale of the map: how many samples, labels and public samples there are."""

    sizes: tuple[Count, ...]
    """Samples that a client trains on."""
    tested: Count
    """Samples that it is tested on: gains are small, so they need many."""
    classes: tuple[Count, ...]
    """Labels of a client (10: all)."""
    publics: tuple[Count, ...]
    """Public samples."""


def _map(name: str, sizes: tuple[int, ...], tested: int, publics: tuple[int, ...]) -> MapScale:
    usual = usual_scale(name, sets=("CIFAR-10",), zoos=("III",), public=(LABELLED,), methods=(LOCAL, CLUB))
    return MapScale(**vars(usual), sizes=sizes, tested=tested, classes=(2, 5, 10), publics=publics)


def _sized(scale: MapScale, size: int, public: int) -> MapScale:
    """Return the scale with so many samples to train on and public ones."""
    held = size + scale.tested
    everything = scale.clients * held + public
    return replace(
        scale, samples=held, share=public / everything, test=scale.clients * scale.tested / everything
    )


def _gains(readings: Readings) -> Readings:
    """Return the gains, seed by seed."""
    gains = {}
    for (row, column), values in readings.items():
        alone = readings.get((row.replace(f", {CLUB}", f", {LOCAL}"), column), ())
        if row.endswith(f", {CLUB}") and len(alone) == len(values):
            pairs = zip(values, alone, strict=True)
            gains[row.removesuffix(f", {CLUB}"), column] = [ours - theirs for ours, theirs in pairs]
    return gains


@study(
    "pfedclub-map",
    "pFedClub: gain over Local, by samples and labels of a client and public samples (CIFAR-10, zoo III)",
    "samples that a client trains on",
    {
        "small": _map("small", (40, 80), 40, (100,)),
        "medium": _map("medium", (40, 80, 160), 160, (100, 500)),
        "paper": _map("paper", (80, 160, 320), 80, (500, 4000)),
    },
    values="gain over Local, points of test accuracy",
    picture="lines",
    derived=_gains,
    beside=lambda row: row.endswith((f", {CLUB}", f", {LOCAL}")),
)
def gain_map(scale: MapScale, seed: int) -> Iterator[StudyRun]:
    """Ours: what pFedClub gains over clients that learn alone, by how much of what they have."""
    one_each(scale, "pfedclub-map", "sets", "zoos", "public")
    every = product(scale.sets, scale.classes, scale.publics, scale.sizes, scale.methods)
    for dataset, classes, public, size, method in every:
        case = _variant(scale, dataset, IID if classes == 10 else NON_IID, method)
        table = settings(_sized(scale, size, public), replace(case, classes=classes))
        labels = IID if classes == 10 else f"{classes} labels"
        read = reads_mean(f"{labels}, {public} public, {method}", str(size))
        yield StudyRun(f"{case.name} {classes} labels {public} public size {size}", table, read)
