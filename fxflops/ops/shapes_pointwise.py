"""Shape rules of what is done element by element: activations, arithmetic, comparisons, dropout, and softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Spec
from ._rules import EVEN, ORDERED, POINTWISE, shape, spelled
from .shapes import broadcast

Tensor = torch.Tensor
UNARY = "sigmoid tanh exp sqrt rsqrt neg abs erf log sin cos square reciprocal floor ceil round expm1 log1p"
NUMBER = (int, float)


@shape(
    *spelled(
        "GELU SiLU Mish ELU CELU SELU Sigmoid LogSigmoid Hardsigmoid Hardswish Tanh LeakyReLU Softplus Softsign", nn
    ),
    nn.Tanhshrink,
    *spelled("gelu silu hardswish hardsigmoid mish selu", F),
    *spelled(UNARY, torch, Tensor),
    layout=POINTWISE,
)
@shape(*spelled("ReLU ReLU6 Hardtanh Threshold", nn), F.relu, F.relu6, torch.relu, Tensor.relu, layout=ORDERED)
def same(input: Spec, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*]; of integers the kernel decides."""
    if not input.dtype.is_floating_point:
        return None
    return input if inplace else Spec(input, input.dtype)


@shape(*spelled(" ".join(f"{name}_" for name in ("relu", *UNARY.split())), torch, Tensor), layout=POINTWISE)
def in_place(input: Spec) -> Spec | None:
    """x[*] -> x[*]."""
    return input if input.dtype.is_floating_point else None


@shape(*spelled("leaky_relu elu celu", F), layout=POINTWISE)
def sloped(input: Spec, alpha: float = 1.0, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*]."""
    return same(input, inplace)


@shape(F.hardtanh, F.threshold, layout=ORDERED)
def bounded(input: Spec, low: float = 0, high: float = 0, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*]."""
    return same(input, inplace)


@shape(*spelled("clamp clip clamp_min clamp_max", torch, Tensor), layout=ORDERED)
def clamp(input: Spec, min: float | None = None, max: float | None = None) -> Spec | None:
    """x[*] -> out[*]; where the bounds are tensors the kernel decides."""
    numbers = all(value is None or type(value) in NUMBER for value in (min, max))
    return same(input) if numbers and (min, max) != (None, None) else None


@shape(nn.Dropout, F.dropout, layout=POINTWISE)
def dropout(input: Spec, p: float = 0.5, training: bool = True, inplace: bool = False) -> Spec | None:
    """x[*] -> its very input; in training, when it makes a mask, the kernel decides."""
    return None if training else input


@shape(nn.Softmax, nn.LogSoftmax, *spelled("softmax log_softmax", torch, Tensor), layout=EVEN)
def softmax(input: Spec, dim: int | None = None, dtype: torch.dtype | None = None) -> Spec | None:
    """x[*] -> out[*]."""
    dtype = dtype or input.dtype
    if not input.dtype.is_floating_point or not dtype.is_floating_point or type(dim) is not int:
        return None
    return Spec(input, dtype) if -input.ndim <= dim < input.ndim and input.numel() else None


@shape(F.softmax, F.log_softmax, layout=EVEN)
def softmax_function(
    input: Spec, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Spec | None:
    """x[*] -> out[*]."""
    return softmax(input, dim, dtype)


def together(*operands: Any) -> Spec | None:
    """The operands broadcast, where their tensors are floating and of one dtype, and the others numbers."""
    specs = [value for value in operands if isinstance(value, Spec)]
    if len({spec.dtype for spec in specs}) != 1 or not specs[0].dtype.is_floating_point:
        return None
    if not all(type(value) in NUMBER for value in operands if not isinstance(value, Spec)):
        return None
    sizes = broadcast(*specs)
    return None if sizes is None else Spec(sizes, specs[0].dtype)


@shape(
    *spelled("add sub mul div true_divide multiply divide subtract pow maximum minimum remainder atan2", torch, Tensor),
    *spelled("__add__ __radd__ __sub__ __mul__ __rmul__ __truediv__ __div__", Tensor),
    layout=POINTWISE,
)
def arithmetic(input: Any, other: Any, *former: Any) -> Spec | None:
    """x[*], y[*] -> out[*], broadcast; where dtypes differ the kernel decides, and of the former ``add(x, alpha, y)``."""
    return None if former else together(input, other)


@shape(*spelled("__rsub__", Tensor), layout=POINTWISE)
def arithmetic_reversed(input: Spec, other: Any) -> Spec | None:
    """x[*], a number -> out[*]; of two tensors the kernel takes the second first. 1 / x is a reciprocal and a product."""
    return None if isinstance(other, Spec) else together(input, other)


@shape(*spelled("add_ sub_ mul_ div_ pow_ __iadd__ __isub__ __imul__ __itruediv__", Tensor), layout=POINTWISE)
def arithmetic_in_place(input: Spec, other: Any, *former: Any) -> Spec | None:
    """x[*], y[*] -> x[*]."""
    out = None if former else together(input, other)
    return input if out is not None and tuple(out) == tuple(input) else None


@shape(
    *spelled("eq ne lt le gt ge", torch, Tensor),
    *spelled("__eq__ __ne__ __lt__ __le__ __gt__ __ge__", Tensor),
    layout=POINTWISE,
)
def comparison(input: Any, other: Any) -> Spec | None:
    """x[*], y[*] -> out[*] of booleans, broadcast."""
    out = together(input, other)
    return None if out is None else Spec(out, torch.bool)


@shape(torch.addcmul, Tensor.addcmul, torch.addcdiv, Tensor.addcdiv, layout=ORDERED)
def addcmul(input: Spec, tensor1: Spec, tensor2: Spec, *former: Any) -> Spec | None:
    """x[*], y[*], z[*] -> out[*], broadcast."""
    return None if former else together(input, tensor1, tensor2)


@shape(torch.where, layout=POINTWISE)
def where(condition: Spec, input: Any, other: Any) -> Spec | None:
    """c[*], x[*], y[*] -> out[*], broadcast; where a choice is a number the kernel decides."""
    if not isinstance(input, Spec) or not isinstance(other, Spec) or condition.dtype is not torch.bool:
        return None
    chosen = together(input, other)
    sizes = None if chosen is None else broadcast(condition, chosen)
    return None if chosen is None or sizes is None else Spec(sizes, chosen.dtype)


@shape(torch.masked_fill, Tensor.masked_fill)
def masked_fill(input: Spec, mask: Spec, value: Any) -> Spec | None:
    """x[*], m[*] -> out[*], the mask broadcast to it."""
    if type(value) not in NUMBER or mask.dtype is not torch.bool or not input.dtype.is_floating_point:
        return None
    return Spec(input, input.dtype) if broadcast(input, mask) == tuple(input) else None
