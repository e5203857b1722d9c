"""Adapters: small trainable layers beside frozen ones, and their exact removal.

Parallel adapters for convolutions: Rebuffi et al. 2018, "Efficient parametrization of multi-domain deep neural
networks"; low-rank ones for linear layers: Hu et al. 2022, "LoRA".
"""

from __future__ import annotations

import copy
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import SettingsError, part

Init = Literal["he", "zero"]
Form = Literal["parallel", "series"]
L = TypeVar("L", bound=nn.Module)


@part
class Adapters:
    """No adapters: the model is trained as it is."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "the model is trained as it is"

    def add(self, model: nn.Module) -> nn.Module:
        """Return the model with adapters."""
        return model


@part
class Parallel(Adapters):
    """Beside every k x k convolution a 1x1 convolution; beside linear layers a low rank, if one is given.

    Elvebakken, Iosifidis and Esterle 2023, "Adaptive parameterization of deep learning models for federated
    learning", with the topology of Rebuffi et al. 2018. The k x k weights are frozen; adapters, norms with their
    statistics and the output layer are trained and sent. Deviations: the base is what `weights` names, or random, and
    is labelled so, where the paper has ImageNet's; a rank for linear layers and 1x1 convolutions (Hu et al. 2022) and
    the form `series` are not the paper's; FedNova normalises parameters alone, not the statistics of norms.
    """

    name: ClassVar[str] = "parallel"
    summary: ClassVar[str] = "1x1 convolutions beside frozen k x k ones (Rebuffi et al. 2018)"
    form: ClassVar[Form] = "parallel"

    init: Init = "he"
    """`he`: N(0, 2 / outputs), as in the published topology; `zero`: the model starts as it is."""
    rank: Annotated[int, Field(ge=0)] = 0
    """Rank of the adapters of linear layers and 1x1 convolutions (0: linear layers are trained themselves,
    1x1 convolutions stay frozen)."""
    last: str = ""
    """The layer that is trained itself: the output layer (empty: the last linear one)."""

    def add(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model with adapters; what they stand beside is frozen."""
        return add_adapters(model, init=self.init, form=self.form, rank=self.rank, last=self.last)


@part
class Series(Parallel):
    """Behind every k x k convolution a 1x1 convolution: y + a(y)."""

    name: ClassVar[str] = "series"
    summary: ClassVar[str] = "1x1 convolutions behind frozen k x k ones (Rebuffi et al. 2017)"
    form: ClassVar[Form] = "series"


ADAPTERS: dict[str, type[Adapters]] = {kind.name: kind for kind in (Adapters, Parallel, Series)}


class _Folded(torch.autograd.Function):
    """A convolution whose middle tap holds the adapter: one forward, one back, none for the frozen taps.

    The same values as two convolutions, up to the rounding of the sum of their weights.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, adapter: Tensor, bias: Tensor | None, conv: nn.Conv2d
    ) -> Tensor:
        row, column = _tap(conv)
        folded = weight.clone()
        folded[:, :, row, column] += adapter[:, :, 0, 0]
        x, folded, adapter = (_as_in_this_pass(tensor) for tensor in (x, folded, adapter))
        ctx.save_for_backward(x, folded, adapter)
        ctx.conv = conv
        return functional.conv2d(x, folded, bias, conv.stride, conv.padding, conv.dilation, conv.groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, folded, adapter = ctx.saved_tensors
        conv: nn.Conv2d = ctx.conv
        to_input = to_weight = to_adapter = to_bias = None
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3]]
        if any(wanted):
            sizes = None if conv.bias is None else [conv.out_channels]
            whole = (conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups, wanted)
            to_input, to_weight, to_bias = torch.ops.aten.convolution_backward(
                gradient, x, folded, sizes, *whole
            )
        if ctx.needs_input_grad[2]:
            seen = _at_the_tap(x, conv)
            rows, columns = ((n - 1) * s + 1 for n, s in zip(gradient.shape[-2:], conv.stride, strict=True))
            single = (conv.stride, [0, 0], [1, 1], False, [0, 0], conv.groups, [False, True, False])
            _, to_adapter, _ = torch.ops.aten.convolution_backward(
                gradient, seen[..., :rows, :columns], adapter, None, *single
            )
        return to_input, to_weight, to_adapter, to_bias, None


def _as_in_this_pass(tensor: Tensor) -> Tensor:
    """Return a tensor in the precision that autocast gives to convolutions, if it is on."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


