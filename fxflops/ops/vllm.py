"""vLLM's kernels for a paged KV cache: attention for one new token per sequence, and writes to the cache.

Arguments: https://github.com/vllm-project/vllm/blob/main/vllm/_custom_ops.py. Attention counts the keys of each sequence if the
lengths can be read. If not, every sequence counts as if padded to the longest one. FlashAttention with pages is in ``flash_attn.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records.facts import fact_in
from ._extend import Cost, Spec, times, when
from ._libraries import Values, library, values_of
from .attention import of_pairs
from .flash_attn import ALIBI, WITHIN

OPS = "vllm._custom_ops"


def facts(values: Values) -> Mapping[str, int]:
    """Return the number of query-key pairs: the keys of all sequences, counted once per query head."""
    return {WITHIN: values["query"].shape[-2] * sum(values_of(values["seq_lens"]))}


def nothing() -> None:
    """Return None: the kernel only writes to its arguments."""


@library(
    f"{OPS}:paged_attention_v1",
    f"{OPS}:paged_attention_v2",
    op="attention",
    facts=facts,
    result=nothing,
    writes=("out",),
)
def paged_attention(*, query: Spec, max_seq_len: int, alibi_slopes: Spec | None = None, out: Any) -> Cost:
    """query[b, h, d], pages of keys and values of d, lengths[b] -> out[b, h, d]: counted like attention with one query per sequence."""
    b, h, d = query
    pairs = fact_in(out, WITHIN, b * h * max_seq_len)
    return of_pairs(b * h, pairs, d, d, False, 0.0).plus(when(alibi_slopes is not None, times(pairs, ALIBI)))


@library(
    f"{OPS}:reshape_and_cache",
    f"{OPS}:reshape_and_cache_flash",
    op="cache_write",
    result=nothing,
    writes=("key_cache", "value_cache"),
)
def reshape_and_cache(*, out: Any) -> Cost:
    """key[n, h, d], value[n, h, d], slots[n] -> the cache: nothing is computed."""
    return Cost()


@library(f"{OPS}:rms_norm", op="rms_norm", result=nothing, writes=("out",))
def vllm_rms_norm(*, input: Spec, weight: Spec | None = None, out: Any) -> Cost:
    """input[*, k], weight[k] -> out[*, k]: counted like rms_norm."""
    return times(input.numel(), Cost(muls=0 if weight is None else 1, others=1))


@library(f"{OPS}:fused_add_rms_norm", op="rms_norm", result=nothing, writes=("input", "residual"))
def vllm_fused_add_rms_norm(*, input: Spec, weight: Spec | None = None, out: Any) -> Cost:
    """input[*, k], residual[*, k], weight[k] -> both: 1 add per element, plus the cost of rms_norm."""
    return times(input.numel(), Cost(muls=0 if weight is None else 1, adds=1, others=1))


@library(f"{OPS}:rotary_embedding", op="rotary_embedding", result=nothing, writes=("query", "key"))
def vllm_rotary_embedding(
    *, query: Spec, key: Spec | None = None, head_size: int, cos_sin_cache: Spec, out: Any
) -> Cost:
    """query[n, hd], key[n, hd], cos_sin[l, r] -> both: 2 multiplies and 1 add per rotated element."""
    elements = query.numel() + (0 if key is None else key.numel())
    return times(elements // head_size * cos_sin_cache[-1], Cost(muls=2, adds=1))
