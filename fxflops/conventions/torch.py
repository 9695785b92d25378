"""FlopCounterMode (https://docs.pytorch.org/docs/stable/utils.html, torch/utils/flop_counter.py), as on the meta device.

2 per multiply-accumulate of mm, addmm, bmm, baddbmm, convolution and scaled_dot_product_attention, and of what is made of
them there (linear, RNNs, einsum); integer products too. Everything else is 0: also the contractions below, whose aten
operators have no formula in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ..ops.einsum import steps
from ..records import Call, Cost, Spec
from ._convention import Convention


def doubled(cost: Cost, call: Call) -> Cost:
    """2 per multiply-accumulate, nothing for anything else; operators of other libraries than aten are not known."""
    if isinstance(call.target, (OpOverload, OpOverloadPacket)) and not is_aten(call.target):
        return Cost(macs=cost.macs)
    return Cost(macs=cost.macs, others=2 * cost.macs)


def is_aten(target: OpOverload | OpOverloadPacket) -> bool:
    name = target._qualified_op_name if isinstance(target, OpOverloadPacket) else target.name()
    return name.startswith("aten::")


def uncounted(*_: Any, out: Any) -> Cost:
    """x -> out: not in flop_registry, so 0."""
    return Cost()


def matmul(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[*, m, k], other[*, k, n] -> out[*, m, n]: 2k per output; by a vector on the right (mv, dot) 0."""
    return Cost(others=0 if other.ndim == 1 else 2 * input[-1] * out.numel())


def einsum(*operands: Any, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: 2k per result of each product; elementwise and outer products 0."""
    return Cost(others=sum(2 * step.macs for step in steps(operands) if step.adds))


CONVENTION = Convention(
    "torch",
    "torch.utils.flop_counter.FlopCounterMode: 2 per multiply-accumulate of products, convolutions, attention",
    {
        "matmul": matmul,
        "einsum": einsum,
        torch._int_mm: uncounted,
        torch.ops.aten._int_mm.default: uncounted,
        **dict.fromkeys(("addmv", "addbmm", "addr", "outer", "vecdot", "bilinear", "grouped_mm"), uncounted),
    },
    of=doubled,
    integers=True,
)
