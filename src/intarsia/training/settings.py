"""Settings of the local solver: optimiser, epochs, batches, and the learning rate by round."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from intarsia.core import part
from intarsia.training.precision import Precision

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


@part
class Constant:
    """The same learning rate in every round."""

    name: Literal["constant"] = "constant"

    def factor(self, round: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by."""
        return 1.0


@part
class Step:
    """Multiply by gamma after each of the named rounds."""

    name: Literal["step"] = "step"
    milestones: tuple[Count, ...] = ()
    gamma: Positive = 0.1

    def factor(self, round: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by."""
        return float(self.gamma ** sum(round > milestone for milestone in self.milestones))


@part
class Exponential:
    """Multiply by gamma after every round."""

    name: Literal["exponential"] = "exponential"
    gamma: Positive = 0.99

    def factor(self, round: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by."""
        return float(self.gamma ** (round - 1))


@part
class Cosine:
    """Half a cosine, from 1 in the first round towards `floor` after the last."""

    name: Literal["cosine"] = "cosine"
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0

    def factor(self, round: int, rounds: int) -> float:
        """Return what the learning rate is multiplied by."""
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Schedule = Annotated[
    Constant | Step | Exponential | Cosine, Field(discriminator="name"), BeforeValidator(_by_name)
]


@part
class Training:
    """How a client trains in a round; the optimiser starts afresh each time."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """How a client descends."""
    lr: Positive = 0.05
    """The learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the last step that goes into the next (sgd)."""
    weight_decay: NotNegative = 0.0
    """How strongly weights are pulled towards zero."""
    epochs: Count = 1
    """How often a client goes through its training data in a round."""
    batch_size: Count = 16
    """How many samples a step sees."""
    loss: str = "auto"
    """What is minimised: cross_entropy or mse (auto: the usual one of the problem)."""
    class_weights: Literal["none", "balanced"] | dict[str, Positive] = "none"
    """How much samples of a label count in training: all the same, every label of a client's training data as much as
    every other (`balanced`), or so much by label (those that are not named: 1). Evaluation knows no weights."""
    schedule: Schedule = Field(default_factory=Constant)
    """How the learning rate changes from round to round: constant, step, exponential or cosine."""
    statistics: Literal["running", "refitted"] = "running"
    """What batch norms know of the data after training: what they met on the way, the last steps most; or, taken anew
    with the trained weights, the mean over one more pass. After few steps the first is still much of what came."""
    batched: bool | Literal["auto", "lstm"] = "auto"
    """Whether models that allow it are trained by the hand-written steps of batched clients (auto: if any does).
    `lstm`: small LSTMs too, which pays from three clients a worker on; one alone takes longer."""
    plain: bool = False
    """Train in the plainest way, for comparison: usual layout, ReLU before pooling, batches by plain indexing, torch's
    own optimisers, nothing batched. Same results to float tolerance, and slower."""
    precision: Precision = "fp32"
    """The arithmetic of training: single precision, or `bf16`: convolutions and matrix products take and give numbers
    of 8 bits of mantissa, which is faster where the processor has instructions for them (AVX512-BF16, AMX) and on
    graphics cards. Weights, statistics of norms, losses, descent, merges and models stay in single precision."""

    def lr_in(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round (rounds count from 1)."""
        return self.lr * self.schedule.factor(round, rounds)

    def stretched(self, done: int, before: int, now: int) -> tuple[str, ...]:
        """Return the settings by which rounds that are done were other ones than in a run of another length."""
        factor = self.schedule.factor
        other = any(factor(round, before) != factor(round, now) for round in range(1, done + 1))
        return (f"training.schedule ({self.schedule.name})",) if other else ()
