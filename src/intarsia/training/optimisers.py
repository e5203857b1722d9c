"""SGD and Adam, updating all parameters at once.

torch.optim has both, but makes every new optimiser load torch's compiler: a second in each worker process
and a millisecond in each client's step, where one is made anew each round. A test holds these to torch.optim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.training.settings import Training


class Optimiser(ABC):
    """Changes parameters in place by their gradients."""

    def __init__(self, weights: Sequence[Tensor], training: Training, lr: float) -> None:
        self.weights = list(weights)
        self.training = training
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with the gradients there are, and clear them."""
        used = [w for w in self.weights if w.grad is not None]
        grads = [w.grad for w in used if w.grad is not None]
        if self.training.weight_decay:
            torch._foreach_add_(grads, used, alpha=self.training.weight_decay)
        if used:
            self.update(used, grads)
        for weight in used:
            weight.grad = None

    @abstractmethod
    def update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        """Change the weights; the gradients may be overwritten."""


class SGD(Optimiser):
    """Gradient descent with momentum: v = rho v + g; w = w - lr v."""

    def __init__(self, weights: Sequence[Tensor], training: Training, lr: float) -> None:
        super().__init__(weights, training, lr)
        self._velocity: dict[int, Tensor] = {}

    def update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        """Change the weights."""
        if self.training.momentum:
            velocity = [self._velocity.setdefault(id(w), torch.zeros_like(w)) for w in weights]
            torch._foreach_mul_(velocity, self.training.momentum)
            torch._foreach_add_(velocity, grads)
            grads = velocity
        torch._foreach_add_(weights, grads, alpha=-self.lr)


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015) with its usual constants."""

    def __init__(self, weights: Sequence[Tensor], training: Training, lr: float) -> None:
        super().__init__(weights, training, lr)
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps = 0

    def update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        """Change the weights."""
        self._steps += 1
        for weight in weights:
            if id(weight) not in self._moments:
                self._moments[id(weight)] = (torch.zeros_like(weight), torch.zeros_like(weight))
        means = [self._moments[id(w)][0] for w in weights]
        squares = [self._moments[id(w)][1] for w in weights]
        adam_step(weights, means, squares, grads, self.lr, self._steps)


def adam_step(
    weights: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    grads: list[Tensor],
    lr: float,
    steps: int,
) -> None:
    """Take a step of Adam, in place, on weights and on the running means of gradients and their squares."""
    first, second = 0.9, 0.999
    torch._foreach_lerp_(means, grads, 1 - first)
    torch._foreach_mul_(squares, second)
    torch._foreach_addcmul_(squares, grads, grads, 1 - second)
    scale = torch._foreach_sqrt(squares)
    torch._foreach_div_(scale, (1 - second**steps) ** 0.5)
    torch._foreach_add_(scale, 1e-8)
    torch._foreach_addcdiv_(weights, means, scale, -lr / (1 - first**steps))


class TorchsOwn(Optimiser):
    """The optimiser that torch has under this name: for comparison."""

    def __init__(self, weights: Sequence[Tensor], training: Training, lr: float) -> None:
        super().__init__(weights, training, lr)
        decay = training.weight_decay
        self._own: torch.optim.Optimizer = (
            torch.optim.Adam(weights, lr, weight_decay=decay, foreach=False)
            if training.optimizer == "adam"
            else torch.optim.SGD(weights, lr, training.momentum, weight_decay=decay, foreach=False)
        )

    def step(self) -> None:
        """Take one step with the gradients there are, and clear them."""
        self._own.step()
        self._own.zero_grad()

    def update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        """Change nothing: torch does it."""


OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam}


def optimiser_for(weights: Sequence[Tensor], training: Training, lr: float) -> Optimiser:
    """Return a fresh optimiser of these weights, as the settings name it."""
    kind = TorchsOwn if training.plain and weights else OPTIMISERS[training.optimizer]
    return kind(weights, training, lr)
