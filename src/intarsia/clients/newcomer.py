"""A client that comes when all is done: its model as it comes, and tuned at home."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from intarsia.blocks import Block, Task
from intarsia.clients.runtime import ClientRuntime, taken_out
from intarsia.clients.scoring import score_rows
from intarsia.clients.state import State
from intarsia.core import chance
from intarsia.methods import EVALUATE, tuned_stages

Made = tuple[nn.Module, list[dict[str, Any]]]
"""A model, and its scores on the splits that a client is judged by."""


def newcomer_models(
    runtime: ClientRuntime,
    task: Task,
    state: State,
    content: Callable[[str], Block],
    epochs: int,
    parts: Collection[str],
) -> dict[str, Made]:
    """Return the newcomer's model by stage: as it comes, and after some epochs on its own data (0: not tuned)."""
    setup = runtime.setup
    bench, local = runtime.join(task, state, content)
    with chance.torch_seeded(setup.seed, EVALUATE, task.round, task.client):
        return {
            stage: (taken_out(bench), score_rows(local, stage, parts))
            for stage in tuned_stages(setup.method, local, epochs)
        }
