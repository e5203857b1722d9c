"""The round loop: plan, carry, merge, evaluate, record, checkpoint; and nothing of any method in it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from intarsia.blocks import Address, Block, Code, Fold, Plan
from intarsia.core import IntarsiaError, one_thread, part, quick_turns
from intarsia.engines import Engine, Failure, Job, Reply
from intarsia.federation.draft import Draft, timed
from intarsia.federation.fleet import Clock, Fleet, asked_more
from intarsia.federation.gathering import Gathering
from intarsia.federation.judge import Judge
from intarsia.federation.masked import Carry, MaskedCarry
from intarsia.federation.pace import pace_of
from intarsia.federation.plan import Planner, Sampling, new_run_id
from intarsia.federation.private_examples import guarded
from intarsia.federation.summary import (
    Observer,
    RoundReport,
    Row,
    accuracy_of,
    metric_row,
    report_of,
    summarise,
    too_few,
)
from intarsia.methods import EVALUATE, Exchange, Replies, Round, Server, told_apart
from intarsia.runs import RunFolder, RunState
from intarsia.setup import Setup

T = TypeVar("T")
R = TypeVar("R")


class RunStopped(IntarsiaError):  # noqa: N818
    """A run that stopped before its last round, with its state saved."""


@part
class Rules:
    """How the loop runs, whatever the method."""

    sampling: Sampling = Field(default_factory=Sampling)
    min_updates: Annotated[int, Field(ge=1)] = 1
    """The run stops, with its state saved, when fewer updates than this are accepted in an exchange."""
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    evaluate_clients: Annotated[int, Field(ge=0)] = 0
    """How many clients are evaluated, always the same (0: all)."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    metrics: tuple[str, ...] = ()
    """What models are judged by after the last round (none: by accuracy and loss alone)."""
    fleet: Fleet = Field(default_factory=Fleet)
    """What clients' devices can do, and how long the server waits for them."""


