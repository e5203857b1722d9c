"""Leading slices of a network: narrower copies, and the scaling that keeps their values comparable."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from intarsia.core import SettingsError

Wide = nn.Linear | nn.Conv1d | nn.Conv2d
WIDE = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers whose units can be fewer."""
RATIO = "width_ratio"
HELD = "held_labels"


def narrow(model: nn.Module, width: float) -> nn.Module:
    """Return a copy whose layers hold this share of their units, rounded up: the leading ones, with their weights.

    The inputs of the first layer and the outputs of the last stay. Layers are taken in the order in which the model
    names them; a linear layer or norm behind a flattened map keeps the values of the leading channels.
    """
    small = copy.deepcopy(model)
    layers = _with_tensors(small)
    wide = [layer for layer in layers if isinstance(layer, WIDE)]
    if len(wide) < 2:
        raise SettingsError(f"{type(model).__name__} has no hidden layer that could be narrower")
    units = 0
    for layer in layers:
        if isinstance(layer, WIDE):
            outputs, inputs = layer.weight.shape[0], _inputs(layer)
            kept_inputs = inputs if layer is wide[0] else _behind(layer, inputs, units, width)
            _cut_wide(layer, outputs if layer is wide[-1] else fewer(outputs, width), kept_inputs)
            units = outputs
        elif units:
            _cut_norm(layer, units, width)
    return small


def fewer(size: int, width: float) -> int:
    """Return this share of so many units, rounded up."""
    return max(1, math.ceil(round(size * width, 6)))


def hidden_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers with units of their own by name, all but the last: its units are the outputs."""
    return dict(_wide_layers(model)[:-1])


def last_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights of the layer whose units are the outputs: a row an output."""
    return [
        f"{path}.{name}" if path else name
        for path, layer in _wide_layers(model)[-1:]
        for name, _ in layer.named_parameters(recurse=False)
    ]


def _wide_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, WIDE)]


def add_scalers(model: nn.Module) -> None:
    """Let every hidden layer divide what it gives by its ratio, in training and after: see `set_ratios`."""
    for layer in hidden_layers(model).values():
        setattr(layer, RATIO, 1.0)
        layer.register_forward_hook(_scale)


def set_ratios(model: nn.Module, ratios: Mapping[str, float]) -> None:
    """Set the ratio of every hidden layer, by name; 1 where none is given."""
    for name, layer in hidden_layers(model).items():
        setattr(layer, RATIO, ratios.get(name, 1.0))


def _scale(layer: nn.Module, _: object, output: Tensor) -> Tensor:
    ratio: float = getattr(layer, RATIO)
    return output / ratio if ratio != 1.0 else output


def add_mask(model: nn.Module) -> None:
    """Let a model give zero for labels that its client does not have: see `set_mask`."""
    setattr(model, HELD, None)
    model.register_forward_hook(_mask)


def set_mask(model: nn.Module, labels: Tensor | None) -> None:
    """Set which labels a client has; all if none are given."""
    setattr(model, HELD, None if labels is None else torch.unique(labels))


def _mask(model: nn.Module, _: object, output: Tensor) -> Tensor:
    held: Tensor | None = getattr(model, HELD)
    if held is None:
        return output
    mask = output.new_zeros(output.shape[1])
    mask[held.to(output.device)] = 1.0
    return output * mask


class Masked(nn.Module):
    """A model whose scores of labels that its client does not have are zero."""

    mask: Tensor

    def __init__(self, model: nn.Module, held: Tensor, outputs: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mask", torch.zeros(outputs).index_fill_(0, held.cpu(), 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's scores, or zero."""
        scores: Tensor = self.model(x)
        return scores * self.mask


@torch.no_grad()
def unhooked(module: nn.Module) -> nn.Module:
    """Return a module whose scaling is in its weights and whose mask is a layer, instead of hooks (both in place)."""
    hooks = module._forward_hooks
    ours = {key: hook for key, hook in hooks.items() if hook in (_scale, _mask)}
    for key in ours:
        del hooks[key]
    if _scale in ours.values():
        for weight in module.parameters(recurse=False):
            weight.copy_(weight.double() / getattr(module, RATIO))
    held: Tensor | None = getattr(module, HELD, None)
    if _mask not in ours.values() or held is None:
        return module
    outputs = _wide_layers(module)[-1][1].get_parameter("weight").shape[0]
    return Masked(module, held, outputs)


def _with_tensors(model: nn.Module) -> list[Wide | _BatchNorm]:
    """Return the layers that hold tensors, in order; one that cannot be narrowed is an error."""
    layers: list[Wide | _BatchNorm] = []
    for name, layer in model.named_modules():
        if not [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            continue
        if not isinstance(layer, (*WIDE, _BatchNorm)) or _odd_groups(layer):
            raise SettingsError(
                f"{type(model).__name__} cannot be made narrower: '{name or type(layer).__name__}' is {layer}, and "
                "slices are made of linear layers, convolutions and batch norms; give clients models of their widths "
                "by name (settings [models.NAME])"
            )
        layers.append(layer)
    return layers


def _odd_groups(layer: nn.Module) -> bool:
    """Say whether a convolution is grouped, but not channel by channel."""
    if not isinstance(layer, nn.Conv1d | nn.Conv2d) or layer.groups == 1:
        return False
    return not layer.groups == layer.in_channels == layer.out_channels


def _inputs(layer: Wide) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def _behind(layer: nn.Module, size: int, units: int, width: float) -> int:
    """Return how many of a layer's inputs are left, behind a layer that had so many units."""
    flat = isinstance(layer, nn.Linear | nn.BatchNorm1d) and size % units == 0
    return size // units * fewer(units, width) if flat else fewer(size, width)


def _cut_wide(layer: Wide, outputs: int, inputs: int) -> None:
    if isinstance(layer, nn.Linear):
        layer.in_features, layer.out_features = inputs, outputs
        _keep(layer, outputs, inputs)
        return
    layer.groups = 1 if layer.groups == 1 else inputs
    layer.in_channels, layer.out_channels = inputs, outputs
    _keep(layer, outputs, inputs // layer.groups)


def _cut_norm(layer: _BatchNorm, units: int, width: float) -> None:
    layer.num_features = _behind(layer, layer.num_features, units, width)
    _keep(layer, layer.num_features)


def _keep(layer: nn.Module, outputs: int, inputs: int | None = None) -> None:
    """Cut the layer's own tensors to the leading outputs and inputs."""
    for name, weight in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, nn.Parameter(_leading(weight, outputs, inputs), weight.requires_grad))
    for name, buffer in list(layer.named_buffers(recurse=False)):
        setattr(layer, name, _leading(buffer, outputs, inputs))


def _leading(tensor: Tensor, outputs: int, inputs: int | None) -> Tensor:
    if tensor.dim() == 0:
        return tensor
    kept = tensor.detach()[:outputs]
    return (kept[:, :inputs] if kept.dim() > 1 else kept).clone()
