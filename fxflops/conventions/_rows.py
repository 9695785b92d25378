"""Rows and rules that several tools have alike."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ..ops._cost import first
from ..records import Cost, Scope, Spec
from ._convention import given

DIMS = (1, 2, 3)
POOLINGS = ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool")

# Of functions, and of the modules whose forward calls them


def per_input(input: Spec, *, out: Any) -> Cost:
    """x[*] -> out: 1 per input."""
    return Cost(others=input.numel())


def elementwise(input: Any, other: Any, *, out: Any) -> Cost:
    """x[*], y[*] -> out: 1 per element of both, aligned at their first dims; 1 for two numbers."""
    sizes = [spec for spec in (input, other) if isinstance(spec, Spec)]
    dims = max((spec.ndim for spec in sizes), default=0)
    return Cost(others=math.prod(max(spec[i] if i < spec.ndim else 1 for spec in sizes) for i in range(dims)))


def batch_norm(
    input: Spec,
    running_mean: Spec | None = None,
    running_var: Spec | None = None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    training: bool = False,
    *,
    out: Any,
) -> Cost:
    """x[*] -> out[*]: 1 per input, 2 with a weight; by statistics of the batch 4, 5 with a weight."""
    return Cost(others=input.numel() * ((4 if training or running_mean is None else 1) + (weight is not None)))


def normalized(input: Spec, weight: Spec | None = None, *, out: Any) -> Cost:
    """x[*] -> out[*]: 4 per input, 5 with a weight."""
    return Cost(others=input.numel() * (5 if weight is not None else 4))


def layer_or_group_norm(input: Spec, parts: Any = None, weight: Spec | None = None, *, out: Any) -> Cost:
    """x[*] -> out[*]: 4 per input, 5 with a weight."""
    return normalized(input, weight, out=out)


def instance_norm(
    input: Spec, running_mean: Any = None, running_var: Any = None, weight: Spec | None = None, *, out: Any
) -> Cost:
    """x[n, c, *] -> out[n, c, *]: 4 per input, 5 with a weight."""
    return normalized(input, weight, out=out)


# Of hooked modules


def each_input(scope: Scope) -> int:
    """x[*] -> out: 1 per input."""
    return given(scope).numel()


def each_output(scope: Scope) -> int:
    """x -> out[*]: 1 per output."""
    return first(scope.out).numel()


POINTWISE = {nn.RNN: 1, nn.GRU: 7, nn.LSTM: 10, nn.RNNCell: 1, nn.GRUCell: 7, nn.LSTMCell: 10}
"""What an RNN's step does with each hidden unit beside its products."""
