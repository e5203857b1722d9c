"""Federated averaging, then local tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from intarsia.core import part
from intarsia.methods.base import OWN, Method
from intarsia.training import LocalClient, Objective


@part
class FedAvgPlus(Method):
    """FedAvg; a client's own model is the shared one after some epochs on its own data.

    Jiang et al. 2019, "Improving federated learning personalization via model agnostic meta learning";
    the baseline FedAvg+ of Marfoq et al. 2021. Tuning is part of making the own model: it changes
    nothing that is shared. Stages: `before` (the shared model) and `own` (tuned). Deviations: means are weighted by
    samples; tuning is plain training by the settings of `training`, whatever the objective of the run is.
    """

    name: ClassVar[str] = "fedavg+"
    title: ClassVar[str] = "FedAvg+"

    tuning_epochs: Annotated[int, Field(ge=1)] = 1
    """How many epochs a client tunes the shared model on its own data for its own model."""

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Tune the shared model on the client's training data."""
        yield "before"
        client.train(Objective(), epochs=self.tuning_epochs, purpose="tuning")
        yield OWN
