"""What methods share whose clients train a personal model beside their copy of the shared one."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from intarsia.blocks import Expected, Merge, Relaxed, Values
from intarsia.core import SettingsError, part
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import OWN, Method, report
from intarsia.training import LocalClient, Trained

PERSONAL = "personal"
"""The purpose of the tensors that make a client's personal model."""


@part
class Beside(Method):
    """The shared model travels; the personal one stays with its client, which evaluates both."""

    merge: Merge = Field(default_factory=Relaxed)

    def train_both(self, client: LocalClient, purpose: str) -> Trained:
        """Train both: the model ends as the shared one, `client.tensors[PERSONAL]` is the personal one."""
        raise SettingsError(
            f"{type(self).__name__} does not say how clients train: give it a method train_both"
        )

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Train both models; the shared one goes back."""
        return report(self.train_both(client, "batches"))

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client reports of its training."""
        return of_training(asked)

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Put the personal model in the place of the shared one; who has none yet trains it."""
        yield "before"
        if PERSONAL not in client.tensors:
            self.train_both(client, PERSONAL)
        client.model.load_state_dict(client.tensors[PERSONAL], strict=False)
        yield OWN
