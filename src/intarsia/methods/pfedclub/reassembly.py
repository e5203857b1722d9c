"""What methods share whose server puts clients' models together anew and lets the results teach."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import ME, Address, Block, Expected, Number, Values
from intarsia.core import CutError, DataError, SettingsError, chance, part
from intarsia.data import ClientInfo, Examples, Scaling
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import Exchange, Method, Replies, Round, Sharing, report
from intarsia.methods.distilling.common import Taught
from intarsia.methods.pfedclub.assembly import Assembled, Assembly, Blueprint, chain_cost
from intarsia.methods.pfedclub.cka import SAMPLES, Similarity, block_features, compare, drawn
from intarsia.methods.pfedclub.decompose import Chains, decompose
from intarsia.methods.pfedclub.groups import Groups, group_blocks
from intarsia.methods.pfedclub.stitch_tuning import Choice, Prefixes, Tailoring, choose, size_change
from intarsia.methods.pfedclub.views import PublicData, labelled, unlabelled
from intarsia.methods.server import Server
from intarsia.models import MODELS, Spec
from intarsia.training import LocalClient, channels_first, channels_last_layout, predict

TEACHER, ITSELF, LESSON = "teacher", "itself", "lesson"
RIGHT, RIGHT_AMONG_HELD = "teacher_right", "teacher_right_among_held"
"""What a client reports of its teacher: in which share of its samples it is right."""
TEACHERS, SIZES = "teachers", "sizes"
"""Where the server keeps, by client: how its teacher is built, and how large all of its teachers were."""


@part
class OnServer(Sharing):
    """One block for the whole model, which lives on the server and has one holder: its client."""

    name: ClassVar[str] = "client"
    has_everyone: ClassVar[bool] = False

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client's name."""
        if client.name == ME:
            raise SettingsError(f"a client is named '{ME}', the word for what never leaves: rename it")
        return client.name


@dataclass(frozen=True)
class Workshop:
    """What the server works with in one round: the models of its clients in blocks, and public data."""

    server: Server
    seed: int
    specs: Mapping[str, Spec]
    chains: Chains
    """Functional blocks by client."""
    similarity: Similarity
    groups: Groups
    prefixes: Prefixes

    def own_size(self, client: str) -> int:
        """Return how many parameters a client's model has."""
        return chain_cost(self.chains[client]).parameters


