"""The own models of a site's clients, from what its agent keeps on disk: nothing is asked of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from intarsia.blocks import Task
from intarsia.clients import ClientRuntime, state_version
from intarsia.core import CheckpointError, DataError, RunFolderError, one_thread, suggest
from intarsia.data import Client, Population
from intarsia.data.recorded import Form, record_of
from intarsia.experiment.settings import portable
from intarsia.export import Exported, Inputs, Package, attributes, export, places_for
from intarsia.federation.summary import metric_row
from intarsia.flower.message_schema import Description
from intarsia.flower.site.described import settings_of, setup_of, start_of
from intarsia.flower.site.site_file import Site
from intarsia.flower.site.site_store import OWN_MODELS, SiteStore
from intarsia.setup import Setup

T = TypeVar("T")
TRIES = 3
"""How often a state is read that the site's agent changes meanwhile."""


@dataclass(frozen=True)
class _Kept:
    """What is kept of a client's own model: the task that made it, and its scores."""

    store: SiteStore
    task: Task
    scores: list[dict[str, Any]]


class SiteModels:
    """What a site's folder holds of one run: its clients' own models as they were last evaluated."""

    def __init__(self, site: Site, run: str = "") -> None:
        self.site = site
        self.folder = _run_folder(site, run)
        site.plug_in()

    @cached_property
    def population(self) -> Population:
        """The clients that are here, with their data."""
        return self.site.load_population()[0]

    @cached_property
    def about(self) -> Description:
        """What the server described."""
        return Description.model_validate(SiteStore(self.folder, reading=True).described)

    @cached_property
    def setup(self) -> Setup:
        """What the server described, built here again."""
        setup = setup_of(self.site, self.population, self.about)
        store = SiteStore(self.folder, reading=True)
        start, lacking = start_of(setup, self.population, self.about, store, {})
        if lacking:
            raise CheckpointError(
                f"{self.folder} lacks {len(lacking)} blocks that models start from: put it back"
            )
        return setup.starting_from(start)

    @property
    def clients(self) -> list[str]:
        """The clients whose models are here."""
        here = self.population.clients
        return sorted(name for name in SiteStore(self.folder, reading=True).own_clients if name in here)

    def client(self, name: str) -> SiteClient:
        """Return one client of the site."""
        if name not in self.clients:
            raise DataError(
                f"site '{self.site.name}' has no model of a client '{name}'{suggest(name, self.clients)}"
            )
        return SiteClient(self, name)

    def export(self, to: str | Path, *, force: bool = False) -> list[Exported]:
        """Write the own model of every client that is here."""
        places = places_for(to, self.clients)
        return [self.client(name).export(place, force=force) for name, place in places.items()]


@dataclass(frozen=True)
class SiteClient:
    """One client of a site."""

    models: SiteModels
    name: str

    def model(self) -> nn.Module:
        """Return the client's own model as it was last evaluated."""
        return self._read(self._made)

    def package(self) -> Package:
        """Return the client's own model with all that goes out with it."""
        model, kept = self._read(lambda kept: (self._made(kept), kept))
        population, setup = self.models.population, self.models.setup
        client, settings = population.clients[self.name], settings_of(self.models.about)
        return Package(
            client=self.name,
            model=model,
            inputs=Inputs.of(Form.of(client), population.preparations.get(self.name)),
            goal=population.goals[client.info.task],
            facts={"method": setup.method.name, "run": settings.name, "round": kept.task.round},
            story={**self._story(client, kept), "settings": portable(settings).to_toml()},
            test=client.data["test"],
        )

    def export(self, to: str | Path, *, force: bool = False) -> Exported:
        """Write the client's own model as a plain one that runs without Intarsia."""
        return export(self.package(), Path(to), force=force)

    def _story(self, client: Client, kept: _Kept) -> dict[str, Any]:
        about = record_of(self.models.population)
        mine = about["clients"][self.name]
        rows = [metric_row(kept.task.round, self.name, score) for score in kept.scores]
        return {
            "method": self.models.setup.method.title,
            "attributes": attributes(mine, {}, self.name),
            "samples": dict(client.info.samples),
            "labels": about.get("labels", []),
            "counts": mine.get("labels", {}),
            "metrics": [{k: v for k, v in row.items() if k not in ("round", "client")} for row in rows],
        }

    def _read(self, use: Callable[[_Kept], T]) -> T:
        """Use what is kept; read it again if the site's agent replaced it meanwhile."""
        for left in reversed(range(TRIES)):
            try:
                store = SiteStore(self.models.folder, reading=True)
                return use(_Kept(store, *store.own(self.name)))
            except CheckpointError:
                if not left:
                    raise
        raise AssertionError

    def _made(self, kept: _Kept) -> nn.Module:
        state = kept.store.state(kept.task)
        task = replace(kept.task, state=state_version(state))
        runtime = ClientRuntime(self.models.setup, kept.store.blocks, "cpu")
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
            return runtime.own_model(task, state, kept.store.blocks.get)


def _run_folder(site: Site, run: str) -> Path:
    """Return the folder of a run at a site: the one named, or else the one that went on last."""
    found = {path.parent.name: path for path in (site.state / "runs").glob(f"*/{OWN_MODELS}")}
    if not found or (run and run not in found):
        which = f"run '{run}'" if run else "any run"
        known = suggest(run, found) if found else ": models are kept once they were evaluated"
        raise RunFolderError(f"{site.state} holds no models of {which}{known}")
    return found[run].parent if run else max(found.values(), key=lambda path: path.stat().st_mtime_ns).parent
