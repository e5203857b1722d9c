"""Merges that need all updates at once, and bounds that a site cannot be asked to keep: over a loop."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from tests.flower.loopback import Loop, make_agent, play

SMALL = {"model": {"name": "mlp", "hidden": [8]}, "training": {"batch_size": 8}, "rounds": 2}
CLIENTS = {f"client-{number}": 24 for number in range(5)}


@pytest.mark.parametrize(
    ("guard", "sums"),
    [({}, True), ({"merge": "median"}, False), ({"defence": {"norm": "auto", "norm_times": 0.5}}, False)],
    ids=["mean", "merge", "bound"],
)
def test_a_site_sends_single_updates_where_the_server_must_see_them(tmp_path, guard, sums):
    asked, sent = [], []

    def listen(header):
        if header["kind"] != "exchange" or header["purpose"] != "train":
            return None
        asked.append(header["merge"])
        return lambda answer: sent.append(set(answer.records))

    agent = make_agent(tmp_path, "north", CLIENTS)
    loop = Loop()
    loop.add(agent, listen)
    try:
        run = play(loop, tmp_path, {**SMALL, **guard})
    finally:
        agent.close()
    assert run.summary["finished"]
    assert set(asked) == {sums}
    for records in sent:
        assert ("sums" in records) == sums
        assert any("/model@all" in name for name in records) != sums
    clipped = [event for event in run.events if event["kind"] == "clipped"]
    assert bool(clipped) == ("defence" in guard)
