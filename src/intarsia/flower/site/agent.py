"""The site agent: resident, with torch, data and models loaded; answers what the relay brings."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from intarsia._version import __version__
from intarsia.blocks import Address, Block, Fold, Task, decode_block
from intarsia.clients import state_version
from intarsia.core import REGISTRIES, ClientError, IntarsiaError, WireError, without_paths, write_atomically
from intarsia.data.recorded import record_of
from intarsia.engines import Failure, Job, LocalEngine, Reply, WorkerDied, shared
from intarsia.engines.engine import failed
from intarsia.flower.message_schema import (
    DONE,
    EXCHANGE,
    HERE,
    NEEDS,
    PROBLEM,
    WHO,
    Order,
    goals_to_json,
    info_to_json,
    read,
    shortened,
)
from intarsia.flower.messages import SiteMessage
from intarsia.flower.site.described import setup_of, start_of
from intarsia.flower.site.guarding import guard_at_site
from intarsia.flower.site.site_file import Site
from intarsia.flower.site.site_store import SiteStore, token
from intarsia.methods import EVALUATE
from intarsia.runs.folder import POPULATION

Log = Callable[[str], None]
SCORE = ("stage", "split", "n", "correct", "loss")
"""What is kept of a score beside the model that it is about."""


@dataclass
class _SiteRun:
    """What one run needs at this site: its setup, its workers, its folder."""

    setup_id: str
    engine: LocalEngine
    store: SiteStore


class Agent:
    """Answers messages; one at a time, as its SuperNode asks."""

    def __init__(self, site: Site, log: Log = print) -> None:
        self.site = site
        self.log = log
        site.plug_in()
        self.population, self.places = site.load_population()
        self._write_population()
        self._site_runs: dict[str, _SiteRun] = {}
        self._recent: dict[str, Block] = {}

    def _write_population(self) -> None:
        """Keep who holds what and how raw readings became inputs, so that models can be used without the data."""
        about = json.dumps(record_of(self.population)) + "\n"
        write_atomically(self.site.open_state() / POPULATION, about.encode())

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Answer a message; what goes wrong is told to the server, with its traceback, and noted here."""
        try:
            return self.do(message)
        except Exception as error:  # noqa: BLE001 - the agent stays; the server is told
            details = traceback.format_exc()
            self.log(details)
            named = str(error) if isinstance(error, IntarsiaError) else f"{type(error).__name__}: {error}"
            about = {"message": _leaving(named), "details": _leaving(details)}
            return SiteMessage({"kind": PROBLEM, "site": self.site.name, **about})

    def do(self, message: SiteMessage) -> SiteMessage:
        """Do what a message asks for; one that no server of ours sends is a `WireError`."""
        asked = read(message.header, (WHO, EXCHANGE))
        return self._exchange(asked, message.blocks) if isinstance(asked, Order) else self._who()

    def close(self) -> None:
        """End the workers."""
        for site_run in self._site_runs.values():
            site_run.engine.close()
        self._site_runs.clear()

    def _who(self) -> SiteMessage:
        """Tell who is here: names, attributes, shapes and counts; never data."""
        plugins = {word: names for word, own in REGISTRIES.items() if (names := own.plugins)}
        infos = [{**info_to_json(i), "place": self.places[i.name]} for i in self.population.infos]
        return SiteMessage(
            {
                "kind": HERE,
                "site": self.site.name,
                "version": __version__,
                "clients": infos,
                "goals": goals_to_json(self.population.goals),
                **({"plugins": plugins} if plugins else {}),
            }
        )

    def _exchange(self, order: Order, blocks: Mapping[str, Block]) -> SiteMessage:
        """Run the tasks of an exchange for the clients that are here."""
        site_run = self._site_run(order, blocks)
        if not isinstance(site_run, _SiteRun):
            return self._needs(setup=site_run is None, initial=site_run or ())
        tasks = [Task.from_header(job.task) for job in order.jobs]
        sent = self._sent(site_run, blocks, order.changes)
        content, missing = self._content(site_run, tasks, sent)
        if missing:
            return self._needs(blocks=missing)
        self.log(f"round {order.round}, {order.exchange}: {len(tasks)} clients")
        fold = self._fold(site_run, order, content) if order.merge else None
        replies = self._run(site_run, order, tasks, content, fold)
        self._keep(site_run, order, tasks, replies, content)
        return self._done(replies, fold)

    def _needs(
        self, setup: bool = False, blocks: Sequence[str] = (), initial: Sequence[str] = ()
    ) -> SiteMessage:
        """Say what must be sent again, or for the first time, before the tasks can be done."""
        lacks = {"setup": setup, "blocks": list(blocks), "initial": list(initial)}
        return SiteMessage({"kind": NEEDS, "site": self.site.name, **lacks})

    def _site_run(self, order: Order, sent: Mapping[str, Block]) -> _SiteRun | list[str] | None:
        """Return what the run needs, built anew when the server describes another setup.

        None if the setup is unknown; versions of blocks to start from, if they cannot be made here.
        """
        run, about = order.run, order.setup
        site_run = self._site_runs.get(run)
        if site_run is not None and site_run.setup_id == order.setup_id:
            return site_run
        if about is None:
            return None
        setup = setup_of(self.site, self.population, about)
        self.close()
        store = SiteStore(self.site.state / "runs" / run)
        initial, lacking = start_of(setup, self.population, about, store, sent)
        if lacking:
            return lacking
        setup = shared(setup.starting_from(initial))
        store.describe(about.model_dump(mode="json"))
        self.log(f"run {run}: method {setup.method.name}, {len(self.population)} clients here")
        guard = guard_at_site(self.site, setup.secure_sums)
        engine = LocalEngine(setup, store.blocks, self.site.device, self.site.workers, guard)
        self._site_runs[run] = _SiteRun(order.setup_id, engine, store)
        return self._site_runs[run]

    def _sent(
        self, site_run: _SiteRun, blocks: Mapping[str, Block], changes: Mapping[str, str]
    ) -> dict[str, Block]:
        """Return the blocks that came; a change whose base is not here is left out, and asked for in full."""
        sent = dict(blocks)
        for version, base in changes.items():
            present = self._recent.get(base) or site_run.store.block(base)
            change = sent.pop(version, None)
            if present is not None and change is not None:
                sent[version] = decode_block(site_run.engine.setup.codec, change, present, "")
        return sent

    def _content(
        self, site_run: _SiteRun, tasks: Sequence[Task], sent: Mapping[str, Block]
    ) -> tuple[dict[str, Block], list[str]]:
        """Return the block of every version that the tasks name, and the versions that are not here."""
        wanted = {version for task in tasks for version in task.versions.values()}
        content: dict[str, Block] = {}
        for version in sorted(wanted):
            block = sent.get(version) or self._recent.get(version) or site_run.store.block(version)
            if block is not None and block.version != version:
                raise WireError(f"block {version} arrived damaged: its content is {block.version}")
            if block is not None:
                content[version] = block
        self._recent = content
        return content, sorted(wanted - content.keys())

    def _fold(self, site_run: _SiteRun, order: Order, content: Mapping[str, Block]) -> Fold:
        if order.present.keys() != order.planned.keys() or not content.keys() >= set(order.present.values()):
            raise WireError("the blocks to merge are not those of the tasks")
        present = {Address.parse(a): content[version] for a, version in order.present.items()}
        planned = {Address.parse(a): samples for a, samples in order.planned.items()}
        return site_run.engine.setup.fold(present, planned)

    def _run(
        self,
        site_run: _SiteRun,
        order: Order,
        tasks: Sequence[Task],
        content: Mapping[str, Block],
        fold: Fold | None,
    ) -> dict[str, Reply]:
        jobs, replies = [], {}
        for task, job in zip(tasks, order.jobs, strict=True):
            try:
                if task.client not in self.population.clients:
                    raise ClientError(
                        f"client '{task.client}' is not at site '{self.site.name}'", stage="site"
                    )
                state = site_run.store.state(task)
                jobs.append(Job(replace(task, state=state_version(state)), state, job.samples))
            except ClientError as error:
                replies[task.client] = failed(task.client, error)
        try:
            for reply in site_run.engine.exchange(jobs, content, fold, fold is None):
                replies[reply.client] = reply
                self._report(reply)
        except WorkerDied:
            self.close()
            raise
        for failure in site_run.engine.happened():
            self.log(f"{failure.kind}: {failure.message}")
        return replies

    def _report(self, reply: Reply) -> None:
        if reply.failure is not None:
            self.log(f"{reply.failure.kind}: {reply.failure.message}\n{reply.failure.details}")

    def _keep(
        self,
        site_run: _SiteRun,
        order: Order,
        tasks: Sequence[Task],
        replies: Mapping[str, Reply],
        content: Mapping[str, Block],
    ) -> None:
        """Write down new states and held versions; what an evaluation fetched makes own models, and is not held."""
        if order.purpose == EVALUATE:
            self._keep_own(site_run.store, order, tasks, replies, content)
            return
        for task, job in zip(tasks, order.jobs, strict=True):
            reply = replies[task.client]
            if reply.update is not None:
                site_run.store.hold(task, content)
                site_run.store.remember(task, reply.state, job.keep)
        site_run.store.save()

    def _keep_own(
        self,
        store: SiteStore,
        order: Order,
        tasks: Sequence[Task],
        replies: Mapping[str, Reply],
        content: Mapping[str, Block],
    ) -> None:
        """Write down what clients' own models were made of, so that they can be exported here at any time."""
        if order.exchange != EVALUATE:
            return
        made = [
            (task, [{key: row[key] for key in SCORE} for row in update.values["scores"]])
            for task in tasks
            if (update := replies[task.client].update) is not None
        ]
        if made:
            store.keep_own(made, content)

    def _done(self, replies: Mapping[str, Reply], fold: Fold | None) -> SiteMessage:
        blocks: dict[str, Block] = {}
        answers = []
        for reply in replies.values():
            if reply.update is not None:
                blocks |= {f"{reply.client}/{a}": block for a, block in reply.update.blocks.items()}
                blocks |= {f"{reply.client}/{n}": block for n, block in reply.update.tensors.items()}
            answers.append(_answer(reply))
        sums: Mapping[str, object] = {}
        if fold is not None:
            sums, tensors = fold.dump()
            blocks["sums"] = tensors
        return SiteMessage({"kind": DONE, "site": self.site.name, "replies": answers, "sums": sums}, blocks)


def _leaving(text: str) -> str:
    """Return a text as it leaves the site: where files lie is nobody else's business."""
    return shortened(without_paths(text))


def _answer(reply: Reply) -> dict[str, Any]:
    failure: Failure | None = reply.failure
    update = reply.update
    return {
        "client": reply.client,
        "failure": {k: _leaving(v) for k, v in failure.to_json().items()} if failure else None,
        "update": {**update.header(), "state": ""} if update else None,
        "state": token(reply.state),
        "seconds": reply.seconds,
    }
