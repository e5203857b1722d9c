"""What a federation is made of, before it runs: clients, models, method; each side derives its part."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from intarsia.blocks import ALL, ME, Address, Block, Codec, Cut, Fold, Layout, Pool, TensorLayout
from intarsia.blocks.wire import ClientPlan, Task
from intarsia.core import AddressError, CheckpointError, CutError, DataError, Derived, IntarsiaError, Listed
from intarsia.data import Client, ClientInfo, Population
from intarsia.methods import EVALUATE, OWN, Addresses, Groups, Method, scored_stages
from intarsia.models import Spec, norms_at_home
from intarsia.training import Loss, Precision, Training, try_model, weighted
from intarsia.training.fast import FEW, MOST, Chain, chain_for, rows_of
from intarsia.trust import STEPS, Defence, MaskedFold, Privacy, SecureSums

FROZEN = "frozen"
"""The block of weights that nobody trains: it travels to a client once, because it never changes."""
NORMS = "norms"
"""The block of batch norms, or of their statistics, that stay at home."""


@dataclass(frozen=True)
class Template:
    """A model with its initial weights, its cut, and the blocks that follow from both."""

    model: nn.Module
    cut: Cut
    initial: Mapping[str, Block]
    channels_last: bool

    @cached_property
    def changing(self) -> frozenset[str]:
        """The blocks that local training can change: with a trainable parameter or a buffer."""
        trainable = {name for name, weight in self.model.named_parameters() if weight.requires_grad}
        return frozenset(
            b for b, own in self.initial.items() if own.buffers or trainable & own.tensors.keys()
        )

    def starting_from(self, initial: Mapping[str, Block]) -> Template:
        """Return the same model with other initial weights."""
        model = copy.deepcopy(self.model)
        self.cut.join(model, initial)
        return replace(self, model=model, initial=initial)


@dataclass(frozen=True)
class Setup:
    """Everything that clients and server must agree on; nothing in it changes once it is built."""

    population: Population
    model_of: Mapping[str, str]
    """The key of each client's model, by client."""
    method: Method
    training: Training
    losses: Mapping[str, Loss]
    """The loss of each task."""
    seed: int
    rounds: int
    codec: Codec = field(default_factory=Codec)
    """How clients' updates travel."""
    privacy: Privacy = field(default_factory=Privacy)
    """How clients' privacy is protected."""
    secure_sums: SecureSums = field(default_factory=SecureSums)
    """Whether they travel under masks, so that the server learns sums alone."""
    defence: Defence = field(default_factory=Defence)
    """What bounds clients' updates and claims."""
    scoring: Precision = "fp32"
    """The arithmetic of scores."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Where the weights come from that models start with, if that matters: with adapters, or from a file."""
    specs: Mapping[str, Spec] = field(default_factory=dict)
    """The architecture of each model by key; none of models that were given in Python."""
    templates: Mapping[str, Template] = field(default_factory=dict)
    """Every model with its blocks, by key."""
    groups: Groups = field(default_factory=dict)
    """Who shares what because of their models."""

    @property
    def gathers(self) -> bool:
        """Whether nothing is merged before all updates of an exchange have come."""
        return self.method.merge.gathers or self.defence.on

    @property
    def sees_updates(self) -> bool:
        """Whether the server must see single updates and not only their sums: who is bounded cannot check the bound."""
        return self.method.sees_updates or self.gathers

    def with_models(self, models: Mapping[str, nn.Module], cut: Cut | None = None) -> Setup:
        """Return the setup with these models, cut as the user says or else as the sharing does.

        Blocks of one name and layout start alike in all models that are built from settings; of models that were
        given, those that clients share: what is a client's alone starts as it was given.
        """
        infos = self.population.infos
        pairs = Listed(infos, lambda info: (info, models[self.model_of[info.name]]))
        grouped = replace(self, groups=self.method.sharing.groups_by_model(pairs))
        return replace(grouped, templates=grouped._templates(models, cut))

    def _templates(self, models: Mapping[str, nn.Module], own_cut: Cut | None) -> dict[str, Template]:
        initial: dict[tuple[str, Layout, Hashable], Block] = {}
        templates = {}
        for key, model in models.items():
            cut = self._cut(model, own_cut)
            fitted = cut.fit(model)
            taken = fitted.take().items()
            blocks = {n: initial.setdefault((n, b.layout, self._sharers(key, n)), b) for n, b in taken}
            fitted.fill(blocks)
            channels_last = self._try(key, model) and not self.training.plain
            templates[key] = Template(model, cut, blocks, channels_last)
        return templates

    def _sharers(self, key: str, block: str) -> Hashable:
        """Return who starts alike with this block of a model."""
        if key in self.specs:
            return ALL
        apart = block in (FROZEN, NORMS)
        groups = {ME if apart else self._group(block, info) for info in self._holders[key]}
        return key if ME in groups else tuple(sorted(groups))

    @cached_property
    def _holders(self) -> dict[str, list[ClientInfo]]:
        """Who has which model, by its key: of each kind of clients one, where there are kinds."""
        holders: dict[str, list[ClientInfo]] = {}
        for info in self.population.kinds:
            holders.setdefault(self.model_of[info.name], []).append(info)
        return holders

    def _try(self, key: str, model: nn.Module) -> bool:
        """Try each model on a client that has it: what cannot work is said before anything runs.

        A server that only knows of its clients has no data to try it on: each site does.
        """
        having = [self.population.clients[info.name] for info in self._holders.get(key, ())]
        kinds = {(c.info.shape, c.info.task): c for c in reversed(having) if c.data}
        fast = [self._try_on(client, model) for client in kinds.values()]
        return bool(fast) and all(fast)

    def _try_on(self, client: Client, model: nn.Module) -> bool:
        """Try a model on one client's data; return whether it takes images with the channels last."""
        shape = list(client.info.shape)
        try:
            return try_model(model, client.data["test"], self.loss(client.info), self._least(client))
        except Exception as error:
            raise DataError(
                f"the model of client '{client.info.name}' ({type(model).__name__}) cannot be used with its "
                f"data (inputs of shape {shape}, {client.data['test'].x.dtype}, loss '{self.loss(client.info).name}'): "
                f"{type(error).__name__}: {error}{_cure(error, model, client.data['test'].x)}"
            ) from error

    def _least(self, client: Client) -> int:
        """Return how many outputs a client's model must have at least."""
        goal = self.population.goals[client.info.task]
        return goal.outputs if goal.problem == "classification" else 1

    def starting_from(self, initial: Mapping[str, Mapping[str, Block]]) -> Setup:
        """Return the setup with these blocks, of an earlier part of the run, whatever the models given now hold."""
        for key, blocks in initial.items():
            if key not in self.templates or blocks.keys() != self.templates[key].initial.keys():
                raise CheckpointError(
                    f"the run was started with another model than the one given now ('{key}')"
                )
        again = {key: self.templates[key].starting_from(blocks) for key, blocks in initial.items()}
        return replace(self, templates={**self.templates, **again})

    def fold(self, present: Mapping[Address, Block], planned: Mapping[Address, int]) -> Fold:
        """Return what adds up the updates of an exchange, in the form in which they travel."""
        if self.secure_sums.on:
            return MaskedFold(self.method.merge, present, planned)
        return Fold(self.method.merge, present, planned, only_checks=self.gathers)

    def loss(self, client: ClientInfo) -> Loss:
        """Return what a client's predictions are measured by."""
        return self.losses[client.task]

    def training_loss(self, client: Client) -> Loss:
        """Return what a client minimises: its loss, with weights of labels where they are asked for."""
        loss, rule = self.loss(client.info), self.training.class_weights
        if rule == "none" or "train" not in client.data:
            return loss
        return weighted(loss, rule, client.data["train"].y, self.population.goals[client.info.task].columns)

    def stack(self, task: Task) -> tuple[Hashable, int]:
        """Return what a task has in common with those that are done beside it, and how many can be.

        Only tasks of the usual local step, and the scores of a model that is shared; all others are done one by one.
        """
        info = self.population.clients[task.client].info
        if task.exchange in STEPS:
            return task.client, 1
        if self.scores_together(task):
            return (self.model_of[task.client], info.shape, tuple(task.versions.values())), MOST
        chain = self._chains[self.model_of[task.client], info.task]
        if chain is None or not self.method.side_by_side or task.exchange == EVALUATE:
            return task.client, 1
        blocks = tuple(address.block for address in task.plan.fetched)
        rows = rows_of(info.train_samples, self.training)
        return (self.model_of[task.client], info.shape, rows, task.plan.train, blocks), chain.most

    def scores_together(self, task: Task) -> bool:
        """Return whether a client scores its model on tiles, as one does beside others that score the same model."""
        info = self.population.clients[task.client].info
        shared = len(task.plan.fetched) == len(self.template(task.client).initial)
        usual = self.method.own_as_joined and scored_stages(task.values) == (OWN,)
        few = all(count <= FEW for split, count in info.samples.items() if split != "train")
        if task.exchange != EVALUATE or not (shared and usual and few) or self.scoring != "fp32":
            return False
        chain = self._chains[self.model_of[task.client], info.task]
        return chain is not None and not chain.recurrent

    @cached_property
    def _chains(self) -> dict[tuple[str, str], Chain | None]:
        """How models are trained side by side, by the model's key and the task."""
        kinds = {(self.model_of[info.name], info.task) for info in self.population.kinds}
        return {
            (key, task): None
            if self.privacy.of_examples or self.noisy
            else chain_for(self.templates[key].model, self.training, self.method.objective, self.losses[task])
            for key, task in kinds
        }

    @property
    def noisy(self) -> bool:
        """Whether samples get other noise in every batch: then clients are trained one by one."""
        data = (self.population.clients[info.name].data for info in self.population.kinds)
        return any(own["train"].noise for own in data if "train" in own)

    def template(self, client: str) -> Template:
        """Return the model that a client starts from."""
        return self.templates[self.model_of[client]]

    @cached_property
    def addresses(self) -> Addresses:
        """Where every client's blocks live, before groups are found."""
        known = self.population.known
        if self.population.on_demand:
            return Addresses(Derived(known, self._named_by_name))
        return Addresses({name: self._named(info) for name, info in known.items()})

    def _named_by_name(self, client: str) -> dict[str, Address]:
        return self._named(self.population.known[client])

    def _named(self, client: ClientInfo) -> dict[str, Address]:
        blocks = self.template(client.name).cut.blocks
        groups = {b: self._group(b, client) for b in blocks if b not in (FROZEN, NORMS)}
        if NORMS in blocks:
            groups[NORMS] = ME
        if FROZEN in blocks:
            alone = set(groups.values()) <= {ME}
            groups[FROZEN] = ME if alone else self._frozen_groups[self.model_of[client.name]]
        return {block: Address(block, groups[block]) for block in blocks}

    def _group(self, block: str, client: ClientInfo) -> str:
        found = self.groups.get(block, {}).get(client.name)
        return self.method.sharing.group(block, client) if found is None else found

    @cached_property
    def _frozen_groups(self) -> dict[str, str]:
        """The group of each model's frozen block: who has the same one shares it, whatever else they share."""
        keys: dict[str, str] = {}
        for key, template in self.templates.items():
            if FROZEN in template.initial:
                keys.setdefault(template.initial[FROZEN].version, key.strip("/"))
        return {
            key: ALL if len(keys) == 1 else keys[template.initial[FROZEN].version]
            for key, template in self.templates.items()
            if FROZEN in template.initial
        }

    def layouts(self, client: str, plan: ClientPlan) -> dict[Address, Layout]:
        """Return the layouts of the blocks that a client returns."""
        initial = self.template(client).initial
        return {address: initial[address.block].layout for address in plan.returned}

    def initial_pool(self) -> Pool:
        """Return the pool before the first round; who shares an address must fit it."""
        pool, first = Pool(), {}
        for (address, key), info in self._first_holders.items():
            mine = self.templates[key].initial[address.block]
            if address not in pool:
                pool.put(address, mine)
                first[address] = info
            else:
                pool.put(address, self._common(address, pool.get(address), mine, first[address], info))
        return pool

    @cached_property
    def _first_holders(self) -> dict[tuple[Address, str], ClientInfo]:
        """The first client of every shared address and model, in order."""
        first: dict[tuple[Address, str], ClientInfo] = {}
        for info in self.population.infos:
            key = self.model_of[info.name]
            for address in self._named(info).values():
                if not address.private and (address, key) not in first:
                    first[address, key] = info
        return first

    def _common(self, address: Address, here: Block, mine: Block, first: ClientInfo, me: ClientInfo) -> Block:
        if here.layout == mine.layout:
            return here
        if first.task != me.task:
            raise AddressError(
                f"clients '{first.name}' (task '{first.task}') and '{me.name}' (task '{me.task}') share {address}, but "
                f"their blocks differ: {_first_difference(here, mine)}. Let each task have its own (sharing.by = "
                '"task"), or choose a sharing that keeps what differs at home'
            )
        common = self.method.merge.common(here, mine)
        if common is not None:
            return common
        raise AddressError(
            f"clients '{first.name}' (device '{first.device}') and '{me.name}' (device '{me.device}') share "
            f"{address}, but their blocks differ: {_first_difference(here, mine)}. Let each device federate "
            'by itself (sharing.by = "device"), choose a sharing that cuts the model elsewhere, '
            "or give both the same model"
        )

    def _cut(self, model: nn.Module, own: Cut | None) -> Cut:
        """Return the cut; frozen weights and norms that stay at home are blocks of their own."""
        cut = self.method.sharing.cut(model) if own is None else self._checked(own)
        frozen = _frozen_among_others(cut, model)
        if frozen:
            cut = cut.apart(model, FROZEN, frozen)
        at_home = norms_at_home(model, self.method.sharing.norms)
        return cut.apart(model, NORMS, at_home) if at_home else cut

    def _checked(self, cut: Cut) -> Cut:
        """Return a user's own cut, if it has the blocks that the sharing needs."""
        if self.method.sharing.needs - set(cut.blocks):
            raise CutError(
                f"method '{self.method.name}' needs blocks {sorted(self.method.sharing.needs)}, but the cut "
                f"names {sorted(cut.blocks)}"
            )
        return cut


def _frozen_among_others(cut: Cut, model: nn.Module) -> set[str]:
    """Return the frozen weights that share a block with something that changes."""
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    if not frozen:
        return set()
    members = cut.fit(model).members.values()
    return {name for own in members if not frozen.issuperset(own) for name in own if name in frozen}


def _first_difference(one: Block, other: Block) -> str:
    mine, yours = ({entry.name: entry for entry in block.layout} for block in (one, other))
    name = next(n for n in sorted({*mine, *yours}) if mine.get(n) != yours.get(n))
    return f"tensor '{name}' is {_form(mine.get(name))} and {_form(yours.get(name))}"


def _form(entry: TensorLayout | None) -> str:
    return "missing" if entry is None else f"{entry.dtype}{list(entry.shape)}"


def _cure(error: Exception, model: nn.Module, x: Tensor) -> str:
    """Return what to do about a model that does not take its inputs, unless the error says it."""
    if isinstance(error, IntarsiaError):
        return ""
    kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    other = next((kind for kind in kinds if x.is_floating_point() and kind != x.dtype), None)
    return f"; its weights are {other}: give model.float()" if other else "; give one that takes such inputs"
