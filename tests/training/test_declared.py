"""What objectives see of a task, and what methods declare of their local step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intarsia
from intarsia.data import ClientInfo, Examples
from intarsia.experiment import Experiment, Given, load
from intarsia.methods import METHODS, OWN, Method, report
from intarsia.training import LOSSES, LocalClient, Objective, Training
from tests.engines.test_engines import SMALL, jobs_of, spread


@intarsia.part
class Trains(Method):
    """FedAvg with a training of its own."""

    name = "trains"
    title = "Trains"

    def train(self, client):
        return client.train(self.objective, epochs=2)


@intarsia.part
class Steps(Method):
    """FedAvg with a local step of its own, and an own model."""

    name = "steps"
    title = "Steps"

    def local_step(self, step, client):
        return report(client.train(self.objective))

    def own_model(self, client):
        yield OWN


@intarsia.part
class Declares(Steps):
    """The same, and it says that nothing differs from the usual."""

    name = "declares"
    title = "Declares"
    side_by_side = True
    own_as_joined = True


@pytest.mark.parametrize(
    ("method", "together", "scored"),
    [(Trains, False, True), (Steps, False, False), (Declares, True, True), (METHODS["fedavg"], True, True)],
)
def test_who_overrides_the_local_step_and_declares_nothing_is_alone(method, together, scored):
    setup = Experiment.build(
        load({**SMALL, "sharing": {}, "method": {"name": method.name}}), Given(data=spread(), method=method())
    ).setup
    jobs, _ = jobs_of(setup, "train", "train")
    assert {setup.stack(job.task)[1] > 1 for job in jobs} == {together}
    jobs, _ = jobs_of(setup, "evaluate", "evaluate")
    assert {setup.scores_together(job.task) for job in jobs} == {scored}


class Pulled(Objective):
    """The square distance to scores that were sent, row by row, times a value that was sent."""

    def value(self, at, batch, outputs, fit):
        wanted = at.sent["teacher"]["scores"][batch.rows]
        return at.values["share"] * (outputs - wanted).square().mean()


def test_an_objective_sees_rows_and_what_was_sent():
    # One weight 0, x = 1, scores 1 ... 4, share 1/4, one batch of all: gradient -2/4 * 2.5 = -1.25; lr 1.
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = {"train": Examples(torch.ones(4, 1), torch.zeros(4, 1))}
    info = ClientInfo("a", (1,), {"train": 4})
    client = LocalClient(info, data, model, {}, Training(lr=1.0), LOSSES["mse"], 0, 1, 1)
    client.sent = {"teacher": {"scores": torch.tensor([[1.0], [2.0], [3.0], [4.0]])}}
    client.values = {"share": 0.25}
    trained = client.train(Pulled())
    assert float(model.weight.detach()) == pytest.approx(1.25)
    assert (trained.steps, trained.score.loss) == (1, 0.0)


def test_rows_are_those_of_the_samples_whatever_their_order():
    # Scores equal the inputs: with weight 1 the distance is 0 only if every row finds its own.
    x = torch.arange(12.0)[:, None]
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    data = {"train": Examples(x, torch.zeros(12, 1))}
    info, training = ClientInfo("a", (1,), {"train": 12}), Training(lr=1.0, batch_size=5, epochs=3)
    client = LocalClient(info, data, model, {}, training, LOSSES["mse"], 0, 1, 1)
    client.sent, client.values = {"teacher": {"scores": x}}, {"share": 1.0}
    client.train(Pulled())
    assert float(model.weight.detach()) == 1.0
