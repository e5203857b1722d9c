"""The published figures of pFedClub's tables (Wang et al. 2024), in per cent; deviations are left out."""

from __future__ import annotations

from itertools import product

from intarsia.papers.study import placed

SETS, SPLITS = ("MNIST", "SVHN", "CIFAR-10"), ("IID", "Non-IID")
COLUMNS = [f"{dataset} {split}" for dataset, split in product(SETS, SPLITS)]
_HR, _CLUB = "pFedHR, labelled", "pFedClub, labelled"
_HR_UNLABELLED, _CLUB_UNLABELLED = "pFedHR, unlabelled", "pFedClub, unlabelled"

_TABLE1 = {
    "I": {
        "FedMD": (91.12, 90.03, 76.22, 75.14, 66.38, 63.10),
        "FedGH": (92.76, 91.27, 78.41, 75.06, 71.22, 67.37),
        _HR: (94.67, 92.88, 81.59, 80.88, 73.21, 69.88),
        _CLUB: (94.02, 93.20, 84.55, 82.65, 76.45, 73.62),
        "FedKEMF": (91.47, 90.60, 77.56, 74.23, 68.77, 65.09),
        "FCCL": (91.09, 90.21, 79.44, 75.28, 66.85, 64.76),
        _HR_UNLABELLED: (92.15, 91.00, 80.66, 78.93, 72.06, 68.54),
        _CLUB_UNLABELLED: (93.72, 92.77, 83.94, 81.76, 75.86, 72.87),
    },
    "II": {
        "FedMD": (91.98, 92.01, 80.86, 77.53, 68.55, 63.74),
        "FedGH": (92.13, 91.14, 78.15, 75.47, 71.29, 68.60),
        _HR: (93.51, 92.77, 82.33, 80.96, 73.60, 71.14),
        _CLUB: (93.62, 93.11, 84.25, 82.47, 76.02, 73.15),
        "FedKEMF": (92.61, 91.33, 79.62, 77.54, 69.11, 66.07),
        "FCCL": (92.77, 90.89, 81.88, 77.32, 68.02, 66.43),
        _HR_UNLABELLED: (93.21, 92.77, 81.56, 79.68, 71.88, 69.94),
        _CLUB_UNLABELLED: (93.86, 93.41, 83.89, 81.61, 75.52, 72.31),
    },
    "III": {
        "HeteroFL": (92.48, 91.25, 80.57, 77.60, 71.08, 67.87),
        "FlexiFed": (91.08, 90.10, 80.69, 75.30, 68.09, 67.15),
        "FedMD": (92.16, 91.37, 80.22, 76.14, 67.14, 63.50),
        "FedGH": (92.93, 91.44, 79.03, 75.28, 67.88, 70.77),
        _HR: (92.25, 91.07, 81.88, 79.25, 72.45, 69.08),
        _CLUB: (93.24, 92.66, 82.69, 81.21, 74.88, 71.94),
        "FedKEMF": (92.78, 91.60, 78.88, 76.16, 68.04, 65.80),
        "FCCL": (92.65, 91.07, 80.32, 76.02, 67.16, 66.73),
        _HR_UNLABELLED: (93.84, 93.46, 81.76, 78.40, 71.74, 68.23),
        _CLUB_UNLABELLED: (93.77, 93.52, 82.50, 81.03, 74.71, 71.68),
    },
}
TABLE1 = {
    (f"zoo {zoo} {column}", method): value
    for zoo, methods in _TABLE1.items()
    for number, column in enumerate(COLUMNS)
    for method, value in ((name, values[number]) for name, values in methods.items())
}

_TABLE2 = {
    "CNN2": {
        "FedAvg": (90.52, 62.49, 58.01),
        "FedProx": (90.87, 63.77, 59.65),
        "Per-FedAvg": (91.04, 63.59, 59.81),
        "PFedMe": (91.79, 64.27, 60.14),
        "PFedBayes": (92.54, 63.19, 60.08),
        "pFedHR": (92.62, 64.59, 61.79),
        "pFedClub": (92.18, 66.97, 64.25),
    },
    "MobileNetV2": {
        "FedAvg": (92.07, 79.42, 62.13),
        "FedProx": (92.85, 80.33, 63.60),
        "Per-FedAvg": (92.62, 82.45, 70.88),
        "PFedMe": (93.05, 81.79, 72.13),
        "PFedBayes": (93.71, 83.05, 72.44),
        "pFedHR": (93.15, 83.88, 73.65),
        "pFedClub": (93.68, 85.26, 74.97),
    },
}
TABLE2 = {
    (f"{model} {dataset}", method): value
    for model, methods in _TABLE2.items()
    for number, dataset in enumerate(SETS)
    for method, value in ((name, values[number]) for name, values in methods.items())
}

_TABLE3 = {
    "pFedClub": (82.50, 81.03, 74.71, 71.68),
    "max": (78.69, 73.50, 70.52, 66.89),
    "min": (77.50, 72.09, 69.96, 66.84),
    "noc": (65.26, 61.08, 62.19, 58.14),
    "nbc": (63.01, 59.47, 61.38, 56.02),
}
TABLE3 = placed(_TABLE3, COLUMNS[2:])

_TABLE4 = {
    30: (82.84, 84.68, 85.02, 81.23, 82.58, 84.47),
    50: (82.50, 84.02, 84.89, 81.03, 82.41, 83.15),
    100: (79.26, 82.55, 83.97, 77.06, 79.43, 80.22),
}
TABLE4 = {
    (f"{split} N = {number}", f"{ratio} %"): value
    for number, values in _TABLE4.items()
    for (split, ratio), value in zip(product(SPLITS, (10, 20, 30)), values, strict=True)
}

_TABLE5 = {
    "unlabelled, K = 3": (80.45, 78.21, 72.02, 68.04),
    "unlabelled, K = 4": (82.50, 81.03, 74.71, 71.68),
    "unlabelled, K = 5": (82.66, 81.17, 75.26, 71.89),
    "labelled, K = 3": (80.76, 79.88, 73.07, 68.95),
    "labelled, K = 4": (82.69, 81.21, 74.88, 71.94),
    "labelled, K = 5": (82.77, 81.35, 75.89, 72.38),
}
TABLE5 = placed(_TABLE5, COLUMNS[2:])

FIG3 = {"pFedHR": 80.35, "pFedClub": 83.21, "pFedClub+": 82.51}
"""Accuracies in Figure 3(a); the text says which is whose: both pFedClubs above pFedHR, the limited one below."""
FIG3_PHI = {"pFedHR": 3.8, "pFedClub": 0.5}
"""phi of the client with CNN1, from "around" 4.8 and 1.5 times its size; the other bars bear no figures."""
