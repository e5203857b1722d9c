"""Two halves of a model, federated with different peers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from intarsia.blocks import Cut, part
from intarsia.data import ClientInfo
from intarsia.methods.method import Method, Sharing, cut_before
from intarsia.models import parts_of


@part
class DeviceAndCohort(Sharing):
    """`configuration` with clients of the same device, `operation` with clients of the same cohort."""

    name: ClassVar[str] = "modfl"
    needs: ClassVar[frozenset[str]] = frozenset({"configuration", "operation"})
    has_everyone: ClassVar[bool] = False

    operation: str = ""
    """First part of the operation module: the cut point (empty: the first part named operation, or else the
    model's last part)."""

    def cut(self, model: nn.Module) -> Cut:
        """Cut before the operation module."""
        named = (name for name in parts_of(model) if name.startswith("operation"))
        return cut_before(model, self.operation or next(named, ""), "configuration", "operation")

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the device for the configuration, the cohort for the operation module."""
        return client.device if block == "configuration" else client.cohort


@part
class ModFL(Method):
    """Two halves of a model, federated with different peers (Liang et al. 2022, Algorithm 1).

    The configuration module W_c (input side) is averaged among clients of one device generation, over all
    cohorts; the operation module W_o (output side) among clients of one cohort, across generations. Cohorts
    are given, as an attribute of the client. Deviations: means are weighted by samples.
    """

    name: ClassVar[str] = "modfl"
    title: ClassVar[str] = "ModFL"

    sharing: Sharing = Field(default_factory=DeviceAndCohort)
