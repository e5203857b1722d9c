"""Search over settings, on validation data."""

from intarsia.tuning.results import Trial, TrialRun, Tuning, TuningObserver
from intarsia.tuning.search import tune
from intarsia.tuning.space import Range, name_of, parse_grid, parse_ranges, split_values, text_of

__all__ = [
    "Range",
    "Trial",
    "TrialRun",
    "Tuning",
    "TuningObserver",
    "name_of",
    "parse_grid",
    "parse_ranges",
    "split_values",
    "text_of",
    "tune",
]
