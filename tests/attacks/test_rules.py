"""What attackers send, worked out by hand on two numbers."""

from __future__ import annotations

import pytest
import torch

from intarsia.attacks.attackers import COHORT, LOT, SPREAD, attackers_of, with_turned_labels
from intarsia.attacks.rules import ATTACKS, Known, moved, poisoned, poisoned_tensors
from intarsia.blocks import Block
from intarsia.data import POPULATIONS
from intarsia.trust.stack import Stack

SENT = Block({"w": torch.tensor([1.0, 1.0]), "seen": torch.tensor(4)}, frozenset({"seen"}))


def block(one: float, two: float) -> Block:
    return SENT.alike({"w": torch.tensor([1.0 + one, 1.0 + two]), "seen": torch.tensor(5)})


def sent_by(attack: str, own=(1.0, 2.0), honest=((0.0, 0.0), (2.0, 0.0), (4.0, 6.0))) -> list[float]:
    known = Known(SENT, block(*own), Stack(SENT, [block(*row) for row in honest]), hostile=2)
    altered = moved(known.own, SENT, ATTACKS[attack].blocks(known))
    assert altered.tensors["seen"].item() == 5
    return [pytest.approx(x - 1, abs=1e-4) for x in altered.tensors["w"].tolist()]


def test_attacks_on_their_own_change():
    assert sent_by("flip") == [-1, -2]
    assert sent_by("flip-x5") == [-5, -10]
    assert sent_by("scale-x1000") == [1000, 2000]
    assert sent_by("free-rider") == [0, 0]
    assert sent_by("replacement") == [2.5, 5], "five holders, two of them hostile"


def test_attacks_that_know_the_honest():
    assert sent_by("ipm") == [-6, -6]  # the mean is (2, 2)
    spread = (8 / 3) ** 0.5, 8**0.5
    assert sent_by("alie") == [2 - 1.5 * spread[0], 2 - 1.5 * spread[1]]
    assert sent_by("mimic") == [4, 6]


def test_min_max_goes_as_far_as_honest_pairs_are_apart():
    [one, two] = [x.expected for x in sent_by("minmax")]
    honest = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 6.0]])
    away = (honest - torch.tensor([one, two])).norm(dim=1).max()
    assert float(away) == pytest.approx((16 + 36) ** 0.5, abs=1e-3)


def test_answers_are_turned_and_stay_within_what_passes():
    assert poisoned({"logits": [1.0, -1e9], "n": 3, "names": ["a"]}) == {
        "logits": [-5.0, 2.0**20],
        "n": 3,
        "names": ["a"],
    }
    tensors = poisoned_tensors({"means": Block({"m": torch.tensor([2.0]), "labels": torch.tensor([7])})})
    assert tensors["means"].tensors["m"].tolist() == [-10.0]
    assert tensors["means"].tensors["labels"].tolist() == [7]


def population():
    return POPULATIONS["digits"](clients=40, cohorts=5).load(0)


def test_attackers_are_spread_drawn_or_of_one_cohort():
    infos = population().infos
    by_name = {info.name: info for info in infos}
    spread = attackers_of(infos, 0.25, 3, SPREAD)
    cohorts = [by_name[name].cohort for name in spread]
    devices = [by_name[name].device for name in spread]
    assert {cohorts.count(c) for c in set(cohorts)} == {2}
    assert {devices.count(d) for d in set(devices)} == {5}
    assert len(attackers_of(infos, 0.2, 3, LOT)) == 8
    assert attackers_of(infos, 0.2, 3, LOT) != attackers_of(infos, 0.2, 4, LOT)
    assert len({by_name[name].cohort for name in attackers_of(infos, 0.2, 3, COHORT)}) == 1


def test_labels_are_turned_round_in_training_alone():
    before = population()
    name = before.infos[0].name
    after = with_turned_labels(before, [name])
    assert after.clients[name].data["train"].y.tolist() == (9 - before.clients[name].data["train"].y).tolist()
    assert after.clients[name].data["test"].y.equal(before.clients[name].data["test"].y)
    other = before.infos[1].name
    assert after.clients[other] is before.clients[other]
