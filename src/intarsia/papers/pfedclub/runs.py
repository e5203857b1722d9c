"""How pFedClub's experiments are run: their scales, and the settings of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any

from pydantic import Field

from intarsia.core import SettingsError, part, suggest
from intarsia.data import ZOOS
from intarsia.methods.pfedclub.stitch_tuning import StitchTuning
from intarsia.papers.study import Count, Scale, StudyRun, reads_mean, rhythm

LABELLED, UNLABELLED = "labelled", "unlabelled"
IID, NON_IID = "IID", "Non-IID"
CLUB, CLUB_PLUS, HR, LOCAL = "pFedClub", "pFedClub+", "pFedHR", "Local"
HETEROFL, FEDMD, FEDMD_BARE = "HeteroFL", "FedMD", "FedMD without labels"
"""FedMD begins with the labels of public data, or, ours, leaves that out, as it must where there are none."""
REASSEMBLED = (HR, CLUB, CLUB_PLUS)
"""Methods of the paper whose server makes teachers; its pFedClub+ is pFedClub with a limit on their sizes."""
OURS, LOCAL_PUBLIC, UNIFORM = "pFedClub+ (ours)", "Local + public data", "Uniform teacher"
ITSELF, MIXUP = "Own model as teacher", "Local + public data and mixup"
"""Our pFedClub+, and what its teachers must beat: nobody, one to whom all labels are alike, the client's own model, and
what mixtures of public samples give with their labels alone."""
TAUGHT_IN_PUBLIC = (OURS, LOCAL_PUBLIC, UNIFORM, ITSELF, MIXUP)
EITHER = (*REASSEMBLED, OURS, UNIFORM, ITSELF)
"""Methods that can do with and without labels of public data."""
CONTROLS = (LOCAL, LOCAL_PUBLIC, UNIFORM, FEDMD)
"""What stands in every table."""
SLICED = (HETEROFL, "FlexiFed")
"""Methods for networks that are parts of each other, or have equal layers: the paper has them with zoo III alone."""
WIDTHS = (1.0, 0.5, 0.25, 0.125)
"""CNN1 to CNN4 are no slices of one network: HeteroFL's clients hold CNN4 in four widths, by capacity."""

SETS: dict[str, dict[str, Any]] = {
    "MNIST": {"dataset": "mnist", "size": 32, "channels": 3},
    "SVHN": {"dataset": "svhn"},
    "CIFAR-10": {"dataset": "cifar10"},
}
DIGITS = ("MNIST", "SVHN")
"""Sets whose images must not be mirrored."""
MODELS = {"CNN2": "cnn2", "MobileNetV2": "mobilenet_v2"}
METHODS: dict[str, dict[str, Any]] = {
    LOCAL: {"name": "local"},
    HETEROFL: {"name": "heterofl", "widths": list(WIDTHS)},
    "FlexiFed": {"name": "flexifed"},
    FEDMD: {"name": "fedmd"},
    FEDMD_BARE: {"name": "fedmd"},
    "FedGH": {"name": "fedgh", "features": 128},
    HR: {"name": "pfedhr"},
    CLUB: {"name": "pfedclub"},
    CLUB_PLUS: {"name": "pfedclub", "eta": 0.1},
    OURS: {"name": "pfedclub+"},
    LOCAL_PUBLIC: {"name": "pfedclub+", "teacher": "none"},
    UNIFORM: {"name": "pfedclub+", "teacher": "uniform"},
    ITSELF: {"name": "pfedclub+", "teacher": "itself"},
    MIXUP: {"name": "pfedclub+", "teacher": "labels"},
    "FedKEMF": {"name": "fedkemf", "knowledge": {"name": "club_cnn", "number": 1}},
    "FCCL": {"name": "fccl"},
    "FedAvg": {"name": "fedavg"},
    "FedProx": {"name": "fedprox"},
    "Per-FedAvg": {"name": "per_fedavg"},
    "PFedMe": {"name": "pfedme"},
    "PFedBayes": {"name": "pfedbayes"},
}
TRAINING: dict[str, dict[str, Any]] = {"PFedMe": {"optimizer": "sgd", "lr": 0.05}}
"""Who does not train by Adam: pFedMe's steps of w are a fixed share of the way, plain descent's."""
HETEROGENEOUS = (*CONTROLS, HETEROFL, "FlexiFed", "FedGH", HR, CLUB, OURS, "FedKEMF", "FCCL")
HOMOGENEOUS = (*CONTROLS, "FedAvg", "FedProx", "Per-FedAvg", "PFedMe", "PFedBayes", HR, CLUB, OURS)


