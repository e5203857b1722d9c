"""Scores of attacks, by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from intarsia.audit.membership import Fit, trained_by
from intarsia.audit.scores import auc, by_lot, hits_at, told
from intarsia.audit.shadows import left_out
from intarsia.audit.targets import confidences


def test_auc_counts_pairs_and_halves_ties() -> None:
    # Pairs (member, other): 3 beats 1 and 2, ties no one; 2 beats 1, ties 2; 0 loses to both: 2 + 1.5 + 0 of 6.
    assert auc([3.0, 2.0, 0.0], [1.0, 2.0]) == pytest.approx(3.5 / 6)


def test_hits_are_counted_above_a_bar_that_few_others_pass() -> None:
    others = [float(i) for i in range(100)]
    # One of a hundred may be above the bar: the bar is the second largest, 98.
    assert hits_at([98.5, 98.0, 120.0, 3.0], others) == pytest.approx(2 / 4)
    # Of ten others none may: the bar is the largest.
    assert hits_at([9.0, 9.5], [float(i) for i in range(10)]) == pytest.approx(1 / 2)


def test_intervals_hold_the_score_and_come_again() -> None:
    random = np.random.default_rng(0)
    members, others = random.normal(1, 1, 400), random.normal(0, 1, 400)
    found = told(members, others, 0, "test")
    assert found.auc_interval[0] < found.auc < found.auc_interval[1]
    assert (
        found.auc_interval[0] < 0.76 < found.auc_interval[1]
    )  # P(N(1, 1) > N(0, 1)) = Phi(1 / sqrt(2)) = 0.760
    assert found == told(members, others, 0, "test")


def test_scores_by_lot_tell_nothing_and_scatter_as_they_must() -> None:
    found = by_lot(868, 568, 0)
    assert found.auc == pytest.approx(0.5, abs=0.002)
    # The deviation of the area is sqrt((868 + 568 + 1) / (12 * 868 * 568)) = 0.0156; 1.96 of them are 0.0306.
    assert found.auc_interval == pytest.approx([0.5 - 0.0306, 0.5 + 0.0306], abs=0.004)
    assert found.hits == pytest.approx(0.01, abs=0.003)


def test_confidence_is_the_log_of_the_odds() -> None:
    p = np.asarray([0.5, 0.9, 0.01])
    assert confidences(-np.log(p), True) == pytest.approx(np.log(p / (1 - p)))
    assert confidences(np.asarray([1.0, np.e**2]), False) == pytest.approx([0, -2])


def test_lira_is_the_known_likelihood_ratio() -> None:
    # Inside, samples are N(2, 1); outside, N(0, 1): the log of the ratio at v is 2 v - 2.
    random = np.random.default_rng(0)
    runs, samples = 4000, 3
    trained = random.random((runs, samples)) < 0.5
    said = random.normal(0, 1, (runs, samples)) + 2 * trained
    fit = Fit.of(said, trained)
    at = np.asarray([0.0, 1.0, 2.0])
    assert fit.online(at) == pytest.approx([-2, 0, 2], abs=0.15)
    assert fit.offline(at) == pytest.approx([0, 1, 2], abs=0.1)


def test_lira_by_hand_and_samples_that_no_run_trained_on() -> None:
    said = np.asarray([[3.0, 1.0], [5.0, 1.0], [0.0, 3.0], [2.0, 5.0]])
    trained = np.asarray([[True, False], [True, False], [False, False], [False, False]])
    fit = Fit.of(said, trained)
    assert fit.inside[0] == 4
    assert np.isnan(fit.inside[1])
    assert fit.outside.tolist() == [1.0, 2.5]
    # Squares around the means: 1 + 1 inside, one degree of freedom; 2 + 11 outside, of 6 values and 2 means.
    assert fit.spread_inside == pytest.approx(np.sqrt(2))
    assert fit.spread_outside == pytest.approx(np.sqrt(13 / 4))
    assert np.isnan(fit.online(np.asarray([1.0, 1.0]))[1])


def test_a_cycle_of_shadow_runs_leaves_out_every_sample_once() -> None:
    train, test = 75, 25
    out = np.concatenate([left_out(0, "client-1", k, train, test) for k in range(4)])
    assert sorted(out) == list(range(100))
    assert (
        left_out(0, "client-1", 4, train, test).tolist() != left_out(0, "client-1", 0, train, test).tolist()
    )
    marks = trained_by(0, "client-1", 8, train, test)
    assert (~marks).sum(0).tolist() == [2] * 100
    assert marks.sum(1).tolist() == [75] * 8
