"""pFedClub: accuracies (Tables 1 to 5), and, ours, where it gains over clients that learn alone.

Wang et al. 2024, "Controllable heterogeneous model aggregation for personalized federated learning". The paper has no
row for clients that learn alone: here `Local` stands in every table. What is about sizes of teachers and about
time is in `pfedclub_figures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

from intarsia.core import SettingsError, part
from intarsia.papers.pfedclub.published import TABLE1, TABLE2, TABLE3, TABLE4, TABLE5
from intarsia.papers.pfedclub.runs import (
    CLUB,
    HOMOGENEOUS,
    IID,
    LABELLED,
    LOCAL,
    MODELS,
    NON_IID,
    REASSEMBLED,
    SLICED,
    UNLABELLED,
    Case,
    ClubScale,
    accuracy,
    chosen,
    one_each,
    scales,
    settings,
    trial_of,
    usual_scale,
)
from intarsia.papers.study import Count, Place, Reading, Scale, Study, Trial


class Table1(Study):
    """Table 1: clients with different models; HeteroFL and FlexiFed with zoo III alone, as published."""

    name = "pfedclub-table1"
    title = "pFedClub, Table 1: clients with different models"
    columns = "method"
    paper: ClassVar[Mapping[Place, float]] = TABLE1
    scales: ClassVar[Mapping[str, Scale]] = scales()

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every method on every set, split and zoo."""
        return [
            trial_of(scale, case, (f"zoo {case.zoo} {case.dataset} {case.split}", case.column))
            for case in self._cases(scale)
        ]

    def _cases(self, scale: ClubScale) -> Iterator[Case]:
        for zoo, dataset, split in product(scale.zoos, scale.sets, scale.splits):
            for method in scale.methods:
                if method in SLICED and zoo != "III":
                    continue
                kinds = scale.public if method in REASSEMBLED else ("",)
                yield from (Case(dataset, split, method, zoo, public) for public in kinds)


IMPOSSIBLE = {("MobileNetV2", "PFedBayes")}
"""What cannot be run here: batch norms have no Gaussian form."""


