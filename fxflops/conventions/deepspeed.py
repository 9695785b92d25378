"""The flops of DeepSpeed's flops profiler (https://github.com/deepspeedai/DeepSpeed), as of DeepSpeed 0.19.8.

The profiler replaces functions of torch.nn.functional and of torch, and methods of tensors, by its own versions, which
charge FLOPs for each call. RNNs are charged by hooks. A replaced function is also charged when torch's own functions call it. For example,
F.local_response_norm calls four replaced functions, and each call is charged. Python's operators are free, except ``x @ y``. torch.softmax
and Tensor.baddbmm are free too. The profiler prints MACs beside its flops: see the convention ``deepspeed_macs``. The convention
``flops_profiler`` counts like the profiler's separate package of 2023.

If the tool raises an error, the count here is what the tool's rules intend. The tool raises errors for
F.scaled_dot_product_attention and pools with inputs passed by name, and for images without a batch dimension. The count
is also what the rules intend if the tool reads an unbatched image as a batch (transposed convolutions).

One difference remains: the tool's number depends on how a function is looked up. The tool misses a function that was
imported by name before the tool replaced it (``from torch.nn.functional import gelu``), the second name of a function
(torch.conv2d is F.conv2d), and Python's ``sum`` of tensors. fxflops counts ``sum``, because it sees the same calls for
``sum`` and for ``x.add(y)``. The tool charges F.upsample twice: for itself, and for the F.interpolate that F.upsample
calls. The tool also charges einops.einsum twice, because einops.einsum calls torch.einsum.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..records import Cost, Spec
from ._convention import CONVENTIONS
from ._replaced import REPLACED as BEFORE
from ._replaced import Row, convention_of
from ._rows import DIMS, POINTWISE, conv_padded_alike, product, recurrent_with_sums


def conv_transpose(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[n, i, *s], weight[i, o, *k] -> out[n, g*o, *m]: 2 o prod(k) per input, plus 1 per output if there is a bias."""
    macs = input.numel() * math.prod(weight[1:])
    return Cost(macs, others=2 * macs + (out.numel() if bias is not None else 0))


def interpolate(
    input: Spec,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] = 1.0,
    mode: str = "nearest",
    *,
    out: Spec,
) -> Cost:
    """x[n, c, *] -> out[n, c, *m]: prod(size) per call, or ``size`` itself if it is an int; without ``size``, the product of the scale factors of all dims per input element, rounded down.

    With mode="area", the pooling that F.interpolate calls adds 1 per input.
    """
    pooled = input.numel() if mode == "area" else 0
    if size is not None:
        return Cost(others=(size if isinstance(size, int) else math.prod(size)) + pooled)
    scale = math.prod(scale_factor) if isinstance(scale_factor, Sequence) else scale_factor ** (input.ndim - 2)
    return Cost(others=int(input.numel() * scale) + pooled)


def elementwise(input: Any, other: Any, *, out: Spec) -> Cost:
    """x[*], y[*] -> out[*]: 1 per output."""
    return Cost(others=out.numel())


def attention(query: Spec, key: Spec, value: Spec, *, out: Spec) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: 2 (d + v) s per position of query, softmax free."""
    macs = math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return Cost(macs, others=2 * macs)


REPLACED: dict[Any, Row] = {
    **{function: row for function, row in BEFORE.items() if function is not torch.Tensor.baddbmm},
    **{getattr(F, f"conv{dims}d"): conv_padded_alike for dims in DIMS},
    **{getattr(F, f"conv_transpose{dims}d"): conv_transpose for dims in DIMS},
    F.interpolate: interpolate,
    F.scaled_dot_product_attention: attention,
    **dict.fromkeys((operator.matmul, torch.Tensor.__matmul__), product),
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.mul, torch.Tensor.mul), elementwise),
}
"""The formulas for the functions that the tool replaces, and for functions that call replaced functions."""

CONVENTION = convention_of(
    "deepspeed",
    CONVENTIONS["deepspeed"],
    REPLACED,
    dict.fromkeys(POINTWISE, recurrent_with_sums),
)
