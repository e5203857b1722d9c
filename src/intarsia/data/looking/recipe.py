"""A complete recipe for own files, with a comment on every choice."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import tomli_w

from intarsia.core import DataError
from intarsia.data.looking.look import Look
from intarsia.data.population import Population

WIDTH = 110


def recipe_for(found: Look, home: Path) -> str:
    """Return settings for `intarsia run`, as TOML with comments; paths lead from the folder `home`."""
    if found.population is None or found.trouble:
        raise DataError(f"these files cannot be run yet: {found.trouble}")
    parts = [
        _comment(
            f"{len(found.population)} clients, {found.rows} {_unit(found)}. Run it: intarsia run THIS_FILE"
        ),
        *(_comment(f"Unsure: {text}") for text in found.roles.unsure),
        _lines({"name": found.paths[0].stem, "rounds": 30}),
        _method(found.population),
        _table("population", _population(found, home), found.reasons, _more(found)),
        _table("model", _model(found.population), {"hidden": "widths of the hidden layers"}),
        _table("training", _training(found), found.reasons),
    ]
    return "\n".join(parts)


def _unit(found: Look) -> str:
    return "pictures" if found.form == "pictures" else "rows"


def _population(found: Look, home: Path) -> dict[str, Any]:
    paths = [os.path.relpath(path, home) for path in found.paths]
    chosen = {**found.settings, "path": paths[0] if len(paths) == 1 else paths}
    return {key: value for key, value in chosen.items() if key != "name"} | {"test": 0.2}


def _more(found: Look) -> str:
    """Return settings that may be wanted, as comments."""
    hints = ["validation = 0.1    # a share of training rows to choose settings by (intarsia tune)"]
    if found.form == "tables" and found.roles.time:
        hints += [
            'time_parts = ["hour", "weekday"]    # learn from the time too',
            'window = 8    # series: so many rows are one sample (with model.name = "modular_lstm")',
        ]
    return "".join(f"# {hint}\n" for hint in hints)


def _method(population: Population) -> str:
    """Return the method: where devices differ in their inputs, each has an input side of its own."""
    shapes = {(info.device, info.shape) for info in population.infos}
    if len({info.shape for info in population.infos}) == 1 and len(shapes) == 1:
        return _comment(
            "One model for all, then some epochs on each client's own data (others: intarsia list methods)."
        ) + _lines({"method": "fedavg+"})
    devices = ", ".join(f"'{device}' {list(shape)}" for device, shape in sorted(shapes))
    about = _comment(
        f"Devices differ in what they measure: {devices}. Clients of one device share the input side of the network, "
        "those that learn alike the rest."
    )
    # The operation module begins with the second hidden layer: what lies behind the input side has one form for all.
    return about + _lines({"method": "modfl"}) + "\n" + _table("sharing", _cut(population), CUT)


def _cut(population: Population) -> dict[str, Any]:
    """Return where the network is cut; cohorts are found where there are labels to tell them by."""
    where = {"operation": "hidden2" if _model(population)["name"] == "mlp" else "hidden"}
    found = {"cohorts": "found", "compare": "last_bias"}
    told = len({info.cohort for info in population.infos}) > 1
    return where if told or population.problem == "regression" or len(population) < 4 else {**where, **found}


CUT = {
    "operation": "the first part of what is shared whatever the device",
    "cohorts": "clients that learn alike share it: they are found after the first round",
    "compare": "what depends least on the device",
}


def _model(population: Population) -> dict[str, Any]:
    """Return a network that takes the inputs."""
    shapes = {info.shape for info in population.infos}
    if all(len(shape) == 3 and min(shape[1:]) >= 4 for shape in shapes):
        return {"name": "cnn"}
    return {"name": "mlp", "hidden": [32, 16]}


def _training(found: Look) -> dict[str, Any]:
    assert found.population is not None
    least = min(info.train_samples for info in found.population.infos)
    regression = found.population.problem == "regression"
    weights = {"class_weights": "balanced"} if "class_weights" in found.reasons else {}
    return {"lr": 0.05 if regression else 0.1, "epochs": 2, "batch_size": max(1, min(16, least)), **weights}


def _table(name: str, values: dict[str, Any], reasons: dict[str, str], after: str = "") -> str:
    named = {"name": "files", **values} if name == "population" else values
    body = "".join(_line(key, value, reasons.get(key, "")) for key, value in named.items())
    return f"[{name}]\n{body}{after}"


def _lines(values: dict[str, Any]) -> str:
    return "".join(_line(key, value, "") for key, value in values.items())


def _line(key: str, value: Any, why: str) -> str:
    """Return a setting with its reason, beside it or above it."""
    text = f"{key} = {_value(value)}"
    if why and len(text) + len(why) + 4 <= WIDTH:
        return f"{text}  # {_harmless(why)}\n"
    return (_comment(why) if why else "") + f"{text}\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{_value(key)} = {_value(own)}" for key, own in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(_harmless(text), WIDTH - 2))


def _harmless(text: str) -> str:
    """Return a text that stays a comment: one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)
