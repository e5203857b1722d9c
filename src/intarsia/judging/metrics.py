"""Metrics by name, of what was counted (of labels by scikit-learn, all clients at once); their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import numpy as np

from intarsia.core import SettingsError, suggest
from intarsia.judging.tallies import Tally

Problem = Literal["classification", "regression"]
Value = float | dict[int, float] | None
"""A number, one by label, or none where there cannot be one."""
AUTO = "auto"
LEADING: Mapping[str, str] = {"classification": "accuracy", "regression": "rmse"}
"""What gains and worst clients are measured by."""


@dataclass(frozen=True)
class Metric:
    """A metric: of which problem, which way is better, how it follows from counts."""

    problem: Problem
    title: str
    of: Callable[[_Counts], Value]
    more: bool = True
    """Whether more is better."""
    part: str = ""
    """What clients must count for it beside labels."""
    usual: bool = True
    """Whether it is taken where nobody asks for others."""


@dataclass(frozen=True)
class _Counts:
    """One tally; of labels with scikit-learn's scores of every label that is there or was said."""

    tally: Tally
    labels: Sequence[int] = ()
    scores: Mapping[str, Any] = field(default_factory=dict)

    def mean(self, score: str) -> float:
        """Return the mean of a score over all labels that are there or were said."""
        return fmean(self.scores[score].tolist())

    def by_label(self, score: str, count: str) -> dict[int, float]:
        """Return a score by label, of labels that have samples to take it of."""
        there = self.scores[count]
        return {n: float(s) for n, s, c in zip(self.labels, self.scores[score], there, strict=True) if c > 0}


def _accuracy(own: _Counts) -> Value:
    confusion = own.tally["confusion"]
    right, everything = (sum(own) for own in zip(*((c * (t == s), c) for t, s, c in confusion), strict=True))
    return float(right / everything)


def _part(part: str) -> Callable[[_Counts], Value]:
    def value(own: _Counts) -> Value:
        found: Value = own.tally.get(part)
        return found

    return value


def _calibration(own: _Counts) -> Value:
    """Expected calibration error: how far confidence and share of hits are apart, bin by bin (Guo et al. 2017)."""
    bins = own.tally.get("bins")
    if bins is None:
        return None
    return math.fsum(abs(hits - sure) for _, hits, sure in bins) / math.fsum(n for n, _, _ in bins)


def _error(part: str, end: Callable[[float], float] = float) -> Callable[[_Counts], Value]:
    def value(own: _Counts) -> Value:
        return None if own.tally[part] is None else end(fmean(own.tally[part]))

    return value


def _explained(own: _Counts) -> Value:
    """R2, the mean over columns of targets; none where targets do not differ."""
    mse, variance = own.tally["mse"], own.tally["variance"]
    if mse is None or not all(variance):
        return None
    return fmean(1 - error / spread for error, spread in zip(mse, variance, strict=True))


METRICS: dict[str, Metric] = {
    "accuracy": Metric("classification", "accuracy", _accuracy),
    "balanced_accuracy": Metric(
        "classification",
        "balanced accuracy",
        lambda own: fmean(own.by_label("recall", "true").values()),
    ),
    "precision": Metric(
        "classification", "precision (macro)", lambda own: own.mean("precision"), usual=False
    ),
    "recall": Metric("classification", "recall (macro)", lambda own: own.mean("recall"), usual=False),
    "f1": Metric("classification", "F1 (macro)", lambda own: own.mean("f1")),
    "auc": Metric("classification", "AUC", _part("auc"), part="auc"),
    "brier": Metric("classification", "Brier score", _part("brier"), more=False, part="brier"),
    "ece": Metric("classification", "calibration error", _calibration, more=False, part="bins"),
    "recall_by_class": Metric(
        "classification", "recall by class", lambda own: own.by_label("recall", "true")
    ),
    "precision_by_class": Metric(
        "classification", "precision by class", lambda own: own.by_label("precision", "said")
    ),
    "mae": Metric("regression", "mean absolute error", _error("mae"), more=False),
    "rmse": Metric("regression", "root mean square error", _error("mse", math.sqrt), more=False),
    "r2": Metric("regression", "R2", _explained),
}
BY_CLASS = tuple(name for name in METRICS if name.endswith("_by_class"))


