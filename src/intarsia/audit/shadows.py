"""Shadow runs: the same settings on other divisions of each client's samples, kept so that an audit can go on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from intarsia.audit.played import played
from intarsia.audit.scores import Numbers
from intarsia.audit.targets import confidences, everything, losses, models_of
from intarsia.blocks.plain import read_json
from intarsia.core import RunFolderError, chance, make_folder, write_atomically
from intarsia.data import Client, Population
from intarsia.experiment import Experiment
from intarsia.setup import Setup

Said = dict[str, dict[str, Numbers]]
"""What each target says of a client's samples (training, then test, of the run), by target and client."""


def left_out(seed: int, client: str, number: int, train: int, test: int) -> NDArray[np.int64]:
    """Return which of a client's samples a shadow run does not train on: as many as the run left out.

    A cycle of shadow runs leaves out every sample once (but for a rest); each cycle has an order of its own.
    """
    cycle, place = divmod(number, max(1, (train + test) // test))
    order = chance.numpy_generator(seed, "audit", "shadow", cycle, client).permutation(train + test)
    return np.sort(order[place * test : (place + 1) * test])


def divided(population: Population, seed: int, number: int) -> Population:
    """Return the population of a shadow run: the same clients and counts, other samples to train on."""
    clients = {name: _divided(client, seed, number) for name, client in population.clients.items()}
    return dataclasses.replace(population, clients=clients, rows={})


def _divided(client: Client, seed: int, number: int) -> Client:
    every = everything(client)
    train, test = len(client.data["train"]), len(client.data["test"])
    out = torch.from_numpy(left_out(seed, client.info.name, number, train, test))
    keep = torch.ones(train + test, dtype=torch.bool)
    keep[out] = False
    parts = {"train": keep, "test": ~keep}
    own = {s: dataclasses.replace(every, x=every.x[mask], y=every.y[mask]) for s, mask in parts.items()}
    return Client(client.info, {**client.data, **own})


def told_of(experiment: Experiment, population: Population, single: bool) -> Said:
    """Play an experiment; return what its targets say of the samples of a population."""
    found: Said = {}
    with played(experiment) as play:
        for name, client in population.clients.items():
            classes = population.goals[client.info.task].problem == "classification"
            for target, model in models_of(play, name, single):
                said = confidences(losses(model, everything(client)), classes)
                found.setdefault(target, {})[name] = said
    return found


def with_noise_of_its_own(setup: Setup) -> Setup:
    """Return a setup whose noise of privacy, if there is any, is not the run's.

    All other chance is the run's: its seed is no secret. Keyed noise would be known with it, as it never is in a
    federation, and would protect nobody.
    """
    if not setup.privacy.on:
        return setup
    return dataclasses.replace(setup, privacy=dataclasses.replace(setup.privacy, randomness="system"))


@dataclasses.dataclass(frozen=True)
class Shadows:
    """Shadow runs of an experiment; what each told is a file of a folder."""

    experiment: Experiment
    folder: Path
    single: bool

    def told(self, number: int) -> Said:
        """Return what a shadow run told; it is played if it was not before."""
        path = self.folder / f"shadow-{number:04d}.json"
        if path.exists():
            return self._read(path)
        told = self._play(number)
        plain = {t: {c: v.tolist() for c, v in own.items()} for t, own in told.items()}
        make_folder(self.folder)
        write_atomically(path, (json.dumps({"of": self.identity, "told": plain}) + "\n").encode())
        return told

    @property
    def identity(self) -> str:
        """What identifies the experiment and what is heard of it."""
        settings = self.experiment.settings.model_dump(mode="json")
        starts = {
            key: {name: block.version for name, block in template.initial.items()}
            for key, template in self.experiment.setup.templates.items()
        }
        split = self.experiment.setup.population.split_hash
        noise = with_noise_of_its_own(self.experiment.setup).privacy.randomness
        text = json.dumps([settings, starts, split, self.single, noise], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _play(self, number: int) -> Said:
        population = self.experiment.setup.population
        other = divided(population, self.experiment.setup.seed, number)
        setup = with_noise_of_its_own(dataclasses.replace(self.experiment.setup, population=other))
        return told_of(dataclasses.replace(self.experiment, setup=setup), population, self.single)

    def _read(self, path: Path) -> Said:
        about: Any = read_json(path.read_bytes(), str(path))
        if about.get("of") != self.identity:
            raise RunFolderError(
                f"{path} is of another run, or of this one with other settings: name another folder for shadow runs "
                "(--work DIR), or remove it"
            )
        return {t: {c: np.asarray(v) for c, v in own.items()} for t, own in about["told"].items()}
