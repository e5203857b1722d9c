"""The ClientApp that Flower's actors run: the plain loop's training of one client, and its evaluation."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed import networks
from benchmarks.speed.contestants.plain import correct, train
from benchmarks.speed.task import Task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

FOLDER = "INTARSIA_BENCH_FOLDER"
app = ClientApp()


@cache
def loaded() -> tuple[Task, nn.Module]:
    """Return the task and a model, loaded once in each actor's process."""
    torch.set_num_threads(1)
    task = Task(Path(os.environ[FOLDER]))
    return task, networks.build(task.about)


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train one client from the weights that came."""
    task, model = loaded()
    content: Any = message.content
    round, slot = content["config"]["round"], content["config"]["slot"]
    client, order = task.cohorts[round][slot], task.orders[round][slot]
    model.load_state_dict(content["arrays"].to_torch_state_dict())
    train(model, task.x[client][order], task.y[client][order], task.about["batch"], task.about["lr"])
    metrics = MetricRecord({"num-examples": len(order)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


@app.evaluate()
def evaluate_client(message: Message, context: Context) -> Message:
    """Evaluate the weights that came on one client's test data."""
    task, model = loaded()
    content: Any = message.content
    client = content["config"]["client"]
    model.load_state_dict(content["arrays"].to_torch_state_dict())
    x, y = (part[client] for part in task.test)
    metrics = MetricRecord({"num-examples": len(y), "correct": correct(model, x, y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
