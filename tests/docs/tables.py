"""Blocks of TOML in the documentation: settings, files of sites, registers, parts of a pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from intarsia import Settings
from intarsia.blocks import CODECS
from intarsia.core import REGISTRIES, build_part
from intarsia.data import POPULATIONS
from intarsia.experiment import load
from intarsia.experiment.build import _method
from intarsia.models import ADAPTERS, MODELS

PARTS: dict[str, Mapping[str, type[Any]]] = {
    "population": POPULATIONS,
    "public": POPULATIONS,
    "model": MODELS,
    "adapters": ADAPTERS,
    "codec": CODECS,
}


def check(text: str) -> None:
    """Fail if a block is not what it seems to be: an unknown key, name or value is an error."""
    table = tomllib.loads(text)
    if "project" in table:
        groups = {name.removeprefix("intarsia.") for name in table["project"]["entry-points"]}
        assert groups <= set(REGISTRIES), f"no entry points of ours: {groups}"
    elif "sites" in table:
        from intarsia.flower.server.register import Register

        Register.model_validate(table)
    elif set(table) <= set(Settings.model_fields) and not _of_a_site(table):
        check_settings({key: value for key, value in table.items() if key != "plugins"}, text)
    else:
        from intarsia.flower.site.site_file import Site

        Site.model_validate({"name": "north", "labels": ["a", "b"], "population": {"name": "files"}, **table})


def _of_a_site(table: Mapping[str, Any]) -> bool:
    return "labels" in table or "attributes" in table or "peers" in table


def check_settings(table: Mapping[str, Any], text: str = "") -> None:
    """Fail if a part of settings does not fit: names and settings of all parts, without any data."""
    own = {key: value for key, value in table.items() if key != "model" or not _plugged(text)}
    settings = load(own)
    _method(settings, None)
    for key, kinds in PARTS.items():
        chosen = getattr(settings, key)
        if chosen and chosen.get("name") != "none":
            build_part(kinds, chosen, key)
    for name, model in settings.models.items():
        build_part(MODELS, model, f"models.{name}")


def _plugged(text: str) -> bool:
    """Return whether a block names a file of the reader's own, which has what it names."""
    return re.search(r"^plugins *=", text, re.MULTILINE) is not None
