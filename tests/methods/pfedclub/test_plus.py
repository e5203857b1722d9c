"""pFedClub+: lessons on public samples worked out again by plain torch; what travels; controls; labels that are told."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from intarsia.blocks import Update
from intarsia.core import Refused, SettingsError, chance
from intarsia.data import Examples, Population
from intarsia.data.public import from_tensors
from intarsia.methods.distilling.in_public import InPublic, Lesson
from intarsia.methods.pfedclub import PFedClub, PFedClubPlus, reassembly
from intarsia.methods.pfedclub.stitch_tuning import StitchTuning
from intarsia.training import LOSSES, Batch, Objective, Situation
from tests.methods import slow
from tests.methods.pfedclub.test_pfedclub import (
    LAM,
    LR,
    SIZE,
    first_round,
    model_of,
    plan_of,
    play,
    population,
    refused,
    teacher_of,
    teachers,
    tensors,
)

PLUS = (
    "method={name='pfedclub+', lam=0.2, lam_public=0.3, public=0.5, search={most=2}, lessons='teacher', "
    "known=0.25, mixed=false}"
)
PUBLIC_BYTES = 30 * (64 * 4 + 8)
"""Thirty images of 8x8 floats, each with its label."""


def some_hold_two() -> Population:
    """The usual clients, the first of which holds two of the four labels."""
    given = population()
    two = given.clients["c0"].data
    some = {split: Examples(e.x[e.y < 2], e.y[e.y < 2], e.scaling) for split, e in two.items()}
    clients = {**given.clients, "c0": dataclasses.replace(given.clients["c0"], data=some)}
    return dataclasses.replace(given, clients=clients)


def endless(count, name, purpose):
    """Batches of rows, in the keyed order."""
    order = chance.generator(0, purpose, 2, name)
    while True:
        yield from torch.randperm(count, generator=order).split(SIZE)


def learn_by_hand(model, answers, said, shown, data, name, public):
    """Cross entropy + 0.2 KL on own samples, 0.5 cross entropy on public ones, 0.5 x 0.3 KL on those that are shown.

    What is not the client's own counts by how many there are for each of its own. `said` gives, for rows of what is shown, probabilities of the labels that the client holds.
    """

    def wrong(x, y):
        return -model(x.contiguous()).log_softmax(1)[torch.arange(len(y)), y].mean()

    def apart(x, p, columns=(0, 1, 2, 3)):
        q = model(x.contiguous())[:, columns].log_softmax(1)
        return (p * ((p + 1e-30).log() - q)).sum(1).mean()

    held = sorted(set(data.y.tolist()))
    if public is not None:
        public = Examples(
            *(t[torch.tensor([int(y) in held for y in public.y])] for t in (public.x, public.y))
        )
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    labelled = endless(0 if public is None else len(public), name, "public batches")
    lessons = endless(30, name, "lesson batches")
    order = chance.generator(0, "batches", 2, name)
    for _ in range(2):
        for rows in torch.randperm(len(data), generator=order).split(SIZE):
            optimiser.zero_grad()
            loss = wrong(data.x[rows], data.y[rows])
            if answers is not None:
                loss = loss + LAM * apart(
                    data.x[rows], answers(data.x[rows].contiguous()).detach().softmax(1)
                )
            if public is not None:
                seen = next(labelled)
                loss = loss + 0.5 * len(public) / len(data) * wrong(public.x[seen], public.y[seen])
            if said is not None:
                seen = next(lessons)
                told = said(seen, held).detach()
                loss = loss + 0.5 * 0.3 * 30 / len(data) * apart(shown[seen], told, held)
            loss.backward()
            optimiser.step()
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two rounds with teachers, with and without labels of public data, with a club, and with each control."""
    folder = tmp_path_factory.mktemp("plus")
    changes = {
        "labelled": ["method.labelled=true"],
        "unlabelled": ["method.labelled=false"],
        "club": ["method.lessons=club"],
        "mixed club": ["method.lessons=club", "method.mixed=true"],
        **{who: [f"method.teacher={who}"] for who in ("none", "uniform", "itself")},
        "labels": ["method.teacher=labels", "method.mixed=true"],
    }
    rounds, data = "rounds=2", some_hold_two()
    return {name: play(folder, PLUS, *own, rounds, out=name, data=data) for name, own in changes.items()}


def shown_by_hand(run):
    """Public samples, mixed as the first round's club says."""
    public, club = population().public.x, tensors(run, "club@all", 1)
    pairs = zip(club["partner"].tolist(), club["share"].tolist(), strict=True)
    return torch.stack([s * public[i] + (1 - s) * public[other] for i, (other, s) in enumerate(pairs)])