class Table2(Study):
    """Table 2: all clients have the same model, two labels each; public data has labels."""

    name = "pfedclub-table2"
    title = "pFedClub, Table 2: clients with the same model, two labels each"
    columns = "method"
    paper: ClassVar[Mapping[Place, float]] = TABLE2
    scales: ClassVar[Mapping[str, Scale]] = {
        name: usual_scale(name, splits=(NON_IID,), public=(LABELLED,), methods=HOMOGENEOUS, zoos=models)
        for name, models in {"small": ("CNN2",), "medium": ("CNN2",), "paper": tuple(MODELS)}.items()
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every method with every model on every set."""
        for model in scale.zoos:
            chosen(MODELS, model, "zoos")
        return list(self._trials(scale))

    def _trials(self, scale: ClubScale) -> Iterator[Trial]:
        for model, dataset, split in product(scale.zoos, scale.sets, scale.splits):
            for method in scale.methods:
                if (model, method) in IMPOSSIBLE:
                    continue
                public = LABELLED if method in REASSEMBLED else ""
                case = Case(dataset, split, method, model, public)
                row = f"{model} {dataset}" + (f" {split}" if split == IID else "")
                yield trial_of(scale, case, (row, method))


VARIANTS: dict[str, dict[str, Any]] = {
    CLUB: {},
    "max": {"search": {"anchor": "max"}},
    "min": {"search": {"anchor": "min"}},
    "noc": {"search": {"noc": True}},
    "nbc": {"search": {"nbc": True}},
}
"""The ablations: the most similar anchor, the one of the smallest index, no order, no completion."""


class Table3(Study):
    """Table 3: pFedClub without parts of it; zoo III, public data without labels (so its figures say)."""

    name = "pfedclub-table3"
    title = "pFedClub, Table 3: without parts of it"
    columns = "data"
    paper: ClassVar[Mapping[Place, float]] = TABLE3
    scales: ClassVar[Mapping[str, Scale]] = {
        name: usual_scale(
            name,
            public=(UNLABELLED,),
            methods=(LOCAL, *VARIANTS),
            zoos=("III",),
            sets=("CIFAR-10",) if name == "small" else ("SVHN", "CIFAR-10"),
        )
        for name in ("small", "medium", "paper")
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every variant on every set and split."""
        one_each(scale, self.name, "zoos", "public")
        return [
            trial_of(scale, _variant(dataset, split, zoo, public, name), (name, f"{dataset} {split}"))
            for dataset, split, zoo, public in product(scale.sets, scale.splits, scale.zoos, scale.public)
            for name in scale.methods
        ]


def _variant(dataset: str, split: str, zoo: str, public: str, name: str) -> Case:
    if name == LOCAL:
        return Case(dataset, split, LOCAL, zoo)
    words = "" if name == CLUB else name
    return Case(dataset, split, CLUB, zoo, public, words, chosen(VARIANTS, name, "methods"))


@part
class CrowdScale(ClubScale):
    """A scale of the table about numbers of clients: all of them share what `clients` would have."""

    numbers: tuple[Count, ...]
    ratios: tuple[Count, ...]
    """Clients of a round, in per cent."""


def _crowds(name: str, numbers: tuple[int, ...], ratios: tuple[int, ...]) -> CrowdScale:
    usual = usual_scale(name, sets=("SVHN",), zoos=("III",), public=(UNLABELLED,), methods=(LOCAL, CLUB))
    return CrowdScale(**vars(usual), numbers=numbers, ratios=ratios)


class Table4(Study):
    """Table 4: more clients of the same samples, and more of them in a round; SVHN, zoo III."""

    name = "pfedclub-table4"
    title = "pFedClub, Table 4: numbers of clients, and of those in a round (SVHN, zoo III)"
    columns = "clients of a round"
    paper: ClassVar[Mapping[Place, float]] = TABLE4
    scales: ClassVar[Mapping[str, Scale]] = {
        "small": _crowds("small", (10, 20), (10, 30)),
        "medium": _crowds("medium", (30, 50), (10, 20, 30)),
        "paper": _crowds("paper", (30, 50, 100), (10, 20, 30)),
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every number of clients with every ratio, alone and together."""
        one_each(scale, self.name, "sets", "zoos", "public")
        return list(self._trials(scale))

    def _trials(self, scale: CrowdScale) -> Iterator[Trial]:
        cases = product(scale.sets, scale.splits, scale.numbers, scale.ratios, scale.methods)
        for dataset, split, number, ratio, method in cases:
            case = _variant(dataset, split, scale.zoos[0], scale.public[0], method)
            table = settings(scale, case)
            table["population"] |= {"clients": number}
            table["sampling"] = {"clients": max(1, round(number * ratio / 100))}
            row = f"{split} N = {number}" + ("" if method == CLUB else f", {method}")
            yield Trial(f"{case.name} N {number} {ratio} percent", table, self._read((row, f"{ratio} %")))

    def _read(self, place: Place) -> Reading:
        return lambda run: {place: accuracy(run)}


class Table5(Study):
    """Table 5: how many functional groups there are; zoo III."""

    name = "pfedclub-table5"
    title = "pFedClub, Table 5: numbers of functional groups"
    columns = "data"
    paper: ClassVar[Mapping[Place, float]] = TABLE5
    scales: ClassVar[Mapping[str, Scale]] = {
        name: usual_scale(
            name,
            methods=(LOCAL, "K = 3", "K = 4", "K = 5"),
            zoos=("III",),
            sets=("CIFAR-10",) if name == "small" else ("SVHN", "CIFAR-10"),
        )
        for name in ("small", "medium", "paper")
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every number on every set and split, with and without labels."""
        one_each(scale, self.name, "zoos")
        return list(self._trials(scale))

    def _trials(self, scale: ClubScale) -> Iterator[Trial]:
        for dataset, split, zoo in product(scale.sets, scale.splits, scale.zoos):
            column = f"{dataset} {split}"
            for method in scale.methods:
                if method == LOCAL:
                    yield trial_of(scale, Case(dataset, split, LOCAL, zoo), (LOCAL, column))
                    continue
                for public in scale.public:
                    case = Case(dataset, split, CLUB, zoo, public, *_groups(method))
                    yield trial_of(scale, case, (f"{public}, {method}", column))


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


class GainMap(Study):
    """Ours: what pFedClub gains over clients that learn alone, by how much of what they have."""

    name = "pfedclub-map"
    title = (
        "pFedClub: gain over Local, by samples and labels of a client and public samples (CIFAR-10, zoo III)"
    )
    columns = "samples that a client trains on"
    values = "gain over Local, points of test accuracy"
    picture = "lines"
    paper: ClassVar[Mapping[Place, float]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {
        "small": _map("small", (40, 80), 40, (100,)),
        "medium": _map("medium", (40, 80, 160), 160, (100, 500)),
        "paper": _map("paper", (80, 160, 320), 80, (500, 4000)),
    }

    def trials(self, scale: Any, seed: int) -> list[Trial]:
        """Return every method on every amount of everything."""
        one_each(scale, self.name, "sets", "zoos", "public")
        return list(self._trials(scale))

    def _trials(self, scale: MapScale) -> Iterator[Trial]:
        cases = product(scale.sets, scale.classes, scale.publics, scale.sizes, scale.methods)
        for dataset, classes, public, size, method in cases:
            case = _variant(
                dataset, IID if classes == 10 else NON_IID, scale.zoos[0], scale.public[0], method
            )
            table = settings(_sized(scale, size, public), replace(case, classes=classes))
            place = (f"{_labels(classes)}, {public} public, {method}", str(size))
            name = f"{case.name} {classes} labels {public} public size {size}"
            yield Trial(name, table, self._read(place))

    def _read(self, place: Place) -> Reading:
        return lambda run: {place: accuracy(run)}

    def derived(self, readings: Mapping[Place, Sequence[float]]) -> Mapping[Place, Sequence[float]]:
        """Return the gains, seed by seed."""
        gains = {}
        for (row, column), values in readings.items():
            alone = readings.get((row.replace(f", {CLUB}", f", {LOCAL}"), column), ())
            if row.endswith(f", {CLUB}") and len(alone) == len(values):
                pairs = zip(values, alone, strict=True)
                gains[row.removesuffix(f", {CLUB}"), column] = [ours - theirs for ours, theirs in pairs]
        return gains

    def shown(self, row: str) -> bool:
        """Whether a row is a gain."""
        return not row.endswith((f", {CLUB}", f", {LOCAL}"))


def _labels(classes: int) -> str:
    return IID if classes == 10 else f"{classes} labels"


STUDIES: Sequence[Study] = (Table1(), Table2(), Table3(), Table4(), Table5(), GainMap())
