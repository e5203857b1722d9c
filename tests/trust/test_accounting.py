"""What releases cost: dp-accounting's figures, and a second accountant's."""

from __future__ import annotations

import logging

import pytest

from intarsia.trust.accounting import (
    Release,
    epsilon_of,
    epsilon_of_fixed,
    noise_for,
    rounds_within,
    usual_delta,
)

pytest.importorskip("dp_accounting")
COHORT = Release(chance=0.04, noise=1.0)


def second_accountant(release: Release, rounds: int, delta: float) -> float:
    """Return the upper end of what prv-accountant says (Gopi et al. 2021), within 0.01."""
    prv = pytest.importorskip("prv_accountant.dpsgd")
    accountant = prv.DPSGDAccountant(
        noise_multiplier=release.noise,
        sampling_probability=release.chance,
        eps_error=0.01,
        delta_error=delta / 1000,
        max_steps=rounds,
    )
    return accountant.compute_epsilon(delta, rounds)[1]


def test_forty_of_a_thousand_clients_over_two_hundred_rounds_cost_what_is_published():
    assert epsilon_of({COHORT: 200}, 1e-5) == pytest.approx(3.776, abs=1e-3)
    assert second_accountant(COHORT, 200, 1e-5) == pytest.approx(3.776, abs=1e-2)


@pytest.mark.parametrize(
    ("chance", "noise", "rounds", "delta"),
    [(0.2, 1.1, 40, 1e-3), (0.1, 2.5, 100, 1e-4), (0.5, 3.0, 30, 1e-3)],
)
def test_a_second_accountant_agrees(chance, noise, rounds, delta):
    release = Release(chance, noise)
    ours = epsilon_of({release: rounds}, delta)
    assert ours == pytest.approx(second_accountant(release, rounds, delta), abs=0.01)


def test_everybody_in_every_round_is_a_gaussian_mechanism_and_rounds_add_up_as_squares():
    four = epsilon_of({Release(1.0, 4.0): 4}, 1e-5)
    assert four == pytest.approx(epsilon_of({Release(1.0, 2.0): 1}, 1e-5), abs=1e-3)
    assert four == pytest.approx(second_accountant(Release(1.0, 4.0), 4, 1e-5), abs=0.01)


def test_nothing_released_costs_nothing_and_each_release_costs_more():
    costs = [epsilon_of({COHORT: rounds}, 1e-5) for rounds in (0, 1, 10, 100)]
    assert costs[0] == 0
    assert costs == sorted(set(costs))


def test_releases_of_different_kinds_add_up():
    both = epsilon_of({COHORT: 100, Release(0.04, 2.0): 100}, 1e-5)
    assert epsilon_of({COHORT: 100}, 1e-5) < both < epsilon_of({COHORT: 200}, 1e-5)


def test_the_noise_for_an_epsilon_is_the_least_that_keeps_within_it():
    noise = noise_for(4.0, 1e-4, 0.1, 50)
    assert epsilon_of({Release(0.1, noise): 50}, 1e-4) <= 4.0
    assert epsilon_of({Release(0.1, noise * 0.995): 50}, 1e-4) > 4.0


def test_rounds_within_a_budget_are_counted_from_what_is_spent():
    most = epsilon_of({COHORT: 30}, 1e-5)
    assert rounds_within(most, 1e-5, {}, COHORT, 100) == 30
    assert rounds_within(most, 1e-5, {COHORT: 28}, COHORT, 100) == 2
    assert rounds_within(most, 1e-5, {COHORT: 31}, COHORT, 100) == 0
    assert rounds_within(most, 1e-5, {}, COHORT, 7) == 7


def test_exactly_so_many_clients_cost_more_than_each_by_chance():
    """One replaced by another moves a sum by two bounds, so that the noise counts half."""
    fixed = epsilon_of_fixed(1000, 40, noise=2.0, rounds=200, delta=1e-5)
    assert fixed == pytest.approx(7.257, abs=1e-2)
    assert fixed > 4 * epsilon_of({Release(0.04, 2.0): 200}, 1e-5)


def test_an_epsilon_beyond_meaning_is_told_all_the_same():
    assert epsilon_of({Release(1.0, 0.05): 100}, 1e-5) > 1000


def test_the_usual_delta_is_less_than_one_over_the_clients():
    assert usual_delta(1000) == pytest.approx(1000**-1.1)
    assert usual_delta(1) < 1


def test_the_accountant_does_not_flood_the_log(caplog):
    with caplog.at_level(logging.INFO):
        epsilon_of({Release(0.03, 1.234): 17}, 1e-5)
    assert not [record for record in caplog.records if record.name == "absl"]
