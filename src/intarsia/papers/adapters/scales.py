"""How large the studies of adapters are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from intarsia.core import part
from intarsia.models.norms import Norms
from intarsia.papers.adapters.published import DEVICE, KINDS, METHODS, PARTITIONS, SETS, SILO, WITH, WITHOUT
from intarsia.papers.study import Count, Scale


@part
class AdapterScale(Scale):
    """A scale of the experiments with adapters; `clients` are those of the cross-silo setting."""

    settings: tuple[str, ...]
    sets: tuple[str, ...]
    partitions: tuple[str, ...]
    methods: tuple[str, ...]
    network: Literal["resnet", "mobilenet_v2"]
    """`resnet` as published (ResNet26 if `channels` and `blocks` are); or MobileNetV2 of width 0.35, for which an
    ImageNet-trained base can be had."""
    size: Count
    """Height and width of the images."""
    channels: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Channels of the network's stages (64-128-256: ResNet26; the stem has half of the first)."""
    blocks: Count
    fraction: Annotated[float, Field(gt=0, le=1)]
    """Share of the data."""
    kinds: tuple[str, ...]
    """With and without adapters; `w/ adapter, zero init` is ours."""
    base: str
    """A safetensors file with the pre-trained base (empty: a random one, which is no base to speak of)."""
    published: bool
    """Whether SVHN is divided into training and test data as published, and clients of a round are drawn with
    replacement, as in the paper; else SVHN's samples are divided anew, and nobody is drawn twice."""
    rates: dict[str, Annotated[float, Field(gt=0)]]
    """Learning rates by kind, as `intarsia tune` found them; others have the paper's: 0.1, of few labels 0.01."""
    rank: Annotated[int, Field(ge=0)]
    """Of low-rank adapters beside 1x1 convolutions (0: none): without them MobileNetV2's adapters are few."""
    statistics: Literal["running", "refitted"]
    """What batch norms know when clients send them (`training.statistics`)."""
    norms: Norms
    """Where batch norms live (`sharing.norms`): under noise that differs from client to client, no common statistics
    fit."""
    redrawn: bool
    """Whether Gau draws its noise anew in every batch, as NIID-Bench's code does."""


FULL = (64, 128, 256)
RESNET: Literal["resnet"] = "resnet"
MOBILE: Literal["mobilenet_v2"] = "mobilenet_v2"


def usual_scale(**changes: Any) -> AdapterScale:
    """Return FedAvg with and without adapters on ten clients of CIFAR-10, with changes."""
    usual = {
        "clients": 10,
        "rounds": 10,
        "seeds": 3,
        "every": 5,
        "settings": (SILO,),
        "sets": ("Cifar10",),
        "partitions": ("Dir(0.5)", "#M = 2", "Gau(0.1)"),
        "methods": ("FedAvg",),
        "network": RESNET,
        "size": 32,
        "channels": FULL,
        "blocks": 4,
        "fraction": 0.5,
        "kinds": (WITHOUT, WITH),
        "base": "",
        "published": False,
        "rates": {},
        "rank": 0,
        "statistics": "running",
        "norms": "shared",
        "redrawn": False,
    }
    return AdapterScale(**{**usual, **changes})


SCALES = {
    "small": usual_scale(rounds=15, seeds=1, channels=(16, 32, 64), blocks=2),
    "medium": usual_scale(channels=(32, 64, 128), kinds=tuple(KINDS)),
    "imagenet": usual_scale(network=MOBILE, size=96, fraction=0.2, kinds=tuple(KINDS)),
    "pixels64": usual_scale(
        size=64, channels=(32, 64, 128), kinds=tuple(KINDS), rounds=20, statistics="refitted"
    ),
    "paper": usual_scale(
        rounds=50,
        seeds=5,
        settings=(SILO, DEVICE),
        sets=tuple(SETS),
        partitions=tuple(PARTITIONS),
        methods=tuple(METHODS),
        size=72,
        fraction=1.0,
        published=True,
    ),
}


def looked_at(partition: str, **changes: Any) -> dict[str, AdapterScale]:
    """Return the scales of a study that runs one round on one partition."""
    scale = usual_scale(rounds=1, seeds=1, every=1, partitions=(partition,), **changes)
    return {"small": scale, "paper": scale}
