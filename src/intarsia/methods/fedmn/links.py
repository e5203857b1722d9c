"""The links between the blocks of a module pool: which are there, which are used, which path is likely.

Layers are numbered from 0 (encoders) to L-1 (heads). Links are numbered layer by layer, row by row: from
every block of a layer to every block of the next; then from every head to the output.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

ENCODER = "encoder"
"""Begins the names of the pool's encoders."""
Layers = tuple[int, ...]
"""How many blocks each layer has."""
Place = tuple[int, int]
"""A block: its layer, and its number there, both from 0."""


def count_links(layers: Layers) -> int:
    """Return E, the number of possible links: sum of n_l n_(l+1), and one from every head."""
    return sum(a * b for a, b in itertools.pairwise(layers)) + layers[-1]


def matrices(layers: Layers, gates: Tensor) -> list[Tensor]:
    """Return the gates behind each layer as a matrix (blocks x blocks of the next; heads x 1)."""
    widths = [*layers[1:], 1]
    parts = torch.split(gates, [a * b for a, b in zip(layers, widths, strict=True)])
    return [part.view(a, b) for part, a, b in zip(parts, layers, widths, strict=True)]


def active_blocks(layers: Layers, on: Tensor) -> frozenset[Place]:
    """Return the blocks that an encoder reaches and that reach the output, by links that are on."""
    ways = [m.tolist() for m in matrices(layers, on.bool())]
    reached = [set(range(layers[0]))]
    for way, width in zip(ways, layers[1:], strict=False):
        reached.append({k for k in range(width) if any(way[j][k] for j in reached[-1])})
    useful = [{j for j in reached[-1] if ways[-1][j][0]}]
    for way, here in zip(reversed(ways[:-1]), reversed(reached[:-1]), strict=True):
        useful.insert(0, {j for j in here if any(way[j][k] for k in useful[0])})
    return frozenset((layer, number) for layer, own in enumerate(useful) for number in own)


def likeliest_path(layers: Layers, scores: Tensor) -> list[int]:
    """Return the links of the complete path with the largest sum of log probabilities, from their logits."""
    logs = torch.nn.functional.logsigmoid(scores.double())
    numbers = matrices(layers, torch.arange(len(scores)))
    best: list[tuple[float, list[int]]] = [(0.0, [])] * layers[0]
    for weights, names in zip(matrices(layers, logs), numbers, strict=True):
        best = [
            max(
                (
                    (best[j][0] + float(weights[j, k]), [*best[j][1], int(names[j, k])])
                    for j in range(len(best))
                ),
                key=lambda way: way[0],
            )
            for k in range(weights.shape[1])
        ]
    return best[0][1]


def complete(layers: Layers, on: Tensor, scores: Tensor) -> tuple[Tensor, bool]:
    """Return gates with a complete path: these, or with the likeliest path switched on; and whether it was."""
    if active_blocks(layers, on):
        return on, False
    on = on.clone()
    on[likeliest_path(layers, scores)] = 1
    return on, True


def binary_concrete(scores: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Return soft gates (FedMN, eq. 5): sigmoid((logit of the noise + scores) / temperature)."""
    return torch.sigmoid((torch.logit(noise) + scores) / temperature)


def straight_through(soft: Tensor, hard: Tensor) -> Tensor:
    """Return the hard gates with the gradient of the soft ones."""
    return hard + soft - soft.detach()


def block_name(layers: Layers, place: Place) -> str:
    """Return the name of a block: `encoder1`, `block2-1`, ..., `head1`."""
    layer, number = place
    if layer == 0:
        return f"{ENCODER}{number + 1}"
    return f"head{number + 1}" if layer == len(layers) - 1 else f"block{layer + 1}-{number + 1}"


def link_ends(layers: Layers) -> list[tuple[Place, Place]]:
    """Return where every link begins and ends, in their order; the output is block 0 of layer L."""
    widths = [*layers[1:], 1]
    return [
        ((layer, j), (layer + 1, k))
        for layer, width in enumerate(layers)
        for j in range(width)
        for k in range(widths[layer])
    ]


def effective_links(layers: Layers, on: Sequence[float] | Tensor) -> list[bool]:
    """Return for every link whether it is on and stands between blocks that are active, or one and the output."""
    gates = torch.as_tensor(on)
    ends = active_blocks(layers, gates) | {(len(layers), 0)}
    pairs = zip(gates.tolist(), link_ends(layers), strict=True)
    return [bool(gate) and start in ends and end in ends for gate, (start, end) in pairs]
