"""How far exported models are from the originals, by method and by network: `python -m benchmarks.exports`.

    python -m benchmarks.exports [--out benchmarks/exports.json] [--methods fedavg fedem]

A small run of every method on scikit-learn's digits; the own models of the first client and of the last are written in
each format, run, and compared with the original on the client's test data and on made inputs. Networks are compared
with fresh weights.
The differences are of outputs and probabilities, relative to outputs where these are larger than 1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from tests.conftest import NEEDS, SMALL

import intarsia
from intarsia.data.population import Goal, Scaling
from intarsia.data.recorded import Form
from intarsia.export import FORMATS, Inputs, Package, export
from intarsia.methods import METHODS
from intarsia.models import MODELS
from intarsia.models.spec import Spec

BYTES = Scaling(1 / 255, (0.5,) * 3, (0.25,) * 3)
TEXT, IMAGE, ROWS = Form((40,), "int64"), Form((3, 32, 32), "uint8", BYTES), Form((64,))
FORMS = {
    "char_lstm": TEXT,
    "char_transformer": TEXT,
    "modular_lstm": Form((50, 6)),
    "mlp": ROWS,
    "logistic": ROWS,
}


def of_method(method: str, folder: Path) -> dict[str, Any]:
    """Return the largest difference of two clients' models, by format."""
    changes = [f"method={method}", "sampling.clients=5", *NEEDS.get(method, ())]
    run = intarsia.run(SMALL, changes=changes, out=folder / "run")
    return _worst([run.client(name).package() for name in (run.clients[0], run.clients[-1])], folder)


def of_network(name: str, folder: Path) -> dict[str, Any]:
    """Return the difference of a network with fresh weights, by format."""
    form = FORMS.get(name, IMAGE)
    network = Spec(MODELS[name](), form.shape, 10).build(0)
    return _worst([Package(name, network, Inputs(form), Goal(10))], folder)


def _worst(packages: Sequence[Package], folder: Path) -> dict[str, Any]:
    found = {
        end: max(export(p, folder / f"{i}{end}").difference for i, p in enumerate(packages))
        for end in FORMATS
    }
    return {"models": len(packages), **found}


def table(rows: Mapping[str, Mapping[str, Any]], what: str) -> str:
    lines = [f"| {what} | {' | '.join(FORMATS)} |", f"| --- |{' --- |' * len(FORMATS)}"]
    lines += [
        f"| {name} | {' | '.join(f'{row[end]:.1e}' for end in FORMATS)} |" for name, row in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("exports.json"))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "intarsia": intarsia.__version__,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "methods": {},
        "models": {},
    }
    for kind, names, measure in (("methods", asked.methods, of_method), ("models", asked.models, of_network)):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                record[kind][name] = measure(name, Path(folder))
            print(name, record[kind][name], flush=True)
            asked.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record["methods"], "method"), table(record["models"], "network"), sep="\n\n")


if __name__ == "__main__":
    main()
