"""What runs at the client: join the blocks, do the local step, split, answer."""

from __future__ import annotations

import copy
import json
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from intarsia.blocks import Block, BlockStore, Task, Update, encode_block
from intarsia.clients.masking import Masking
from intarsia.clients.scoring import facts, parts_asked, score_rows, score_shared_model
from intarsia.clients.state import AT_SITE, KEPT, State, is_residual, residual_of, state_version
from intarsia.clients.workbench import Workbench, own_attributes, resolve_device, taken_out, values_apart
from intarsia.core import ClientError, IntarsiaError, chance
from intarsia.data.preparation import units_of
from intarsia.judging import FACTS, JUDGE
from intarsia.methods import EVALUATE, own_stages, report, scored_stages
from intarsia.setup import Setup
from intarsia.training import LocalClient, channels_last_layout, train_in
from intarsia.training.fast import Chain, TrainedWeights, chain_for, foldable, train_together
from intarsia.trust.secure_sums import MASKED, STEPS

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard

Take = Callable[[Collection[str]], Mapping[str, Block]]
"""Gives the blocks of some names as the local step left them."""
Content = Callable[[str], Block]
"""Gives the block of a version that was sent or is held."""
Done = tuple[Take, LocalClient, dict[str, Any]]
"""A local step that was done: the blocks that it left, the client, and the values that travel back."""


@dataclass(frozen=True)
class Answer:
    """A client's update and the state that it leads to."""

    update: Update
    state: State
    seconds: float


@dataclass(frozen=True)
class _Work:
    """A task, the state that it builds on, and the blocks that it names."""

    task: Task
    state: State
    content: Content

    def check(self) -> None:
        """Refuse a state that the task does not build on, or that is not here."""
        version = state_version(self.state)
        if self.task.state != version:
            raise ClientError(
                f"the task builds on client state '{self.task.state}', but the state here is '{version}'"
            )

    def failed(self, error: Exception, stage: str) -> ClientError:
        """Return an error that says where the client's step failed."""
        task, block = self.task, getattr(error, "block", "")
        where = f"client '{task.client}', round {task.round}, exchange '{task.exchange}', stage '{stage}'"
        kind = "" if isinstance(error, IntarsiaError) else f"{type(error).__name__}: "
        message = f"{where}{f', block {block!r}' if block else ''}: {kind}{error}"
        return ClientError(message, stage=stage, block=block, details=traceback.format_exc())


