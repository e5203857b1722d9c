"""A model's parts, from its input to its output: where it can be cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

Parts = Mapping[str, Sequence[str]]
"""Patterns by part name, ordered from the input to the output."""


def parts_of(model: nn.Module) -> Parts:
    """Return the model's parts: its attribute `parts`, or else its children that hold tensors, in order.

    A model whose children are not in the order of its computation, or that has tensors of its own
    beside them, says so with an attribute `parts = {"features": ["features.*"], "head": ["head.*"]}`.
    """
    named = getattr(model, "parts", None)
    if named is not None:
        return {name: (p,) if isinstance(p, str) else tuple(p) for name, p in named.items()}
    return {name: (f"{name}.*",) for name, child in model.named_children() if len(child.state_dict()) > 0}