class ConvAdapter(nn.Module):
    """A frozen k x k convolution with a 1x1 convolution beside or behind it, in as many groups."""

    apart = False
    """Whether both are called as modules, one after the other: for whoever hooks into modules."""

    def __init__(self, base: nn.Conv2d, form: Form, init: Init) -> None:
        super().__init__()
        self.base = base
        self.form = form
        self.init = init
        inputs = base.in_channels if self.form == "parallel" else base.out_channels
        self.adapter = nn.Conv2d(inputs, base.out_channels, 1, groups=base.groups, bias=False)
        self.adapter.to(base.weight)
        self.reset_parameters()
        _freeze(base)

    def reset_parameters(self) -> None:
        """Let the adapter start anew; what is frozen stays."""
        if self.init == "he":
            nn.init.normal_(self.adapter.weight, 0.0, (2.0 / self.base.out_channels) ** 0.5)
        else:
            nn.init.zeros_(self.adapter.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return what both give together."""
        if self.form == "parallel":
            if self.apart or isinstance(self.base.padding, str) or self.base.padding_mode != "zeros":
                return self._apart(x)
            weights = (self.base.weight, self._beside(), self.base.bias)
            y: Tensor = _Folded.apply(x, *weights, self.base)  # type: ignore[no-untyped-call]
            return y
        z = self.base(x)
        return z + self.adapter(z)  # type: ignore[no-any-return]

    def _beside(self) -> Tensor:
        """Return the adapter's weight; of one whose weights are drawn, as this pass has them."""
        drawn = getattr(self.adapter, "drawn", None)
        return drawn()[0] if drawn else self.adapter.weight

    def _apart(self, x: Tensor) -> Tensor:
        """Return the sum of both convolutions, computed one after the other."""
        y, seen = self.base(x), _at_the_tap(x, self.base)
        whole = (self.base.stride, 0, 1, self.base.groups)
        beside = self.adapter(seen) if self.apart else functional.conv2d(seen, self._beside(), None, *whole)
        return y + beside[..., : y.shape[-2], : y.shape[-1]]  # type: ignore[no-any-return]

    @torch.no_grad()
    def folded(self) -> nn.Conv2d:
        """Return one convolution that does the same."""
        conv = _plain(self.base)
        extra = self.adapter.weight[:, :, 0, 0]
        if self.form == "series":
            _compose(conv, extra)
        else:
            row, column = _tap(self.base)
            conv.weight[:, :, row, column] += extra.to(conv.weight.dtype)
        return conv


class LowRankAdapter(nn.Module):
    """A frozen linear layer or 1x1 convolution with a product of two thin ones beside it, zero at first."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.base = base
        inputs, outputs = base.weight.shape[1], base.weight.shape[0]
        self.down = nn.Parameter(base.weight.new_empty(rank, inputs))
        self.up = nn.Parameter(base.weight.new_zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)
        _freeze(base)

    def forward(self, x: Tensor) -> Tensor:
        """Return what both give together."""
        y: Tensor = self.base(x)
        if isinstance(self.base, nn.Linear):
            return y + functional.linear(functional.linear(x, self.down), self.up)
        thin = functional.conv2d(x, self.down[:, :, None, None], None, self.base.stride, self.base.padding)
        return y + functional.conv2d(thin, self.up[:, :, None, None])

    @property
    def weight(self) -> Tensor:
        """The weight of both together, for networks that look at it (torch's transformer layers do)."""
        return self.base.weight + (self.up @ self.down).view_as(self.base.weight)

    @property
    def bias(self) -> Tensor | None:
        """The frozen layer's."""
        return self.base.bias

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return one layer that does the same."""
        layer = _plain(self.base)
        extra = (self.up.double() @ self.down.double()).to(layer.weight.dtype)
        layer.weight += extra.view_as(layer.weight)
        return layer


def add_adapters(
    model: nn.Module, *, init: Init = "he", form: Form = "parallel", rank: int = 0, last: str = ""
) -> nn.Module:
    """Return a copy of the model with adapters; what they stand beside is frozen, the rest is trained.

    Every convolution with a kernel larger than 1x1 gets a 1x1 adapter, in as many groups as it has itself (a
    depthwise one gets a factor a channel). 1x1 convolutions are frozen; with a `rank` they and linear layers
    get low-rank adapters. The last linear layer (or the one named) is always trained itself, and so are norms.
    The result computes what the model does if `init` is "zero" (linear adapters always start so).
    """
    adapted = copy.deepcopy(model)
    names = [name for name, m in adapted.named_modules() if type(m) in (nn.Conv2d, nn.Linear)]
    if any(isinstance(m, (ConvAdapter, LowRankAdapter)) for m in adapted.modules()):
        raise SettingsError(f"{type(model).__name__} has adapters already: remove them first")
    linear = [name for name in names if isinstance(adapted.get_submodule(name), nn.Linear)]
    if last and last not in names:
        raise SettingsError(f"adapters: the model has no linear layer or convolution '{last}'")
    whole = last or (linear[-1] if linear else "")
    for name in names:
        if name != whole:
            _adapt(adapted, name, form, init, rank)
    if all(weight.requires_grad for weight in adapted.parameters()):
        raise SettingsError(
            f"{type(model).__name__} has nothing that adapters could stand beside: it has no 2-d convolution; "
            "for linear layers give a rank"
        )
    return adapted


def remove_adapters(model: nn.Module) -> nn.Module:
    """Return a copy in which every adapter is folded into the layer it stands beside: plain, all trainable."""
    if isinstance(model, (ConvAdapter, LowRankAdapter)):
        return model.folded()
    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, (ConvAdapter, LowRankAdapter)):
            _replace(plain, name, module.folded())
    for weight in plain.parameters():
        weight.requires_grad_(True)
    return plain


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model has adapters."""
    return any(isinstance(m, (ConvAdapter, LowRankAdapter)) for m in model.modules())


def _adapt(model: nn.Module, name: str, form: Form, init: Init, rank: int) -> None:
    layer = model.get_submodule(name)
    if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1):
        _check(name, layer)
        _replace(model, name, ConvAdapter(layer, form, init))
    elif isinstance(layer, (nn.Linear, nn.Conv2d)):
        if rank and getattr(layer, "groups", 1) == 1:
            _replace(model, name, LowRankAdapter(layer, rank))
        elif isinstance(layer, nn.Conv2d):
            _freeze(layer)


def _at_the_tap(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return the input as the middle tap of the kernel sees it: shifted if the padding is not "same"."""
    before, after = _margins(conv)
    if not any((*before, *after)):
        return x
    return functional.pad(x, (before[1], after[1], before[0], after[0]))


def _check(name: str, conv: nn.Conv2d) -> None:
    before, after = _margins(conv)
    if conv.padding_mode != "zeros" and any((*before, *after)):
        raise SettingsError(
            f"adapters: convolution '{name}' pads with '{conv.padding_mode}' by another width than "
            "(kernel - 1) / 2: such a one cannot have a parallel adapter"
        )


def _padding(conv: nn.Conv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding before and after, as (rows, columns)."""
    if isinstance(conv.padding, str):
        total = [
            d * (k - 1) if conv.padding == "same" else 0
            for d, k in zip(conv.dilation, conv.kernel_size, strict=True)
        ]
        return (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)
    return (conv.padding[0], conv.padding[1]), (conv.padding[0], conv.padding[1])


def _tap(conv: nn.Conv2d) -> tuple[int, int]:
    return (conv.kernel_size[0] - 1) // 2, (conv.kernel_size[1] - 1) // 2


def _margins(conv: nn.Conv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return how much the input must grow (or, negative, shrink) for the middle tap alone."""
    start, end = _padding(conv)
    tap = _tap(conv)
    before = (start[0] - conv.dilation[0] * tap[0], start[1] - conv.dilation[1] * tap[1])
    rest = (conv.kernel_size[0] - 1 - tap[0], conv.kernel_size[1] - 1 - tap[1])
    after = (end[0] - conv.dilation[0] * rest[0], end[1] - conv.dilation[1] * rest[1])
    return before, after


def _compose(conv: nn.Conv2d, extra: Tensor) -> None:
    """Put y + a(y) after a convolution into its weights, group by group."""
    size = conv.out_channels // conv.groups
    for group in range(conv.groups):
        rows = slice(group * size, (group + 1) * size)
        both = torch.eye(size, dtype=torch.float64) + extra[rows].double()
        conv.weight[rows] = torch.einsum("oi,ixyz->oxyz", both, conv.weight[rows].double()).to(
            conv.weight.dtype
        )
        if conv.bias is not None:
            conv.bias[rows] = (both @ conv.bias[rows].double()).to(conv.bias.dtype)


def _plain(layer: L) -> L:
    plain = copy.deepcopy(layer)
    for weight in plain.parameters():
        weight.requires_grad_(True)
    return plain


def _freeze(layer: nn.Module) -> None:
    for weight in layer.parameters():
        weight.requires_grad_(False)


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, layer)
