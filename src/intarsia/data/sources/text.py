"""Populations of plays: every role is a client that learns to guess the next character."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from intarsia.core import DataError, part
from intarsia.data.datasets import get
from intarsia.data.own import make_client
from intarsia.data.places import Places
from intarsia.data.population import Population, PopulationSource


@part
class Roles(PopulationSource):
    """The roles of a play (McMahan et al. 2017; LEAF): inputs are characters, the target is the next one.

    The end of what a role says is for testing. Windows do not overlap and do not cross the border.
    """

    name: ClassVar[str] = "roles"
    summary: ClassVar[str] = "roles of Shakespeare's plays, next-character prediction"

    dataset: str = "tinyshakespeare"
    """Which text is dealt."""
    clients: Annotated[int, Field(ge=0)] = 0
    """How many roles, those with most text first (0: all with enough)."""
    length: Annotated[int, Field(ge=1)] = 80
    """Characters of an input."""
    minimum: Annotated[int, Field(ge=1)] = 2000
    """Characters that a role must have."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of a role's lines that it is tested on."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population."""
        text = get(self.dataset).locate(places).load()
        if not isinstance(text, str):
            raise DataError(f"data set '{self.dataset}' is no text: use population 'images' or 'motion'")
        spoken = self._spoken(text)
        alphabet = sorted({character for words in spoken.values() for character in words})
        number = {character: i for i, character in enumerate(alphabet)}
        clients = {}
        for role, words in spoken.items():
            codes = np.asarray([number[character] for character in words])
            border = round(len(codes) * (1 - self.test))
            data = {"train": self._windows(codes[:border]), "test": self._windows(codes[border:])}
            clients[role] = make_client(role, data, "classification", device="text", cohort="default")
        return Population(clients, len(alphabet), labels=tuple(alphabet))

    def _spoken(self, text: str) -> dict[str, str]:
        """Return what each role says, the longest first."""
        spoken: dict[str, list[str]] = {}
        for speech in re.split(r"\n\n+", text):
            role, colon, words = speech.partition(":\n")
            if colon:
                spoken.setdefault(role.strip(), []).append(words)
        joined = {role: "\n".join(words) for role, words in spoken.items()}
        enough = {role: words for role, words in joined.items() if len(words) >= self.minimum}
        if self.clients > len(enough):
            raise DataError(
                f"only {len(enough)} roles have {self.minimum} characters, population.clients asks for "
                f"{self.clients}: lower clients or minimum"
            )
        order = sorted(enough, key=lambda role: (-len(enough[role]), role))
        return {role: enough[role] for role in order[: self.clients or None]}

    def _windows(self, codes: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        starts = range(0, len(codes) - self.length, self.length)
        x = (
            np.stack([codes[s : s + self.length] for s in starts])
            if len(starts)
            else np.zeros((0, self.length))
        )
        return torch.from_numpy(x), torch.from_numpy(codes[[s + self.length for s in starts]])
