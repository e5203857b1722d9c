"""Partitions of the field: which client holds which samples."""

from __future__ import annotations

from intarsia.core import Registry
from intarsia.data.partitions.base import Partition
from intarsia.data.partitions.cohorts import PermutedLabels, ShiftedInputs
from intarsia.data.partitions.dirichlet import Dirichlet
from intarsia.data.partitions.iid import IID
from intarsia.data.partitions.label_clusters import LabelClusters
from intarsia.data.partitions.labels import Labels
from intarsia.data.partitions.natural import Natural
from intarsia.data.partitions.noise import Noise
from intarsia.data.partitions.pachinko import Pachinko
from intarsia.data.partitions.two_classes import TwoClasses
from intarsia.data.partitions.windows import Windows

PARTITIONS: Registry[type[Partition]] = Registry(
    "partitions",
    Partition,
    (
        IID,
        Dirichlet,
        Labels,
        Noise,
        PermutedLabels,
        ShiftedInputs,
        LabelClusters,
        Pachinko,
        Natural,
        TwoClasses,
        Windows,
    ),
)
"""Every rule there is, by name."""

__all__ = ["PARTITIONS", "Partition"]
