"""Who takes part in a round; what each client holds, trains and returns: plans, and the tasks that follow."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from intarsia.blocks import Address, Block, ClientPlan, Layout, Plan, Pool, Task
from intarsia.clients import state_version
from intarsia.core import Each, SettingsError, chance, one_by_one, part
from intarsia.data import ClientInfo
from intarsia.engines import Job
from intarsia.methods import EVALUATE, Addresses, ClientModel, Exchange, Lines, Server, SharedBlocks
from intarsia.runs import TABLES, ClientRecord, RunState
from intarsia.setup import Setup


@part
class Sampling:
    """Which clients take part in a round: a function of seed and round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that are in a round."""
    clients: Annotated[int, Field(ge=0)] = 0
    """How many clients a round (0: the fraction decides)."""
    replacement: bool = False
    """Whether a client can be drawn twice in a round; it then trains once and counts twice."""
    kind: Literal["fixed", "poisson"] = "fixed"
    """`fixed`: as many clients every round. `poisson`: each client by a chance of its own, so that rounds differ in
    how many there are (what privacy is cheapest with)."""

    newcomers: Annotated[int, Field(ge=0)] = 0
    """The last so many clients of the population never train: they come when all is done, and are evaluated apart,
    as they come and after one epoch of their own."""

    @model_serializer(mode="wrap")
    def _without_the_usual_kind(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the kind out where it is the usual one."""
        return {key: value for key, value in usual(self).items() if (key, value) != ("kind", "fixed")}

    def residents(self, names: Sequence[str]) -> Sequence[str]:
        """Return the clients that can take part in training."""
        if self.newcomers >= len(names):
            raise SettingsError(
                f"sampling.newcomers is {self.newcomers}, but there are {len(names)} clients: leave some to train"
            )
        return names[: len(names) - self.newcomers] if self.newcomers else names

    def count(self, population: int) -> int:
        """Return how many clients take part."""
        return min(population, self.clients or max(1, round(self.fraction * population)))

    def choose(self, names: Sequence[str], seed: int, round: int) -> dict[str, int]:
        """Return the clients of a round, in the order of the population, and how often each counts."""
        names = self.residents(names)
        if self.kind == "poisson":
            return self.by_chance(names, chance.numpy_generator(seed, "sampling", round).random(len(names)))
        count = self.count(len(names))
        if count == len(names) and not self.replacement:
            return dict.fromkeys(names, 1)
        random = chance.numpy_generator(seed, "sampling", round)
        picked = Counter(random.choice(len(names), count, replace=self.replacement).tolist())
        return {names[i]: picked[i] for i in sorted(picked)}

    def chance(self, population: int) -> float:
        """Return with which chance a client takes part where each has a chance of its own."""
        return min(1.0, self.clients / population) if self.clients else self.fraction

    def by_chance(self, names: Sequence[str], drawn: np.ndarray) -> dict[str, int]:
        """Return the clients whose number, drawn between 0 and 1, is within their chance."""
        most = self.chance(len(names))
        return {name: 1 for name, number in zip(names, drawn.tolist(), strict=True) if number <= most}


TRAIN = "train"