def club_by_hand(run, x, round=1, members=("c0", "c1", "c2", "c3")):
    """The mean of what models say, each by its probabilities."""
    with torch.no_grad():
        each = [model_of(run, client, round).eval()(x).softmax(1) for client in members]
    return (sum(each) / len(each)).log()


def labels_by_hand(partner, share, y):
    """Labels of mixtures, each with its share."""
    table = torch.zeros(len(y), 4)
    for row in range(len(y)):
        table[row, y[row]] += share[row]
        table[row, y[partner[row]]] += 1 - share[row]
    return table


def as_wanted(run, wanted, client, labels=None):
    own = some_hold_two().clients[client].data["train"]
    by_hand = learn_by_hand(*wanted, own, client, labels)
    for key, tensor in tensors(run, f"model@{client}", 2).items():
        torch.testing.assert_close(tensor, by_hand[key], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["labelled", "unlabelled", "club", "none", "uniform", "itself"])
def test_clients_learn_on_own_and_public_samples(runs, name):
    run, public = runs[name], population().public
    for client in run.clients:
        model, itself = (model_of(run, client, 1) for _ in range(2))
        controls = {"none": None, "uniform": lambda x: torch.zeros(len(x), 4), "itself": itself.eval()}
        answers = controls[name] if name in controls else teacher_of(run, client, 1)
        say = (lambda x: club_by_hand(run, x)) if name == "club" else answers

        def said(rows, held, say=say):
            return say(public.x[rows].contiguous())[:, held].softmax(1)

        wanted = (model, answers, say and said, public.x)
        as_wanted(run, wanted, client, None if name == "unlabelled" else public)


def test_clubs_and_labels_of_mixtures(runs):
    """A quarter of what labels that the client holds say of a mixture; the rest is the club's."""
    run, public = runs["mixed club"], population().public
    club, shown = tensors(run, "club@all", 1), shown_by_hand(run)
    table = 0.25 * labels_by_hand(club["partner"], club["share"], public.y)
    for client in run.clients:

        def said(rows, held):
            known, others = table[rows][:, held], club_by_hand(run, shown[rows])[:, held].softmax(1)
            return known + (1 - known.sum(1, keepdim=True)) * others

        model = model_of(run, client, 1)
        as_wanted(run, (model, teacher_of(run, client, 1), said, shown), client, public)


def test_mixup_by_hand(runs):
    """Labels alone: what a mixture holds of labels that the client does not is left as the model has it."""
    run, public = runs["labels"], population().public
    for client in run.clients:
        draw = chance.generator(0, "mixtures", 2, client)
        partner, share = torch.randperm(30, generator=draw), torch.rand(30, generator=draw)
        blend = share[:, None, None, None]
        shown = blend * public.x + (1 - blend) * public.x[partner]
        table, model = labels_by_hand(partner, share, public.y), model_of(run, client, 1)

        def said(rows, held, shown=shown, table=table, model=model):
            known, left = table[rows][:, held], model(shown[rows].contiguous())[:, held].softmax(1)
            return known + (1 - known.sum(1, keepdim=True)) * left

        as_wanted(run, (model, None, said, shown), client, public)


def test_the_club_are_the_models_of_the_round_and_mixtures_are_new_in_each(tmp_path):
    club = ["method.lessons=club", "method.mixed=true", "sampling.clients=2", "rounds=2"]
    run = play(tmp_path, PLUS, *club)
    public, shares = population().public.x, []
    for round in (1, 2):
        members = {r["client"] for r in run.metrics if r["round"] == round and r["split"] == "train"}
        said = tensors(run, "club@all", round)
        share = said["share"][:, None, None, None]
        x = share * public + (1 - share) * public[said["partner"]]
        shares.append(said["share"])
        torch.testing.assert_close(said["scores"], club_by_hand(run, x, round, members), rtol=1e-3, atol=1e-4)
    assert not torch.equal(*shares)
    rows = [r for r in run.traffic if r["block"] == "club"]
    assert {(r["round"], r["direction"], r["bytes"]) for r in rows} == {(2, "down", 30 * (4 * 4 + 8 + 4))}


def test_teachers_are_made_in_closed_form_and_are_not_always_oneself(runs):
    assert runs["labelled"].settings.method["tailoring"]["epochs"] == 0
    assert any(plan_of(runs["labelled"], client, 1) != "itself" for client in population().clients)
    ends = {"c0": 3, "c1": 4, "c2": 1, "c3": 4}
    for note in teachers(runs["labelled"]):
        assert note["parameters"] <= 1.1 * note["own_parameters"]
        places = [index == ends[model] for model, index in note["blocks"]]
        assert places == [False] * (len(places) - 1) + [True]