def chosen(names: Sequence[str], problems: Collection[str]) -> tuple[str, ...]:
    """Return the metrics that these names ask for, where clients have these problems; what is unknown is an error."""
    found: dict[str, None] = {}
    for name in names:
        if name == AUTO:
            found |= {n: None for n, metric in METRICS.items() if metric.usual and metric.problem in problems}
        elif name not in METRICS:
            raise SettingsError(
                f"evaluation.metrics: there is no metric '{name}'{suggest(name, [AUTO, *METRICS])}"
            )
        elif METRICS[name].problem not in problems:
            raise SettingsError(
                f"evaluation.metrics: '{name}' is for {METRICS[name].problem}, and these clients' problem is "
                f"{' and '.join(sorted(problems))}: leave it out, or write {AUTO}"
            )
        else:
            found[name] = None
    return tuple(found)


def parts_of(names: Iterable[str]) -> list[str]:
    """Return what clients must count beside labels for these metrics."""
    return sorted({METRICS[name].part for name in names} - {""})


def measure(tallies: Sequence[Tally], names: Iterable[str]) -> list[dict[str, Value]]:
    """Return the metrics of each tally: those of these names that are of its problem, and the leading one."""
    wanted = [name for name in METRICS if name in {*names, *LEADING.values()}]
    labelled = [tally for tally in tallies if "confusion" in tally]
    counts = iter(_counted(labelled) if labelled else ())
    return [_measured(next(counts) if "confusion" in t else _Counts(t), wanted) for t in tallies]


def _measured(own: _Counts, names: Iterable[str]) -> dict[str, Value]:
    problem = "classification" if "confusion" in own.tally else "regression"
    return {name: METRICS[name].of(own) for name in names if METRICS[name].problem == problem}


def _counted(tallies: Sequence[Tally]) -> list[_Counts]:
    """Give every label of every tally a number of its own, and have all of them scored at once."""
    from sklearn.metrics import precision_recall_fscore_support

    rows = np.array([[i, *entry] for i, tally in enumerate(tallies) for entry in tally["confusion"]])
    width = int(rows[:, 1:3].max()) + 1
    true, said = rows[:, 0] * width + rows[:, 1], rows[:, 0] * width + rows[:, 2]
    labels = np.unique(np.concatenate((true, said)))
    precision, recall, f1, there = precision_recall_fscore_support(
        true, said, labels=labels, sample_weight=rows[:, 3], zero_division=0
    )
    place = np.searchsorted(labels, said)
    often = np.bincount(place, weights=rows[:, 3], minlength=len(labels))
    scores = {"precision": precision, "recall": recall, "f1": f1, "true": there, "said": often}
    ends = np.searchsorted(labels, np.arange(len(tallies) + 1) * width)
    return [
        _Counts(tally, (labels[a:b] - i * width).tolist(), {name: own[a:b] for name, own in scores.items()})
        for i, (tally, a, b) in enumerate(zip(tallies, ends[:-1], ends[1:], strict=True))
    ]


LEVEL = 0.95


def wilson(correct: int, samples: int) -> list[float]:
    """Return Wilson's interval (95 %) of a share of so many samples."""
    from scipy.stats import binomtest

    found = binomtest(correct, samples).proportion_ci(LEVEL, method="wilson")
    return [float(found.low), float(found.high)]


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Return Student's interval (95 %) of a mean; of a single value there is none."""
    if len(values) < 2:
        return None
    return around(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))


def around(mean: float, deviation: float, count: int) -> list[float]:
    """Return Student's interval (95 %) of a mean of so many values with this deviation."""
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * deviation / math.sqrt(count)
    return [mean - half, mean + half]


@dataclass(frozen=True)
class Paired:
    """By how much one side is above the other in pairs: mean, interval, and how likely that is by chance."""

    pairs: int
    mean: float
    interval: list[float] | None
    p: float | None
    test: str


def paired(ours: Sequence[float], theirs: Sequence[float], few: bool) -> Paired:
    """Compare pairs: by Student's test where they are few (seeds), else by Wilcoxon's (clients)."""
    from scipy.stats import ttest_rel, wilcoxon

    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, interval = math.fsum(gaps) / len(gaps), mean_interval(gaps)
    name = "t" if few else "Wilcoxon"
    if len(gaps) < 2 or len(set(gaps)) == 1:  # no spread: no test says anything
        return Paired(len(gaps), mean, interval, 1.0 if len(gaps) > 1 and not any(gaps) else None, name)
    found = ttest_rel(ours, theirs) if few else wilcoxon(gaps)
    return Paired(len(gaps), mean, interval, float(found.pvalue), name)