class Planner:
    """Turns what a method asks for into plans, and plans into tasks."""

    def __init__(self, setup: Setup, sampling: Sampling | None = None) -> None:
        self.setup = setup
        self.infos = setup.population.known
        self.names = list(self.infos)
        self.residents = (sampling or Sampling()).residents(self.names)
        self.newcomers = frozenset(self.names[len(self.residents) :])
        self._views: dict[tuple[Address, Layout], Block] = {}

    def server(self, state: RunState, each: Each = one_by_one, lines: Lines | None = None) -> Server:
        """Return what a method sees of the server; what it changes changes this state and adds to these lines."""
        return Server(
            round=state.round,
            rounds=self.setup.rounds,
            seed=self.setup.seed,
            clients=self.infos,
            residents=self.residents,
            pool=SharedBlocks(state.pool, state.codes),
            state=state.server,
            addresses=self.addresses(state),
            public=self.setup.population.public,
            model_of=self._model_of,
            each=each,
            lines={table: [] for table in TABLES} if lines is None else lines,
            training=self.setup.training,
        )

    def _model_of(self, client: str) -> ClientModel:
        template = self.setup.template(client)
        return ClientModel(
            template.model, template.cut.blocks, self.setup.specs.get(self.setup.model_of[client])
        )

    def weights(self, chosen: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return what clients count in a merge: their samples, as often as they were drawn (None: all, once).

        Under privacy all count the same: samples are the clients' own affair.
        """
        drawn = dict.fromkeys(self.infos, 1) if chosen is None else chosen
        if self.setup.privacy.of_clients:
            return dict(drawn)
        most = self._most_samples
        samples = {name: self.infos[name].train_samples for name in drawn}
        return {name: (min(samples[name], most) if most else samples[name]) * n for name, n in drawn.items()}

    @cached_property
    def _most_samples(self) -> int:
        """How many samples a client counts at most (0: as many as it has)."""
        if not self.setup.defence.max_samples:
            return 0
        return self.setup.defence.most_samples([info.train_samples for info in self.infos.values()])

    def evaluated(self, count: int = 0) -> list[str]:
        """Return the clients whose own models are evaluated, in the order of the population.

        All, or so many of those that train and of the newcomers: a function of the seed alone.
        """
        new = self.names[len(self.residents) :]
        return [*self._some(self.residents, count, "residents"), *self._some(new, count, "newcomers")]

    def _some(self, names: Sequence[str], count: int, whose: str) -> Sequence[str]:
        if not 0 < count < len(names):
            return names
        random = chance.numpy_generator(self.setup.seed, "evaluated", whose)
        return [names[i] for i in sorted(random.choice(len(names), count, replace=False).tolist())]

    def addresses(self, state: RunState) -> Addresses:
        """Return who shares what in this state."""
        return self.setup.addresses.now(state.groups, state.pool)

    def plan(
        self, exchange: Exchange, weights: Mapping[str, int], shared: Addresses, purpose: str = TRAIN
    ) -> Plan:
        """Return the part of an exchange of every client that has a weight."""
        clients = {}
        for name in weights:
            info, addresses = self.infos[name], shared.of(name)
            every = frozenset(addresses)
            fetch = every if exchange.fetch is None else frozenset(exchange.fetch(info))
            train = fetch if exchange.train is None else frozenset(exchange.train(info))
            changing = self.setup.template(name).changing
            if purpose == EVALUATE:
                changing = frozenset()
            back = train & changing if exchange.give_back is None else frozenset(exchange.give_back(info))
            clients[name] = ClientPlan({b: a for b, a in addresses.items() if b in fetch}, train, back)
        return Plan(exchange.step, purpose, clients, weights)

    def jobs(self, state: RunState, plan: Plan, exchange: Exchange) -> tuple[list[Job], dict[str, Block]]:
        """Return the job of every client, and the block of every version that they name."""
        self._views.clear()
        jobs, content = [], {}
        for name, client_plan in plan.clients.items():
            blocks = {a: self._view(state.pool, a, name) for a in client_plan.fetched}
            blocks |= exchange.send(self.infos[name]) if exchange.send else {}
            job = self._job(state, plan, exchange, self.infos[name], blocks)
            jobs.append(job)
            content.update({block.version: block for block in blocks.values()})
            content.update({base: state.codes[a].base for a, base in job.task.changes.items()})
        return jobs, content

    def planned(self, plan: Plan) -> dict[Address, int]:
        """Return how many samples stand behind each address that is returned."""
        planned: dict[Address, int] = defaultdict(int)
        for name, client_plan in plan.clients.items():
            for address in client_plan.returned:
                planned[address] += plan.weights[name]
        return planned

    def _job(
        self, state: RunState, plan: Plan, exchange: Exchange, info: ClientInfo, blocks: dict[Address, Block]
    ) -> Job:
        record = state.clients.get(info.name, ClientRecord())
        held, own = record.held, record.state
        sent = {a: b for a, b in blocks.items() if held.get(str(a)) != b.version}
        codes = {a: state.codes[a] for a, b in sent.items() if self._follows(state, held.get(str(a)), a, b)}
        task = Task(
            run=state.run,
            round=state.round,
            exchange=plan.exchange,
            purpose=plan.purpose,
            client=info.name,
            state=state_version(own),
            blocks=sent | {a: code.change for a, code in codes.items()},
            values=exchange.values(info) if exchange.values else {},
            plan=plan.clients[info.name],
            versions={a: b.version for a, b in blocks.items()},
            changes={a: code.base.version for a, code in codes.items()},
        )
        return Job(task, own, plan.weights[info.name])

    def _follows(self, state: RunState, held: str | None, address: Address, block: Block) -> bool:
        """Return whether a coded change leads from what the client holds to this block."""
        code = state.codes.get(address)
        return code is not None and code.version == block.version and code.base.version == held

    def _view(self, pool: Pool, address: Address, client: str) -> Block:
        """Return the block as this client holds it: all of it, or a part."""
        merge = self.setup.method.merge
        if not merge.partial:
            return pool.get(address)
        layout = self.setup.template(client).initial[address.block].layout
        if (address, layout) not in self._views:
            self._views[address, layout] = merge.view(pool.get(address), layout)
        return self._views[address, layout]


def new_run_id() -> str:
    """Return a name for a run that no other run has."""
    return uuid.uuid4().hex[:16]
