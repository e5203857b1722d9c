"""A method of your own in three small classes: three scopes in one model, and clients that must not be too sure.

Run it with: python examples/own_method.py
"""

from __future__ import annotations

import tempfile
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

import intarsia

SETTINGS = {
    "rounds": 10,
    "population": {"name": "digits", "clients": 20},
    "model": {"name": "mlp", "hidden": [64, 32]},
    "training": {"lr": 0.2, "epochs": 3, "batch_size": 8},
}


@intarsia.part
class Tiers(intarsia.Sharing):
    """The input side with clients of the same device, the middle with everyone, the output at home."""

    name: ClassVar[str] = "tiers"

    def cut(self, model: nn.Module) -> intarsia.Cut:
        """Cut an `mlp` of two hidden layers into three blocks."""
        return intarsia.Cut({"input": ("hidden1.*",), "middle": ("hidden2.*",), "output": ("head.*",)})

    def group(self, block: str, client: intarsia.ClientInfo) -> str:
        """Return with whom a client shares a block; `me`: with nobody."""
        return {"input": client.device, "middle": self.everyone(client), "output": "me"}[block]


@intarsia.part
class Humble(intarsia.Objective):
    """The loss, less a little of the predictions' entropy: who is sure of everything pays for it."""

    name: ClassVar[str] = "humble"

    share: Annotated[float, Field(ge=0)] = 0.1

    def value(self, at: intarsia.Situation, batch: intarsia.Batch, outputs: Tensor, fit: Tensor) -> Tensor:
        """Return fit - share * entropy."""
        scores = outputs.log_softmax(1)
        return fit + self.share * (scores.exp() * scores).sum(1).mean()


@intarsia.part
class HumbleTiers(intarsia.Method):
    """Three scopes in one model, trained without too much confidence."""

    name: ClassVar[str] = "humble-tiers"
    title: ClassVar[str] = "Humble tiers"

    sharing: intarsia.Sharing = Field(default_factory=Tiers)
    objective: intarsia.Objective = Field(default_factory=Humble)


def main() -> None:
    """Compare it with FedPer on the embedded data."""
    with tempfile.TemporaryDirectory() as folder:
        fedper = ["method=fedper", "sharing.by=device"]
        usual = intarsia.run(SETTINGS, changes=fedper, out=f"{folder}/usual")
        own = intarsia.run(SETTINGS, method=HumbleTiers(), out=f"{folder}/own")
        print("FedPer:      ", usual.summary["accuracy"])
        print("Humble tiers:", own.summary["accuracy"])
        print("addresses:   ", sorted({f"{r['block']}@{r['group']}" for r in own.traffic if r["block"]}))


if __name__ == "__main__":
    main()