@part
class ClubScale(Scale):
    """A scale of the tables: what is run, and how much of it."""

    sets: tuple[str, ...]
    splits: tuple[str, ...]
    zoos: tuple[str, ...]
    """Model zoos; in the table of like models, the models."""
    public: tuple[str, ...]
    """Whether public data has labels, for methods that can do with and without."""
    methods: tuple[str, ...]
    samples: Annotated[int, Field(ge=0)]
    """Samples of a client, for training and testing (0: all there are)."""
    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of all samples that is public."""
    test: Annotated[float, Field(gt=0, lt=1)]
    """Share of all samples that clients are tested on."""
    active: Count
    """Clients of a round."""
    epochs: Count
    server_epochs: Count
    most: Count
    """Candidates for a client of a round."""
    tuned: Annotated[int, Field(ge=0)]
    """Public samples that a round tunes stitches on at most (0: all)."""
    width: Annotated[float, Field(gt=0, le=1)]
    """Width of CNN4, which takes ten times as long as each of the others; of HeteroFL's widest, twice as much."""
    lr: Annotated[float, Field(gt=0)]
    batch: Count
    rates: dict[str, Annotated[float, Field(gt=0)]]
    """Learning rates by method, as `intarsia tune` found them on validation data; others train with `lr`."""
    pixels: Annotated[int, Field(ge=0)]
    """Height and width of images (0: as published)."""


def usual_scale(name: str, **changes: Any) -> ClubScale:
    """Return one of the usual scales, with changes."""
    small = {"clients": 10, "rounds": 4, "seeds": 1, "every": 2, "samples": 100, "active": 5, "epochs": 1}
    medium = {"clients": 20, "rounds": 20, "seeds": 3, "every": 5, "samples": 200, "active": 5, "epochs": 3}
    paper = {"clients": 50, "rounds": 100, "seeds": 3, "every": 5, "samples": 0, "active": 5, "epochs": 10}
    sizes = {
        "small": {**small, "share": 0.1, "server_epochs": 1, "most": 2, "tuned": 512, "width": 0.25},
        "medium": {**medium, "share": 0.04, "server_epochs": 3, "most": 4, "tuned": 512, "width": 0.25},
        "paper": {**paper, "share": 0.08, "server_epochs": 3, "most": 8, "tuned": 0, "width": 1.0},
    }[name]
    what = {
        "sets": {"small": ("CIFAR-10",), "medium": ("CIFAR-10", "SVHN"), "paper": tuple(SETS)}[name],
        "splits": (IID, NON_IID),
        "zoos": ("III",) if name != "paper" else ("I", "II", "III"),
        "public": (LABELLED, UNLABELLED),
        "methods": HETEROGENEOUS,
        "test": 0.2,
        "lr": 0.001,
        "rates": {},
        "pixels": 0,
        "batch": 64 if name == "paper" else 32,
    }
    return ClubScale(**{**sizes, **what, **changes})


def scales(**changes: Any) -> dict[str, ClubScale]:
    """Return the scales of a study; a change that is a dict has a value for some of them, by name."""
    return {
        name: usual_scale(
            name,
            **{
                key: value[name] if isinstance(value, dict) else value
                for key, value in changes.items()
                if not isinstance(value, dict) or name in value
            },
        )
        for name in ("small", "medium", "paper")
    }


@dataclass(frozen=True)
class Case:
    """One run: who learns what, from what, by which method."""

    dataset: str
    split: str
    method: str
    zoo: str = "III"
    """A zoo, or the one model of all clients."""
    public: str = ""
    """Whether public data has labels, where that is to be said."""
    variant: str = ""
    """What is different from the method as published, in words."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What is different, as settings of the method."""
    classes: int = 2
    """Labels of a client, unless it has all."""

    @property
    def column(self) -> str:
        """The method in a table."""
        return ", ".join(filter(None, (self.method, self.public, self.variant)))

    @property
    def name(self) -> str:
        """The name of the run."""
        kind = self.zoo if self.zoo in MODELS else f"zoo {self.zoo}"
        words = (kind, self.dataset, self.split, self.method, self.public, self.variant)
        return " ".join(filter(None, words)).replace("=", "").replace(",", "")


