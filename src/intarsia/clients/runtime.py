"""What runs at the client: join the blocks, do the local step, split, answer."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.blocks import Block, BlockStore, Task, Update, encode_block
from intarsia.clients.scoring import facts, parts_asked, score_rows, score_shared_model
from intarsia.clients.stages import Stage, named_error
from intarsia.clients.state import AT_SITE, KEPT, State, is_residual, residual_of, state_version
from intarsia.clients.workbench import Workbench, own_attributes, values_apart
from intarsia.core import ClientError, chance
from intarsia.judging import FACTS, JUDGE
from intarsia.methods import EVALUATE, own_stages, report, scored_stages
from intarsia.setup import Setup
from intarsia.training import LocalClient, channels_last_layout, usual_layout
from intarsia.training.fast import TrainedWeights, chain_for, foldable, train_together

Take = Callable[[Collection[str]], Mapping[str, Block]]
"""Gives the blocks of some names as the local step left them."""


@dataclass(frozen=True)
class Answer:
    """A client's update and the state that it leads to."""

    update: Update
    state: State
    seconds: float


class ClientRuntime:
    """Runs tasks for any client of a setup, one at a time, in one process."""

    def __init__(self, setup: Setup, store: BlockStore, device: str = "cpu") -> None:
        self.setup = setup
        self.store = store
        self.device = resolve_device(device)
        self._benches: dict[str, Workbench] = {}

    def run(self, task: Task, state: State, content: Callable[[str], Block]) -> Answer:
        """Do one task; `content` gives the block of a version that was sent or is held."""
        start = time.perf_counter()
        stage = Stage()
        try:
            with stage("join"):
                _check_state(task, state)
                bench, local = self.join(task, state, content)
            with (
                stage(task.exchange),
                chance.torch_seeded(self.setup.seed, task.exchange, task.round, task.client),
            ):
                values = self._step(task, local)
            with stage("split"):
                update, after = self._split(task, state, bench.fitted.take, local, values, content)
                _check_plain(update)
        except Exception as error:
            raise named_error(error, task, stage.name) from error
        return Answer(update, after, time.perf_counter() - start)

    def run_together(
        self, tasks: Sequence[tuple[Task, State]], content: Callable[[str], Block]
    ) -> list[Answer | ClientError]:
        """Do the tasks of clients that `Setup.stack` puts together, side by side: each as if it were alone."""
        if len(tasks) == 1 or self.device.type != "cpu":
            return [self._alone(task, state, content) for task, state in tasks]
        try:
            return list(self._together(tasks, content))
        except Exception as error:  # noqa: BLE001 - models may raise anything; it is named below
            return self._apart(tasks, content, error)

    def _apart(
        self, tasks: Sequence[tuple[Task, State]], content: Callable[[str], Block], error: Exception
    ) -> list[Answer | ClientError]:
        """Do tasks one by one, to find by whose fault they failed side by side; if by nobody's, all of them failed."""
        answers = [self._alone(task, state, content) for task, state in tasks]
        if any(isinstance(answer, ClientError) for answer in answers):
            return answers
        return [named_error(error, task, "side by side") for task, _ in tasks]

    def _alone(self, task: Task, state: State, content: Callable[[str], Block]) -> Answer | ClientError:
        try:
            return self.run(task, state, content)
        except ClientError as error:
            return error

    def _together(self, tasks: Sequence[tuple[Task, State]], content: Callable[[str], Block]) -> list[Answer]:
        """Train models side by side; their weights go into the answers without a model object between."""
        if self.setup.scores_together(tasks[0][0]):
            return self._score_together(tasks, content)
        start, answers = time.perf_counter(), []
        for (task, state), blocks, local, made in self._train_together(tasks, content):
            take = partial(_with_weights, blocks, made)
            update, after = self._split(task, state, take, local, report(made.trained), content)
            answers.append(Answer(update, after, (time.perf_counter() - start) / len(tasks)))
        return answers

    def _score_together(
        self, tasks: Sequence[tuple[Task, State]], content: Callable[[str], Block]
    ) -> list[Answer]:
        """Score one model on every client's data."""
        start, answers = time.perf_counter(), []
        gathered = self._gather_all(tasks, content)
        bench, blocks, _ = gathered[0]
        bench.fill(blocks)
        scores = score_shared_model([local for _, _, local in gathered], parts_asked(tasks[0][0]))
        for (task, state), (_, _, local), own in zip(tasks, gathered, scores, strict=True):
            values = _scored(task, local, own)
            update, after = self._split(task, state, bench.fitted.take, local, values, content)
            answers.append(Answer(update, after, (time.perf_counter() - start) / len(tasks)))
        return answers

    def _gather_all(
        self, tasks: Sequence[tuple[Task, State]], content: Callable[[str], Block]
    ) -> list[tuple[Workbench, dict[str, Block], LocalClient]]:
        for task, state in tasks:
            _check_state(task, state)
        return [self._gather(task, state, content) for task, state in tasks]

    def _train_together(
        self, tasks: Sequence[tuple[Task, State]], content: Callable[[str], Block]
    ) -> Iterator[tuple[tuple[Task, State], Mapping[str, Block], LocalClient, TrainedWeights]]:
        objective, gathered = self.setup.method.objective, self._gather_all(tasks, content)
        members = [
            local.stack_member({n: t for block in blocks.values() for n, t in block.tensors.items()})
            for _, blocks, local in gathered
        ]
        first = gathered[0][2]
        chain = chain_for(first.model, self.setup.training, objective, first.loss)
        if chain is None:
            raise ClientError("these clients cannot be trained together")
        trained = train_together(chain, members, first.descent(objective))
        for both, (_, blocks, local), made in zip(tasks, gathered, trained, strict=True):
            yield both, blocks, local, made

    def own_model(self, task: Task, state: State, content: Callable[[str], Block]) -> nn.Module:
        """Return the client's own model, made of its blocks as the method makes it, as a plain module."""
        bench, local = self.join(task, state, content)
        with chance.torch_seeded(self.setup.seed, EVALUATE, task.round, task.client):
            for _ in self.setup.method.own_model(local):
                pass
        return taken_out(bench)

    def joined_model(self, task: Task, state: State, content: Callable[[str], Block]) -> nn.Module:
        """Return the client's blocks as a model, before its method makes them the client's own."""
        bench, _ = self.join(task, state, content)
        return taken_out(bench)

    def join(
        self, task: Task, state: State, content: Callable[[str], Block]
    ) -> tuple[Workbench, LocalClient]:
        """Return the client with its blocks joined into the model on the bench."""
        bench, blocks, local = self._gather(task, state, content)
        bench.fill(blocks)
        return bench, local

    def _gather(
        self, task: Task, state: State, content: Callable[[str], Block]
    ) -> tuple[Workbench, dict[str, Block], LocalClient]:
        """Return the client with its model, and the blocks that the model is to be filled with."""
        if AT_SITE in state:
            raise ClientError(
                f"the own blocks of client '{task.client}' lie at its site, not with this run: "
                "use them there, and go on with the run on its federation"
            )
        client = self.setup.population.clients[task.client]
        bench = self._bench(task.client)
        shared = {a.block: content(task.versions[a]) for a in task.plan.fetched}
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
            copy.deepcopy(dict(state.get("values", {}))),
            self._kept(state),
            task.values,
            self._beside(task, content),
            {},
            bench.channels_last,
        )
        return bench, blocks, local

    def _beside(self, task: Task, content: Callable[[str], Block]) -> dict[str, Mapping[str, Tensor]]:
        """Return what came and is no part of the client's model."""
        others = task.versions.keys() - set(task.plan.fetched)
        return {
            a.block: {n: t.to(self.device) for n, t in content(task.versions[a]).tensors.items()}
            for a in sorted(others)
        }

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
        self,
        task: Task,
        state: State,
        take: Take,
        local: LocalClient,
        values: dict[str, Any],
        content: Callable[[str], Block],
    ) -> tuple[Update, State]:
        after = state
        if task.purpose != EVALUATE:
            after = self._next_state(task, state, take, local)
        returned = task.plan.returned
        blocks = take([address.block for address in returned])
        if self.setup.codec.lossy:
            blocks, after = self._encode(task, blocks, state, after, content)
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
        return update, after

    def _encode(
        self,
        task: Task,
        blocks: Mapping[str, Block],
        before: State,
        after: State,
        content: Callable[[str], Block],
    ) -> tuple[dict[str, Block], State]:
        """Return the blocks as they travel, and the state with what that lost of them."""
        codec, coded, private = self.setup.codec, {}, dict(after.get("private", {}))
        for address in task.plan.returned:
            key = residual_of(address)
            kept = before.get("private", {}).get(key)
            residual = self.store.get(kept) if kept else None
            received = content(task.versions[address])
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
        after = {"private": private, "values": local.state}
        plain: State = json.loads(json.dumps({key: value for key, value in after.items() if value}))
        return plain

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
            trainable = frozenset(n for n, p in model.named_parameters() if p.requires_grad)
            kept = model.state_dict().keys()
            scratch = {n: b.clone() for n, b in model.named_buffers() if n not in kept}
            given = key not in self.setup.specs
            plain = {m: values_apart(own_attributes(m)) for m in model.modules()} if given else {}
            foldable(model)  # found now, and kept: later it would depend on which client's gates came first
            bench = Workbench(
                model, template.cut.fit(model), trainable, template.channels_last, scratch, plain
            )
            self._benches[key] = bench
        return self._benches[key]

    def _choose_trainable(self, bench: Workbench, blocks: frozenset[str]) -> None:
        chosen = {n for block in blocks for n in bench.fitted.members[block]} & bench.trainable
        for name, weight in bench.model.named_parameters():
            weight.requires_grad_(name in chosen)


def taken_out(bench: Workbench) -> nn.Module:
    """Return the model on the bench as one of its own."""
    model = copy.deepcopy(bench.model).to("cpu").eval()
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in bench.trainable)
    return usual_layout(model)


def _scored(task: Task, local: LocalClient, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Return scores as values that travel, with what is told of the training data where the client is judged."""
    return {"scores": scores, **({FACTS: facts(local)} if JUDGE in task.values else {})}


def _check_state(task: Task, state: State) -> None:
    if task.state != state_version(state):
        raise ClientError(
            f"the task builds on client state '{task.state}', but the state here is '{state_version(state)}'"
        )


def _check_plain(update: Update) -> None:
    try:
        json.dumps(update.header())
    except (TypeError, ValueError) as error:
        raise ClientError(
            f"the step returned values that cannot travel: {error}; use plain values"
        ) from error


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; `auto` takes the first accelerator there is."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


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
