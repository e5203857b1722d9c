"""Clients made of arrays and tensors; a dict of them, given in Python, as a population."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsIndex, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.core import DataError, warn
from intarsia.data.population import (
    ATTRIBUTES,
    PROFILE,
    SPLITS,
    Client,
    ClientInfo,
    Examples,
    Goal,
    Population,
    Problem,
    Scaling,
)
from intarsia.data.precision import merged_in_float32

OF_DEVICE = "device_"
"""Begins the name of a column that says what a client's device can do: `device_speed`."""


def make_client(
    name: str,
    data: Mapping[str, tuple[Any, Any]],
    problem: Problem,
    scaling: Scaling | None = None,
    **attributes: Any,
) -> Client:
    """Return a client after checking its data; errors name the client and the split."""
    splits = {s: _examples(name, s, *data[s], problem, scaling) for s in SPLITS if s in data}
    for split in ("train", "test"):
        if split not in splits:
            raise DataError(f"client '{name}' has no {split} data: give it some, or leave the client out")
    shapes = {tuple(e.x.shape[1:]) for e in splits.values()}
    if len(shapes) > 1:
        raise DataError(f"client '{name}' has inputs of different shapes in its splits: {sorted(shapes)}")
    about = {key: value for key, value in attributes.items() if not key.startswith(OF_DEVICE)}
    profile = {key.removeprefix(OF_DEVICE): v for key, v in attributes.items() if key.startswith(OF_DEVICE)}
    info = ClientInfo(
        name, shapes.pop(), {s: len(e) for s, e in splits.items()}, **({"profile": profile} | about)
    )
    return Client(info, splits)


def from_dict(
    clients: Mapping[str, Mapping[str, Any]],
    problem: Problem = "classification",
    classes: int | None = None,
) -> Population:
    """Make a population of a user's own data.

    `{"truck-1": {"train": (x, y), "test": (x, y), "device": "gen1", "cohort": "north"}, ...}`, where x
    and y are tensors, arrays or lists, or a split is a torch Dataset of (x, y). A split `validation`
    and the attributes `device`, `cohort`, `capacity`, `model` and `task` are optional, as is a `profile` of what its
    device can do (`{"speed": 2e9, "up": 1e5}`, see the setting `fleet`). Clients of different
    tasks may predict different things; `problem` says so for a client ("classification" or "regression").
    """
    if not isinstance(clients, Mapping):
        raise DataError(f"data must be a dict of clients by name, not a {type(clients).__name__}")
    if not clients:
        raise DataError("a population needs at least one client")
    made: dict[str, Client] = {}
    kinds: dict[str, Problem] = {}
    doubles: list[NDArray[np.float64]] = []
    for given, entry in clients.items():
        name = str(given)
        if name in made:
            raise DataError(f"two clients are called '{name}', as a number and as a word: names are words")
        _check_keys(name, entry)
        splits = {s: pair_of(name, s, entry[s]) for s in SPLITS if entry.get(s) is not None}
        attributes = attributes_of(name, entry)
        kinds[name] = _problem(name, entry.get("problem", problem))
        made[name] = make_client(name, splits, kinds[name], **attributes)
        _warn_of_same(made[name])
        doubles += [x for x in (_plain(x) for x, _ in splits.values()) if x.dtype == np.float64]
    merged = merged_in_float32(doubles, "subtract an offset from the column, or standardise it")
    if merged:
        raise DataError(f"the clients' inputs: {merged}")
    if not isinstance(classes, SupportsIndex | None):
        raise DataError(f"classes: give a whole number, not {classes!r}")
    goals = _goals(made, kinds, classes)
    first = next(iter(goals.values()))
    return Population(made, first.outputs, first.problem, tasks=goals if len(goals) > 1 else {})


