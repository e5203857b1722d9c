"""Several populations in one federation: unlike devices, the same labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainSerializer

from intarsia.core import DataError, Registry, build_part, describe, part
from intarsia.data.dealing import Dealt
from intarsia.data.places import Places
from intarsia.data.population import Client, Goal, Population, PopulationSource
from intarsia.data.preparation import Prepared
from intarsia.data.raw import common_name
from intarsia.data.sources.digits import Digits
from intarsia.data.sources.files import Files
from intarsia.data.sources.images import Images
from intarsia.data.sources.motion import Motion
from intarsia.data.sources.synthetic import Synthetic
from intarsia.data.sources.text import Roles

SINGLE: Registry[type[PopulationSource]] = Registry(
    "populations", PopulationSource, (Digits, Images, Motion, Roles, Files, Synthetic)
)
"""All that can be a member."""


def _members(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise DataError("population.members: write a table of populations, by name")
    return {
        name: member
        if isinstance(member, PopulationSource)
        else build_part(SINGLE, member, f"population.members.{name}")
        for name, member in value.items()
    }


Members = Annotated[
    dict[str, PopulationSource],
    BeforeValidator(_members),
    PlainSerializer(lambda members: {name: describe(member) for name, member in members.items()}),
]


@part
class Joint(PopulationSource):
    """Populations of different devices as one; members of one task must have the same labels, in order."""

    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "several populations in one federation, with the labels they share"

    members: Members = Field(default_factory=dict)
    """The populations, by name."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population of all members' clients, one member after the other."""
        if not self.members:
            raise DataError("population.members: a joint population needs at least one member")
        sets = [m.dataset for m in self.members.values() if isinstance(m, Dealt)]
        twice = {dataset for dataset in sets if sets.count(dataset) > 1}
        if twice:
            raise DataError(
                f"population.members: data set '{min(twice)}' is dealt twice, so that clients would share samples"
            )
        loaded = {name: member.load(seed, places) for name, member in self.members.items()}
        first = next(iter(loaded.values()))
        goals: dict[str, tuple[str, Goal]] = {}
        clients: dict[str, Client] = {}
        rows: dict[str, Any] = {}
        prepared: dict[str, Prepared] = {}
        for name, population in loaded.items():
            if population.public is not None:
                raise DataError(f"population.members.{name}.public: a joint population has no public share")
            for task, goal in population.goals.items():
                self._same_labels(*goals.setdefault(task, (name, goal)), name, goal)
            same = clients.keys() & population.clients.keys()
            if same:
                raise DataError(
                    f"population.members: '{min(same)}' is a client of two members; change a 'device'"
                )
            clients |= population.clients
            rows |= population.rows
            prepared |= population.preparations
        tasks = {task: goal for task, (_, goal) in goals.items()} if len(goals) > 1 else {}
        return Population(clients, first.outputs, first.problem, first.labels, None, rows, tasks, prepared)

    def _same_labels(self, name: str, one: Goal, other_name: str, other: Goal) -> None:
        mine, yours = (
            [common_name(label) for label in one.labels],
            [common_name(label) for label in other.labels],
        )
        if mine != yours or one.problem != other.problem or one.outputs != other.outputs:
            raise DataError(
                f"population.members: '{name}' and '{other_name}' have different labels "
                f"({', '.join(mine)} and {', '.join(yours)}); choose those they share with 'labels', or give "
                "them different tasks with 'task'"
            )
