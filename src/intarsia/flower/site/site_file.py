"""A site: the small TOML file that names its clients, their attributes and their data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field

from intarsia.core import (
    DataError,
    SettingsError,
    TomlFile,
    build_part,
    file_name,
    harmless,
    make_folder,
    suggest,
)
from intarsia.data import ATTRIBUTES, POPULATIONS, Client, Population, places
from intarsia.data.own import attributes_of
from intarsia.data.sources.files import check_alone
from intarsia.experiment import anchored, plug_in_files
from intarsia.trust import SecureSums


def _as_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Site(TomlFile):
    """What a site's file says."""

    name: Annotated[str, Field(min_length=1)]
    folder: str = ""
    """Where the agent keeps its clients' own blocks (empty: NAME.state beside the file)."""
    listen: str = ""
    """Where the agent listens: a Unix socket (empty: agent.sock in the folder) or 127.0.0.1:PORT."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Worker processes (0: one a core)."""
    device: str = "auto"
    allow_slow: bool = False
    """Whether arithmetic that the processor has no instructions for is emulated, slowly, instead of refused."""
    largest: Annotated[int, Field(ge=1 << 20)] = 1 << 33
    """The most bytes that a message to the agent may have."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Decides how own files are split into training and test data."""
    data_folder: str = ""
    population: Annotated[dict[str, Any], BeforeValidator(_as_table)]
    """The clients' data: `files` with a path, or any other population."""
    clients: tuple[str, ...] = ()
    """Which clients of the population are here (none: all)."""
    labels: tuple[str, ...] = ()
    """All labels of the federation in their common order, where this site's data may not show them all."""
    attributes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Device, cohort, capacity and model, by client."""

    key: str = ""
    """The site's private key, with which its SuperNode is known: it signs with it, where sums are to be secure."""
    peers: str = ""
    """The operator's register of all sites and their keys, a copy that this site got from someone it trusts."""
    secure_sums: SecureSums = Field(default_factory=SecureSums)
    """What this site insists on: a run without secure sums, or with laxer bounds, is refused where this is on."""

    plugins: tuple[str, ...] = ()
    """Python files of this site's own whose models, methods and other parts may be named by the server."""

    def plug_in(self) -> None:
        """Run the files that this one names."""
        plug_in_files(self.plugins, self.home)

    @property
    def state(self) -> Path:
        """The folder that the agent keeps."""
        return self.home / (self.folder or f"{file_name(self.name)}.state")

    def open_state(self) -> Path:
        """Make the agent's folder, or find it; nobody else on this machine may look into it."""
        make_folder(self.state)
        try:
            self.state.chmod(0o700)
        except PermissionError as error:
            raise SettingsError(
                f"folder: {self.state} belongs to another user: name a folder of your own"
            ) from error
        return self.state

    @property
    def address(self) -> str:
        """Where the agent listens: host:port, or the path of a socket."""
        host, _, port = self.listen.rpartition(":")
        return self.listen if host and port.isdigit() else str(self.state / (self.listen or "agent.sock"))

    def load_population(self) -> tuple[Population, dict[str, int]]:
        """Return the clients that are here with data and attributes, and each one's place.

        The place is a client's number in the whole population if this site has a part of one; else 0.
        """
        table = anchored({"population": self.population, "data_folder": self.data_folder}, self.home)
        source = build_part(POPULATIONS, table["population"], "population")
        population = source.load(self.seed, places(table["data_folder"]))
        if not self.clients:
            check_alone(source, population, any("device" in about for about in self.attributes.values()))
        here = self._relabel(self._attribute(self._select(population)))
        self._check_names(here)
        number = {name: i for i, name in enumerate(population.clients)}
        return here, {name: number[name] if self.clients else 0 for name in here.clients}

    def _check_names(self, population: Population) -> None:
        """Refuse names that a terminal would obey: the server makes them plain, and would not find them again."""
        names = [(i.name, i.device, i.cohort, i.model, i.task) for i in population.infos]
        for name in (self.name, *(name for own in names for name in own)):
            if name != harmless(name):
                raise DataError(f"'{harmless(name)}': a name cannot hold control characters: rename it")

    def _select(self, population: Population) -> Population:
        missing = [name for name in self.clients if name not in population.clients]
        if missing:
            known = suggest(missing[0], population.clients)
            raise DataError(f"site '{self.name}': clients: there is no client '{missing[0]}'{known}")
        chosen = self.clients or tuple(population.clients)
        kept = {name: client for name, client in population.clients.items() if name in set(chosen)}
        rows = {name: own for name, own in population.rows.items() if name in kept}
        prepared = {name: own for name, own in population.preparations.items() if name in kept}
        return dataclasses.replace(population, clients=kept, rows=rows, preparations=prepared)

    def _attribute(self, population: Population) -> Population:
        clients = dict(population.clients)
        for name, about in self.attributes.items():
            if name not in clients:
                raise DataError(
                    f"site '{self.name}': attributes.{name}: no such client{suggest(name, clients)}"
                )
            wrong = sorted(about.keys() - set(ATTRIBUTES))
            if wrong:
                known = suggest(wrong[0], ATTRIBUTES)
                raise DataError(f"site '{self.name}': attributes.{name}.{wrong[0]}: no attribute{known}")
            info = dataclasses.replace(clients[name].info, **attributes_of(name, about))
            clients[name] = Client(info, clients[name].data)
        return dataclasses.replace(population, clients=clients)

    def _relabel(self, population: Population) -> Population:
        """Number the labels as the whole federation does."""
        if not self.labels or population.tasks or population.problem != "classification":
            return population
        unknown = [label for label in population.labels if label not in self.labels]
        if unknown:
            raise DataError(
                f"site '{self.name}': labels: the data holds '{unknown[0]}', which is not in the list; "
                f"write all labels of the federation, in the same order at every site"
            )
        number = torch.tensor([self.labels.index(label) for label in population.labels])
        clients = {
            name: Client(
                client.info, {s: dataclasses.replace(e, y=number[e.y]) for s, e in client.data.items()}
            )
            for name, client in population.clients.items()
        }
        return dataclasses.replace(population, clients=clients, outputs=len(self.labels), labels=self.labels)
