"""FlopCounterMode (https://docs.pytorch.org/docs/stable/utils.html, torch/utils/flop_counter.py), of the kernels that run on
the model's device.

2 per multiply-accumulate of mm, addmm, bmm, baddbmm, convolution and scaled_dot_product_attention, and of what is made of
them there (linear, RNNs, einsum); integer products too. Everything else is 0: also the contractions below, whose aten
operators have no formula in it. Complex numbers count as real ones, but for convolutions, which torch makes of three real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..ops._cost import COMPLEX
from ..ops.einsum import steps
from ..records import Cost, Operation, Spec, specs_in
from ..torch_internals import OpOverload, OpOverloadPacket, int_mm
from ._convention import Convention

REAL_PARTS = {"conv": 3, "conv_transpose": 3}
"""The real products that torch makes of one of complex numbers; 1 where it computes with them as they are."""


def doubled(cost: Cost, ran: Operation) -> Cost:
    """2 per multiply-accumulate, nothing for anything else; operators of other libraries than aten are not known.

    A fused kernel of attention's backward computes the scores again: a product more than the 4 of the gradients.
    """
    if isinstance(ran.target, (OpOverload, OpOverloadPacket)) and not str(ran.target).startswith("aten."):
        return Cost(macs=cost.macs)
    macs, again = cost.macs, 0
    if any(spec.dtype.is_complex for spec in (*ran.inputs(), *specs_in(ran.out))):
        macs = REAL_PARTS.get(ran.op, 1) * macs // COMPLEX.macs
    if ran.op == "attention_backward":
        *_, query, _, value = [spec for spec in ran.args if isinstance(spec, Spec)][:4]
        again = macs * query[-1] // (2 * (query[-1] + value[-1]))
    return Cost(macs=cost.macs, others=2 * (macs + again))


def uncounted(*_: Any, out: Any) -> Cost:
    """x -> out: not in flop_registry, so 0."""
    return Cost()


def matmul(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[*, m, k], other[*, k, n] -> out[*, m, n]: 2k per output; by a vector on the right (mv, dot) 0."""
    return Cost(others=0 if other.ndim == 1 else 2 * input[-1] * out.numel())


def einsum(*operands: Any, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: 2k per result of each product; elementwise and outer products 0."""
    return Cost(others=sum(2 * step.macs for step in steps(operands) if step.adds))


def conv_backward(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[b, o, *m], x[b, c, *n], weight[o, i, *k] -> ...: 2 per multiply-accumulate, the weight's ``groups`` times too many.

    conv_backward_flop takes all channels of the input for the weight's gradient, those of other groups too.
    """
    positions = prod((input if transposed else grad_output)[2:])
    flops = 2 * positions * input[0] * weight.numel() if output_mask[0] else 0
    if output_mask[1]:
        flops += 2 * positions * prod(weight[2:]) * input[0] * input[1] * grad_output[1]
    return Cost(others=flops)


CONVENTION = Convention(
    "torch",
    "torch.utils.flop_counter.FlopCounterMode: 2 per multiply-accumulate of products, convolutions, attention",
    {
        "matmul": matmul,
        "einsum": einsum,
        "conv_backward": conv_backward,
        int_mm: uncounted,
        torch.ops.aten._int_mm.default: uncounted,
        **dict.fromkeys(("addmv", "addbmm", "addr", "outer", "vecdot", "bilinear", "grouped_mm"), uncounted),
    },
    of=doubled,
    integers=True,
)
