"""Shape rules: what a call puts out, without running it. For the ops that make up most models; others ask the kernel.

A rule takes its op's own parameters by name, as a formula does, each tensor a Spec of a dense and contiguous tensor, and
gives the Spec of the new and contiguous tensor that comes out, ``input`` itself where the op returns its very input, or
None where it cannot tell. Rules are held to the kernels by property tests (tests/ops/test_shapes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Call, Spec
from ._apply import bound

Rule = Callable[..., "Spec | None"]
RULES: dict[Any, Rule] = {}
"""Rules by module class, function and method: the exact spelling, whose parameters they take."""


def shape(*targets: Any) -> Callable[[Rule], Rule]:
    """Register the decorated rule for these module classes, functions and methods."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


@lru_cache(maxsize=4096)
def rule_for(target: Any) -> Rule | None:
    """The rule for a call's target, of a class for the one whose ``forward`` it runs; None where there is none."""
    for cls in target.__mro__ if isinstance(target, type) else ():
        if "forward" in vars(cls):
            return RULES.get(cls)
    return RULES.get(target)


def shape_of(call: Call) -> Spec | None:
    """What a call puts out, by the rule of its target; None where there is none, or it cannot tell."""
    rule = rule_for(call.target)
    if rule is None or "out" in call.kwargs:
        return None
    arguments = bound(rule, call)
    return None if arguments is None else rule(**arguments)


@shape(
    *(
        nn.ReLU,
        nn.ReLU6,
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.ELU,
        nn.Sigmoid,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.Tanh,
        nn.LeakyReLU,
    ),
    *(
        F.relu,
        F.gelu,
        F.silu,
        torch.relu,
        torch.sigmoid,
        torch.tanh,
        torch.Tensor.relu,
        torch.Tensor.sigmoid,
        torch.Tensor.tanh,
    ),
)
def same(input: Spec, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*]; of integers the kernel decides."""
    if not input.dtype.is_floating_point:
        return None
    return input if inplace else Spec(input, input.dtype)


@shape(nn.Linear, F.linear)
def linear(input: Spec, weight: Spec, bias: Spec | None = None) -> Spec | None:
    """input[*, i], weight[o, i] -> out[*, o]."""
    if input.dtype is not weight.dtype or weight.ndim != 2 or not input.ndim or input[-1] != weight[1]:
        return None
    return Spec((*input[:-1], weight[0]), input.dtype)


@shape(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)
def normalized(input: Spec, weight: Spec | None = None) -> Spec | None:
    """x[*] -> out[*]; where the weight is of another dtype the kernel decides."""
    mixed = weight is not None and weight.dtype is not input.dtype
    return None if mixed or not input.dtype.is_floating_point else Spec(input, input.dtype)


@shape(nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d)
def conv(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Spec | None:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m], m = (s + 2 padding - dilation (k - 1) - 1) // stride + 1."""
    dims = weight.ndim - 2
    if input.ndim != dims + 2 or input.dtype is not weight.dtype or padding_mode != "zeros" or isinstance(padding, str):
        return None
    if input[1] != weight[1] * groups:
        return None
    steps, pads, gaps = (each(value, dims) for value in (stride, padding, dilation))
    sizes = [
        (s + 2 * p - d * (k - 1) - 1) // step + 1
        for s, k, step, p, d in zip(input[2:], weight[2:], steps, pads, gaps, strict=True)
    ]
    return Spec((input[0], weight[0], *sizes), input.dtype) if min(sizes, default=1) > 0 else None


def each(value: int | Sequence[int], dims: int) -> Sequence[int]:
    """A setting for every dimension."""
    return (value,) * dims if isinstance(value, int) else tuple(value) * dims if len(value) == 1 else tuple(value)
