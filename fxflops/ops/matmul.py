"""Matrix products: linear, matmul and its batched and added forms, einsum."""

from __future__ import annotations

import torch
from torch import nn

from ..records import Cost, Spec
from ._cost import contraction
from ._registry import formula
from ._spellings import named


@formula(nn.Linear, *named("linear"))
def linear(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: i multiplies and i-1 adds per output, one add more with a bias."""
    return contraction(weight[-1], out.numel(), bias is not None)


@formula(*named("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner"), torch.linalg.matmul, op="matmul")
def matmul(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[*, m, k] @ other[*, k, n] -> out[*, m, n]: k multiplies and k-1 adds per output; batch dims broadcast."""
    return contraction(input[-1], out.numel())