@pytest.mark.parametrize("name", ["labelled", "unlabelled", "none"])
def test_public_samples_travel_once(runs, name):
    rows = [row for row in runs[name].traffic if row["block"] == "public"]
    assert [(r["client"], r["round"], r["direction"], r["bytes"]) for r in rows] == [
        (f"c{i}", 1, "down", PUBLIC_BYTES) for i in range(4)
    ]
    assert any(row["block"] == "teacher" for row in runs[name].traffic) == (name != "none")
    assert bool(teachers(runs[name])) == (name != "none")


def test_labels_stay_with_the_server_unless_clients_may_use_them():
    server = first_round().server
    for labelled in (True, False):
        (block,) = PFedClubPlus(labelled=labelled).beside(server).values()
        sent = from_tensors(block.tensors)
        assert torch.equal(sent.x, server.public.x)
        assert torch.equal(sent.y, server.public.y if labelled else torch.zeros(30).long())


def test_without_labels_and_teacher_public_samples_change_nothing(tmp_path):
    alone = play(tmp_path, "method={name='local'}", "rounds=1", out="alone")
    unlabelled = play(tmp_path, PLUS, "method.labelled=false", "rounds=1", out="plus")
    for client in population().clients:
        for key, tensor in alone.client(client).model().state_dict().items():
            torch.testing.assert_close(
                tensors(unlabelled, f"model@{client}", 1)[key], tensor, rtol=0, atol=1e-6
            )


def test_scores_while_training_are_about_own_samples(runs):
    trained = [row for row in runs["labelled"].metrics if row["split"] == "train" and row["round"] == 2]
    counts = {name: 2 * len(own.data["train"]) for name, own in some_hold_two().clients.items()}
    assert {row["client"]: row["n"] for row in trained} == counts


def test_a_norm_takes_its_statistics_from_both_batches():
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, 2)).train()
    one, other = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[4.0, 3.0], [6.0, 5.0]])
    y, rows = torch.tensor([0, 1]), torch.arange(2)
    lesson = Lesson(iter([Batch(other, y, rows)]), lambda b, out: functional.cross_entropy(out, b.y), 3.0)
    objective = InPublic(Objective(), (lesson,))
    made = objective.forward(Situation(model, LOSSES["cross_entropy"], {}), Batch(one, y, rows))
    assert model[0].running_mean.tolist() == [3.0, 2.0]
    both = model[1]((torch.cat([one, other]) - torch.tensor([3.0, 2.0])) / torch.tensor([5.0, 4.5]).sqrt())
    fits = [functional.cross_entropy(part, y).item() for part in both.split(2)]
    assert made.outputs.tolist() == pytest.approx(both[:2].detach().numpy(), abs=1e-4)
    assert made.fit.item() == pytest.approx(fits[0], abs=1e-4)
    assert made.value.item() == pytest.approx(fits[0] + 3 * fits[1], abs=1e-4)


def test_held_labels_are_told_and_tuned_on(tmp_path, monkeypatch):
    heard = []
    choose = reassembly.choose
    monkeypatch.setattr(reassembly, "choose", lambda *args: heard.append(args[-1]) or choose(*args))
    run = play(tmp_path, "method.tailoring.answers=held", "rounds=1", data=some_hold_two())
    assert heard == [{"c0": (0, 1), **{f"c{i}": (0, 1, 2, 3) for i in (1, 2, 3)}}]
    assert teachers(run)


@pytest.mark.parametrize("held", [[1, 0], [1, 0, 2], [0.5, 0, 1], "101", None])
def test_labels_that_are_none_are_refused(held):
    values = {"n": 4, "correct": 1, "loss": 0.5, "steps": 1, "step_weight": 1.0}
    club = PFedClub(tailoring=StitchTuning(answers="held"))
    asked = slow.asked(nn.Identity())
    assert asked.outputs == 3
    told = {} if held is None else {"held": held}
    update = Update("run", 1, "train", "train", "c0", "", values={**values, **told})
    with pytest.raises(Refused, match="held"):
        club.expects("train", asked).check(update)


def test_labels_as_teachers_need_labels(tmp_path):
    changes = (PLUS, "method.teacher=labels", "method.labelled=false")
    refused(tmp_path, SettingsError, "needs labels of public data", *changes)


def test_held_labels_need_labels_or_own_scores(tmp_path):
    held = ["method.tailoring.answers=held", "method.labelled=false"]
    refused(tmp_path, SettingsError, "public data has none here", *held)
    run = play(tmp_path, *held, "method.tailoring.target=own", "rounds=1", out="own")
    assert teachers(run)
