"""Formulas that several conventions share: for functions, and for modules that a tool hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from ..ops._extend import Cost, Sizes, Spec, each, first, specs_in
from ..records import Scope

DIMS = (1, 2, 3)
POOLINGS = ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool")

# Formulas for functions, and for the modules whose forward calls these functions


def per_input(input: Spec, *, out: Any) -> Cost:
    """x[*] -> out: 1 per input."""
    return Cost(others=input.numel())


def elementwise(input: Any, other: Any, *, out: Any) -> Cost:
    """x[*], y[*] -> out: the product of the larger size in each dim, compared from the first dim on; 1 for two numbers."""
    sizes = [spec for spec in (input, other) if isinstance(spec, Spec)]
    dims = max((spec.ndim for spec in sizes), default=0)
    # Broadcasting compares sizes from the last dim on, but the tools compare from the first.
    return Cost(others=math.prod(max(spec[i] if i < spec.ndim else 1 for spec in sizes) for i in range(dims)))


def batch_norm(
    input: Spec, *, running_mean: Spec | None = None, weight: Spec | None = None, training: bool = False, out: Any
) -> Cost:
    """x[*] -> out[*]: 1 per input, 2 with a weight; if the mean and variance are computed from the batch, 3 more."""
    return Cost(others=input.numel() * ((4 if training or running_mean is None else 1) + (weight is not None)))


def normalized(input: Spec, *, weight: Spec | None = None, out: Any) -> Cost:
    """x[*] -> out[*]: 4 per input, 5 with a weight."""
    return Cost(others=input.numel() * (5 if weight is not None else 4))


# Formulas for tools that replace functions; the docstrings state the FLOPs, not the MACs


def linear(input: Spec, weight: Spec, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: 2i per output, none for a bias."""
    macs = input.numel() * weight[0]
    return Cost(macs, others=2 * macs)


def conv(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: 2 i prod(k) per output, and 1 with a bias."""
    macs = out.numel() * math.prod(weight[1:])
    return Cost(macs, others=2 * macs + (out.numel() if bias is not None else 0))


def conv_padded_alike(
    input: Spec,
    weight: Spec,
    *,
    bias: Spec | None = None,
    padding: int | str | Sequence[int] = 0,
    dilation: Sizes = 1,
    padding_mode: str = "zeros",
    out: Spec,
) -> Cost:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: 2 i prod(k) per output, and 1 with a bias.

    For padding="same", the tool pads both sides equally. Equal padding gives 1 output less in each dim where the total padding is odd.
    """
    n, o, *sizes = out
    if padding == "same" and padding_mode == "zeros":
        dilations = each(dilation, len(sizes))
        sizes = [m - d * (k - 1) % 2 for m, k, d in zip(sizes, weight[2:], dilations, strict=True)]
    return conv(input, weight, bias, out=Spec((n, o, *sizes)))


def free(input: Any, *, out: Any) -> Cost:
    """x -> out: 0."""
    return Cost()


def lp_pool(input: Spec, norm_type: float, *, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per input for the pooling, plus 2 per output for relu and mul unless the norm is inf."""
    return Cost(others=input.numel() + (0 if math.isinf(norm_type) else 2 * out.numel()))


def local_response_norm(input: Spec, size: int, *, out: Spec) -> Cost:
    """x[n, c, *] -> out[n, c, *]: 3 per input for two mul and one add, plus 1 per element that the pooling reads: c + size - 1 channels."""
    n, c, *sizes = input
    return Cost(others=3 * input.numel() + n * (c + size - 1) * math.prod(sizes))


def product(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[*, m, k] @ other[*, k, n] -> out: 2n per element of input, ignoring broadcasting; 2k per element if other is a vector[k]."""
    macs = input.numel() * other[-1]
    return Cost(macs, others=2 * macs)


def product_and_sum(input: Spec, mat1: Spec, mat2: Spec, *, out: Spec) -> Cost:
    """input[*] + mat1[*, m, k] @ mat2[*, k, n] -> out: 2n per element of mat1, plus 1 per element of input."""
    macs = mat1.numel() * mat2[-1]
    return Cost(macs, others=2 * macs + input.numel())


def windows(input: Spec, weight: Spec, places: Spec) -> int:
    """Return a convolution's multiply-accumulates: the weight's elements times the positions in ``places``, for all samples."""
    samples = input[0] if input.ndim == weight.ndim else 1
    return samples * weight.numel() * math.prod(places[2 - weight.ndim :])


def einsum(equation: str, *operands: Spec, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: the FLOPs that numpy.einsum_path prints (four digits) for the best order of products; no MACs."""
    return Cost(others=int(flops_of_einsum(equation.replace(" ", ""), operands)))


def flops_of_einsum(equation: str, operands: Iterable[Spec]) -> float:
    """Return the FLOPs that numpy.einsum_path prints for the best order of products; numpy rounds them to four digits."""
    import numpy as np

    zeros = [np.broadcast_to(np.zeros(()), tuple(operand)) for operand in operands]
    lines = str(np.einsum_path(equation, *zeros, optimize="optimal")[1]).lower().split("\n")
    return float(next(line for line in lines if "optimized flop" in line).rpartition(":")[2])


# Rules for modules that a tool hooks


def given(scope: Scope) -> Spec:
    """Return the first tensor in the arguments of a module call."""
    return next(specs_in((scope.args, dict(scope.kwargs))))


def each_input(scope: Scope) -> int:
    """x[*] -> out: 1 per input."""
    return given(scope).numel()


def each_output(scope: Scope) -> int:
    """x -> out[*]: 1 per output."""
    return first(scope.out).numel()


POINTWISE = {nn.RNN: 1, nn.GRU: 7, nn.LSTM: 10, nn.RNNCell: 1, nn.GRUCell: 7, nn.LSTMCell: 10}
"""The number of operations per hidden unit and step of an RNN, besides the matrix products."""


def recurrent_step(scope: Scope, product: Callable[[Spec], int] = Spec.numel) -> int:
    """Return the charge of one RNN step for one sample, summed over the layers.

    The charge is ``product(weight)`` for each weight, 1 per element of a bias, and 1 (RNN), 7 (GRU) or 10 (LSTM) per hidden unit.
    """
    settings = scope.settings
    layers = [f"_l{layer}" for layer in range(settings["num_layers"])] if "num_layers" in settings else [""]
    step: int = len(layers) * POINTWISE[scope.cls] * settings["hidden_size"]
    for name in (f"{side}{layer}" for layer in layers for side in ("_ih", "_hh")):
        step += product(scope.params[f"weight{name}"])
        step += scope.params[f"bias{name}"].numel() if settings["bias"] else 0
    return step


def recurrent(scope: Scope, product: Callable[[Spec], int] = Spec.numel) -> int:
    """x[a, b, i] -> out[a, b, h]: the charge of one step, a*b times, twice that if bidirectional.

    A cell makes one step per sample.
    """
    x, step = given(scope), recurrent_step(scope, product)
    if "num_layers" not in scope.settings:
        return step * math.prod(x[:-1])
    return step * math.prod(x[:2]) * (2 if scope.settings["bidirectional"] else 1)


def recurrent_with_sums(scope: Scope) -> int:
    """x[a, b, i] -> out[a, b, h]: the charge of one step, a*b times, with 2gi - g for the product by a weight[g, i]."""
    return recurrent(scope, lambda weight: 2 * weight.numel() - weight[0])
