"""What ModFL is compared with to see that its cohorts matter."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from intarsia.core import chance, part
from intarsia.data import ClientInfo
from intarsia.methods import SHARINGS
from intarsia.methods.modfl.cohorts import within_task
from intarsia.methods.modfl.modfl import OPERATION, DeviceAndCohort


@part
class RandomCohorts(DeviceAndCohort):
    """ModFL's sharing with cohorts whose members are drawn by lot."""

    name: ClassVar[str] = "random_cohorts"

    number: Annotated[int, Field(ge=1)] = 5
    """How many cohorts."""
    lot: Annotated[int, Field(ge=0)] = 0
    """Which draw."""

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the device for the configuration, the cohort that was drawn for the operation module."""
        if block != OPERATION:
            return super().group(block, client)
        return within_task(
            client, f"random-{chance.key(self.lot, 'random cohort', client.name) % self.number}"
        )


SHARINGS[RandomCohorts.name] = RandomCohorts
