"""Secrets shared among many: against a polynomial worked out by hand, and a slow interpolation."""

from __future__ import annotations

import itertools
import secrets
from fractions import Fraction

import pytest

from intarsia.trust import shamir


def test_the_field_is_the_first_prime_above_all_secrets():
    small = [p for p in range(2, 2000) if all(p % q for q in range(2, int(p**0.5) + 1))]
    assert not any(
        pow(3, 2**256 + k - 1, 2**256 + k) == 1
        for k in range(1, 297, 2)
        if all((2**256 + k) % p for p in small)
    )
    for base in (2, 3, 5, 7, 11, 13):  # Fermat, as far as it goes
        assert pow(base, shamir.PRIME - 1, shamir.PRIME) == 1


def test_shares_are_values_of_a_polynomial(monkeypatch):
    """Secret 7 and factors 5 and 3: 7 + 5x + 3x^2 is 15, 29, 49, 75."""
    factors = iter([5, 3])
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(factors))
    shares = shamir.split((7).to_bytes(32, "big"), 4, 3)
    assert [int.from_bytes(share, "big") for share in shares] == [15, 29, 49, 75]


def slowly(points: dict[int, int]) -> int:
    """Interpolate at zero with fractions: a polynomial of whole numbers below the prime needs no field."""
    total = Fraction(0)
    for x, y in points.items():
        term = Fraction(y)
        for other in points:
            if other != x:
                term *= Fraction(-other, x - other)
        total += term
    assert total.denominator == 1
    return int(total)


def test_any_threshold_of_shares_gives_the_secret(monkeypatch):
    small = iter([123456789, 987654321, 55])
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(small))
    secret = (2**200 + 12345).to_bytes(32, "big")
    shares = dict(enumerate(shamir.split(secret, 7, 4), 1))
    for chosen in itertools.combinations(shares, 4):
        counts = shamir.coefficients(chosen)
        assert shamir.joined(shares, counts) == secret
        assert slowly({x: int.from_bytes(shares[x], "big") for x in chosen}) == 2**200 + 12345


@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (3, 2), (10, 7), (40, 25)])
def test_secrets_of_all_sizes_come_back(holders, threshold):
    for secret in (bytes(32), b"\xff" * 32, secrets.token_bytes(32)):
        shares = dict(enumerate(shamir.split(secret, holders, threshold), 1))
        last = list(shares)[-threshold:]
        assert shamir.joined(shares, shamir.coefficients(last)) == secret


def test_fewer_shares_say_nothing():
    """For every secret there is one further share that makes the shares at hand its own: here worked out for two."""
    shares = dict(enumerate(shamir.split(secrets.token_bytes(32), 3, 3), 1))
    for wanted in (0, 1, 2**255 + 99):
        # The third share that a line of thought would need: solve count_3 * share_3 = wanted - the rest.
        counts = shamir.coefficients([1, 2, 3])
        rest = sum(counts[i] * int.from_bytes(shares[i], "big") for i in (1, 2))
        third = (wanted - rest) * pow(counts[3], -1, shamir.PRIME) % shamir.PRIME
        found = shamir.joined({**shares, 3: third.to_bytes(33, "big")}, counts)
        assert int.from_bytes(found, "big") == wanted


def test_shares_of_different_secrets_are_not_taken_for_one():
    odd = {1: (2**256 + 5).to_bytes(33, "big")}
    with pytest.raises(ValueError, match="not of one secret"):
        shamir.joined(odd, shamir.coefficients([1]))


@pytest.mark.parametrize(("size", "holders", "threshold"), [(31, 3, 2), (32, 3, 4), (32, 3, 0)])
def test_what_cannot_be_split_is_refused(size, holders, threshold):
    with pytest.raises(ValueError, match="cannot be split"):
        shamir.split(bytes(size), holders, threshold)
