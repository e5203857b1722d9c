"""The round loop, whatever the method."""

from __future__ import annotations

import intarsia
from tests.golden.plays import digests


class StopAfterOne(intarsia.Observer):
    """Wants to stop between the first two rounds."""

    def wants_stop(self):
        return True


def test_a_run_stops_where_its_observer_wants_it_to_and_goes_on_from_there(small_run):
    changes = ("method=fedper", "rounds=3", "checkpoints.every=3")
    stopped = small_run(*changes, out="stopped", observer=StopAfterOne())
    assert (stopped.summary["finished"], stopped.summary["rounds"]) == (False, 1)
    assert stopped.state().round == 1
    whole = small_run(*changes, out="whole", observer=intarsia.Observer())
    assert whole.summary["finished"]
    assert digests(intarsia.resume(stopped.path)) == digests(whole)


def test_nobody_is_asked_after_the_last_round(small_run):
    run = small_run("rounds=1", observer=StopAfterOne())
    assert run.summary["finished"]
