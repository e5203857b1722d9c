"""What a server describes, built at a site: models and method of what is installed here, on the data that is here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from intarsia.blocks import Block
from intarsia.core import IntarsiaError, SettingsError, WireError, parse_toml
from intarsia.data import Client, Population
from intarsia.data.public import check_apart
from intarsia.experiment import EngineSettings, Experiment, Given, Settings, check, check_arithmetic
from intarsia.flower.message_schema import Description, population_of
from intarsia.flower.site.site_file import Site
from intarsia.flower.site.site_store import SiteStore
from intarsia.setup import Setup

Start = dict[str, dict[str, Block]]
"""The blocks that models start from, by the model's key."""


def settings_of(about: Description) -> Settings:
    """Read the settings that a server describes; files of code in them are refused, not run."""
    settings = check(parse_toml(about.settings, "what the server describes"))
    if settings.plugins or settings.plugin_hashes:
        raise WireError(
            "the server names files of code (plugins): a site runs only what is installed or in its own file"
        )
    return settings


def setup_of(site: Site, here: Population, about: Description) -> Setup:
    """Build what the server describes, on the data that is here.

    One nameless client of every model of the federation stands first: blocks of one name and shape start alike in all
    models, so a model's start depends on those before it.
    """
    clients = {k.name: Client(k.info, {}) for k in about.kinds} | dict(here.clients)
    settings = settings_of(about)
    engine = EngineSettings("local", site.workers, site.device, allow_slow=site.allow_slow)
    own = {"engine": engine, "split_hash": "", "start_from": "", "weights": "", "public": {}}
    check_apart(about.public, here)
    if not {client.info.task for client in clients.values()} <= about.goals.keys():
        raise WireError("the server does not say what the clients of every task predict")
    try:
        described = population_of(clients, about.goals)
        given = Given(data=dataclasses.replace(described, preparations=here.preparations))
        asked = settings.model_copy(update=own)
        check_arithmetic(asked)
        return Experiment.build(asked, given).setup
    except IntarsiaError:
        raise
    except Exception as error:
        raise SettingsError(
            f"site '{site.name}' cannot build what the server describes: {type(error).__name__}: {error}"
        ) from error


def start_of(
    setup: Setup, here: Population, about: Description, store: SiteStore, sent: Mapping[str, Block]
) -> tuple[Start, list[str]]:
    """Return what models start from on the server, and the versions of blocks that must be sent for that."""
    expected = about.initial
    keys = {setup.model_of[name] for name in here.clients}
    if not keys <= expected.keys() or any(
        expected[k].keys() != setup.templates[k].initial.keys() for k in keys
    ):
        raise WireError("the server starts from other models than those that its settings make here")
    made = {b.version: b for key in keys for b in setup.templates[key].initial.values()}
    wanted = {version for key in keys for version in expected[key].values()}
    for name, block in sent.items():
        if name.startswith("initial/") and block.version in wanted:
            store.pin(block)
    found = {v: b for v in wanted if (b := made.get(v) or store.block(v)) is not None}
    start = {k: {n: found[v] for n, v in expected[k].items() if v in found} for k in sorted(keys)}
    return start, sorted(wanted - found.keys())