def one_each(scale: ClubScale, study: str, *names: str) -> None:
    """Refuse several values of what a study's rows and columns do not tell apart."""
    for name in names:
        values = getattr(scale, name)
        if len(values) != 1:
            raise SettingsError(
                f"scale.{name}: '{study}' shows one at a time, not {', '.join(values) or 'none'}; give each an --out "
                "of its own"
            )


def settings(scale: ClubScale, case: Case) -> dict[str, Any]:
    """Return the settings of a run."""
    chosen(dict.fromkeys((IID, NON_IID)), case.split, "splits")
    chosen(dict.fromkeys(("", LABELLED, UNLABELLED)), case.public, "public")
    chosen(ZOOS | MODELS, case.zoo, "zoos")
    lr = scale.rates.get(case.method, scale.lr)
    usual = {"optimizer": "adam", "lr": lr, "epochs": scale.epochs, "batch_size": scale.batch}
    return {
        **rhythm(scale),
        "population": _population(scale, case),
        "method": _method(scale, case),
        **_models(scale, case),
        "training": usual | TRAINING.get(case.method, {}),
        "sampling": {"clients": scale.active},
    }


def _models(scale: ClubScale, case: Case) -> dict[str, Any]:
    """Return what is to be said of models beside their names: HeteroFL's, and how wide CNN4 is."""
    if case.method == HETEROFL:
        return {"model": {"name": "club_cnn", "number": 4, "width": min(1.0, 2 * scale.width)}}
    if scale.width == 1 or "cnn4" not in ZOOS.get(case.zoo, ()):
        return {}
    return {"models": {"cnn4": {"name": "club_cnn", "number": 4, "width": scale.width}}}


def _population(scale: ClubScale, case: Case) -> dict[str, Any]:
    """Return who holds what: a share is public, another for testing."""
    partition = {"name": "iid"} if case.split == IID else {"name": "two_classes", "per_client": case.classes}
    held = {"capacities": list(WIDTHS)} if case.method == HETEROFL else {"zoo": case.zoo}
    return {
        "name": "images",
        **chosen(SETS, case.dataset, "sets"),
        **({"size": scale.pixels} if scale.pixels else {}),
        "clients": scale.clients,
        "partition": partition,
        "split": "own",
        "test": round(scale.test / (1 - scale.share), 4),
        "public": scale.share,
        "limit": round(scale.clients * scale.samples / (1 - scale.share)),
        **({"model": MODELS[case.zoo]} if case.zoo in MODELS else held),
    }


def _method(scale: ClubScale, case: Case) -> dict[str, Any]:
    method = dict(chosen(METHODS, case.method, "methods"))
    if case.method in REASSEMBLED:
        method |= {"labelled": case.public != UNLABELLED, "flips": case.dataset not in DIGITS}
        method["tailoring"] = {"epochs": scale.server_epochs, "lr": scale.lr, **_tuned(scale)}
        limit = {"most": scale.most}
        method |= limit if case.method == HR else {"search": limit | case.changes.get("search", {})}
    if case.method in TAUGHT_IN_PUBLIC:
        method |= {"labelled": case.public != UNLABELLED, "search": {"most": scale.most}}
    if case.method == "FedKEMF":
        method["server_epochs"] = scale.server_epochs
    if case.method == FEDMD:
        method["pretraining"] = scale.epochs
    return {**method, **{key: value for key, value in case.changes.items() if key != "search"}}


def _tuned(scale: ClubScale) -> dict[str, int]:
    """Return how many public samples are tuned on, where that is not the usual number."""
    return {} if scale.tuned == StitchTuning().samples else {"samples": scale.tuned}


def chosen(table: Mapping[str, Any], name: str, of: str) -> Any:
    """Return an entry that a scale names, or say which there are."""
    if name not in table:
        raise SettingsError(f"scale.{of}: there is no '{name}'{suggest(name, table)}")
    return table[name]


def cases(scale: ClubScale) -> Iterator[Case]:
    """Return every method on every set, split and zoo; with and without labels, where a method can do both."""
    for zoo, dataset, split, method in product(scale.zoos, scale.sets, scale.splits, scale.methods):
        kinds = scale.public if method in EITHER else ("",)
        yield from (Case(dataset, split, method, zoo, public) for public in kinds)


def run_of(scale: ClubScale, case: Case, row: str, column: str) -> StudyRun:
    """Return a run whose mean accuracy is one figure."""
    return StudyRun(case.name, settings(scale, case), reads_mean(row, column))
