"""The count of flowflops, OneFlow's counter, in mode "graph" (https://github.com/Oneflow-Inc/flow-OpCounter), for torch operators.

flowflops compiles a model into a graph of OneFlow operators and adds up the costs of the operators below. The cost of an operator is
computed from the shapes of its inputs. For most operators, only one sample of the batch is used. In the graph, ``linear`` is a product and
a sum, ``mean`` is a sum and a division, and InstanceNorm and GroupNorm are several operators each. flowflops's documentation states a
factor of 2 for convolutions, but the printed numbers do not include this factor. ResNet-50 has 4127444456.

The tool raises a KeyError for an unknown operator; here an unknown operator costs nothing. The documentation does not say which operators
GroupNorm becomes. Here GroupNorm costs the same as in mode "eager".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..ops._extend import FormulaFunction, Spec, each
from ._convention import CONVENTIONS, Convention, nothing


def per_input(input: Spec, *, out: Any) -> int:
    """x[n, *] -> out: 1 per input of one sample."""
    return math.prod(input[1:])


def convolution(input: Spec, weight: Spec, bias: Any = None, stride: Any = 1, padding: Any = 0, *, out: Spec) -> int:
    """x[n, c, *], weight[o, c/g, k] -> out[n, o, *]: (c/g) k per output of one sample, plus 1 if there is a bias; dilation is ignored."""
    kernel = weight[2:]
    sizes: Sequence[int] = out[2:]
    if not isinstance(padding, str):
        shapes = zip(input[2:], kernel, each(stride, len(kernel)), each(padding, len(kernel)), strict=True)
        sizes = [(size - k + 2 * pad) // step + 1 for size, k, step, pad in shapes]
    return math.prod(sizes) * weight.numel() + (math.prod(out[1:]) if bias is not None else 0)


def linear(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> int:
    """x[*, i], weight[o, i] -> out[*, o]: i per output of the whole batch, plus o if there is a bias."""
    return matmul(input, weight, out=out) + (bias.numel() if bias is not None else 0)


def matmul(input: Spec, other: Spec, *, out: Spec) -> int:
    """a[*, k], b[*, k] -> out: the elements of a times the product of all sizes of b but the last, even if b is transposed."""
    return input.numel() * math.prod(other[:-1])


def normalization(input: Spec, *, out: Any) -> int:
    """x[n, *] -> out[n, *]: 2 per input of one sample."""
    return 2 * math.prod(input[1:])


def instance_norm(input: Spec, *, weight: Any = None, out: Spec) -> int:
    """x[n, c, *] -> out[n, c, *]: 1 per input of one sample and 10 per channel, twice that with a weight."""
    return (math.prod(input[1:]) + 10 * input[1]) * (1 if weight is None else 2)


def group_norm(input: Spec, weight: Any = None, *, out: Spec) -> int:
    """x[n, *] -> out[n, *]: 1 per input of one sample, 2 with a weight."""
    return math.prod(input[1:]) * (1 if weight is None else 2)


def arithmetic(input: Any, other: Any = None, *, out: Any) -> int:
    """x[*], y[*] -> out[*]: 1 per element of y, for the whole batch; if x or y is a number, 1 per element of one sample."""
    if isinstance(input, Spec) and isinstance(other, Spec):
        return other.numel()
    tensor: Spec = input if isinstance(input, Spec) else other
    return math.prod(tensor[1:])


def mean(input: Spec, *, out: Spec) -> int:
    """x[n, *] -> out[n, *]: 1 per input and 1 per output of one sample."""
    return math.prod(input[1:]) + math.prod(out[1:])


ROWS: dict[Any, FormulaFunction] = {
    "conv": convolution,
    "linear": linear,
    "matmul": matmul,
    "batch_norm": normalization,
    "instance_norm": instance_norm,
    "group_norm": group_norm,
    **dict.fromkeys(("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"), per_input),
    **dict.fromkeys(("relu", "leaky_relu", "prelu", "hardtanh", "relu6", "elu", "silu", "sigmoid"), per_input),
    **dict.fromkeys(("add", "sub", "mul", "div"), arithmetic),
    "sum": per_input,
    "mean": mean,
}

CONVENTION = Convention(
    "flowflops_graph",
    CONVENTIONS["flowflops_graph"],
    ROWS,
    of=nothing,
    integers=True,
)
