"""A real federation under privacy: the server holds single updates to their bound, noise comes from the system."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")
pytest.importorskip("dp_accounting")

PRIVATE = {"clip": 0.5, "noise": 0.8, "tells_scores": True}


@pytest.mark.flower_slow
@pytest.mark.parametrize(
    "more",
    [
        {"privacy": {**PRIVATE, "adaptive": True}, "sampling": {"kind": "poisson", "fraction": 0.6}},
        {"privacy": {**PRIVATE, "level": "example"}},
    ],
    ids=["client", "example"],
)
def test_a_federation_under_privacy_spends_and_says_so(federation, more):
    run = federation.play(
        f"noise-{more['privacy'].get('level', 'client')}", {"method": "fedavg", **more, "rounds": 2}
    )
    told = run.summary["privacy"]
    assert run.summary["failed"] == run.summary["refused"] == 0
    assert told["randomness"] == "system"
    assert told["epsilon"] > 0
    if told["level"] == "client":
        assert told["releases"] == 2
        singly = {
            row["client"]
            for row in run.traffic
            if (row["purpose"], row["direction"]) == ("train", "up") and row["block"]
        }
        assert singly <= set(run.clients)  # no site sent sums
    else:
        assert {own["times"] for own in told["clients"].values()} == {2}
