"""DeepSpeed's flops profiler (https://github.com/microsoft/DeepSpeed), as packaged in flops-profiler 0.1.2: its flops.

It replaces functions of torch.nn.functional and of torch, and methods of tensors, by ones that charge their arguments;
RNNs are charged by hooks. What it replaces is also charged where torch's own functions call it, so F.local_response_norm
is four charges. Operators (``x + y``, ``x @ y``), torch.softmax and scaled_dot_product_attention are free. The macs that
stand beside the flops are :mod:`.deepspeed_macs`.

Where it raises (transposed convolutions, ``padding="same"``, sizes passed by position to F.interpolate, as nn.Upsample
does) this is what it means. Its get_model_profile calls ``model.forward``, not the model, so that what the outermost
forward itself calls is lost; here it is counted, as by its FlopsProfiler around ``model(x)``.

Not as in the tool is what depends on how a function is found. It does not see one imported by name before it replaced
them (``from torch.nn.functional import gelu``), nor the second name of one (torch.conv2d is F.conv2d, torch.prelu is
F.prelu), nor Python's ``sum`` of tensors, which looks here like ``x.add(y)``. A module under two parents it sums once for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.shapes import each
from ..records import Cost, FormulaFunction, Scope, Spec
from ._convention import Convention, flops_of_einsum, given, nothing
from ._rows import DIMS, POINTWISE, POOLINGS, batch_norm, elementwise, instance_norm, layer_or_group_norm, per_input

# What it replaces; the docstrings say flops, the macs stand beside them


def linear(input: Spec, weight: Spec, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: 2i per output, no bias."""
    macs = input.numel() * weight[0]
    return Cost(macs, others=2 * macs)


def conv(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: 2 i prod(k) per output, and 1 with a bias."""
    macs = out.numel() * math.prod(weight[1:])
    return Cost(macs, others=2 * macs + (out.numel() if bias is not None else 0))


def conv_transpose(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    out: Spec,
) -> Cost:
    """input[n, i, *s], weight[i, o, *k] -> out: 2 (o // g) prod(k) per input; a bias 1 per output of the plain convolution."""
    n, _, *sizes = input
    outputs, *kernel = weight[1:]
    macs = input.numel() * (outputs // groups) * math.prod(kernel)
    settings = (each(setting, len(sizes)) for setting in (stride, padding, dilation))
    places = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in zip(sizes, kernel, *settings, strict=True)]
    return Cost(macs, others=2 * macs + (outputs * n * math.prod(places) if bias is not None else 0))


def free(input: Any, *, out: Any) -> Cost:
    """x -> out: nothing."""
    return Cost()


def interpolate(
    input: Spec, size: int | Sequence[int] | None = None, scale_factor: Any = None, mode: str = "nearest", *, out: Spec
) -> Cost:
    """x[n, c, *] -> out[n, c, *m]: the product of ``size`` alone; by a scale factor 1 per input, whatever the factor.

    mode="area" calls a pooling: 1 per input more.
    """
    pooled = input.numel() if mode == "area" else 0
    if size is None:
        return Cost(others=input.numel() + pooled)
    return Cost(others=(size if isinstance(size, int) else math.prod(size)) + pooled)


def lp_pool(input: Spec, norm_type: float, *, out: Spec) -> Cost:
    """x[*] -> out[*]: its pooling 1 per input, its relu and its mul 1 per output each; they are not called for norm inf."""
    return Cost(others=input.numel() + (0 if math.isinf(norm_type) else 2 * out.numel()))


def local_response_norm(input: Spec, size: int, *, out: Spec) -> Cost:
    """x[n, c, *] -> out[n, c, *]: its two mul and its add 1 per input each, its pooling 1 per input padded by size - 1."""
    n, c, *sizes = input
    return Cost(others=3 * input.numel() + n * (c + size - 1) * math.prod(sizes))


def product(input: Spec, other: Spec | None = None, mat2: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, m, k] @ other[*, k, n] -> out: 2n per element of input, whatever is broadcast; by a vector other[k] 2k."""
    macs = input.numel() * (other or mat2 or out)[-1]
    return Cost(macs, others=2 * macs)


def product_and_sum(input: Spec, mat1: Spec, mat2: Spec, *, out: Spec) -> Cost:
    """input[*] + mat1[*, m, k] @ mat2[*, k, n] -> out: 2n per element of mat1, 1 per element of input."""
    macs = mat1.numel() * mat2[-1]
    return Cost(macs, others=2 * macs + input.numel())


def einsum(equation: str, *operands: Spec, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: the flops of numpy's best order of products, in its four digits; no macs."""
    return Cost(others=int(flops_of_einsum(equation.replace(" ", ""), operands)))


# What its hooks charge


def recurrent(scope: Scope, product: Callable[[Spec], int] = Spec.numel) -> int:
    """x[a, b, i] -> out[a, b, h]: the step of an RNN for each of a*b, twice in both directions.

    A step is, layer by layer, ``product`` of each weight, 1 per bias, and 1 (RNN), 7 (GRU) or 10 (LSTM) per hidden unit.
    """
    x, settings = given(scope), scope.settings
    layers = [f"_l{layer}" for layer in range(settings["num_layers"])] if "num_layers" in settings else [""]
    step: int = len(layers) * POINTWISE[scope.cls] * settings["hidden_size"]
    for name in (f"{side}{layer}" for layer in layers for side in ("_ih", "_hh")):
        step += product(scope.params[f"weight{name}"])
        step += scope.params[f"bias{name}"].numel() if settings["bias"] else 0
    if "num_layers" not in settings:
        return step * math.prod(x[:-1])
    return step * math.prod(x[:2]) * (2 if settings["bidirectional"] else 1)


# Who is charged what

REPLACED: dict[Any, Callable[..., Cost]] = {
    F.linear: linear,
    **{getattr(F, f"conv{dims}d"): conv for dims in DIMS},
    **{getattr(F, f"conv_transpose{dims}d"): conv_transpose for dims in DIMS},
    **dict.fromkeys((F.relu, F.relu6, F.prelu, F.elu, F.leaky_relu, F.silu, F.gelu, F.softmax), per_input),
    F.batch_norm: batch_norm,
    **dict.fromkeys((F.layer_norm, F.group_norm), layer_or_group_norm),
    F.instance_norm: instance_norm,
    **{getattr(F, f"{name}{dims}d"): per_input for name in POOLINGS for dims in DIMS},
    **{getattr(F, f"{name}{dims}d_with_indices"): per_input for name in POOLINGS if "max" in name for dims in DIMS},
    F.interpolate: interpolate,
    **{getattr(F, f"lp_pool{dims}d"): lp_pool for dims in DIMS},
    F.local_response_norm: local_response_norm,
    F.embedding: free,
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul), product),
    **dict.fromkeys((torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm), product),
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.Tensor.baddbmm), product_and_sum),
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.mul, torch.Tensor.mul), elementwise),
    torch.einsum: einsum,
}
"""The functions that it replaces, or that call those, each with its row."""

