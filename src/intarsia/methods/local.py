"""No federation at all."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from intarsia.blocks import ME
from intarsia.core import part
from intarsia.data import ClientInfo
from intarsia.methods.base import Method, Sharing


@part
class StayHome(Sharing):
    """One block for the whole model, which never leaves its client."""

    name: ClassVar[str] = "local"
    has_everyone: ClassVar[bool] = False

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client itself."""
        return ME


@part
class Local(Method):
    """Every client trains alone: the baseline that federation has to beat.

    All start from the same initial weights; a client trains in the rounds that it is sampled for. Deviations: there
    is no paper; a client that is sampled less often trains less.
    """

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"

    sharing: Sharing = Field(default_factory=StayHome)
