"""Which labels does a client have, and how often? Told by its head's update, by named values, by its groups.

From the head: with the cross-entropy, one step changes the bias of label k by lr * (share of k - mean p_k)
(Zhao et al. 2020, "iDLG"; Wainakh et al. 2022, "User-level label leakage from gradients"). From a fresh model
p is 1 / labels, and so a label's share is 1 / labels + change / (lr * steps). From all else: as the clients are that
sent the most similar numbers, of which the attacker knows the labels; nobody else's labels are better known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intarsia.audit.played import Heard, Played
from intarsia.audit.scores import Numbers
from intarsia.audit.targets import Onlooker
from intarsia.data import Population
from intarsia.methods import EVALUATE

NEIGHBOURS = 3
Shares = dict[str, Numbers]
"""How labels are distributed, by client."""


def true_shares(population: Population, split: str = "train") -> Shares:
    """Return how the labels of every client that predicts labels are distributed."""
    found = {}
    for name, client in population.clients.items():
        goal = population.goals[client.info.task]
        if goal.problem == "classification":
            counts = np.asarray(goal.histogram(client.data[split]), float)
            found[name] = counts / counts.sum()
    return found


@torch.no_grad()
def heads_of(model: nn.Module, shape: tuple[int, ...], labels: int) -> list[str]:
    """Return the tensors with a number a label that raise a label's output when its number rises.

    Of models that take numbers and give one score a label; of others none.
    """
    model.eval()
    probe = torch.full((1, *shape), 0.5)
    try:
        if model(probe).shape != (1, labels):
            return []
    except (RuntimeError, TypeError, IndexError):  # it takes tokens
        return []
    there = model.state_dict()
    return [name for name, t in there.items() if t.shape == (labels,) and _raises(model, t, probe)]


def _raises(model: nn.Module, bias: Tensor, probe: Tensor) -> bool:
    before = model(probe)
    for label in range(len(bias)):
        bias[label] += 1
        raised = model(probe) - before
        bias[label] -= 1
        if float(raised.flatten()[label]) <= 0 or int(raised.flatten().argmax()) != label:
            return False
    return True


def head_change(changes: Mapping[str, Tensor], heads: Sequence[str]) -> Numbers | None:
    """Return by how much the heads' biases favour each label more than before (None: none of them was sent)."""
    sent = [changes[name].double() for name in heads if name in changes]
    found: Numbers | None = torch.stack(sent).sum(0).numpy() if sent else None
    return found


def shares_from(change: Numbers, weight: float) -> Numbers:
    """Return the shares of labels that lead to such a change of the bias of a model that knows nothing yet.

    `weight` is the learning rate times the steps.
    """
    labels = len(change)
    guess = np.maximum(1 / labels + change / max(weight, 1e-12), 0)
    found: Numbers = guess / guess.sum() if guess.sum() > 0 else np.full(labels, 1 / labels)
    return found


def from_heads(play: Played, true: Shares, single: bool) -> Shares:
    """Return the shares that the first round's head updates tell: of each client, or of all that share a sum."""
    setup, onlooker = play.run.experiment.setup, Onlooker(play)
    found = {}
    for (client, purpose, _), heard in play.ear.first.items():
        if purpose != "train" or client not in true or not heard.update.blocks:
            continue
        changes = own_changes(heard) if single else merged_changes(heard, play)
        model = onlooker.model_for(heard.task, {b.version: b for b in heard.held.values()})
        shape = setup.population.clients[client].info.shape
        change = head_change(changes, heads_of(model, shape, len(true[client])))
        if change is not None:
            steps = heard.update.values.get("step_weight") or heard.update.values.get("steps") or 1
            lr = setup.training.lr_in(heard.task.round, setup.rounds)
            found[client] = shares_from(change, lr * float(steps))
    return found


def own_changes(heard: Heard) -> dict[str, Tensor]:
    """Return by how much a client changed what it sent, by the tensor's name."""
    return {n: t for block in heard.changes.values() for n, t in block.tensors.items()}


def merged_changes(heard: Heard, play: Played) -> dict[str, Tensor]:
    """Return by how much what came out of the merge differs from what the client had been sent.

    Where groups were found, what came out for the client's group.
    """
    state, found = play.state, dict[str, Tensor]()
    lives = play.run.experiment.setup.addresses.now(state.groups, state.pool).of(heard.task.client)
    for address in heard.update.blocks:
        before, now = heard.held[address].tensors, state.pool.get(lives[address.block]).tensors
        found |= {n: t.double() - before[n].double() for n, t in now.items() if t.shape == before[n].shape}
    return found


def by_neighbours(features: Mapping[str, Numbers], true: Shares, most: int = NEIGHBOURS) -> Shares:
    """Return for each client the mean of the shares of those others whose features are nearest."""
    found = {}
    names = [name for name in features if name in true]
    if len(names) < 2:
        return {}
    table = np.stack([features[name] for name in names])
    spread = table.std(0)
    scaled = (table - table.mean(0)) / np.where(spread > 0, spread, 1)
    for i, name in enumerate(names):
        alike = [j for j, other in enumerate(names) if j != i and len(true[other]) == len(true[name])]
        distances = np.linalg.norm(scaled[alike] - scaled[i], axis=1)
        near = np.asarray(alike)[distances <= np.sort(distances)[: max(1, min(most, len(alike)))][-1] + 1e-12]
        found[name] = np.mean([true[names[j]] for j in near], axis=0)
    return found


