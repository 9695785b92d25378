"""Which family of kernels a counted call belongs to, and the features by which the family's formula knows it."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..records import Counted, Spec, specs_in
from ..records.pairs import ATTENTION
from ..roofline.traffic import compute_dtype, traffic_of

NORMS = ("norm", "welford")
"""Parts of the names of ops that reduce a row, and scale it."""


class Kernel(NamedTuple):
    """A call as a formula knows it: its family, its dtype, and the family's features."""

    family: str
    dtype: str
    features: tuple[float, ...]


def kernel_of(counted: Counted) -> Kernel | None:
    """Return the kernel of a call; None if no family has it, or it moves no bytes."""
    call = counted.call
    out = next(iter(specs_in(call.out)), None)
    moved = sum(traffic_of(counted))
    if out is None or not moved or not out.numel():
        return None
    dtype = compute_dtype(call)
    if call.op == ATTENTION:
        return _attention(counted, dtype)
    if counted.macs:
        return _product(counted, out, dtype)
    if "softmax" in call.op:
        return Kernel("softmax", dtype, (moved, out[-1] if len(out) else 1))
    if any(part in call.op for part in NORMS):
        return Kernel("norm", dtype, (moved, out[-1] if len(out) else 1))
    return Kernel("elementwise", dtype, (moved, 1))


def _product(counted: Counted, out: Spec, dtype: str) -> Kernel | None:
    """Return a product of matrices: the inner dimension is the multiply-accumulates of one element of the result."""
    call = counted.call
    if counted.macs % out.numel():
        return None  # several products in one call, such as a recurrent layer
    inner = counted.macs // out.numel()
    element = out.dtype.itemsize
    operands = [spec for spec in (*call.inputs(), *specs_in(dict(call.settings))) if len(spec) >= 2]
    if call.op.startswith("conv"):
        groups = int(call.settings.get("groups", 1))
        channels = out[1] if len(out) > 2 else out[0]
        return Kernel(
            "linear" if groups == 1 else "batched",
            dtype,
            (groups, out.numel() // channels, channels // groups, inner, element),
        )
    if len(out) > 2 and len(operands) > 1 and all(len(spec) > 2 for spec in operands[:2]):
        return Kernel("batched", dtype, (math.prod(out[:-2]), out[-2], out[-1], inner, element))
    columns = out[-1] if len(out) else 1
    return Kernel("linear", dtype, (1, out.numel() // columns, columns, inner, element))


def _attention(counted: Counted, dtype: str) -> Kernel | None:
    """Return a call of fused attention; None where a mask leaves other pairs than causality."""
    call = counted.call
    tensors = [spec for spec in call.inputs() if len(spec) >= 3]
    if len(tensors) != 3:
        return None
    query, key, _ = tensors
    arguments = [*call.args, *[None] * 6]
    causal = bool(call.kwargs.get("is_causal", arguments[5]))
    sequences = math.prod(query[:-3])
    heads, key_heads = (query[-3], key[-3]) if len(query) > 3 else (1, 1)
    if len(query) == 3:
        sequences = query[0]
    return Kernel(
        "attention",
        dtype,
        (sequences, query[-2], key[-2], heads, key_heads, query[-1], float(causal), query.dtype.itemsize),
    )
