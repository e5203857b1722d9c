"""How large the studies of adapters are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from intarsia.core import part
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


_SOME = ("Dir(0.5)", "#M = 2", "Gau(0.1)")
FULL = (64, 128, 256)
RESNET: Literal["resnet"] = "resnet"
MOBILE: Literal["mobilenet_v2"] = "mobilenet_v2"
BOTH = (WITHOUT, WITH)
SCALES = {
    "small": AdapterScale(
        10,
        15,
        1,
        5,
        (SILO,),
        ("Cifar10",),
        _SOME,
        ("FedAvg",),
        RESNET,
        32,
        (16, 32, 64),
        2,
        0.5,
        BOTH,
        "",
        False,
    ),
    "medium": AdapterScale(
        10,
        10,
        3,
        5,
        (SILO,),
        ("Cifar10",),
        _SOME,
        ("FedAvg",),
        RESNET,
        32,
        (32, 64, 128),
        4,
        0.5,
        tuple(KINDS),
        "",
        False,
    ),
    "imagenet": AdapterScale(
        10,
        10,
        3,
        5,
        (SILO,),
        ("Cifar10",),
        _SOME,
        ("FedAvg",),
        MOBILE,
        96,
        FULL,
        4,
        0.2,
        tuple(KINDS),
        "",
        False,
    ),
    "paper": AdapterScale(
        10,
        50,
        5,
        5,
        (SILO, DEVICE),
        tuple(SETS),
        tuple(PARTITIONS),
        tuple(METHODS),
        RESNET,
        72,
        FULL,
        4,
        1.0,
        BOTH,
        "",
        True,
    ),
}
