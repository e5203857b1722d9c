"""The models that an attacker has, and what they say of single samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from intarsia.audit.played import Ear, Heard, Played
from intarsia.audit.scores import Numbers
from intarsia.blocks import Block, Task
from intarsia.clients import ClientRuntime
from intarsia.core import one_thread
from intarsia.data import Client, Examples
from intarsia.data.recorded import DataAbsent, without_data
from intarsia.experiment.kept import own_job
from intarsia.setup import Setup
from intarsia.training import in_order

OWN, POOL, UPDATE = "own model", "shared blocks", "single update"
"""What an attack is tried on: the model that a client exports; what of it the server holds in the end, or whoever gets
the shared blocks; the last update that it sent."""
SMALLEST = 1e-12
Content = dict[str, Block]


class Onlooker:
    """Makes models of what was seen, without any client's data or own blocks."""

    def __init__(self, played: Played) -> None:
        self.played = played
        setup = played.run.experiment.setup
        self.setup: Setup = dataclasses.replace(setup, population=without_data(setup.population))
        self.runtime = ClientRuntime(self.setup, played.run._folder.store, "cpu")

    def shared_model(self, client: str) -> nn.Module:
        """Return a client's model of the shared blocks alone; those of its own are as at the beginning."""
        job, content = own_job(self.setup, self.played.run.settings.sampling, self.played.state, client)
        return self.model_for(job.task, content)

    def model_for(self, task: Task, content: Content) -> nn.Module:
        """Return the model that a task gives a client, as far as the server can make it."""
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
            try:
                return self.runtime.own_model(task, {}, content.__getitem__)
            except DataAbsent:
                return self.runtime.joined_model(task, {}, content.__getitem__)

    def updated_model(self, client: str, ear: Ear) -> nn.Module | None:
        """Return a client's model as its last update tells it (None: it sent no blocks)."""
        heard = ear.blocks_of(client)
        return None if heard is None else with_update(self.shared_model(client), heard)


def with_update(model: nn.Module, heard: Heard) -> nn.Module:
    """Put the tensors of an update into a model, by name."""
    there = model.state_dict()
    sent = {n: t for b in heard.update.blocks.values() for n, t in b.tensors.items() if n in there}
    model.load_state_dict(sent, strict=False)
    return model


def untrained_model(setup: Setup, client: str) -> nn.Module:
    """Return the model that a client starts from."""
    return setup.template(client).model


def models_of(played: Played, client: str, single: bool) -> Iterator[tuple[str, nn.Module]]:
    """Yield each model that an attacker may have of a client."""
    onlooker = Onlooker(played)
    yield OWN, played.run.client(client).model()
    if played.run.setup.addresses.of(client) and any(
        not address.private for address in played.run.setup.addresses.of(client).values()
    ):
        yield POOL, onlooker.shared_model(client)
    if single and (updated := onlooker.updated_model(client, played.ear)) is not None:
        yield UPDATE, updated


@torch.no_grad()
def losses(model: nn.Module, examples: Examples) -> Numbers:
    """Return the loss of every sample."""
    model.eval()
    found = [_losses(model(x), y) for x, y in in_order(model, examples)]
    numbers: Numbers = torch.cat(found).double().numpy()
    return numbers


def _losses(outputs: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        each = (outputs.reshape(y.shape) - y).square()
    else:
        each = functional.cross_entropy(outputs.double(), y, reduction="none")
    return each.reshape(len(y), -1).mean(1)


def confidences(losses: Numbers, classes: bool) -> Numbers:
    """Return losses as numbers that are nearly normal: log(p / (1 - p)) of the right label, or -log of an error."""
    bounded = np.maximum(losses, SMALLEST)
    found: Numbers = -np.log(np.expm1(np.minimum(bounded, 500.0))) if classes else -np.log(bounded)
    return found


def everything(client: Client) -> Examples:
    """Return a client's training samples, and its test samples after them."""
    train, test = client.data["train"], client.data["test"]
    return Examples(torch.cat([train.x, test.x]), torch.cat([train.y, test.y]), train.scaling)
