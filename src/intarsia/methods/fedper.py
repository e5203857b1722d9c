"""Shared base, private head."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from intarsia.blocks import ME, Cut
from intarsia.core import part
from intarsia.data import ClientInfo
from intarsia.methods.base import Method, Sharing, cut_before


@part
class HeadStaysHome(Sharing):
    """`base` with everyone, `head` at home."""

    name: ClassVar[str] = "fedper"
    needs: ClassVar[frozenset[str]] = frozenset({"base", "head"})

    head: str = ""
    """First part of the head (empty: the model's last part)."""

    def cut(self, model: nn.Module) -> Cut:
        """Cut before the head."""
        return cut_before(model, self.head, "base", "head")

    def group(self, block: str, client: ClientInfo) -> str:
        """Return everyone for the base, the client itself for the head."""
        return ME if block == "head" else self.everyone(client)


@part
class FedPer(Method):
    """Base layers averaged, personalisation layers never sent.

    Arivazhagan et al. 2019, "Federated learning with personalization layers", Algorithms 1 and 2.
    Deviations: none; base and head are trained together in every local step.
    """

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"

    sharing: Sharing = Field(default_factory=HeadStaysHome)