class Federation:
    """Runs rounds from a state until the last one."""

    def __init__(
        self,
        setup: Setup,
        engine: Engine,
        folder: RunFolder,
        rules: Rules,
        state: RunState | None = None,
        observer: Observer | None = None,
        alone: Sequence[Row] = (),
    ) -> None:
        self.setup = setup
        self.engine = engine
        self.folder = folder
        self.rules = rules
        self.observer = observer or Observer()
        self.planner = Planner(setup, rules.sampling)
        sampling = asked_more(rules.sampling, rules.fleet, len(self.planner.residents))
        self.guard = guarded(setup, sampling, self.planner, folder)
        clock = Clock.of(setup, rules.fleet, rules.sampling)
        self.pace = pace_of(self.guard, self.planner, clock, rules.sampling)
        self.judge = Judge(setup, rules.metrics, alone)
        self.infos = self.planner.infos
        self.evaluated = dict.fromkeys(self.planner.evaluated(rules.evaluate_clients), 1)
        self.state = state or RunState(new_run_id(), setup.initial_pool())

    def run(self) -> bool:
        """Play the rounds that are left, or until the observer wants to stop; return whether it was the last.

        With one thread: more would wait busily for each other on the cores that the engine's workers have.
        """
        with one_thread(), quick_turns():
            self._run()
        return self._finished

    @property
    def _finished(self) -> bool:
        return self.state.round >= self.setup.rounds

    def _run(self) -> None:
        self.observer.opened(self.folder.path)
        self.observer.started(self.setup.rounds, self.state.round, len(self.infos))
        if self.state.round == 0:
            self._keep_initial_blocks()
            self._save()
            self.folder.written()  # from here on, there is no line in a table without a checkpoint
        stop = False
        while not (self._finished or stop):
            draft = Draft.of(self.state)
            try:
                self._play(draft)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"Stopped. {self._stop(draft)}") from None
            except IntarsiaError as error:
                raise RunStopped(f"{error}\n{self._stop(draft)}") from error
            stop = self.observer.wants_stop()
        if not self._finished:
            self._save()
        self.folder.saved()
        self._conclude(self._finished)

    def _keep_initial_blocks(self) -> None:
        """Keep what the models start from: private blocks of clients that come late start from it too."""
        with self.folder.writing():
            self.state.initial = {
                key: {name: self.folder.store.put(block) for name, block in template.initial.items()}
                for key, template in self.setup.templates.items()
            }

    def _stop(self, draft: Draft) -> str:
        """Save the last whole round; the failures of this one are noted, and gone when the run goes on."""
        self.folder.roll_back(self.state)
        self._save()
        self.folder.saved()
        if draft.state is not self.state:
            self.folder.append({"events": draft.lines["events"]})
        self._conclude(finished=False)
        return f"The state after round {self.state.round} is saved: intarsia resume {self.folder.path}"

    def _conclude(self, finished: bool) -> None:
        """Write what came of the run so far, and say it."""
        summary = self.summary(finished)
        self.folder.write_summary(summary)
        self.observer.ended(summary)

    def _play(self, draft: Draft) -> None:
        """Play one round on a draft of the state, and commit it."""
        start = time.perf_counter()
        draft.state.round += 1
        round = draft.state.round
        self._train(draft, self.pace.choose(draft))
        if round % self.rules.evaluate_every == 0 or self.guard.is_last(round):
            self._evaluate(draft)
        draft.count("seconds_total", time.perf_counter() - start)
        start = time.perf_counter()
        self._commit(draft)
        for name in ("seconds_total", "seconds_save"):
            draft.count(name, time.perf_counter() - start)
        self.observer.round_done(self._report(draft))

    def _train(self, draft: Draft, chosen: Mapping[str, int]) -> None:
        """Carry out the exchanges that the method asks for."""
        if not chosen and not self.setup.privacy.of_clients:
            return
        server = self.planner.server(draft.state, self._each, draft.lines)
        conversation = timed(self.setup.method.round(server), draft)
        weights = self.planner.weights(chosen)
        with self.pace.round(draft):
            self._converse(server, conversation, functools.partial(self._exchange, draft), weights)
        self._note_kept(draft)

    def _each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do pieces of the server's work; no process is forked while a thread of this one writes."""
        self.folder.written()
        return self.engine.each(function, items)

    def _converse(
        self,
        server: Server,
        conversation: Round,
        carry: Callable[[Exchange, Mapping[str, int]], Replies],
        weights: Mapping[str, int],
    ) -> Replies:
        """Carry every exchange of a conversation; who does not answer one sits out the others. Return the last."""
        replies: Replies = {}
        try:
            exchange = next(conversation)
            while True:
                server.pool.going_out(weights, self.setup.method.merge)
                replies = carry(exchange, weights)
                weights = {name: weight for name, weight in weights.items() if name in replies}
                exchange = conversation.send(replies)
        except StopIteration:
            return replies

    def _exchange(self, draft: Draft, exchange: Exchange, weights: Mapping[str, int]) -> Replies:
        """Carry one exchange: tasks out, updates back and merged, states and held versions noted."""
        start = time.perf_counter()
        exchange = self.guard.asked(exchange, draft.state)
        plan = self.planner.plan(exchange, weights, self.planner.addresses(draft.state))
        plan = self.pace.in_time(draft, plan, exchange)
        carry: Carry = functools.partial(self.pace.carry, self._carry, draft)
        if self.setup.secure_sums.on and any(part.returned for part in plan.clients.values()):
            carry = MaskedCarry(self.setup, self.planner, carry, draft.state, draft.lines["events"])
        jobs, replies, fold = carry(plan, exchange)
        gathering = Gathering.of(self.setup, draft.state, fold, jobs)
        replies = gathering.counted(replies)
        accepted = {
            job.task.client: (job.task, reply, reply.update)
            for job, reply in zip(jobs, replies, strict=True)
            if reply.update is not None
        }
        if len(accepted) < min(self.rules.min_updates, len(plan.clients)):
            raise IntarsiaError(too_few(plan, len(accepted), self.rules.min_updates, replies))
        draft.count("seconds_train", time.perf_counter() - start)
        start = time.perf_counter()
        updates = {name: update for name, (_, _, update) in accepted.items()}
        merged = self.guard.merged(draft.state, plan, gathering.fold, list(updates.values()))
        gathering.settle(merged)
        for address, block in merged.items():
            self._put(draft.state, address, block)
        draft.lines["events"] += gathering.events
        draft.count("seconds_merge", time.perf_counter() - start)
        for task, reply, _ in accepted.values():
            draft.hold(task, reply.state)
        self._note_training(draft, updates)
        return updates

    def _put(self, state: RunState, address: Address, merged: Block) -> None:
        """Put what was merged; or, if changes travel to clients, what they can make of a coded change."""
        codec = self.setup.codec
        if not (codec.lossy and codec.down) or self.setup.method.merge.partial or not merged.finite:
            state.pool.put(address, merged)
            return
        block, code = Code.next(codec, merged, state.pool.get(address), state.codes.get(address))
        state.pool.put(address, block)
        if block.finite:
            state.codes[address] = code

    def _evaluate(self, draft: Draft) -> None:
        """Evaluate the own models of clients; what this fetches does not count as held."""
        start = time.perf_counter()
        server = self.planner.server(draft.state, self._each, draft.lines)
        conversation = self.setup.method.evaluation(server)
        replies = self._converse(
            server, conversation, functools.partial(self._ask, draft), self.planner.weights(self.evaluated)
        )
        for name, update in replies.items():
            for score in update.values["scores"]:
                draft.lines["metrics"].append(metric_row(draft.state.round, name, score))
        self._note_best(draft)
        if self._judging(draft):
            self._judge(draft, server, replies)
        draft.count("seconds_evaluate", time.perf_counter() - start)

    def _judging(self, draft: Draft) -> bool:
        return bool(self.rules.metrics) and draft.state.round == self.setup.rounds

    def _judge(self, draft: Draft, server: Server, replies: Replies) -> None:
        """Note what clients' own models are worth, and what looks wrong."""
        draft.lines["judged"] += self.judge.rows(draft.state.round, replies)
        metrics = [*self.folder.rows("metrics"), *draft.lines["metrics"]]
        events = [*self.folder.rows("events"), *draft.lines["events"]]
        draft.lines["events"] += self.judge.warnings(server, draft.lines["judged"], metrics, events)

    def _ask(self, draft: Draft, exchange: Exchange, weights: Mapping[str, int]) -> Replies:
        """Carry one exchange of an evaluation: nothing is merged, no state changes."""
        exchange = told_apart(exchange, self.planner.newcomers)
        if exchange.step == EVALUATE and self._judging(draft):
            exchange = self.judge.asking(exchange)
        plan = self.planner.plan(exchange, weights, self.planner.addresses(draft.state), EVALUATE)
        _, replies, _ = self._carry(draft, plan, exchange)
        updates = {r.client: r.update for r in replies if r.update is not None}
        if not updates:
            raise IntarsiaError(too_few(plan, 0, 1, replies))
        return updates

    def _carry(self, draft: Draft, plan: Plan, exchange: Exchange) -> tuple[list[Job], list[Reply], Fold]:
        """Send the tasks, take the replies, count the traffic; all in the order of the population."""
        jobs, content = self.planner.jobs(draft.state, plan, exchange)
        counted = self.guard.counted(plan, exchange, draft.state)
        present = {a: draft.state.pool.get(a) for p in counted.clients.values() for a in p.returned}
        content.update({block.version: block for block in present.values()})
        fold = self.setup.fold(present, self.planner.planned(counted))
        self.observer.exchange_started(draft.state.round, plan.exchange, len(jobs))
        replies = {}
        try:
            for reply in self.engine.exchange(jobs, content, fold, self.setup.sees_updates):
                replies[reply.client] = reply
                self.observer.replied(reply)
        finally:
            self._note_happened(draft, plan.exchange)
        ordered = [replies[name] for name in plan.clients]
        draft.count("seconds_clients", sum(reply.seconds for reply in ordered))
        draft.note_traffic(jobs, ordered)
        return jobs, ordered, fold

    def _note_happened(self, draft: Draft, exchange: str) -> None:
        """Note what happened to the engine's workers."""
        for failure in self.engine.happened():
            draft.lines["events"].append(
                {"round": draft.state.round, "exchange": exchange, **failure.to_json()}
            )

    def _note_kept(self, draft: Draft) -> None:
        """Note which blocks would have become endless, so that their present versions stayed."""
        for address in draft.state.pool.kept:
            reason = (
                f"{address}: its next version would hold a NaN or an infinity, the present one stays; "
                "often training diverges: try a smaller training.lr"
            )
            failure = Failure("refused", "", "merge", address.block, reason)
            draft.lines["events"].append({"round": draft.state.round, "exchange": "", **failure.to_json()})

    def _note_training(self, draft: Draft, replies: Replies) -> None:
        for name, update in replies.items():
            values = update.values
            if {"n", "correct", "loss"} <= values.keys():
                score = {**values, "split": "train", "stage": "training"}
                draft.lines["metrics"].append(metric_row(draft.state.round, name, score))
                draft.count("samples", values["n"])

    def _note_best(self, draft: Draft) -> None:
        round = draft.state.round
        validation = accuracy_of(draft.lines["metrics"], round, "validation")
        best = draft.state.best.get("validation", -math.inf)
        if validation and validation["mean"] > best:
            test = accuracy_of(draft.lines["metrics"], round, "test")
            draft.state.best = {"round": round, "validation": validation["mean"], "accuracy": test}

    def _commit(self, draft: Draft) -> None:
        """Make the draft the state; write what it brought."""
        self._note_happened(draft, "")
        for failure in draft.lines["events"]:
            draft.count(failure["kind"], 1)
        draft.lines["seconds"].append({"round": draft.state.round, **draft.seconds()})
        self.folder.append(draft.lines)
        improved = draft.state.best != self.state.best
        draft.state.files = self.folder.tables.lengths()
        self.state = draft.state
        due = self.state.round % self.rules.checkpoint_every == 0 or self.state.round == self.setup.rounds
        if due or improved:
            self._save()

    def _save(self) -> None:
        self.folder.checkpoint(self.state, self.rules.keep_checkpoints)

    def _report(self, draft: Draft) -> RoundReport:
        return report_of(self.state, self.setup.rounds, draft.lines, draft.seconds(), self.guard.epsilon())

    def summary(self, finished: bool) -> dict[str, Any]:
        """Return the result so far, as `summary.json` holds it."""
        metrics = self.folder.rows("metrics")
        summary = summarise(self.setup, self.state, metrics, self.rules.sampling.newcomers, finished)
        verdict = self.judge.verdict(self.folder.rows("judged"), self.folder.rows("events"))
        return summary | self.guard.summary() | ({"judged": verdict} if verdict else {})
