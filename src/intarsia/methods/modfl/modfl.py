"""Two halves of a model, federated with different peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from intarsia.blocks import ALL, Cut
from intarsia.core import part
from intarsia.data import ClientInfo
from intarsia.methods.base import Method, Replies, Sharing, cut_before
from intarsia.methods.modfl.cohorts import CohortSearch, within_task
from intarsia.methods.server import Server
from intarsia.models import parts_of

CONFIGURATION, OPERATION = "configuration", "operation"


@part
class DeviceAndCohort(CohortSearch, Sharing):
    """`configuration` with clients of the same device, `operation` with clients of the same cohort.

    Cohorts are given, as an attribute of the client, or found on the server: clients whose updates of the
    operation module point the same way (cosine distance). Until then all share one operation module; from
    then on each cohort's module goes on from its members' updates, merged as the method does. Where clients have
    different tasks, all this is within a task: `operation@task/cohort`. A client that never trains
    (`sampling.newcomers`) cannot be compared: it belongs to the largest found cohort of its task.
    """

    name: ClassVar[str] = "modfl"
    needs: ClassVar[frozenset[str]] = frozenset({CONFIGURATION, OPERATION})
    has_everyone: ClassVar[bool] = False

    operation: str = ""
    """First part of the operation module: the cut point (empty: the first part named operation, or else the
    model's last part)."""
    cohorts: Literal["given", "found"] = "given"
    """Whether cohorts are the clients' attribute (`given`), or found from what clients trained."""

    @property
    def sees_updates(self) -> bool:
        """Whether the server must see single updates."""
        return self.cohorts == "found"

    def cut(self, model: nn.Module) -> Cut:
        """Cut before the operation module."""
        named = (name for name in parts_of(model) if name.startswith(OPERATION))
        return cut_before(model, self.operation or next(named, ""), CONFIGURATION, OPERATION)

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the device for the configuration, the cohort for the operation module."""
        if block == CONFIGURATION:
            return client.attribute("device")
        return within_task(client, client.attribute("cohort") if self.cohorts == "given" else ALL)

    def doubt(self, clients: Sequence[ClientInfo]) -> str:
        """Return whether the operation module is everyone's, though nobody said so."""
        one = len({self.group(OPERATION, client) for client in clients}) == 1 < len(clients)
        unnamed = self.cohorts == "given" and all(client.cohort == ClientInfo.cohort for client in clients)
        same = len({client.device for client in clients}) == 1
        if not one or (self.cohorts == "found" and self.number != 1) or not (same or unnamed):
            return ""
        halves = "both halves of the model are everyone's, as in FedAvg"
        what = halves if same else "the operation module is everyone's"
        return (
            f"sharing 'modfl': all clients are in one cohort, so that {what}: give clients cohorts of their own (the "
            'attribute cohort), or let them be found (sharing.cohorts = "found")'
        )

    def regroup(self, server: Server, replies: Replies) -> None:
        """Find cohorts when it is time (Algorithm 1, line 12)."""
        if self.cohorts == "found":
            self.find_cohorts(OPERATION, server, replies)


@part
class ModFL(Method):
    """Two halves of a model, federated with different peers (Liang et al. 2022, Algorithm 1).

    The configuration module W_c (input side) is averaged among clients of one device generation, over all
    cohorts; the operation module W_o (output side) among clients of one cohort, across generations. Cohorts
    are given or found (line 12). Deviations: means are weighted by samples; what is compared to find cohorts
    is, by default, the update of the last layer alone; and they are found once. The paper's way is to find them in
    every round: `sharing.every = 1`, `sharing.settle = false`.
    """

    name: ClassVar[str] = "modfl"
    title: ClassVar[str] = "ModFL"

    sharing: Sharing = Field(default_factory=DeviceAndCohort)