@part
class Reassembly(Method):
    """Clients return their models; the server makes teachers of their blocks, one for each client of the round.

    A client that has a teacher minimises the objective + lam KL(teacher || itself). The teacher travels when the
    client next takes part; it holds it until there is another. One that is the client's own model does not
    travel: the client has just received it. Subclasses say which candidates there are, and who gets which.
    """

    needs_loss: ClassVar[str] = "cross_entropy"

    sharing: Sharing = Field(default_factory=OnServer)
    lam: Annotated[float, Field(ge=0)] = 0.2
    """How much the teacher counts (lambda)."""
    k: Annotated[int, Field(ge=1)] = 4
    """How many functional groups the blocks are put into (fewer where there are fewer blocks)."""
    labelled: bool = True
    """Whether stitches are tuned with the labels of the public data; else by NT-Xent on changed copies of it."""
    flips: bool = True
    """Whether those copies may be mirrored: digits must not be."""
    copies: Annotated[int, Field(ge=1)] = 3
    tailoring: Tailoring = Field(default_factory=Tailoring)

    def candidates(self, shop: Workshop) -> Mapping[str, Sequence[Assembly]]:
        """Return the teachers that each client of the round can have; who is left out keeps the one it has."""
        raise SettingsError(
            f"{type(self).__name__} does not say who can be taught by what: give it a method candidates"
        )

    def check(self, server: Server) -> None:
        """Refuse models without functional blocks, and clients that cannot be compared on the public data."""
        tried: set[Spec] = set()
        for name in server.clients:
            spec = self._spec(server, name)
            if spec not in tried:
                _check_model(server.model_of(name).module, spec, name)
                tried.add(spec)
        server.public_block()
        self._check_public(server, tried)

    def round(self, server: Server) -> Round:
        """Play one round: the clients train with the teachers they have; the server makes new ones."""
        teachers = server.state.setdefault(TEACHERS, {})
        replies = yield Exchange(
            values=lambda client: {TEACHER: teachers[client.name]} if client.name in teachers else {},
            send=lambda client: _waiting(server, client.name),
        )
        _note_lessons(server, replies)
        shop = self._open(server, list(replies))
        _note_groups(shop)
        candidates = self.candidates(shop)
        choices = choose(candidates, shop.prefixes, self.tailoring, shop.seed, server.each)
        for client, choice in choices.items():
            _hand_over(shop, client, choice)
            _note_choice(shop, client, choice)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Train, with the teacher if there is one."""
        teacher = _teacher(client)
        if teacher is None:
            return report(client.train(self.objective))
        own = client.data["train"]
        answers = predict(teacher, own, client.channels_last)  # the same in every epoch
        taught = Taught(self.objective, ((self.lam, lambda batch: answers[batch.rows]),))
        return {**report(client.train(taught)), **_marks(answers, own.y.to(answers.device))}

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client reports of its training and of its teacher."""
        share = Number(0, 1)
        return of_training(asked, **{RIGHT: share, RIGHT_AMONG_HELD: share})

    def _open(self, server: Server, clients: list[str]) -> Workshop:
        """Take the models of the round to pieces, compare and group their blocks."""
        specs = {name: self._spec(server, name) for name in clients}
        chains = _chains(server, specs)
        seed = chance.key(server.seed, self.name, server.round)
        known = _compared(server, chains)
        groups = group_blocks(known, min(self.k, len(known.blocks)), seed)
        return Workshop(
            server, seed, specs, chains, known, groups, Prefixes(chains, self._public(server, seed))
        )

    def _public(self, server: Server, seed: int) -> PublicData:
        """Return the public samples that stitches are tuned on and candidates judged by in this round."""
        examples = server.public
        assert examples is not None  # checked before the run began
        most = self.tailoring.samples or len(examples)
        rows = drawn(len(examples), most, seed, "public samples")
        if self.labelled:
            return labelled(_inputs(examples.x[rows], examples.scaling), examples.y[rows])
        return unlabelled(
            examples.x[rows], lambda raw: _inputs(raw, examples.scaling), seed, self.copies, self.flips
        )

    def _spec(self, server: Server, client: str) -> Spec:
        spec = server.model_of(client).spec
        if spec is None:
            raise SettingsError(
                f"method '{self.name}': teachers travel as registered architectures, and client '{client}' has a model "
                "that was given in Python: name its architecture in the settings (your own one after adding it to "
                "intarsia.models.MODELS)"
            )
        if any(server.address(block, client).private for block in server.model_of(client).blocks):
            raise SettingsError(
                f"method '{self.name}' needs clients' whole models, but a part of client '{client}''s stays at home: "
                "leave sharing out of the settings, or set sharing.norms to shared"
            )
        return spec

    def _check_public(self, server: Server, specs: set[Spec]) -> None:
        """Refuse public data that is not what all clients' models take and tell apart."""
        examples = server.public
        assert examples is not None
        forms = {(spec.shape, spec.outputs) for spec in specs} | {
            (tuple(examples.x.shape[1:]), next(iter(specs)).outputs)
        }
        if len(forms) > 1:
            raise DataError(
                f"method '{self.name}' compares all models on the same public samples, so all clients need inputs and "
                f"outputs of the same size as these; there are: {sorted(forms)}"
            )
        if self.labelled and int(examples.y.max()) >= next(iter(specs)).outputs:
            raise DataError(f"method '{self.name}': public data has labels that no client's model can give")
        if not self.labelled:
            self._check_images(examples)
        if len(examples) < 2:
            raise DataError(
                f"method '{self.name}': blocks cannot be compared on one public sample; give more"
            )

    def _check_images(self, examples: Examples) -> None:
        """Refuse public data without labels that cannot be moved, mirrored and made brighter."""
        if examples.x.dim() != 4:
            raise DataError(f"method '{self.name}': without labels, public data must be images")
        low, high = float(examples.x.min()), float(examples.x.max())
        if examples.x.is_floating_point() and (low < 0 or high > 1):
            raise DataError(
                f"method '{self.name}': without labels, public images are changed as pixels, so they must be bytes or "
                f"numbers of 0 ... 1; these are {low:g} ... {high:g}: divide by 255, or give raw images and a scaling"
            )


def _check_model(model: nn.Module, spec: Spec, client: str) -> None:
    """Refuse a model that has no functional blocks, or is not built by its architecture alone."""
    plain = spec.build(0)
    try:
        decompose(plain, spec.shape)
    except CutError as error:
        raise CutError(f"the model of client '{client}': {error}") from error
    if plain.state_dict().keys() != model.state_dict().keys():
        raise SettingsError(
            f"the model of client '{client}' has more tensors than its architecture (adapters?): teachers are put "
            "together from architectures as they are"
        )


def _chains(server: Server, specs: Mapping[str, Spec]) -> Chains:
    """Take clients' models to blocks, in the layout that is fast for images where all of them take it."""
    fast = not server.training.plain and all(map(_takes_channels_last, specs.values()))
    models = {name: _model(server, name) for name in specs}
    return {
        name: decompose(channels_last_layout(model) if fast else model, specs[name].shape)
        for name, model in models.items()
    }


@functools.cache
def _takes_channels_last(spec: Spec) -> bool:
    """Try whether blocks take maps with the channels last: those that flatten with `view` do not."""
    try:
        for block in decompose(channels_last_layout(spec.build(0)), spec.shape):
            if len(block.takes) == 3:
                x = torch.zeros(2, *block.takes).contiguous(memory_format=torch.channels_last)
                block.module.eval()(x)
    except (CutError, RuntimeError):
        return False
    return True


