"""What is kept of clients and blocks change by change equals what counting everything anew would say."""

from __future__ import annotations

import random

import pytest

from intarsia.runs import ClientRecord, Named, Records


def record(*private: str) -> ClientRecord:
    return ClientRecord(state={"private": dict(enumerate(private))})


def test_a_draft_leaves_the_records_as_they_were():
    records = Records({"a": record("1"), "b": record("2")})
    everyone = records.settle().everyone
    draft = records.draft()
    draft["a"] = record("3")
    draft["c"] = record("4")
    assert dict(records) == {"a": record("1"), "b": record("2")}
    assert dict(draft) == {"a": record("3"), "b": record("2"), "c": record("4")}
    assert (len(records), len(draft)) == (2, 3)
    with pytest.raises(KeyError):
        records["c"]
    draft["a"] = record("5")
    settled = draft.settle()
    assert settled.everyone is everyone
    assert settled.changed == {"a": record("5"), "c": record("4")}
    assert list(settled.replaced) == [record("3")]
    assert not draft.settle().changed
    assert dict(draft) == {"a": record("5"), "b": record("2"), "c": record("4")}


def test_a_block_is_lost_with_the_last_checkpoint_that_names_it():
    named = Named()
    named.add(0, {}, {"start"})
    named.add(1, {"a": record("x"), "b": record("y")}, {"start", "one"})
    named.add(2, {"a": record("y")}, {"start", "two"})
    named.add(3, {"b": record("z")}, {"start", "two"})
    assert named.remove(0) == set()
    assert named.states("a") == [record("x").state, record("y").state]
    assert named.remove(1) == {"one", "x"}
    assert named.states("a") == [record("y").state]
    assert named.remove(2) == set()  # `y` is now a's, `two` is still there
    assert set(named.versions()) == {"start", "two", "y", "z"}
    assert named.unnamed([record("y", "q")]) == {"q"}


@pytest.mark.parametrize("seed", range(20))
def test_change_by_change_equals_counting_anew(seed):
    """Checkpoints come and go at random, one is the best for long, some are written twice, blocks come back."""
    chance, named = random.Random(seed), Named()
    present: dict[str, ClientRecord] = {}
    full: dict[int, tuple[dict[str, ClientRecord], set[str]]] = {}
    on_disk: set[str] = set()
    for round in range(60):
        for _ in range(chance.choice([1, 1, 2])):
            clients = chance.sample("abcdef", chance.randrange(4))
            changed = {c: record(*chance.sample("123456789", chance.randrange(3))) for c in clients}
            shared = set(chance.sample("56789uvwxyz", 3))
            present |= changed
            full[round] = (dict(present), shared)
            named.add(round, changed, shared)
            on_disk |= shared | {v for r in changed.values() for v in r.private}
        for old in [r for r in full if r < round and chance.random() < (0.05 if r % 10 == 3 else 0.4)]:
            del full[old]
            on_disk -= named.remove(old)
        wanted = {v for records, shared in full.values() for r in records.values() for v in r.private}
        wanted |= {v for _, shared in full.values() for v in shared}
        assert set(named.versions()) >= wanted
        assert on_disk >= wanted
        for client in present:
            there = [r[client].state for r, _ in full.values() if client in r]
            assert all(state in named.states(client) for state in there)
    for old in sorted(full)[:-1]:
        on_disk -= named.remove(old)
    records, shared = full[59]
    assert set(named.versions()) == shared | {v for r in records.values() for v in r.private}
