"""Which family of kernels a counted call belongs to, and the features by which the family's formula knows it."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..counting.collectives import collectives
from ..ops._libraries import is_library
from ..records import COMMUNICATION, Counted, Spec, specs_in
from ..records.pairs import ATTENTION
from ..roofline.traffic import compute_dtype, traffic_of

NORMS = ("norm", "welford")
"""Parts of the names of ops that reduce a row, and scale it."""


ATTENTION_BACKWARD = "attention_backward"
PRODUCTS_OF_BACKWARD = 4
"""Products of matrices that count() charges to the backward pass of attention: the gradients' own, without computing the scores again."""


NCCL = "nccl"
"""What collectives have in the place of a dtype: they take as long in any."""


DECODED_ROWS = 128
"""Up to so many packed rows of queries, one block of a kernel, attention to more keys takes as long as its bytes: kernels split the
keys, so that all multiprocessors read the cache (https://pytorch.org/blog/flash-decoding/). On an H800, 222 to 292% off by the formula
of prefills and 6 to 19% by bytes (alibaba/InferSim f2293dab6d23, bench_data/mha/decode, no row of which was fitted)."""


class Kernel(NamedTuple):
    """A call as a formula knows it: its family, its dtype, and the family's features."""

    family: str
    dtype: str
    features: tuple[float, ...]


def kernel_of(counted: Counted) -> Kernel | None:
    """Return the kernel of a call; None if no family has it, or it moves no bytes."""
    call = counted.call
    if counted.rule == COMMUNICATION:
        return _collective(counted)
    out = next(iter(specs_in(call.out)), None)
    moved = sum(traffic_of(counted))
    if out is None or not moved or not out.numel():
        return None
    dtype = compute_dtype(call)
    if call.op == ATTENTION:
        return _attention(counted, dtype)
    if call.op == ATTENTION_BACKWARD:
        return _attention_backward(counted, dtype)
    if counted.macs:
        return _product(counted, out, dtype)
    if "softmax" in call.op:
        return Kernel("softmax", dtype, (moved, out[-1] if len(out) else 1))
    if any(part in call.op for part in NORMS):
        return Kernel("norm", dtype, (moved, out[-1] if len(out) else 1))
    return Kernel("elementwise", dtype, (moved, 1))


def _collective(counted: Counted) -> Kernel | None:
    """Return a collective within a node; None where its bytes or its group are not known, or a single process makes it."""
    [row] = collectives([counted])
    return (
        None
        if row.sent is None or row.received is None
        else collective_of(row.op, row.ranks, max(row.sent, row.received))
    )


def collective_of(op: str, ranks: int | None, nbytes: int) -> Kernel | None:
    """Return the kernel of a collective of ``ranks`` processes in which each sends ``nbytes``."""
    return None if ranks is None or ranks < 2 or not nbytes else Kernel(op, NCCL, (ranks, nbytes))


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
    query, key, _ = map(heads_first, tensors) if is_library(call.target) else tensors
    arguments = [*call.args, *[None] * 6]
    causal = bool(call.kwargs.get("is_causal", arguments[5]))
    sequences = math.prod(query[:-3])
    heads, key_heads = (query[-3], key[-3]) if len(query) > 3 else (1, 1)
    if len(query) == 3:
        sequences = query[0]
    if query[-2] < key[-2] and query[-2] * heads <= DECODED_ROWS * key_heads:
        return Kernel("elementwise", dtype, (sum(traffic_of(counted)), 1))
    return Kernel(
        "attention",
        dtype,
        (sequences, query[-2], key[-2], heads, key_heads, query[-1], float(causal), query.dtype.itemsize),
    )


def heads_first(tensor: Spec) -> Spec:
    """Return the shape [batch, heads, length, width] of a tensor of FlashAttention's, [batch, length, heads, width], or packed ones."""
    return Spec((*(tensor[:-3] or (1,)), tensor[-2], tensor[-3], tensor[-1]), tensor.dtype)


def _attention_backward(counted: Counted, dtype: str) -> Kernel | None:
    """Return the backward pass of fused attention, whose arguments begin with the gradient, query, key and value.

    The kernels have the causal mask at different places: it is known by the pairs that are left.
    """
    tensors = [spec for spec in counted.call.inputs() if len(spec) == 4]
    if len(tensors) < 4:
        return None
    _, query, key, _ = map(heads_first, tensors[:4]) if is_library(counted.call.target) else tensors[:4]
    sequences, heads, queries, size = query
    pairs = sequences * heads * queries * key[-2]
    causal = counted.macs < 0.75 * PRODUCTS_OF_BACKWARD * pairs * size
    features = (sequences, queries, key[-2], heads, key[1], size, float(causal), query.dtype.itemsize)
    return Kernel(ATTENTION_BACKWARD, dtype, features)