def _compared(server: Server, chains: Chains) -> Similarity:
    """Return how alike all blocks are on public samples; models run side by side."""
    x = _to_compare(server)
    features = server.each(lambda name: block_features(chains[name], x), list(chains))
    return compare(chains, dict(zip(chains, features, strict=True)))


def _model(server: Server, client: str) -> nn.Module:
    """Return a client's model as the server last received it."""
    model = copy.deepcopy(server.model_of(client).module)
    blocks = [server.pool.get(server.address(block, client)) for block in server.model_of(client).blocks]
    model.load_state_dict({name: tensor for block in blocks for name, tensor in block.tensors.items()})
    return model.eval()


def _waiting(server: Server, client: str) -> dict[Address, Block]:
    """Return the tensors of a client's teacher, if it has one that is not itself."""
    address = Address(TEACHER, client)
    return {address: server.pool.get(address)} if address in server.pool else {}


def _hand_over(shop: Workshop, client: str, choice: Choice) -> None:
    """Keep a teacher until its client takes part again."""
    address, made = Address(TEACHER, client), choice.chosen
    if made.assembly.is_own(client, shop.chains):
        shop.server.pool.remove(address)
        shop.server.state[TEACHERS][client] = ITSELF
        return
    teacher = _block(made.model(shop.chains))
    if teacher.finite:  # else the client keeps the one it has
        shop.server.pool.put(address, teacher)
        shop.server.state[TEACHERS][client] = made.assembly.blueprint(shop.specs).to_json()


def _block(model: Assembled) -> Block:
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    return Block(tensors, frozenset(name for name, _ in model.named_buffers()))


def _teacher(client: LocalClient) -> nn.Module | None:
    """Return the teacher that the task names, in evaluation mode."""
    plan: Any = client.values.get(TEACHER)
    if plan is None:
        return None
    if plan == ITSELF:
        return copy.deepcopy(client.model).eval()
    blueprint = Blueprint.from_json(plan, MODELS)
    teacher: nn.Module = blueprint.build(client.sent[TEACHER])
    if client.channels_last:
        fast = all(map(_takes_channels_last, blueprint.architectures))
        teacher = channels_last_layout(teacher) if fast else nn.Sequential(_ChannelsFirst(), teacher)
    teacher.to(next(client.model.parameters()).device)
    return teacher.eval()


class _ChannelsFirst(nn.Module):
    """Inputs in the usual layout, for networks that cannot do with the other."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the same values with the channels first in memory."""
        return channels_first(x)


def _marks(answers: Tensor, labels: Tensor) -> Values:
    """Return how often a teacher is right: among all labels, and among those that the client has."""
    held = torch.unique(labels)
    among_held = held[answers[:, held].argmax(1)]
    return {
        RIGHT: float((answers.argmax(1) == labels).double().mean()),
        RIGHT_AMONG_HELD: float((among_held == labels).double().mean()),
    }


def _to_compare(server: Server) -> Tensor:
    """Return the public samples that blocks are compared on: the same in all rounds."""
    examples = server.public
    assert examples is not None
    rows = drawn(len(examples), SAMPLES, server.seed, "cka samples")
    return _inputs(examples.x[rows], examples.scaling)


def _inputs(raw: Tensor, scaling: Scaling | None) -> Tensor:
    """Return public samples as models take them."""
    if scaling is None:
        return raw.float().contiguous()
    if raw.dim() != 4:
        return scaling.apply(raw.clone())
    return scaling.apply(raw.permute(0, 2, 3, 1).clone()).permute(0, 3, 1, 2).contiguous()


def _note_lessons(server: Server, replies: Replies) -> None:
    """Record how good the teachers were that clients of the round have just learned from."""
    for client, update in replies.items():
        if RIGHT in update.values:
            marks = {key: update.values.get(key) for key in (RIGHT, RIGHT_AMONG_HELD)}
            server.note(LESSON, client=client, **marks)


def _note_groups(shop: Workshop) -> None:
    shop.server.note(
        "functional groups",
        blocks=[[ref.model, ref.index, group] for ref, group in shop.groups.items()],
        similarity=shop.similarity.values.round(4).tolist(),
    )


def _note_choice(shop: Workshop, client: str, choice: Choice) -> None:
    """Record a client's teacher, and phi over all it had (Wang et al. 2024, eq. 6)."""
    assembly, own = choice.chosen.assembly, shop.own_size(client)
    sizes = shop.server.state.setdefault(SIZES, {}).setdefault(client, [])
    sizes.append(assembly.cost.parameters)
    shop.server.note(
        TEACHER,
        client=client,
        blocks=[[ref.model, ref.index] for ref in assembly.blocks],
        stitched=[place for place, stitch in enumerate(assembly.stitches) if stitch is not None],
        filled=assembly.filled,
        itself=assembly.is_own(client, shop.chains),
        parameters=assembly.cost.parameters,
        own_parameters=own,
        phi=size_change(sizes, own),
        scores=list(choice.scores.values()),
    )
