"""The shape rule of ``scaled_dot_product_attention``: which kernel runs on CPU, and which tensors the kernel allocates.

Torch itself decides whether the fused kernel runs (``torch._fused_sdp_choice``). If not, unfused matrix products run, in the steps of
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/attention.cpp
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from ..torch_internals import DisableTorchDispatch, DisableTorchFunction, fused_sdp_choice
from ._extend import WHOLE, Placed, Result, Spec, broadcast, contiguous, like, placed, pointwise, shape, viewed
from ._lifetimes import Lifetimes

FULL = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)


@shape(F.scaled_dot_product_attention, layout=WHOLE)
def attention_shape(
    query: Placed,
    key: Placed,
    value: Placed,
    attn_mask: Placed | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    device: str,
) -> Result | None:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]."""
    tensors = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    if device != "cpu" or fused_sdp_choice is None or dropout_p or len({each.dtype for each in tensors[:3]}) > 1:
        return None
    if any(0 in each or len(each) < 2 for each in tensors) or not len(query) == len(key) == len(value) in (3, 4):
        return None
    if attn_mask is not None and (is_causal or attn_mask.dtype not in (torch.bool, query.dtype)):
        return None
    with DisableTorchFunction(), DisableTorchDispatch():
        small = [
            None if each is None else few_bytes(each, each.strides, each.dtype)
            for each in (query, key, value, attn_mask)
        ]
        choice = fused_sdp_choice(*small, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if choice == SDPBackend.FLASH_ATTENTION.value:
        return _fused(query, attn_mask)
    if choice != SDPBackend.MATH.value or enable_gqa or query.dtype not in FULL:
        return None
    return _products(query, key, value, attn_mask, is_causal)


def few_bytes(sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor of these sizes whose rows all share the storage of one row."""
    row = torch.zeros(sizes[-1], dtype=dtype, device="cpu")
    return row.as_strided(tuple(sizes), (*[0] * (len(sizes) - 1), int(strides[-1] == 1)))


def _fused(query: Placed, mask: Placed | None) -> Result | None:
    """Return the result of the fused kernel, which also returns each row's log-sum-exp."""
    strides = like(query)
    if strides is None or query.dtype not in (torch.float32, *HALVES):
        return None
    lifetimes, (*batch, n, _) = Lifetimes(), query
    if mask is not None and mask.dtype is torch.bool:
        _numbers(lifetimes, mask, query.dtype)
    out = lifetimes.make(Spec(query, query.dtype))
    lifetimes.make(Spec((*batch, n), torch.float32))
    return Result(out, strides, lifetimes.alive_at_peak(out))


def _products(query: Placed, key: Placed, value: Placed, mask: Placed | None, is_causal: bool) -> Result | None:
    """Return the result of the unfused products. Queries and keys are scaled first; the scaled queries stay alive to the end."""
    *batch, n, d = query
    s, v = value[-2:]
    if (
        key != (*batch, s, d)
        or value != (*batch, s, v)
        or (mask is not None and broadcast((*batch, n, s), mask) != (*batch, n, s))
    ):
        return None
    lifetimes, dtype = Lifetimes(), query.dtype
    if mask is not None and mask.dtype is torch.bool:
        _numbers(lifetimes, mask, dtype)
    queries = lifetimes.make(Spec(query, dtype))
    if is_causal:
        ones = lifetimes.make(Spec((n, s), torch.bool))
        triangle = lifetimes.make(Spec((n, s), torch.bool))
        lifetimes.free(ones)
        _numbers(lifetimes, triangle, dtype)
        lifetimes.free(triangle)
    transposed = (*key[:-2], d, s), (*key.strides[:-2], key.strides[-1], key.strides[-2])
    keys = lifetimes.make(Spec(transposed[0], dtype))
    lying = pointwise(query, [(query, query.strides)]), pointwise(transposed[0], [transposed])
    if lying[0] is None or lying[1] is None:
        return None
    copies = [
        lifetimes.make(_batched(each))
        for each in (placed(queries, lying[0]), placed(keys, lying[1]))
        if not _is_batched(each)
    ]
    scores = lifetimes.make(Spec((*batch, n, s), dtype))
    lifetimes.free(*copies, keys)
    lifetimes.make(Spec(scores, dtype))  # the weights
    if mask is not None:  # a fully masked row becomes zeros (_safe_softmax)
        left_out = Spec(scores, torch.bool), Spec((*batch, n, 1), torch.bool), Spec((), dtype)
        lifetimes.free(*[lifetimes.make(each) for each in left_out])
    lifetimes.free(scores)
    if not _is_batched(value):
        lifetimes.make(_batched(value))
    out = lifetimes.make(Spec((*batch, n, v), dtype))
    return Result(out, contiguous(out), lifetimes.alive_at_peak(out))


def _numbers(lifetimes: Lifetimes, mask: Spec, dtype: torch.dtype) -> None:
    """Track the tensors of converting a boolean mask to numbers: two scalar tensors, and the mask of numbers."""
    chosen = [lifetimes.make(Spec((), dtype)) for _ in range(2)]
    lifetimes.make(Spec(mask, dtype))
    lifetimes.free(*chosen)


def _batched(operand: Spec) -> Spec:
    """Return an operand of a matrix product with its batch dimensions merged into one."""
    return Spec((prod(operand[:-2]), *operand[-2:]), operand.dtype)


def _is_batched(operand: Placed) -> bool:
    """Return True if merging an operand's batch dimensions needs no copy."""
    return viewed(operand, _batched(operand)) is not None