class ClientRuntime:
    """Runs tasks for any client of a setup, one at a time, in one process."""

    def __init__(
        self, setup: Setup, store: BlockStore, device: str = "cpu", guard: Guard | None = None
    ) -> None:
        self.setup = setup
        self.store = store
        self.device = resolve_device(device)
        self.masking = Masking(setup, guard)
        self._benches: dict[str, Workbench] = {}
        self._chains: dict[tuple[str, str], Chain | None] = {}

    def run(self, task: Task, state: State, content: Content) -> Answer:
        """Do one task; `content` gives the block of a version that was sent or is held."""
        start, work, stage = time.perf_counter(), _Work(task, state, content), "join"
        try:
            work.check()
            if task.exchange in STEPS:
                return Answer(self.masking.step(task, state), state, time.perf_counter() - start)
            bench, local = self._join(work)
            stage = task.exchange
            with chance.torch_seeded(self.setup.seed, task.exchange, task.round, task.client):
                values = self._step(task, local)
            stage = "split"
            update, after = self._split(work, bench.fitted.take, local, values)
            _check_plain(update)
        except Exception as error:
            raise work.failed(error, stage) from error
        return Answer(update, after, time.perf_counter() - start)

    def run_together(
        self, tasks: Sequence[tuple[Task, State]], content: Content
    ) -> list[Answer | ClientError]:
        """Do the tasks of clients that `Setup.stack` puts together, side by side: each as if it were alone."""
        works = [_Work(task, state, content) for task, state in tasks]
        if len(works) == 1 or self.device.type != "cpu":
            return [self._alone(work) for work in works]
        try:
            return [*self._together(works)]
        except Exception as error:  # noqa: BLE001 - models may raise anything; it is named below
            return self._apart(works, error)

    def _apart(self, works: Sequence[_Work], error: Exception) -> list[Answer | ClientError]:
        """Do tasks one by one, to find by whose fault they failed side by side; if by nobody's, all of them failed."""
        answers = [self._alone(work) for work in works]
        if any(isinstance(answer, ClientError) for answer in answers):
            return answers
        return [work.failed(error, "side by side") for work in works]

    def _alone(self, work: _Work) -> Answer | ClientError:
        try:
            return self.run(work.task, work.state, work.content)
        except ClientError as error:
            return error

    def _together(self, works: Sequence[_Work]) -> list[Answer]:
        start = time.perf_counter()
        for work in works:
            work.check()
        scoring = self.setup.scores_together(works[0].task)
        steps = self._score_together(works) if scoring else self._train_together(works)
        ends = [self._split(work, *step) for work, step in zip(works, steps, strict=True)]
        seconds = (time.perf_counter() - start) / len(works)
        return [Answer(update, after, seconds) for update, after in ends]

    def _score_together(self, works: Sequence[_Work]) -> Iterator[Done]:
        """Score one model on every client's data."""
        gathered = [self._gather(work) for work in works]
        bench, blocks, _ = gathered[0]
        bench.fill(blocks)
        clients = [local for _, _, local in gathered]
        scores = score_shared_model(clients, parts_asked(works[0].task))
        for work, local, own in zip(works, clients, scores, strict=True):
            yield bench.fitted.take, local, _scored(work.task, local, own)

    def _train_together(self, works: Sequence[_Work]) -> Iterator[Done]:
        """Train models side by side; their weights go into the answers without a model object between."""
        objective, gathered = self.setup.method.objective, [self._gather(work) for work in works]
        trained = frozenset(gathered[0][2].trainable)
        members = [
            local.stack_member(
                {n: t for block in blocks.values() for n, t in block.tensors.items()}, trained=trained
            )
            for _, blocks, local in gathered
        ]
        first = gathered[0][2]
        chain = self._chain(works[0].task.client, first)
        if chain is None:
            raise ClientError("these clients cannot be trained together")
        results = train_together(chain, members, first.descent(objective))
        for (_, blocks, local), made in zip(gathered, results, strict=True):
            yield partial(_with_weights, blocks, made), local, report(made.trained)

    def _chain(self, client: str, local: LocalClient) -> Chain | None:
        """Return how a client's model is trained side by side: of one that settings name, found once."""
        key, training, objective = (
            self.setup.model_of[client],
            self.setup.training,
            self.setup.method.objective,
        )
        if key not in self.setup.specs:
            return chain_for(local.model, training, objective, local.loss)
        if (kind := (key, local.info.task)) not in self._chains:
            self._chains[kind] = chain_for(local.model, training, objective, local.loss)
        return self._chains[kind]

    def own_model(self, task: Task, state: State, content: Content) -> nn.Module:
        """Return the client's own model, made of its blocks as the method makes it, as a plain module."""
        bench, local = self.join(task, state, content)
        with chance.torch_seeded(self.setup.seed, EVALUATE, task.round, task.client):
            for _ in self.setup.method.own_model(local):
                pass
        return taken_out(bench)

    def joined_model(self, task: Task, state: State, content: Content) -> nn.Module:
        """Return the client's blocks as a model, before its method makes them the client's own."""
        bench, _ = self.join(task, state, content)
        return taken_out(bench)

    def join(self, task: Task, state: State, content: Content) -> tuple[Workbench, LocalClient]:
        """Return the client with its blocks joined into the model on the bench."""
        return self._join(_Work(task, state, content))

    def _join(self, work: _Work) -> tuple[Workbench, LocalClient]:
        bench, blocks, local = self._gather(work)
        bench.fill(blocks)
        return bench, local

    def _gather(self, work: _Work) -> tuple[Workbench, dict[str, Block], LocalClient]:
        """Return the client with its model, and the blocks that the model is to be filled with."""
        task, state = work.task, work.state
        if AT_SITE in state:
            raise ClientError(
                f"the own blocks of client '{task.client}' lie at its site, not with this run: "
                "use them there, and go on with the run on its federation"
            )
        client = self.setup.population.clients[task.client]
        bench = self._bench(task.client)
        shared = {a.block: work.content(task.versions[a]) for a in task.plan.fetched}
        blocks = self._own_blocks(task.client, state, shared.keys()) | shared
        self._choose_trainable(bench, task.plan.train)
        received = {
            n: t.to(self.device)
            for block in shared.values()
            for n, t in block.tensors.items()
            if n in bench.trainable and n not in block.buffers
        }
        local = LocalClient(
            client.info,
            client.data,
            bench.model,
            received,
            self.setup.training,
            self.setup.training_loss(client),
            self.setup.seed,
            task.round,
            self.setup.rounds,
            copy.deepcopy(dict(state["values"])) if "values" in state else {},
            self._kept(state),
            {name: value for name, value in task.values.items() if name != MASKED},
            self._beside(work),
            {},
            bench.channels_last,
            units_of(self.setup.population.preparations.get(task.client)),
            self.setup.privacy,
            self.setup.scoring,
        )
        return bench, blocks, local

    def _beside(self, work: _Work) -> dict[str, Mapping[str, Tensor]]:
        """Return what came and is no part of the client's model."""
        others = sorted(work.task.versions.keys() - set(work.task.plan.fetched))
        blocks = {address.block: work.content(work.task.versions[address]) for address in others}
        return {name: {n: t.to(self.device) for n, t in b.tensors.items()} for name, b in blocks.items()}

    def _kept(self, state: State) -> dict[str, Mapping[str, Tensor]]:
        return {
            name.removesuffix(KEPT): {
                n: t.to(self.device, copy=True) for n, t in self.store.get(v).tensors.items()
            }
            for name, v in state.get("private", {}).items()
            if name.endswith(KEPT)
        }

    def _own_blocks(self, client: str, state: State, sent: Collection[str]) -> dict[str, Block]:
        """Return every block that was not sent: the client's own, or else as it was at the beginning.

        The model object serves one client after the other: nothing of the last one may stay in it.
        """
        private = state.get("private", {})
        initial = self.setup.template(client).initial
        return {
            name: self.store.get(private[name]) if name in private else block
            for name, block in initial.items()
            if name not in sent
        }

    def _step(self, task: Task, local: LocalClient) -> dict[str, Any]:
        method = self.setup.method
        if task.exchange != EVALUATE:
            return dict(method.local_step(task.exchange, local))
        return _scored(task, local, self._scores(task, local))

    def _scores(self, task: Task, local: LocalClient) -> list[dict[str, Any]]:
        """Score the client's own model, stage by stage; the last is counted too, where it is judged."""
        parts, last = parts_asked(task), scored_stages(task.values)[-1]
        if self.setup.scores_together(task):
            return score_shared_model([local], parts)[0]
        stages = own_stages(self.setup.method, local)
        return [row for stage in stages for row in score_rows(local, stage, parts if stage == last else None)]

    def _split(
        self, work: _Work, take: Take, local: LocalClient, values: dict[str, Any]
    ) -> tuple[Update, State]:
        task, after = work.task, work.state
        if task.purpose != EVALUATE:
            after = self._next_state(task, after, take, local)
        returned = task.plan.returned
        blocks = take([address.block for address in returned])
        if self.setup.codec.lossy:
            blocks, after = self._encode(work, blocks, after)
        update = Update(
            run=task.run,
            round=task.round,
            exchange=task.exchange,
            purpose=task.purpose,
            client=task.client,
            state=state_version(after),
            blocks={address: blocks[address.block] for address in returned},
            values=values,
            samples=local.info.train_samples,
            tensors={name: _as_block(tensors) for name, tensors in local.answer.items()},
        )
        return (self.masking.masked(task, update, work.content) if MASKED in task.values else update), after

    def _encode(
        self, work: _Work, blocks: Mapping[str, Block], after: State
    ) -> tuple[dict[str, Block], State]:
        """Return the blocks as they travel, and the state with what that lost of them."""
        codec, coded, private = self.setup.codec, {}, dict(after.get("private", {}))
        for address in work.task.plan.returned:
            key = residual_of(address)
            kept = work.state.get("private", {}).get(key)
            residual = self.store.get(kept) if kept else None
            received = work.content(work.task.versions[address])
            coded[address.block], lost = encode_block(codec, blocks[address.block], received, residual)
            if codec.feedback:
                private = {n: v for n, v in private.items() if not is_residual(n, address.block)}
                private[key] = self.store.put(lost)
        return coded, {**after, "private": private} if private else after

    def _next_state(self, task: Task, state: State, take: Take, local: LocalClient) -> State:
        private = dict(state.get("private", {}))
        trained = [b for b, a in task.plan.hold.items() if a.private and b in task.plan.train]
        for name, block in take(trained).items():
            private[name] = self.store.put(block)
        private = {n: v for n, v in private.items() if not n.endswith(KEPT)} | self._keep(local)
        after = {key: own for key, own in (("private", private), ("values", local.state)) if own}
        return dict(json.loads(json.dumps(after))) if after else {}

    def _keep(self, local: LocalClient) -> dict[str, str]:
        """Store the tensors that stay with the client; return their versions."""
        kept = {name + KEPT: _as_block(tensors) for name, tensors in local.tensors.items()}
        return {name: self.store.put(block) for name, block in kept.items()}

    def _bench(self, client: str) -> Workbench:
        key = self.setup.model_of[client]
        if key not in self._benches:
            template = self.setup.templates[key]
            model = copy.deepcopy(template.model).to(self.device)
            if template.channels_last:
                channels_last_layout(model)
            train_in(model, self.setup.training.precision)
            trainable = frozenset(n for n, p in model.named_parameters() if p.requires_grad)
            kept = model.state_dict().keys()
            scratch = {n: b.clone() for n, b in model.named_buffers() if n not in kept}
            given = key not in self.setup.specs
            attributes = {m: values_apart(own_attributes(m)) for m in model.modules()} if given else {}
            foldable(model)  # found now, and kept: later it would depend on which client's gates came first
            weights = () if given else tuple(model.named_parameters())
            bench = Workbench(
                model,
                template.cut.fit(model),
                trainable,
                template.channels_last,
                scratch,
                attributes,
                weights,
            )
            self._benches[key] = bench
        return self._benches[key]

    def _choose_trainable(self, bench: Workbench, blocks: frozenset[str]) -> None:
        chosen = {n for block in blocks for n in bench.fitted.members[block]} & bench.trainable
        for name, weight in bench.weights or bench.model.named_parameters():
            weight.requires_grad_(name in chosen)


def _scored(task: Task, local: LocalClient, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Return scores as values that travel, with what is told of the training data where the client is judged."""
    return {"scores": scores, **({FACTS: facts(local)} if JUDGE in task.values else {})}


def _check_plain(update: Update) -> None:
    try:
        json.dumps(update.header())
    except (TypeError, ValueError) as error:
        raise ClientError(
            f"the step returned values that cannot travel: {error}; use plain values"
        ) from error


def _with_weights(
    blocks: Mapping[str, Block], made: TrainedWeights, names: Collection[str]
) -> dict[str, Block]:
    """Return blocks with the trained weights in the place of what they held."""
    return {
        name: blocks[name].alike(
            {n: made.weights.get(n, tensor).contiguous() for n, tensor in blocks[name].tensors.items()}
        )
        for name in names
    }


def _as_block(tensors: Mapping[str, Tensor]) -> Block:
    return Block({n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()})
