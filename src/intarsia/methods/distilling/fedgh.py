"""Extractors of any kind under one header, which the server trains."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.blocks import ME, Address, Cut, Expected, Table, Update, Values
from intarsia.core import Refused, SettingsError, chance, one_thread, part
from intarsia.data import ClientInfo
from intarsia.methods.asked import Asked
from intarsia.methods.base import Exchange, Method, Replies, Round, Sharing, cut_before, report
from intarsia.methods.server import Server, descend, filled, taken
from intarsia.models.parts import parts_of
from intarsia.training import LocalClient


class Headed(nn.Module):
    """An extractor, and a header on the representations that it gives."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the header's scores."""
        scores: Tensor = self.head(self.extractor(x))
        return scores


def headed(model: nn.Module, features: int = 0) -> Headed:
    """Return a network with its last part apart, under the same name in all networks.

    With `features`, a new layer of that width and a ReLU come before a new last layer: networks whose last layers
    differ then have one in common. Draws come from torch's own generator.
    """
    extractor, name = copy.deepcopy(model), _last(model)
    head = extractor.get_submodule(name)
    if not features:
        _replace(extractor, name, nn.Identity())
        return Headed(extractor, head)
    if not isinstance(head, nn.Linear):
        raise SettingsError(
            f"the last part '{name}' of {type(model).__name__} is a {type(head).__name__}, not a linear layer: it "
            "cannot have another width; leave method.features at 0"
        )
    _replace(extractor, name, nn.Sequential(nn.Linear(head.in_features, features), nn.ReLU()))
    return Headed(extractor, nn.Linear(features, head.out_features))


def _last(model: nn.Module) -> str:
    """Return the name of the last part, which must be a module."""
    name = next(reversed(dict(parts_of(model))), "")
    if name not in dict(model.named_modules()) or not name:
        raise SettingsError(
            f"{type(model).__name__} has no last part that is a module of its own: its header cannot be told apart"
        )
    return name


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


EXTRACTOR, HEAD = "extractor", "head"
MEANS, LABELS = "means", "labels"
Count = Annotated[int, Field(ge=1)]


@part
class HeaderOfAll(Sharing):
    """`head` with everyone, `extractor` at home."""

    name: ClassVar[str] = "fedgh"
    needs: ClassVar[frozenset[str]] = frozenset({EXTRACTOR, HEAD})

    def cut(self, model: nn.Module) -> Cut:
        """Cut before the last part."""
        return cut_before(model, "", EXTRACTOR, HEAD)

    def group(self, block: str, client: ClientInfo) -> str:
        """Return everyone for the head, the client itself for the extractor."""
        return self.everyone(client) if block == HEAD else ME


