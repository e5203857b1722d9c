"""Many sites at once; answers that are late, doubled or in another order (`python -m benchmarks.load` does more)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from benchmarks import load

from intarsia.flower.server import channel as channels
from intarsia.flower.server.channel import Channel
from tests.golden.plays import digests

ORDERS = {"in another order": (2, 0.0, 0.0), "twice and late": (3, 0.6, 0.5)}


def played(home, seed: int, twice: float, late: float):
    crowd = load.Crowd(12, seed, twice, late)
    return crowd, load.federation(home, crowd, rounds=3, clients=6)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return digests(played(tmp_path_factory.mktemp("plain"), 1, 0.0, 0.0)[1])


@pytest.mark.parametrize("order", ORDERS)
def test_late_doubled_and_reordered_answers_change_no_bit(order, plain, tmp_path):
    crowd, run = played(tmp_path, *ORDERS[order])
    assert digests(run) == plain
    assert run.summary["failed"] == run.summary["refused"] == 0
    assert (max(crowd.delivered.values()) > 1) == (order != "in another order")
    assert crowd.most == 12
    assert not crowd._objects, "answers that nobody wanted were not confirmed"


class Fetched:
    """Stands for an answer that lies at the SuperLink."""

    confirmed: list[object]

    def __init__(self, grid, tree, backoff) -> None:
        self.tree = tree

    def confirm(self) -> None:
        Fetched.confirmed.append(self.tree)


names = st.sampled_from([f"message-{i}" for i in range(6)])


@given(waiting=st.sets(names), deliveries=st.lists(st.lists(names, max_size=8), max_size=8))
def test_each_answer_counts_once_whatever_comes_when(waiting, deliveries):
    """What comes in any order, again, late or unasked: each asked message is answered at most once, all is confirmed."""
    queue = [list(enumerate(names, 100 * i)) for i, names in enumerate(deliveries)]
    Fetched.confirmed = []

    def pull(request):
        now = queue.pop(0) if queue else []
        abouts = [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)) for _, name in now]
        return SimpleNamespace(messages_list=abouts, message_object_trees=[number for number, _ in now])

    class Taking(Channel):
        def _take(self, download, limit):
            download.confirm()
            return download.tree

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(channels, "MessageDownload", Fetched)
        line = Taking(SimpleNamespace(_runtime_client=SimpleNamespace(PullMessages=pull)))
        left, got, given_out = set(waiting), [], 0
        while left and queue:
            given_out += len(queue[0])
            for name, _ in line.receive(left):
                left.discard(name)
                got.append(name)
    assert len(got) == len(set(got))
    assert set(got) <= waiting
    assert set(got) | left == waiting
    assert len(Fetched.confirmed) == given_out


def test_what_is_not_answered_is_forgotten():
    line = Channel(SimpleNamespace())
    line._limits = {"a": 1, "b": 2}
    line.forget(["a", "never sent"])
    assert line._limits == {"b": 2}


def test_rounds_that_go_on_take_no_more_memory_or_files():
    found = load.long(120)
    assert found["files_at_the_end"] <= found["files_at_a_quarter"] + 8
    assert found["kib_at_the_end"] - found["kib_at_a_quarter"] < 60_000


def test_a_growth_would_be_seen():
    assert load.slope([(round, 100 + 3 * round) for round in range(50)]) == pytest.approx(3)