def features_of(play: Played) -> dict[str, dict[str, Numbers]]:
    """Return the numbers beside blocks that tell clients apart, by what they are: as last heard, and found groups."""
    found: dict[str, dict[str, Numbers]] = {}
    for (client, _, step), heard in play.ear.last.items():
        for name, numbers in _numbers(heard).items():
            found.setdefault(f"{name} ({step})", {})[client] = numbers
    for block, groups in play.state.groups.items():
        names = sorted(set(groups.values()))
        if len(names) > 1:
            eye = np.eye(len(names))
            found[f"group of block {block}"] = {c: eye[names.index(g)] for c, g in groups.items()}
    return {key: own for key, own in found.items() if len({len(v) for v in own.values()}) == 1}


def _numbers(heard: Heard) -> dict[str, Numbers]:
    """Return the lists and tensors beside blocks of an answer, and what the server decided of an own model."""
    decided = heard.task.values if heard.task.exchange == EVALUATE else {}
    lists = {n: v for n, v in {**decided, **heard.update.values}.items() if _is_list(v)}
    tensors: dict[str, Numbers] = {}
    for name, block in heard.update.tensors.items():
        own = [_flat(t) for t in block.tensors.values() if t.is_floating_point()]
        tensors |= {name: np.concatenate(own)} if own else {}
    return {**{n: np.asarray(v, float) for n, v in lists.items()}, **tensors}


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, int | float) for v in value)


def _flat(tensor: Tensor) -> Numbers:
    found: Numbers = tensor.double().flatten().numpy()
    return found


def from_names(play: Played, true: Shares) -> Shares:
    """Return even shares of the labels that clients name: in lists or tensors of whole numbers beside their blocks."""
    found = {}
    for (client, _, _), heard in play.ear.last.items():
        tensors = [
            t for b in heard.update.tensors.values() for t in b.tensors.values() if not t.is_floating_point()
        ]
        lists = [v for v in heard.update.values.values() if _is_list(v)]
        for named in [*(t.tolist() for t in tensors if t.dim() == 1), *lists]:
            if client in true and _are_labels(named, len(true[client])):
                found[client] = np.isin(np.arange(len(true[client])), named) / len(named)
    return found


def _are_labels(named: Sequence[Any], labels: int) -> bool:
    whole = all(type(n) is int and 0 <= n < labels for n in named)
    return whole and 0 < len(named) == len(set(named))


def from_tallies(play: Played, true: Shares) -> Shares:
    """Return the shares of labels in the test data that clients count when they are judged."""
    found = {}
    for (client, _, _), heard in play.ear.last.items():
        for score in heard.update.values.get("scores", ()):
            if client in true and score["split"] == "test" and "tally" in score:
                counts = np.zeros(len(true[client]))
                for label, _, count in score["tally"]["confusion"]:
                    counts[label] += count
                found[client] = counts / counts.sum()
    return found


def score(guessed: Shares, true: Shares) -> dict[str, Any]:
    """Return how near guesses are, beside the control: the distribution of all clients together."""
    names = [name for name in guessed if name in true]
    usual = {name: _usual(true, name) for name in names}
    return {
        "clients": len(names),
        "distance": _mean(_distance(guessed[n], true[n]) for n in names),
        "control_distance": _mean(_distance(usual[n], true[n]) for n in names),
        "correlation": _mean(_correlation(guessed[n], true[n]) for n in names),
        "control_correlation": _mean(_correlation(usual[n], true[n]) for n in names),
    }


def _usual(true: Shares, name: str) -> Numbers:
    alike = [shares for shares in true.values() if len(shares) == len(true[name])]
    found: Numbers = np.mean(alike, axis=0)
    return found


def _distance(guess: Numbers, true: Numbers) -> float:
    """Return the total variation: 0 the same, 1 nothing in common."""
    return float(np.abs(guess - true).sum() / 2)


def _correlation(guess: Numbers, true: Numbers) -> float:
    if guess.std() < 1e-12 or true.std() < 1e-12:
        return 0.0
    return float(np.corrcoef(guess, true)[0, 1])


def _mean(values: Any) -> float:
    return round(float(np.mean(list(values))), 4)


def labels(first: Played, play: Played, population: Population, single: bool) -> list[dict[str, Any]]:
    """Try every way to learn the clients' labels; return a row each."""
    true = true_shares(population)
    tried = {"head": (from_heads(first, true, single), true)}
    for source, features in features_of(play).items():
        tried[source] = (by_neighbours(features, true), true)
    tried["labels named"] = (from_names(play, true), true)
    tried["counts of the last evaluation"] = (from_tallies(play, true), true_shares(population, "test"))
    return [{"source": source, **score(*pair)} for source, pair in tried.items() if pair[0]]
