"""Was this sample among those that a client trained on? By its loss, and by shadow runs.

By loss: Yeom et al. 2018, "Privacy risk in machine learning". By shadow runs: Carlini et al. 2022, "Membership
inference attacks from first principles" (LiRA), with one variance for all samples, as they advise for few shadow runs.
Deviation: shadow runs train on as many samples as the run did, not on half of them, so that nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.audit.played import Played
from intarsia.audit.scores import Numbers, Told, by_lot, told
from intarsia.audit.shadows import Said, Shadows, left_out
from intarsia.audit.targets import confidences, everything, losses, models_of, untrained_model
from intarsia.data import Client, Population

UNTRAINED, BY_LOT = "control: untrained model", "control: scores by lot"
LEAST_SPREAD = 1e-6
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Fit:
    """What shadow runs say of samples: their confidence with and without having been trained on."""

    inside: Numbers
    """Mean over shadow runs that trained on a sample (NaN: there was none)."""
    outside: Numbers
    spread_inside: float
    spread_outside: float

    @classmethod
    def of(cls, said: Numbers, trained: Marks) -> Fit:
        """Fit normal distributions; rows are shadow runs, columns samples."""
        means, spreads = [], []
        for marks in (trained, ~trained):
            own = np.where(marks, said, np.nan)
            counts = marks.sum(0)
            mean = np.where(counts > 0, np.nansum(own, axis=0) / np.maximum(counts, 1), np.nan)
            free = np.maximum(marks.sum() - (counts > 0).sum(), 1)
            means.append(mean)
            spreads.append(float(max(np.sqrt(np.nansum((own - mean) ** 2) / free), LEAST_SPREAD)))
        return cls(means[0], means[1], *spreads)

    def online(self, said: Numbers) -> Numbers:
        """Return the log of how much likelier what was said is of a sample that was trained on."""
        return _log_density(said, self.inside, self.spread_inside) - _log_density(
            said, self.outside, self.spread_outside
        )

    def offline(self, said: Numbers) -> Numbers:
        """Return by how many deviations a sample is above what it would be without having been trained on."""
        found: Numbers = (said - self.outside) / self.spread_outside
        return found


def _log_density(at: Numbers, mean: Numbers, spread: float) -> Numbers:
    found: Numbers = -np.log(spread) - 0.5 * ((at - mean) / spread) ** 2
    return found


@dataclass
class Scores:
    """The scores that an attack gave members and others, over all clients."""

    members: list[Numbers]
    others: list[Numbers]

    @classmethod
    def none(cls) -> Scores:
        """Return no scores yet."""
        return cls([], [])

    def add(self, scores: Numbers, members: int) -> None:
        """Add a client's scores: its members first; those that are none (NaN) are left out."""
        for own, part in ((self.members, scores[:members]), (self.others, scores[members:])):
            own.append(part[~np.isnan(part)])

    def told(self, seed: int, *purpose: str) -> Told:
        """Return what the scores tell."""
        return told(np.concatenate(self.members), np.concatenate(self.others), seed, *purpose)


Found = dict[str, dict[str, Scores]]
"""By attack and target."""


def membership(
    play: Played, population: Population, single: bool, shadows: Shadows | None, number: int
) -> list[dict[str, Any]]:
    """Try every attack on every target, for all clients that trained; return a row each, the controls last."""
    settings, found = play.run.settings, Found()
    heard = [shadows.told(k) for k in range(number)] if shadows is not None else []
    clients = [population.clients[name] for name in settings.sampling.residents(list(population.clients))]
    for client in clients:
        classes = population.goals[client.info.task].problem == "classification"
        _attack(found, play, client, single, heard, classes)
    rows = [
        {"attack": attack, "target": target, **scores.told(settings.seed, attack, target).to_json()}
        for attack, targets in found.items()
        for target, scores in targets.items()
    ]
    members, others = (sum(len(client.data[split]) for client in clients) for split in ("train", "test"))
    lots = by_lot(members, others, settings.seed)
    return [*rows, {"attack": "loss", "target": BY_LOT, **lots.to_json()}]


def _attack(
    found: Found, play: Played, client: Client, single: bool, heard: Sequence[Said], classes: bool
) -> None:
    """Try the attacks on one client's samples."""
    name, every, members = client.info.name, everything(client), len(client.data["train"])
    marks = trained_by(play.run.settings.seed, name, len(heard), members, len(every) - members)
    for target, model in models_of(play, name, single):
        each = losses(model, every)
        _add(found, "loss", target, -each, members)
        known = [k for k, told_by in enumerate(heard) if name in told_by.get(target, {})]
        if len(known) > 1:
            fit = Fit.of(np.stack([heard[k][target][name] for k in known]), marks[known])
            own = confidences(each, classes)
            _add(found, "LiRA online", target, fit.online(own), members)
            _add(found, "LiRA offline", target, fit.offline(own), members)
    untrained = losses(untrained_model(play.run.experiment.setup, name), every)
    _add(found, "loss", UNTRAINED, -untrained, members)


def _add(found: Found, attack: str, target: str, scores: Numbers, members: int) -> None:
    found.setdefault(attack, {}).setdefault(target, Scores.none()).add(scores, members)


def trained_by(seed: int, client: str, number: int, train: int, test: int) -> Marks:
    """Return which of a client's samples (columns) each of so many shadow runs trained on."""
    marks: Marks = np.ones((number, train + test), dtype=bool)
    for k in range(number):
        marks[k, left_out(seed, client, k, train, test)] = False
    return marks


def row_of(rows: Sequence[Mapping[str, Any]], attack: str, target: str) -> Mapping[str, Any] | None:
    """Return the row of an attack on a target, if it was tried."""
    return next((r for r in rows if (r["attack"], r["target"]) == (attack, target)), None)
