"""What FedMN published: its data sets and figures."""

from __future__ import annotations

from typing import Any

CLIENTS, SAMPLES, SELECTABLE = "clients", "samples", "selectable blocks, % of parameters"
ACCURACY, SENT, WITHOUT_ROUTER = "accuracy, %", "parameters sent, M", "without the router, M"
MIXED, ALWAYS_ON, LONGER, PLUS = "FedEM", "Always on", "FedAvg, rounds of a pool", "FedMN+ (ours)"
MIXED_LONGER = "FedEM, rounds of a pool"
AS_DEEP, KEPT = "FedAvg, one path of a pool", "pFedMe, kept models"
OPEN, TRAINED_AGAIN = "FedMN, open start", "FedMN, open start, local models"
SETS: dict[str, dict[str, Any]] = {
    "CIFAR10": {"dataset": "cifar10", "partition": "label_clusters"},
    "CIFAR100": {"dataset": "cifar100", "partition": "pachinko"},
    "EMNIST": {"dataset": "emnist", "partition": {"name": "label_clusters", "clusters": 62}, "fraction": 0.1},
    "FEMNIST": {"dataset": "femnist", "partition": "natural"},
    "MNIST": {"dataset": "mnist", "partition": {"name": "dirichlet", "beta": 0.4}},
    "Chars74K": {"dataset": "chars74k", "partition": "natural"},
    "Chars74K, 5 writers": {"dataset": "chars74k", "partition": {"name": "natural", "together": 5}},
    "FEMNIST digits": {"dataset": "femnist_digits", "partition": "natural"},
    "Shakespeare": {"name": "roles"},
}
"""FedEM's test bed, as FedMN takes it over; what stands in where EMNIST and FEMNIST cannot be had; and text."""
PUBLISHED_CLIENTS = {"CIFAR10": 80, "CIFAR100": 100, "EMNIST": 100, "FEMNIST": 539}
PUBLISHED_SAMPLES = {"CIFAR10": 60_000, "CIFAR100": 60_000, "EMNIST": 81_425, "FEMNIST": 120_772}
OTHER_CLIENTS = {
    "MNIST": 100,
    "Chars74K": 55,
    "Chars74K, 5 writers": 11,
    "FEMNIST digits": 12,
    "Shakespeare": 99,
}
OF_PICTURES = ("CIFAR10", "CIFAR100")
BY_WRITER = ("femnist", "chars74k", "femnist_digits")
"""Data sets that writers divide: all of a writer's samples are his client's."""
TABLE2 = {
    "CIFAR10": (70.2, 78.2, 78.0, 82.3, 78.6, 81.7, 83.2, 83.4),
    "CIFAR100": (31.5, 40.9, 41.0, 39.0, 41.5, 41.8, 43.6, 45.6),
    "EMNIST": (71.9, 82.6, 83.0, 83.1, 82.7, 83.3, 83.5, 83.8),
    "FEMNIST": (71.0, 78.6, 78.9, 75.3, 73.5, 74.9, 79.9, 82.2),
}
METHODS: dict[str, dict[str, Any]] = {
    "Local": {"name": "local"},
    "FedAvg": {"name": "fedavg"},
    "FedProx": {"name": "fedprox"},
    "FedAvg+": {"name": "fedavg+"},
    "ClusteredFL": {"name": "clustered_fl"},
    "pFedMe": {"name": "pfedme"},
    MIXED: {"name": "fedem"},
    "FedMN": {"name": "fedmn"},
    OPEN: {"name": "fedmn", "start": "open", "output": "local"},
    PLUS: {"name": "fedmn+"},
    ALWAYS_ON: {"name": "fedavg"},
    LONGER: {"name": "fedavg"},
    MIXED_LONGER: {"name": "fedem"},
    AS_DEEP: {"name": "fedavg"},
    KEPT: {"name": "pfedme", "form": "kept"},
}
"""The paper's, in its order; then ours: FedMN with an open start (its run has local models too), and controls: a pool
that is always on, FedAvg and FedEM for as many rounds as a pool has, a network as deep as a path through the pool, and
pFedMe as FedEM's test bed has it."""
ON_A_POOL = ("FedMN", OPEN, PLUS, ALWAYS_ON, AS_DEEP)
