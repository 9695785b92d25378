"""Map a counted call to its family of kernels, and compute the features that the family's formula needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ..counting.collectives import collectives
from ..ops._libraries import is_library
from ..records import COMMUNICATION, Call, Counted, Spec, specs_in
from ..records.facts import ATTENTION
from ..roofline.traffic import compute_dtype, traffic_of

NORMS = ("norm", "welford")
"""Substrings of the names of normalization ops, most of which reduce and scale each row."""
OF_CHANNELS = ("batch_norm", "group_norm", "instance_norm")
"""Prefixes of the names of normalization ops that reduce each channel over all positions. These ops have different kernels."""


ATTENTION_BACKWARD = "attention_backward"
PRODUCTS_OF_BACKWARD = 4
"""The number of matrix products that count() counts in attention's backward pass. The product that recomputes the scores is not counted."""


NCCL = "nccl"
"""The name that takes the place of a dtype for collectives, because their time depends only on the bytes."""


DECODED_ROWS = 128
"""If there are more keys than queries, attention with at most this number of packed query rows (one block of a kernel) is predicted from its
bytes. Kernels then split the keys, so that all multiprocessors read the KV cache (https://pytorch.org/blog/flash-decoding/). For such attention on
an H800, the formula of prefills is 222 to 292% off; predictions from bytes are 6 to 19% off. These errors are for measurements that were not
used in the fit (alibaba/InferSim f2293dab6d23, bench_data/mha/decode)."""


class Kernel(NamedTuple):
    """A kernel, as its formula needs it: the family of kernels, the dtype, and the values of the family's features."""

    family: str
    dtype: str
    features: tuple[float, ...]


def kernels_of(counted: Counted) -> tuple[Kernel, ...]:
    """Return the kernels of a call. The result is empty if the call moves no bytes, or if no family describes the call's kernels."""
    if counted.macs and counted.call.op.startswith("conv"):
        return _convolutions(counted)
    kernel = _kernel_of(counted)
    return () if kernel is None else (kernel,)


def _kernel_of(counted: Counted) -> Kernel | None:
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
    if any(part in call.op for part in NORMS) and not _has_statistics(call):
        family = "channel_norm" if call.op.startswith(OF_CHANNELS) else "norm"
        return Kernel(family, dtype, (moved, out[-1] if len(out) else 1))
    return Kernel("elementwise", dtype, (moved, 1))


def _has_statistics(call: Call) -> bool:
    """Return whether a batch norm uses its running statistics, as in eval mode. A batch norm in eval mode computes no statistics from the batch."""
    given = {**call.settings, **call.kwargs}
    return call.op == "batch_norm" and given.get("training") is False and given.get("track_running_stats") is not False


def _collective(counted: Counted) -> Kernel | None:
    """Return the kernel of a collective within a node; None if the bytes or the process group of the collective are unknown, or if the
    group has only one process."""
    [row] = collectives([counted])
    return (
        None
        if row.sent is None or row.received is None
        else collective_of(row.op, row.ranks, max(row.sent, row.received))
    )


def collective_of(op: str, ranks: int | None, nbytes: int) -> Kernel | None:
    """Return the kernel of a collective in which each of ``ranks`` processes sends ``nbytes``; None for fewer than two processes or 0 bytes."""
    return None if ranks is None or ranks < 2 or not nbytes else Kernel(op, NCCL, (ranks, nbytes))


