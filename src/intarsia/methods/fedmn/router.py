"""The router of FedMN: from a client's whole data set to a score for every link of the pool."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from intarsia.blocks import Block

Form = Literal["concat", "tensor", "hidden"]
"""How inputs and labels are joined: `concat` (eq. 9), `hidden` (with one more layer), `tensor` (eq. 7)."""
Batches = Iterable[tuple[Tensor, Tensor]]
ROUNDING = 1e-3
"""By which share a norm may be above its limit before it counts as above."""


class Router(nn.Module):
    """A score for every link: an embedding of each sample and its label, its mean over all, a linear layer.

    Wang et al. 2022 (FedMN), eq. 7-10. `concat`: [phi_x, phi_y] normalised, as the paper has it; its mean is a
    sum of two means, which cannot tell apart two clients whose inputs and labels are distributed alike but
    paired differently. `hidden`: a ReLU layer before the mean. `tensor`: phi_x times one-hot y, the product of
    eq. 7; its mean is normalised.
    """

    def __init__(
        self, encoder: nn.Module, classes: int, links: int, form: Form, x_size: int, y_size: int
    ) -> None:
        super().__init__()
        self.form, self.classes = form, classes
        self.encoder = encoder
        joined = x_size * classes if form == "tensor" else x_size + y_size
        if form != "tensor":
            self.labels = nn.Linear(classes, y_size)
        if form == "hidden":
            self.hidden = nn.Linear(joined, joined)
        self.scores = nn.Linear(joined, links)

    def embed(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the embedding of every sample with its label."""
        seen: Tensor = self.encoder(x)
        one_hot = nn.functional.one_hot(y, self.classes).to(seen.dtype)
        if self.form == "tensor":
            return (seen.unsqueeze(2) * one_hot.unsqueeze(1)).flatten(1)
        joined = nn.functional.normalize(torch.cat([seen, self.labels(one_hot)], 1))
        return torch.relu(self.hidden(joined)) if self.form == "hidden" else joined

    def score(self, mean: Tensor) -> Tensor:
        """Return the scores of the links from the mean embedding of a data set."""
        if self.form == "tensor":
            mean = nn.functional.normalize(mean, dim=0)
        scores: Tensor = self.scores(mean)
        return scores

    @torch.no_grad()
    def mean(self, batches: Batches) -> tuple[Tensor, int]:
        """Return the mean embedding of a data set, and its size."""
        total, n = torch.zeros(self.scores.in_features, dtype=torch.float64), 0
        for x, y in batches:
            total += self.embed(x, y).double().sum(0).cpu()
            n += len(y)
        return (total / n).to(self.scores.weight), n

    @torch.no_grad()
    def forward(self, batches: Batches) -> Tensor:
        """Return the scores of a data set."""
        return self.score(self.mean(batches)[0])

    def learn(self, batches: Batches, gradient: Tensor) -> None:
        """Add to the parameters' gradients what this gradient of the scores comes to, batch by batch.

        Exact: the scores depend on a batch only through the mean, to which every sample adds its embedding / n.
        `backward` is given sums, no gradients: else torch loads sympy, most of a second in each worker.
        """
        batches = list(batches)
        mean, n = self.mean(batches)
        mean.requires_grad_(True)
        (self.score(mean) * gradient).sum().backward()  # type: ignore[no-untyped-call]
        assert mean.grad is not None
        for x, y in batches:
            (self.embed(x, y) * (mean.grad / n)).sum().backward()  # type: ignore[no-untyped-call]

    def descend(self, batches: Batches, gradient: Tensor, lr: float, most: float) -> None:
        """Take one step by this gradient of the scores, clipped to a norm of `most`."""
        self.zero_grad()
        self.learn(batches, gradient)
        gradients = {name: w.grad for name, w in self.named_parameters() if w.grad is not None}
        with torch.no_grad():
            for name, change in shortened(gradients, most).items():
                self.get_parameter(name).sub_(change, alpha=lr)
        self.zero_grad()


def shortened(tensors: Mapping[str, Tensor], most: float) -> dict[str, Tensor]:
    """Return tensors whose common norm is at most this: themselves, where it is (up to rounding)."""
    squares = [float(tensor.double().square().sum()) for tensor in tensors.values()]
    length = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf
    if length <= most * (1 + ROUNDING):
        return dict(tensors)
    return {name: (tensor.double() * (most / length)).to(tensor.dtype) for name, tensor in tensors.items()}


def nearer(block: Block, sent: Block, most: float) -> Block:
    """Return a block whose parameters are at most this far from what was sent; one that does not fit, as it is."""
    if block.layout != sent.layout:
        return block
    names = [name for name, tensor in sent.tensors.items() if tensor.is_floating_point()]
    moved = {n: block.tensors[n].double() - sent.tensors[n].double() for n in names if n not in sent.buffers}
    shorter = shortened(moved, most)
    if all(shorter[name] is moved[name] for name in moved):
        return block
    near = {n: (sent.tensors[n].double() + shorter[n]).to(sent.tensors[n].dtype) for n in moved}
    return block.alike({**block.tensors, **near})
