"""What Adapters for FL published: its settings and figures."""

from __future__ import annotations

from typing import Any

from intarsia.papers.study import Place

SETS = {"SVHN": "svhn", "Cifar10": "cifar10", "FashionMNIST": "fashion_mnist"}
PARTITIONS: dict[str, dict[str, Any]] = {
    "Dir(0.5)": {"name": "dirichlet", "beta": 0.5},
    "#M = 1": {"name": "labels", "per_client": 1},
    "#M = 2": {"name": "labels", "per_client": 2},
    "#M = 3": {"name": "labels", "per_client": 3},
    "Gau(0.1)": {"name": "noise", "sigma": 0.1},
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg"},
    "FedProx": {"method": "fedprox", "objective": {"name": "proximal", "mu": 0.01}},
    "FedNova": {"method": "fednova"},
}
WITHOUT, WITH, ZERO = "w/o adapter", "w/ adapter", "w/ adapter, zero init"
KINDS: dict[str, dict[str, Any]] = {
    WITHOUT: {"name": "none"},
    WITH: {"name": "parallel"},
    ZERO: {"name": "parallel", "init": "zero"},
}
"""What is trained; the last is not in the paper: adapters that start as if they were not there."""
CODECS: dict[str, dict[str, Any]] = {
    "int8": {"codec": {"name": "int8", "down": True}},
    "fp16": {"codec": {"name": "fp16", "down": True}},
    "top 10 %": {"codec": {"name": "topk", "share": 0.1, "down": True}},
}
SILO, DEVICE = "Cross-Silo", "Cross-Device"
COLUMNS = tuple(f"{method} {kind}" for method in METHODS for kind in (WITHOUT, WITH))
_PUBLISHED: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    SILO: {
        "SVHN": (
            (96.00, 95.03, 96.15, 95.27, 96.07, 95.19),
            (19.57, 19.14, 19.66, 19.33, 8.81, 9.00),
            (81.93, 77.22, 82.16, 76.23, 79.72, 74.41),
            (88.17, 85.00, 88.59, 85.69, 86.88, 84.47),
            (97.15, 96.38, 97.19, 96.41, 97.10, 96.39),
        ),
        "Cifar10": (
            (95.08, 95.02, 95.74, 94.93, 94.95, 94.92),
            (16.42, 12.29, 16.65, 11.41, 17.23, 12.13),
            (75.66, 64.30, 75.53, 64.31, 74.43, 61.72),
            (87.32, 79.37, 87.29, 78.49, 85.03, 76.28),
            (94.68, 93.41, 94.90, 93.15, 94.59, 93.30),
        ),
        "FashionMNIST": (
            (93.99, 92.82, 94.22, 93.14, 94.19, 93.12),
            (20.82, 16.47, 18.59, 17.92, 16.97, 17.03),
            (56.90, 55.40, 56.39, 55.62, 55.37, 52.83),
            (72.50, 70.90, 70.97, 67.94, 73.43, 67.31),
            (94.90, 93.52, 94.90, 93.56, 94.82, 93.52),
        ),
    },
    DEVICE: {
        "SVHN": (
            (95.64, 93.48, 95.62, 93.88, 77.86, 94.10),
            (14.70, 14.57, 14.49, 14.18, 11.19, 10.84),
            (89.59, 84.97, 89.99, 86.28, 49.81, 61.00),
            (94.16, 89.56, 94.05, 89.64, 92.60, 90.25),
            (96.78, 95.48, 95.58, 95.38, 96.81, 95.45),
        ),
        "Cifar10": (
            (94.78, 92.86, 95.38, 92.91, 95.00, 92.63),
            (12.75, 10.41, 12.77, 10.66, 10.52, 9.97),
            (89.64, 71.14, 89.76, 71.50, 63.23, 58.99),
            (93.63, 80.92, 93.55, 80.74, 62.48, 82.61),
            (94.45, 90.50, 94.42, 90.41, 94.32, 90.25),
        ),
        "FashionMNIST": (
            (93.40, 92.19, 93.43, 92.22, 93.44, 92.13),
            (16.93, 11.32, 21.01, 10.52, 11.29, 11.16),
            (79.09, 72.85, 77.76, 76.76, 61.79, 47.76),
        ),
    },
}
TABLE: dict[Place, float] = {
    (f"{setting} {dataset} {partition}", column): value
    for setting, sets in _PUBLISHED.items()
    for dataset, rows in sets.items()
    for partition, row in zip(PARTITIONS, rows, strict=False)
    for column, value in zip(COLUMNS, row, strict=True)
}
"""Table I; its last two rows (cross-device FashionMNIST, #M = 3 and Gau) are not legible in our copy."""
