"""Readers of data sets in the files that their authors publish."""

from intarsia.data.published.images import (
    COARSE_OF_FINE,
    read_cifar10,
    read_cifar100,
    read_emnist_byclass,
    read_fashion_mnist,
    read_femnist,
    read_idx,
    read_mnist,
    read_stl10,
    read_svhn,
)
from intarsia.data.published.motion import (
    read_hapt,
    read_motionsense,
    read_realworld_har,
    read_wisdm_2019,
    read_wisdm_v1,
)

__all__ = [
    "COARSE_OF_FINE",
    "read_cifar10",
    "read_cifar100",
    "read_emnist_byclass",
    "read_fashion_mnist",
    "read_femnist",
    "read_hapt",
    "read_idx",
    "read_mnist",
    "read_motionsense",
    "read_realworld_har",
    "read_stl10",
    "read_svhn",
    "read_wisdm_2019",
    "read_wisdm_v1",
]
