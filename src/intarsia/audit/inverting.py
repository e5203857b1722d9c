"""One round in which every client has a few samples and takes one step, and what attackers see in it of these."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intarsia.audit.inversion import Search, decibels, errors, exact, first_linear
from intarsia.audit.labels import merged_changes, own_changes
from intarsia.audit.played import Heard, Played, played
from intarsia.audit.targets import Onlooker
from intarsia.core import chance
from intarsia.data import Client, Population
from intarsia.experiment import Experiment
from intarsia.training.descent import inputs_of

SINGLE, SUM = "single", "sum"
"""What is seen: every client's update, or only what comes out of the merge."""
VICTIMS = 4
RECOVERED = 0.01
"""A sample counts as recovered if its error is below this share of the mean picture's."""


def with_few(population: Population, batch: int, seed: int) -> Population:
    """Return the population with so many training samples a client, drawn by lot."""
    clients = {name: _with_few(client, batch, seed) for name, client in population.clients.items()}
    return dataclasses.replace(population, clients=clients, rows={})


def _with_few(client: Client, batch: int, seed: int) -> Client:
    train = client.data["train"]
    order = chance.numpy_generator(seed, "audit", "few", client.info.name).permutation(len(train))
    rows = torch.from_numpy(np.sort(order[:batch]))
    few = dataclasses.replace(train, x=train.x[rows], y=train.y[rows])
    info = dataclasses.replace(client.info, samples={**client.info.samples, "train": len(few)})
    return Client(info, {**client.data, "train": few})


def one_step(experiment: Experiment, batch: int) -> Experiment:
    """Return the experiment in which every client takes one step with so many samples."""
    setup = experiment.setup
    training = dataclasses.replace(setup.training, epochs=1, batch_size=batch)
    few = with_few(setup.population, batch, setup.seed)
    return dataclasses.replace(
        experiment, setup=dataclasses.replace(setup, training=training, population=few)
    )


def inversions(
    experiment: Experiment, batches: tuple[int, ...], single: bool, steps: int
) -> list[dict[str, Any]]:
    """Try to get samples back, for batches of some sizes; return a row for each attack and size."""
    views = (SINGLE, SUM) if single else (SUM,)
    rows = []
    for batch in batches:
        with played(one_step(experiment, batch), 1) as play:
            for view in views:
                rows += _tried(play, batch, view, steps)
    return rows


def _tried(play: Played, batch: int, view: str, steps: int) -> list[dict[str, Any]]:
    """Try both attacks on some clients; what they got back of each sample is put together."""
    got: dict[str, list[tuple[float, float, float]]] = {}
    for heard in _victims(play):
        for attack, found in _attacked(play, heard, view, steps).items():
            got.setdefault(attack, []).extend(found)
    return [
        {"attack": attack, "batch": batch, "view": view, **_figures(np.asarray(own))}
        for attack, own in got.items()
    ]


def _figures(own: Any) -> dict[str, Any]:
    mse, control, span = own.T
    return {
        "samples": len(own),
        "recovered": round(float(np.mean(mse < RECOVERED * control)), 4),
        "mse": float(f"{np.mean(mse):.3g}"),
        "control_mse": float(f"{np.mean(control):.3g}"),
        "psnr": round(float(np.mean([decibels(e, s) for e, s in zip(mse, span, strict=True)])), 1),
        "control_psnr": round(
            float(np.mean([decibels(e, s) for e, s in zip(control, span, strict=True)])), 1
        ),
    }


def _victims(play: Played) -> Iterator[Heard]:
    """Yield the first clients' answers that had blocks in them and whose inputs are numbers."""
    population = play.run.experiment.setup.population
    having = [
        heard
        for (client, purpose, _), heard in play.ear.first.items()
        if purpose == "train" and heard.update.blocks
        if inputs_of(population.clients[client].data["train"], torch.tensor([0])).is_floating_point()
    ]
    yield from having[:VICTIMS]


def _attacked(
    play: Played, heard: Heard, view: str, steps: int
) -> dict[str, list[tuple[float, float, float]]]:
    """Return the errors of each attack, those of the mean picture, and the inputs' range, sample by sample."""
    setup, name = play.run.experiment.setup, heard.task.client
    client = setup.population.clients[name]
    train, test = client.data["train"], client.data["test"]
    true = inputs_of(train, torch.arange(len(train)))
    others = inputs_of(test, torch.arange(len(test)))
    span = float(others.max() - others.min())
    control = errors(others.mean(0, keepdim=True), true)
    seen = _gradients(play, heard, view)
    model = Onlooker(play).model_for(heard.task, {b.version: b for b in heard.held.values()})
    guesses: dict[str, Tensor] = {}
    start = first_linear(model, tuple(true.shape[1:]), seen)
    if start is not None:
        candidates = exact(seen[f"{start}weight"], seen[f"{start}bias"])
        if len(candidates):
            guesses["exact"] = candidates
    trainable = {n for n, _ in model.named_parameters()} & seen.keys()
    if trainable:
        search = Search(
            model, setup.loss(client.info), train.y, float(others.min()), float(others.max()), steps
        )
        shown = {n: seen[n] for n in trainable}
        guesses["search"] = search.inputs(shown, tuple(true.shape[1:]), setup.seed, name, view)
    return {
        attack: list(zip(errors(found, true), control, [span] * len(true), strict=True))
        for attack, found in guesses.items()
    }


def _gradients(play: Played, heard: Heard, view: str) -> dict[str, Tensor]:
    """Return what was seen as gradients: changes, divided by what a step multiplies them with."""
    setup = play.run.experiment.setup
    lr = setup.training.lr_in(heard.task.round, setup.rounds)
    changes = own_changes(heard) if view == SINGLE else merged_changes(heard, play)
    return {n: -t / lr for n, t in changes.items() if t.abs().max() > 0}