FORWARDS: dict[Any, Any] = {
    nn.Linear: F.linear,
    **{getattr(nn, f"Conv{dims}d"): getattr(F, f"conv{dims}d") for dims in DIMS},
    **{getattr(nn, f"ConvTranspose{dims}d"): getattr(F, f"conv_transpose{dims}d") for dims in DIMS},
    nn.ReLU: F.relu,
    nn.PReLU: F.prelu,
    nn.ELU: F.elu,
    nn.LeakyReLU: F.leaky_relu,
    nn.SiLU: F.silu,
    nn.GELU: F.gelu,
    **dict.fromkeys((nn.Softmax, nn.Softmax2d), F.softmax),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), F.batch_norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), F.instance_norm),
    nn.LayerNorm: F.layer_norm,
    nn.GroupNorm: F.group_norm,
    nn.LocalResponseNorm: F.local_response_norm,
    **{
        getattr(nn, f"{name.title().replace('_', '')}{dims}d"): getattr(F, f"{name}{dims}d")
        for name in POOLINGS
        for dims in DIMS
    },
    **{getattr(nn, f"LPPool{dims}d"): getattr(F, f"lp_pool{dims}d") for dims in DIMS},
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), F.interpolate),
    nn.Embedding: F.embedding,
}
"""The function that the forward of a module calls."""


def rows_of(replaced: Mapping[Any, FormulaFunction]) -> dict[Any, FormulaFunction]:
    """The rows of functions, and of the modules whose forward calls one of them."""
    forwards = {cls: replaced[function] for cls, function in FORWARDS.items() if function in replaced}
    return {**replaced, **forwards}


CONVENTION = Convention(
    "deepspeed",
    "DeepSpeed's flops profiler (flops-profiler): 2 per multiply-accumulate, and what functions of torch are charged",
    rows_of(REPLACED),
    of=nothing,
    modules=dict.fromkeys(POINTWISE, recurrent).get,
    integers=True,
    by_name=True,
)