@part
class FedGH(Method):
    """One header for all, trained on the server with the clients' mean representations of each class.

    Yi, Wang, Liu, Shi and Yu 2023, "FedGH: Heterogeneous federated learning with generalized global header". In
    every round a client puts the global header on its extractor, trains both on its own data, and sends, for every
    class that it has, the mean of the representations that its extractor gives; the server trains the header on all
    these pairs of representation and class. A client's own header goes nowhere, and nothing is averaged. Ours: the
    server takes `header_epochs` over the pairs in random order, by plain descent; representations are made in
    evaluation mode; a client's own model is its extractor under the newest global header; `features` is for models
    that do not give representations of the same width, as the method needs.
    """

    name: ClassVar[str] = "fedgh"
    title: ClassVar[str] = "FedGH"
    needs_loss: ClassVar[str] = "cross_entropy"
    gives_away: ClassVar[str | None] = "which classes a client has, and the mean representation of each"

    sharing: Sharing = Field(default_factory=HeaderOfAll)
    header_epochs: Count = 10
    """Epochs of the server over the clients' mean representations."""
    header_batch: Count = 16
    """Representations a batch."""
    header_lr: Annotated[float, Field(gt=0)] = 0.05
    """The server's learning rate."""
    features: Annotated[int, Field(ge=0)] = 0
    """Width of the representations: a layer of that width comes before the header (0: models are alike there)."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Part the model in an extractor and a header."""
        if not isinstance(self.sharing, HeaderOfAll):
            raise SettingsError(
                f"method 'fedgh' trains one header for all on the server: sharing '{self.sharing.name}' does not fit; "
                "leave `sharing` out"
            )
        return headed(model, self.features)

    def round(self, server: Server) -> Round:
        """Let clients train under the global header, then train the header on what they saw."""
        replies = yield Exchange(give_back=lambda client: ())
        addresses = {server.address(HEAD, name): name for name in replies}
        for address in sorted(addresses):
            members = {n: u for n, u in replies.items() if server.address(HEAD, n) == address}
            self._teach(server, address, addresses[address], members)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Train extractor and header, then describe every class by its mean representation."""
        values = report(client.train(self.objective))
        means, labels = class_means(client)
        client.answer[MEANS] = {MEANS: means, LABELS: labels}
        return values

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: what it says of its training, and a mean and a label for every class."""
        labels = Table((-1,), 0, asked.outputs - 1, torch.int64)
        return Expected(asked.trained(), tensors={MEANS: {MEANS: Table((-1, -1)), LABELS: labels}})

    def check_reply(self, model: nn.Module, update: Update) -> None:
        """Refuse representations that the header cannot take, and labels that are not one for each."""
        tensors = update.tensors[MEANS].tensors
        _check_pairs(model, tensors[MEANS], tensors[LABELS])

    def _teach(self, server: Server, address: Address, member: str, replies: Replies) -> None:
        """Train one header; note its loss before and after."""
        present = server.pool.get(address)
        model = filled(server.model_of(member).module, present)
        means, labels = _pairs(replies)
        order = chance.generator(server.seed, "header", server.round, address.group)
        with one_thread(), chance.torch_seeded(server.seed, "header", server.round, address.group):
            head = _head(model)
            before = _loss(head, means, labels)
            descend(head, self.header_lr, self._losses(head, means, labels, order))
            after = _loss(head, means, labels)
        server.pool.put(address, taken(model, present))
        server.note("header", address=str(address), pairs=len(labels), before=before, after=after)

    def _losses(
        self, head: nn.Module, means: Tensor, labels: Tensor, order: torch.Generator
    ) -> Iterator[Tensor]:
        for _ in range(self.header_epochs):
            for rows in torch.split(torch.randperm(len(labels), generator=order), self.header_batch):
                yield functional.cross_entropy(head(means[rows]), labels[rows])


@torch.no_grad()
def class_means(client: LocalClient) -> tuple[Tensor, Tensor]:
    """Return the mean representation of every class that the client has, and these classes."""
    assert isinstance(client.model, Headed)
    client.model.eval()
    pairs = [(client.model.extractor(x), y) for x, y in client.in_order()]
    representations, y = torch.cat([r for r, _ in pairs]), torch.cat([y for _, y in pairs])
    labels = sorted(set(y.tolist()))
    means = [representations[y == label].mean(0) for label in labels]
    return torch.stack(means), torch.tensor(labels)


def _check_pairs(model: nn.Module, means: Tensor, labels: Tensor) -> None:
    if len(labels) != len(means) or len(set(labels.tolist())) < len(labels):
        raise Refused("one label, and another one, for every representation was expected", block=MEANS)
    try:
        with torch.no_grad():
            copy.deepcopy(_head(model)).eval()(means)
    except RuntimeError as error:
        raise Refused(f"the header cannot take these representations: {error}", block=MEANS) from error


def _pairs(replies: Mapping[str, Update]) -> tuple[Tensor, Tensor]:
    tensors = [update.tensors[MEANS].tensors for update in replies.values()]
    return torch.cat([t[MEANS] for t in tensors]), torch.cat([t[LABELS] for t in tensors])


@torch.no_grad()
def _loss(head: nn.Module, means: Tensor, labels: Tensor) -> float:
    return float(functional.cross_entropy(head.eval()(means), labels))


def _head(model: nn.Module) -> nn.Module:
    assert isinstance(model, Headed)
    return model.head