def _check_keys(name: str, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        raise DataError(f"client '{name}' must be a dict with train and test, not {type(entry)}")
    known = (*SPLITS, *ATTRIBUTES, "profile", "problem")
    if unknown := entry.keys() - set(known):
        raise DataError(f"client '{name}' has unknown keys {sorted(unknown)}; known keys: {', '.join(known)}")


def _warn_of_same(client: Client) -> None:
    train, test = client.data["train"], client.data["test"]
    if train.x.shape == test.x.shape and torch.equal(train.x, test.x) and len(train) > 1:
        warn(
            f"client '{client.info.name}' is tested on what it trains on, so that its score says little: give other "
            "samples as test"
        )


def _plain(x: Any) -> NDArray[Any]:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _problem(name: str, value: Any) -> Problem:
    if value not in get_args(Problem):
        raise DataError(f"client '{name}' has problem '{value}': write classification or regression")
    problem: Problem = value
    return problem


def _goals(
    clients: Mapping[str, Client], kinds: Mapping[str, Problem], classes: int | None
) -> dict[str, Goal]:
    """Return the goal of every task; its clients must agree on the kind of problem."""
    goals = {}
    for task in dict.fromkeys(client.info.task for client in clients.values()):
        own = {name: client for name, client in clients.items() if client.info.task == task}
        if len({kinds[name] for name in own}) > 1:
            other = next(name for name in own if kinds[name] != kinds[next(iter(own))])
            raise DataError(
                f"clients '{next(iter(own))}' and '{other}' have different problems: give them different tasks"
            )
        problem = kinds[next(iter(own))]
        goals[task] = Goal(_outputs(own, problem, classes), problem)
    return goals


def _outputs(clients: Mapping[str, Client], problem: Problem, classes: int | None) -> int:
    targets = {c.info.name: [e.y for e in c.data.values()] for c in clients.values()}
    if problem == "regression":
        return max(y.shape[1] for ys in targets.values() for y in ys)
    for name, ys in targets.items():
        low, high = min(int(y.min()) for y in ys), max(int(y.max()) for y in ys)
        if low < 0 or (classes is not None and high >= classes):
            raise DataError(
                f"client '{name}' has labels from {low} to {high}; they must lie in 0 ... "
                f"{'classes - 1' if classes is None else classes - 1}"
            )
    if classes is None and all(int(y.min()) > 0 for ys in targets.values() for y in ys):
        least = min(int(y.min()) for ys in targets.values() for y in ys)
        warn(
            f"no client has a sample of label 0, the labels begin at {least}: models get an output for every number "
            f"below too; subtract {least} from all labels, or give classes=... to intarsia.from_dict if that is meant"
        )
    return classes or max(2, 1 + max(int(y.max()) for ys in targets.values() for y in ys))


def attributes_of(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of a client: a number for its capacity, words for the rest."""
    said = {key: entry[key] for key in ATTRIBUTES if entry.get(key) is not None}
    attributes: dict[str, Any] = {key: str(value) for key, value in said.items()}
    if "capacity" in said:
        try:
            attributes["capacity"] = float(said["capacity"])
        except (TypeError, ValueError):
            attributes["capacity"] = math.nan
        if not 0 < attributes["capacity"] < math.inf:
            raise DataError(f"client '{name}' has capacity {said['capacity']!r}: write a number above 0")
    if entry.get("profile"):
        attributes["profile"] = _profile(name, entry["profile"])
    return attributes


def _profile(name: str, said: Any) -> dict[str, float | str]:
    """Return what is said of what a client's device can do."""
    odd = [key for key in said if key not in PROFILE] if isinstance(said, Mapping) else [""]
    if odd:
        raise DataError(
            f"the profile of client '{name}' must be a dict with any of {', '.join(PROFILE)}: see {odd[0] or said!r}"
        )
    try:
        return {key: str(value) if key == "available" else float(value) for key, value in said.items()}
    except (TypeError, ValueError) as error:
        raise DataError(f"the profile of client '{name}' must have numbers: {error}") from error


def pair_of(name: str, split: str, value: Any) -> tuple[Any, Any]:
    """Return the inputs and targets of a split, given as a pair or as a Dataset of pairs."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    where = f"{split} data of client '{name}'"
    single = isinstance(value, str | Mapping | Tensor | np.ndarray)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not single:
        rows = [value[i] for i in range(len(value))]
        if not all(isinstance(row, tuple | list) and len(row) > 1 for row in rows):
            raise DataError(f"{where} must be a pair (x, y), or a Dataset of such pairs")
        inputs = [_tensor(where, row[0]) for row in rows]
        try:
            x = torch.stack(inputs) if rows else torch.empty(0)
            return x, np.asarray([np.asarray(row[1]) for row in rows])
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{where} cannot be made tensors: {error}") from error
    raise DataError(f"{where} must be a pair (x, y), or a Dataset of such pairs")


def _tensor(where: str, x: Any) -> Tensor:
    """Return inputs as a tensor; errors say what they are instead."""
    try:
        return torch.as_tensor(x).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        if _word(x) is not None:
            raise DataError(f"{where}: x must be numbers, not words such as '{_word(x)}'") from error
        if _are_several(x):
            raise DataError(f"{where}: {ONE_TENSOR}") from error
        raise DataError(f"{where} cannot be made tensors: {error}") from error


ONE_TENSOR = (
    "x must be one tensor with a row a sample, not several: torch.stack the rows, or put several inputs "
    "side by side (torch.cat) and let the model take them apart"
)


def _are_several(x: Any) -> bool:
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else ()
    return any(isinstance(part, (Tensor, np.ndarray)) for part in parts)


def _word(values: Any) -> str | None:
    """Return the first of these values if it is a word."""
    try:
        first = np.asarray(values).reshape(-1)[:1].tolist()
    except (TypeError, ValueError, RuntimeError):
        return None
    return next((str(value) for value in first if isinstance(value, (str, bytes))), None)


def _target_tensor(where: str, y: Any, problem: Problem) -> Tensor:
    """Return targets as a tensor; words are no targets."""
    try:
        return torch.as_tensor(y).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        if _word(y) is None:
            raise DataError(f"{where} cannot be made tensors: {error}") from error
        if problem == "regression":
            raise DataError(f"{where}: targets must be numbers, not words such as '{_word(y)}'") from error
        raise DataError(
            f"{where}: labels must be whole numbers, not words such as '{_word(y)}': number the words in the same "
            "way for all clients, {word: i for i, word in enumerate(sorted(all_words))}"
        ) from error


def _examples(name: str, split: str, x: Any, y: Any, problem: Problem, scaling: Scaling | None) -> Examples:
    where = f"{split} data of client '{name}'"
    inputs, targets = _tensor(where, x), _target_tensor(where, y, problem)
    if inputs.dim() == 0 or targets.dim() == 0:
        raise DataError(f"{where} must have one row a sample, not a single number")
    if len(inputs) != len(targets):
        if _are_several(x):
            raise DataError(f"{where}: {ONE_TENSOR}")
        raise DataError(f"{where}: {len(inputs)} inputs but {len(targets)} targets")
    if len(inputs) == 0:
        raise DataError(f"client '{name}' has no {split} data: give it some, or leave the client out")
    if inputs.is_floating_point() or (inputs.dtype == torch.uint8 and scaling is None):
        inputs = inputs.float()
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        row = int((~torch.isfinite(inputs.reshape(len(inputs), -1)).all(1)).nonzero()[0])
        raise DataError(f"{where}: row {row} holds a NaN or an infinity; clean it or leave the row out")
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return Examples(inputs, _targets(where, targets, problem), scaling)


def _targets(where: str, targets: Tensor, problem: Problem) -> Tensor:
    if problem == "regression":
        if not torch.isfinite(targets.float()).all():
            raise DataError(f"{where}: a target is a NaN or an infinity; clean it or leave the row out")
        return targets.float().reshape(len(targets), -1)
    if targets.dim() != 1 or (targets.is_floating_point() and not bool((targets == targets.round()).all())):
        raise DataError(
            f"{where}: labels must be whole numbers, one a sample (shape [n]), not {targets.dtype} "
            f"{list(targets.shape)}; for regression set training.loss to 'mse'"
        )
    return targets.long()
