"""Two halves of a model, federated with different peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import nn

from intarsia.blocks import ALL, Block, Cut, Update
from intarsia.core import chance, part, warn
from intarsia.data import ClientInfo
from intarsia.methods.base import Method, Replies, Sharing, cut_before
from intarsia.methods.modfl.cohorts import Algorithm, cluster, keep_names
from intarsia.methods.server import Server
from intarsia.models import parts_of

OPERATION = "operation"


@part
class DeviceAndCohort(Sharing):
    """`configuration` with clients of the same device, `operation` with clients of the same cohort.

    Cohorts are given, as an attribute of the client, or found on the server: clients whose updates of the
    operation module point the same way (cosine distance). Until then all share one operation module; from
    then on each cohort's module goes on from its members' updates, merged as the method does. Where clients have
    different tasks, all this is within a task: `operation@task/cohort`. A client that never trains
    (`sampling.newcomers`) cannot be compared: it belongs to the largest found cohort of its task.
    """

    name: ClassVar[str] = "modfl"
    needs: ClassVar[frozenset[str]] = frozenset({"configuration", OPERATION})
    has_everyone: ClassVar[bool] = False

    operation: str = ""
    """First part of the operation module: the cut point (empty: the first part named operation, or else the
    model's last part)."""
    cohorts: Literal["given", "found", "random"] = "given"
    """`random` is a control: `number` cohorts (0: five), with members drawn by lot."""
    number: Annotated[int, Field(ge=0)] = 0
    """How many cohorts to find (0: the silhouette chooses; where devices differ, compare `last_bias` then, or
    each device's part of a cohort passes for a cohort of its own)."""
    lot: Annotated[int, Field(ge=0)] = 0
    """Which draw of random cohorts."""
    algorithm: Algorithm = "agglomerative"
    compare: Literal["last_layer", "last_bias", "module"] = "last_layer"
    """What is compared: the update of the module's last layer; of its bias alone, which depends least on the
    device but sees only how often labels occur; or of the whole module, which tells little after round 1."""
    after: Annotated[int, Field(ge=1)] = 1
    """The first round after which cohorts are found; not before every client that trains has taken part."""
    every: Annotated[int, Field(ge=0)] = 0
    """Find them again every so many rounds, until nothing changes (0: once)."""

    @property
    def sees_updates(self) -> bool:
        """Whether the server must see single updates."""
        return self.cohorts == "found"

    def cut(self, model: nn.Module) -> Cut:
        """Cut before the operation module."""
        named = (name for name in parts_of(model) if name.startswith(OPERATION))
        return cut_before(model, self.operation or next(named, ""), "configuration", OPERATION)

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the device for the configuration, the cohort for the operation module."""
        if block == "configuration":
            return client.attribute("device")
        if self.cohorts == "random":
            drawn = chance.key(self.lot, "random cohort", client.name) % (self.number or 5)
            return _within(client, f"random-{drawn}")
        return _within(client, client.attribute("cohort") if self.cohorts == "given" else ALL)

    def doubt(self, clients: Sequence[ClientInfo]) -> str:
        """Return whether the operation module is everyone's, though nobody said so."""
        found = self.cohorts == "found"
        one = self.number == 1 if found else len({self.group(OPERATION, client) for client in clients}) == 1
        if len(clients) < 2 or not one:
            return ""
        if len({client.device for client in clients}) == 1:
            end = "both halves of the model are everyone's, as in FedAvg"
        elif self.cohorts == "given" and clients[0].cohort == ClientInfo.cohort:
            end = "the operation module is everyone's"
        else:
            return ""
        return (
            f"sharing 'modfl': all clients are in one cohort, so that {end}: give clients cohorts of their own (the "
            'attribute cohort), or let them be found (sharing.cohorts = "found")'
        )

    def regroup(self, server: Server, replies: Replies) -> None:
        """Find cohorts when it is time (Algorithm 1, line 12)."""
        if self.cohorts != "found" or server.state.get("cohorts settled"):
            return
        directions = server.state.setdefault("directions", {})
        for client, update in replies.items():
            directions[client] = self._direction(server, client, update)
        if directions.keys() != set(server.residents) or not self._due(server):
            return
        self._find(server, replies)
        server.state["directions"] = {}

    def _due(self, server: Server) -> bool:
        last = server.state.get("cohorts found")
        return server.round >= self.after if last is None else server.round >= last + self.every

    def _find(self, server: Server, replies: Replies) -> None:
        before = {c: server.address(OPERATION, c).group for c in server.residents}
        groups: dict[str, str] = {}
        task_of = {c: server.clients[c].task for c in server.residents}
        for task in dict.fromkeys(task_of.values()):
            groups |= self._find_in(server, [c for c, own in task_of.items() if own == task], before)
        if len(set(groups.values())) == 1 and len(groups) > 1:
            warn(f"round {server.round}: one cohort was found, so that the operation module is everyone's")
        server.state["cohorts settled"] = self.every == 0 or groups == before
        server.state["cohorts found"] = server.round
        server.regroup(
            OPERATION, groups | _of_newcomers(server, groups), self._modules(server, groups, replies)
        )

    def _find_in(self, server: Server, names: list[str], before: Mapping[str, str]) -> dict[str, str]:
        """Return the cohorts among the clients of one task; old names stay where members do."""
        vectors = np.asarray([server.state["directions"][name] for name in names])
        info = server.clients[names[0]]
        key = chance.key(server.seed, "cohorts", server.round, *([info.task] if info.task else []))
        found = cluster(vectors, self.number, self.algorithm, key)
        former = {c: before[c] for c in names if before[c] != _within(info, ALL)}
        fresh = [_within(info, f"cohort-{i}") for i in range(2 * len(names))]
        return keep_names(former, dict(zip(names, found, strict=True)), fresh)

    def _modules(self, server: Server, groups: dict[str, str], replies: Replies) -> dict[str, Block]:
        """Return the module of every cohort: its members' updates, merged; or, if none took part, the one they had."""
        modules = {}
        for group in sorted(set(groups.values())):
            members = [c for c, own in groups.items() if own == group]
            address = server.address(OPERATION, members[0])
            updates = {c: replies[c] for c in members if c in replies}
            modules[group] = server.merged(OPERATION, updates) if updates else server.pool.get(address)
        return modules

    def _direction(self, server: Server, client: str, update: Update) -> list[float]:
        """Return how a client changed its operation module, as plain numbers."""
        address = server.address(OPERATION, client)
        old, new = server.pool.sent.get(address), update.blocks[address]
        names = self._compared(server.model_of(client).module, new)
        changes = [(new.tensors[n].double() - old.tensors[n].double()).flatten() for n in names]
        return [float(x) for change in changes for x in change]

    def _compared(self, model: nn.Module, module: Block) -> list[str]:
        """Return the names of the parameters whose updates are compared."""
        weights = sorted(module.tensors.keys() - module.buffers)
        if self.compare == "module":
            return weights
        patterns = list(parts_of(model).values())[-1]
        last = [name for name in weights if any(fnmatchcase(name, pattern) for pattern in patterns)]
        biases = [name for name in last if module.tensors[name].dim() == 1]
        return biases if self.compare == "last_bias" and biases else last


def _within(client: ClientInfo, cohort: str) -> str:
    return f"{client.task}/{cohort}" if client.task else cohort


def _of_newcomers(server: Server, groups: Mapping[str, str]) -> dict[str, str]:
    """Return the largest cohort of its task, by members, then by name, for each client that never trains."""
    placed = {}
    for client in server.clients.keys() - groups.keys():
        task = server.clients[client].task
        sizes = Counter(group for c, group in groups.items() if server.clients[c].task == task)
        if sizes:
            placed[client] = min(sizes, key=lambda group: (-sizes[group], group))
    return dict(sorted(placed.items()))


@part
class ModFL(Method):
    """Two halves of a model, federated with different peers (Liang et al. 2022, Algorithm 1).

    The configuration module W_c (input side) is averaged among clients of one device generation, over all
    cohorts; the operation module W_o (output side) among clients of one cohort, across generations. Cohorts
    are given or found (line 12). Deviations: means are weighted by samples; what is compared to find cohorts
    is, by default, the update of the last layer alone; and they are found once, where the paper finds them in every
    round (`sharing.every = 1`, until nothing changes any more).
    """

    name: ClassVar[str] = "modfl"
    title: ClassVar[str] = "ModFL"

    sharing: Sharing = Field(default_factory=DeviceAndCohort)
