"""What each client holds, trains and returns: plans, and the tasks that follow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from intarsia.blocks import Address, Block, ClientPlan, Layout, Plan, Pool, Task
from intarsia.clients import state_version
from intarsia.core import Each, one_by_one
from intarsia.data import ClientInfo
from intarsia.engines import Job
from intarsia.federation.sampling import Sampling
from intarsia.methods import EVALUATE, Addresses, ClientModel, Exchange, Lines, Server, SharedBlocks
from intarsia.runs import TABLES, ClientRecord, RunState
from intarsia.setup import Setup

TRAIN = "train"


class Planner:
    """Turns what a method asks for into plans, and plans into tasks."""

    def __init__(self, setup: Setup, sampling: Sampling | None = None) -> None:
        self.setup = setup
        self.infos = {info.name: info for info in setup.population.infos}
        self.residents = (sampling or Sampling()).residents(list(self.infos))
        self.newcomers = frozenset(self.infos) - frozenset(self.residents)
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
        """Return what clients count in a merge: their samples, as often as they were drawn (None: all, once)."""
        drawn = dict.fromkeys(self.infos, 1) if chosen is None else chosen
        samples = {name: info.train_samples for name, info in self.infos.items()}
        most = self.setup.defence.most_samples(samples.values()) or max(samples.values())
        return {name: min(samples[name], most) * count for name, count in drawn.items()}

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
        sent = {a: b for a, b in blocks.items() if record.held.get(str(a)) != b.version}
        codes = {a: state.codes[a] for a, b in sent.items() if self._follows(state, record, a, b)}
        task = Task(
            run=state.run,
            round=state.round,
            exchange=plan.exchange,
            purpose=plan.purpose,
            client=info.name,
            state=state_version(record.state),
            blocks=sent | {a: code.change for a, code in codes.items()},
            values=exchange.values(info) if exchange.values else {},
            plan=plan.clients[info.name],
            versions={a: b.version for a, b in blocks.items()},
            changes={a: code.base.version for a, code in codes.items()},
        )
        return Job(task, record.state, plan.weights[info.name])

    def _follows(self, state: RunState, record: ClientRecord, address: Address, block: Block) -> bool:
        """Return whether a coded change leads from what the client holds to this block."""
        code = state.codes.get(address)
        held = record.held.get(str(address))
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
