"""The population and the public data that settings name or that are given."""

from __future__ import annotations

import dataclasses

from intarsia.core import (
    DataError,
    SettingsError,
    build_part,
)
from intarsia.data import POPULATIONS, Population, from_dict, places
from intarsia.data.public import check_apart, digests, public_of
from intarsia.experiment.given import GIVEN, Data
from intarsia.experiment.settings import Settings


class SplitDiffers(DataError):  # noqa: N818
    """Data that is not what the settings were written for."""

    def __init__(self, message: str, population: Population) -> None:
        super().__init__(message)
        self.population = population


def population_of(settings: Settings, given: Data | None = None) -> Population:
    """Return the population that settings name or that is given, and public data; a recorded split must come again."""
    population = _with_public(settings, _population(settings, given))
    if settings.split_hash not in ("", population.split_hash):
        raise SplitDiffers(
            f"the split is {population.split_hash}, the settings were written for {settings.split_hash}: the "
            "data is not the same; put it right, or set split_hash to nothing to take it as it is",
            population,
        )
    return population


def _with_public(settings: Settings, population: Population) -> Population:
    """Return the population with the public data that the settings name; none of it may be a client's."""
    if settings.public and population.public is not None:
        raise SettingsError(
            "public: the population brings public data of its own, which this setting would replace: leave out one "
            "of the two (changes=['public={}'] for the setting)"
        )
    if settings.public:
        source = build_part(POPULATIONS, settings.public, "public")
        public = public_of(source.load(settings.seed, places(settings.data_folder)))
        population = dataclasses.replace(population, public=public)
    if population.public is not None:
        check_apart(digests(population.public), population)
    return population


def _population(settings: Settings, given: Data | None) -> Population:
    if isinstance(given, Population):
        return given
    if given is not None:
        return from_dict(given, "regression" if settings.training.loss == "mse" else "classification")
    if settings.population.get("name") == GIVEN:
        raise SettingsError(
            "population: this run's data was given in Python; give it again: "
            "intarsia.run(settings, data=...), intarsia.resume(folder, data=...)"
        )
    return build_part(POPULATIONS, settings.population, "population").load(
        settings.seed, places(settings.data_folder)
    )