def _product(counted: Counted, out: Spec, dtype: str) -> Kernel | None:
    """Return the kernel of a matrix product. The inner dimension of the product is the number of multiply-accumulates per element of the result."""
    if counted.macs % out.numel():
        return None  # the call consists of several products, e.g. a recurrent layer
    inner = counted.macs // out.numel()
    element = out.dtype.itemsize
    operands = _operands(counted)
    if len(out) > 2 and len(operands) > 1 and all(len(spec) > 2 for spec in operands[:2]):
        return Kernel("batched", dtype, (math.prod(out[:-2]), out[-2], out[-1], inner, element))
    columns = out[-1] if len(out) else 1
    return Kernel("linear", dtype, (1, out.numel() // columns, columns, inner, element))


def _operands(counted: Counted) -> list[Spec]:
    return [spec for spec in (*counted.call.inputs(), *specs_in(dict(counted.call.settings))) if len(spec) >= 2]


def _convolutions(counted: Counted) -> tuple[Kernel, ...]:
    """Return the kernels of a convolution or of its backward pass. There is one kernel for each tensor that the call computes.

    The shape of the weights is [o, i, *k]. The input has ``groups`` x i channels, and the output has o channels. A transposed convolution
    swaps input and output. For each group of channels, each of the tensors input, weights and output is a matrix product of the other two.
    For weights in another layout, the result is empty.
    """
    call, dtype = counted.call, compute_dtype(counted.call)
    tensors = _operands(counted)
    if "backward" in call.op:
        gradients = call.out if isinstance(call.out, tuple) else ()
        computed = [name for name, made in zip(("input", "weight"), gradients, strict=False) if made is not None]
    else:
        tensors, computed = [*specs_in(call.out), *tensors], ["output"]
    if len(tensors) < 3 or min(len(tensors[0]), len(tensors[1])) < len(tensors[2]) - 1:
        return ()  # a quantized convolution has packed weights
    output, input, weight = tensors[:3]
    if input[1 - len(weight)] == weight[0] != output[1 - len(weight)]:  # transposed
        input, output = output, input
        computed = [{"input": "output", "output": "input"}.get(name, name) for name in computed]
    return convolution(input, weight, output, dtype, computed)


def convolution(input: Spec, weight: Spec, output: Spec, dtype: str, computed: Iterable[str]) -> tuple[Kernel, ...]:
    """Return the kernels that compute the tensors named in ``computed``. "output" is the output; "input" and "weight" are the gradients of
    these tensors.

    The shapes are input[*, g*i, *n], weight[o, i, *k] and output[*, o, *m]. For other shapes, the result is empty.
    """
    channel = 1 - len(weight)
    groups = input[channel] // weight[1]
    if not groups or output[channel] != weight[0] or input[channel] != groups * weight[1]:
        return ()
    taps, places, input_places = math.prod(weight[2:]), output.numel() // weight[0], input.numel() // input[channel]
    shapes = {
        "output": (places, weight[0] // groups, weight[1] * taps),
        "weight": (weight[0] // groups, weight[1] * taps, places),
        "input": (input_places, weight[1], places * weight.numel() / input.numel()),
    }
    if places * taps <= input_places:  # patches do not overlap, so one product computes the input's gradient directly
        shapes["input"] = (places, weight[1] * taps, weight[0] // groups)
    element = weight.dtype.itemsize
    nbytes = element * (input.numel() + weight.numel() + output.numel())
    if groups > 1 and weight[1] == 1:
        return tuple(Kernel("depthwise", dtype, (nbytes, 2 * places * weight.numel())) for _ in computed)
    return tuple(Kernel("conv", dtype, (groups, *shapes[name], element, nbytes, weight[1])) for name in computed)


def _attention(counted: Counted, dtype: str) -> Kernel | None:
    """Return the kernel of fused attention; None for a call with a mask tensor."""
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
    """Return the shape of a FlashAttention tensor as [batch, heads, length, width]. The tensor itself has [batch, length, heads, width], or
    no batch if packed."""
    return Spec((*(tensor[:-3] or (1,)), tensor[-2], tensor[-3], tensor[-1]), tensor.dtype)


def _attention_backward(counted: Counted, dtype: str) -> Kernel | None:
    """Return the kernel of fused attention's backward pass. The call's first arguments are the gradient, query, key and value.

    Kernels differ in the position of the causal flag among their arguments. So the flag is inferred from the number of counted pairs.
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
