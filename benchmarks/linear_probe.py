"""How good a base's features are: a linear probe on STL-10.

    python benchmarks/linear_probe.py FILE.npz --size 192 [--data DIR]

FILE.npz holds a MobileNetV2 under TensorFlow's names. Images are resized to SIZE, the frozen network's pooled
features are standardised on the training images, and a ridge classifier is fitted to them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from intarsia.data import Examples, Images, places
from intarsia.models import MobileNetV2, load_weights, mobilenet_from_tensorflow
from intarsia.models.architectures.mobilenet import published_width
from intarsia.training import channels_last_layout


@torch.inference_mode()
def features(model: nn.Module, examples: Examples) -> NDArray[np.float32]:
    """Return what the model gives for every image, its head left out."""
    pieces = []
    for start in range(0, len(examples), 100):
        rows = examples.x[start : start + 100].permute(0, 2, 3, 1)
        x = rows.float() if examples.scaling is None else examples.scaling.apply(rows)
        pieces.append(model(x.permute(0, 3, 1, 2)))
    return torch.cat(pieces).numpy()


def probe(source: Path, size: int, folder: str = "", per_label: tuple[int, ...] = ()) -> float:
    """Return the accuracy of a linear classifier on STL-10's test part."""
    images = Images(
        dataset="stl10", clients=1, split="published", size=size, standardise=False, per_label=per_label
    )
    (client,) = images.load(0, places(folder)).clients.values()
    tensors = mobilenet_from_tensorflow(source)
    model = MobileNetV2(width=published_width(tensors, str(source))).build((3, size, size), 10)
    load_weights(model, tensors)
    model.head = nn.Identity()
    channels_last_layout(model.eval())
    linear = make_pipeline(StandardScaler(), RidgeClassifier(alpha=1000))
    linear.fit(features(model, client.data["train"]), client.data["train"].y)
    return float(linear.score(features(model, client.data["test"]), client.data["test"].y))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--data", default="")
    given = parser.parse_args()
    start = time.perf_counter()
    accuracy = probe(given.source, given.size, given.data)
    print(f"STL-10 at {given.size} px: {accuracy:.4f} ({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
