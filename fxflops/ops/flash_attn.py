"""The public functions of FlashAttention 2 and 3, including packed sequences and KV caches.

Arguments: https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/flash_attn_interface.py and
https://github.com/Dao-AILab/flash-attention/blob/main/hopper/flash_attn_interface.py. softmax(scale * q k' + mask) v and its gradients
count like torch's own attention: https://arxiv.org/abs/2205.14135, algorithm 0. Per score, soft-capping takes a divide, a tanh and a
multiply, and ALiBi takes a multiply and an add. Work that a kernel repeats to save memory is not counted.

In a packed batch, queries are counted only with the keys of their own sequence. If the lengths of the sequences have no values, every
sequence counts as if padded to the longest one. A cache counts up to its used lengths if these can be read, else in full. Causal and window
masks reduce the count only with ``attention="exact"``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from ..records.facts import fact_in, pairs_in
from ._extend import Cost, Spec, summed, times, when
from ._libraries import Values, gradients_of, library, values_of
from ._masks import window_pairs
from ._rules import parameters_of
from .attention import gradients_of_pairs, of_pairs

V2, V3 = "flash_attn.flash_attn_interface", "flash_attn_interface"
VLLM = "vllm.vllm_flash_attn.flash_attn_interface"
WITHIN = "within"
"""The name of a result's fact: the number of query-key pairs within sequences, over all heads, before masking."""
SOFTCAP, ALIBI = Cost(muls=1, others=2), Cost(muls=1, adds=1)
SOFTCAP_BACKWARD = Cost(muls=2, adds=1)
"""dS * (1 - tanh * tanh)."""
ROTATED = Cost(muls=2, adds=1)
"""The cost per rotated element of a rotary embedding: x1 * cos - x2 * sin, or x1 * sin + x2 * cos."""
RENAMED = {
    "q": "query",
    "k": "key",
    "v": "value",
    "causal": "is_causal",
    "max_seqlen_q": "max_q",
    "max_seqlen_k": "max_k",
    "cu_seqlens_q": "cum_seq_q",
    "cu_seqlens_k": "cum_seq_k",
}
UNBOUNDED = (-1, -1)


def renamed(values: Values) -> Values:
    """Return the arguments under the names that torch's attention uses."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


# Tensors [b, n, h, d], or packed [sum of n, h, d]


def cost_of(
    query: Spec,
    key: Spec,
    value: Spec,
    pairs: int,
    is_causal: bool = False,
    window_size: Sequence[int] | None = UNBOUNDED,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    dropout_p: float = 0.0,
) -> Cost:
    """Return the cost of attention for ``pairs`` query-key pairs of all heads together."""
    masked = bool(is_causal) or tuple(window_size or UNBOUNDED) != UNBOUNDED
    rows = math.prod(query[:-1])
    scores = summed(when(softcap, times(pairs, SOFTCAP)), when(alibi_slopes is not None, times(pairs, ALIBI)))
    return of_pairs(rows, pairs, query[-1], value[-1], masked, dropout_p).plus(scores)


def gradients(query: Spec, key: Spec, value: Spec, pairs: int, softcap: float = 0.0, dropout_p: float = 0.0) -> Cost:
    """Return the cost of the gradients for ``pairs`` query-key pairs. A key's gradient is scaled once per query head that shares the key."""
    rows, keys = math.prod(query[:-1]), math.prod(key[:-2]) * query[-2]
    products = gradients_of_pairs(rows, keys, pairs, query, key, value, dropout_p)
    return products.plus(when(softcap, times(pairs, SOFTCAP_BACKWARD)))


def pairs_of(out: Any, query: Spec, key: Spec, starts: Any = None, max_q: int = 0, max_k: int = 0) -> int:
    """Return the number of query-key pairs that a call counts: pairs that a mask keeps, else pairs within sequences.

    If neither number was recorded, every sequence counts as if padded to the longest one.
    """
    n, h = query[-3], query[-2]
    whole = math.prod(query[:-3]) * n * key[-3] * h if starts is None else (starts[0] - 1) * max_q * max_k * h
    pairs: int = pairs_in(out, fact_in(out, WITHIN, whole))
    return pairs


def differences(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in pairwise(ends)]


def lengths_of(starts: Any) -> list[int]:
    """Return the lengths of packed sequences from the cumulative lengths."""
    ends = values_of(starts)
    return differences(ends)


def facts_of(heads: int, lengths: Sequence[tuple[int, int]], values: Values, within: bool = True) -> Mapping[str, int]:
    """Return the number of pairs within sequences, and the number of pairs that the causal mask and the window keep.

    ``lengths`` has the numbers of queries and keys of each sequence.
    """
    left, right = values.get("window_size") or UNBOUNDED
    right = 0 if values.get("is_causal") else right
    facts = {WITHIN: heads * sum(n * s for n, s in lengths)} if within else {}
    if (left, right) != UNBOUNDED and not values.get("attention_chunk"):
        facts["pairs"] = heads * sum(window_pairs(n, s, left, right) for n, s in lengths)
    return facts


def dense_facts(values: Values) -> Mapping[str, int]:
    """Return the number of pairs that a mask keeps in a batch of sequences of equal length."""
    query, key = values["query"].shape, values["key"].shape
    return facts_of(query[-2] * query[0], [(query[1], key[1])], values, within=False)


def packed_facts(values: Values) -> Mapping[str, int]:
    """Return the numbers of pairs of packed sequences. The used lengths, ``seqused_q`` and ``seqused_k``, are read if they are passed."""
    used = [values.get(f"seqused_{each}") for each in "qk"]
    lengths = [
        lengths_of(values[f"cum_seq_{each}"]) if known is None else values_of(known)
        for each, known in zip("qk", used, strict=True)
    ]
    return facts_of(values["query"].shape[-2], [*zip(*lengths, strict=True)], values)


def attention_result(
    query: Spec, key: Spec, value: Spec, cum_seq_q: Any = None, return_attn_probs: bool = False,
    return_softmax_lse: bool = False, out: Any = None,
) -> Any:  # fmt: skip
    """Return out[*, h, v]; with ``return_attn_probs``, also return the softmax's log-sum-exp and an empty tensor."""
    made = Spec((*query[:-1], value[-1]), query.dtype)
    log_sums = log_sums_of(query)
    if return_attn_probs:
        return made, log_sums, Spec((0,), query.dtype)
    return (made, log_sums) if return_softmax_lse else made


def log_sums_of(query: Spec) -> Spec:
    """Return the spec of the softmax's log-sum-exp: [b, h, n], or [h, sum of n]."""
    return Spec((*query[:-3], query[-2], query[-3]), torch.float32)


def saved(query: Spec, **others: Any) -> list[Spec]:
    return [log_sums_of(query)]


DENSE = f"{V2}:flash_attn_func", f"{V3}:flash_attn_func"


@library(*DENSE, op="attention", described=renamed, facts=dense_facts, result=attention_result, saved=saved)
def flash_attn_func(
    *, query: Spec, key: Spec, value: Spec, is_causal: bool = False, window_size: Any = UNBOUNDED, softcap: float = 0.0,
    alibi_slopes: Any = None, dropout_p: float = 0.0, out: Any,
) -> Cost:  # fmt: skip
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v]: counted like attention."""
    pairs = pairs_of(out, query, key)
    return cost_of(query, key, value, pairs, is_causal, window_size, softcap, alibi_slopes, dropout_p)


@flash_attn_func.backward(*gradients_of(*DENSE), op="attention_backward")
def flash_attn_backward(
    *, query: Spec, key: Spec, value: Spec, softcap: float = 0.0, dropout_p: float = 0.0, out: Any
) -> Cost:
    """grad[b, n, h, v], query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out_q, out_k, out_v: counted like attention_backward."""
    return gradients(query, key, value, pairs_of(out, query, key), softcap, dropout_p)


PACKED = f"{V2}:flash_attn_varlen_func", f"{V3}:flash_attn_varlen_func", f"{VLLM}:flash_attn_varlen_func"


@library(*PACKED, op="attention", described=renamed, facts=packed_facts, result=attention_result, saved=saved)
def flash_attn_varlen_func(
    *, query: Spec, key: Spec, value: Spec, cum_seq_q: Spec, max_q: int, max_k: int, is_causal: bool = False,
    window_size: Any = UNBOUNDED, softcap: float = 0.0, alibi_slopes: Any = None, dropout_p: float = 0.0, out: Any,
) -> Cost:  # fmt: skip
    """query[sum of n, h, d], key[sum of s, h, d], value[sum of s, h, v] -> out[sum of n, h, v]: counted like attention within each sequence."""
    pairs = pairs_of(out, query, key, cum_seq_q, max_q, max_k)
    return cost_of(query, key, value, pairs, is_causal, window_size, softcap, alibi_slopes, dropout_p)


@flash_attn_varlen_func.backward(*gradients_of(*PACKED), op="attention_backward")
def flash_attn_varlen_backward(
    *, query: Spec, key: Spec, value: Spec, cum_seq_q: Spec, max_q: int, max_k: int, softcap: float = 0.0,
    dropout_p: float = 0.0, out: Any,
) -> Cost:  # fmt: skip
    """grad[sum of n, h, v], query[sum of n, h, d], key[sum of s, h, d], value[sum of s, h, v] -> out_q, out_k, out_v: counted like attention_backward."""
    return gradients(query, key, value, pairs_of(out, query, key, cum_seq_q, max_q, max_k), softcap, dropout_p)


# Queries, keys and values in one tensor, or only keys and values


def parts_of(given: Values) -> Values:
    """Return the arguments and the shapes of query, key and value, which one argument has packed into one tensor."""
    given = renamed(given)
    if "qkv" in given:
        shape, heads = tuple(given["qkv"].shape), given.get("num_heads_q")
        if heads is None:
            parts = [Spec((*shape[:-3], *shape[-2:]))] * 3
        else:
            parts = [Spec((*shape[:-2], each, shape[-1])) for each in (heads, *[(shape[-2] - heads) // 2] * 2)]
    else:
        shape = tuple(given["kv"].shape)
        parts = [given["query"], *[Spec((*shape[:-3], *shape[-2:]))] * 2]
    both = {f"cum_seq_{each}": given["cu_seqlens"] for each in "qk" if "cu_seqlens" in given}
    both |= {f"max_{each}": given["max_seqlen"] for each in "qk" if "max_seqlen" in given}
    return {**given, **dict(zip(("query", "key", "value"), parts, strict=True)), **both}


def result_of_parts(**given: Any) -> Any:
    dtype = given["qkv" if "qkv" in given else "query"].dtype
    parts = parts_of(given)
    query, key, value = (Spec(parts[name], dtype) for name in ("query", "key", "value"))
    return attention_result(query, key, value, return_attn_probs=given.get("return_attn_probs", False))


def saved_of_parts(**given: Any) -> list[Spec]:
    return [log_sums_of(parts_of(given)["query"])]


QKV = f"{V2}:flash_attn_qkvpacked_func", f"{V3}:flash_attn_qkvpacked_func"
KV = f"{V2}:flash_attn_kvpacked_func"
QKV_PACKED, KV_PACKED = f"{V2}:flash_attn_varlen_qkvpacked_func", f"{V2}:flash_attn_varlen_kvpacked_func"


def dense_facts_of_parts(values: Values) -> Mapping[str, int]:
    return dense_facts(parts_of(values))


def packed_facts_of_parts(values: Values) -> Mapping[str, int]:
    return packed_facts(parts_of(values))


@library(
    *QKV,
    KV,
    op="attention",
    described=renamed,
    facts=dense_facts_of_parts,
    result=result_of_parts,
    saved=saved_of_parts,
)
def flash_attn_of_parts(*, out: Any, **given: Any) -> Cost:
    """qkv[b, n, 3, h, d], or query[b, n, h, d] and kv[b, s, 2, h, d] -> out[b, n, h, d]: counted like attention."""
    return _named(flash_attn_func, given, out)


@flash_attn_of_parts.backward(*gradients_of(*QKV, KV), op="attention_backward")
def flash_attn_of_parts_backward(*, out: Any, **given: Any) -> Cost:
    """grad[b, n, h, d], qkv[b, n, 3, h, d], or query[b, n, h, d] and kv[b, s, 2, h, d] -> out_qkv, or out_q, out_kv: counted like attention_backward."""
    return _named(flash_attn_backward, given, out)


@library(
    QKV_PACKED,
    KV_PACKED,
    op="attention",
    described=renamed,
    facts=packed_facts_of_parts,
    result=result_of_parts,
    saved=saved_of_parts,
)
def flash_attn_varlen_of_parts(*, out: Any, **given: Any) -> Cost:
    """qkv[sum of n, 3, h, d], or query[sum of n, h, d] and kv[sum of s, 2, h, d] -> out[sum of n, h, d]: counted like attention within each sequence."""
    return _named(flash_attn_varlen_func, given, out)


@flash_attn_varlen_of_parts.backward(*gradients_of(QKV_PACKED, KV_PACKED), op="attention_backward")
def flash_attn_varlen_of_parts_backward(*, out: Any, **given: Any) -> Cost:
    """grad[sum of n, h, d], qkv[sum of n, 3, h, d], or query and kv -> out_qkv, or out_q, out_kv: counted like attention_backward."""
    return _named(flash_attn_varlen_backward, given, out)


def _named(function: Any, given: Values, out: Any) -> Cost:
    values = parts_of(given)
    cost: Cost = function(**{name: values[name] for name in parameters_of(function)[1] if name in values}, out=out)
    return cost


# KV caches


def cached(query: Spec, k_cache: Spec, k: Any, table: Any) -> tuple[int, int]:
    """Return the number of sequences, and the largest number of keys per sequence.

    In a paged cache, [blocks, block size, h, d], the width of the block table limits this number.
    """
    new = 0 if k is None else k.shape[1]
    return query.shape[0], (k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]) or new


def cache_facts(values: Values) -> Mapping[str, int]:
    """Return the number of pairs with cached and new keys. If the lengths are not passed, the whole cache counts."""
    query, k_cache = values["query"], values["k_cache"]
    if values.get("cum_seq_q") is not None:
        raise NotImplementedError(
            "cannot count the exact pairs of packed queries with a cache; every sequence is counted as if padded to the longest sequence"
        )
    table = values.get("block_table") if values.get("page_table") is None else values["page_table"]
    batch, longest = cached(query, k_cache, values.get("key"), table)
    lengths, new = values.get("cache_seqlens"), 0 if values.get("key") is None else values["key"].shape[1]
    if lengths is None:
        keys = [longest] * batch
    else:
        keys = [each + new for each in ([lengths] * batch if isinstance(lengths, int) else values_of(lengths))]
    skipped = values.get("cache_leftpad")
    if skipped is not None:
        keys = [each - less for each, less in zip(keys, values_of(skipped), strict=True)]
    return facts_of(query.shape[-2], [(query.shape[1], each) for each in keys], values)


def cache_result(query: Spec, v_cache: Spec, return_softmax_lse: bool = False) -> Any:
    return attention_result(query, v_cache, v_cache, return_softmax_lse=return_softmax_lse)


CACHED = f"{V2}:flash_attn_with_kvcache", f"{V3}:flash_attn_with_kvcache", f"{VLLM}:flash_attn_with_kvcache"


@library(
    *CACHED, op="attention", described=renamed, facts=cache_facts, result=cache_result, writes=("k_cache", "v_cache")
)
def flash_attn_with_kvcache(
    *, query: Spec, k_cache: Spec, v_cache: Spec, key: Spec | None = None, rotary_cos: Spec | None = None,
    block_table: Spec | None = None, page_table: Spec | None = None, is_causal: bool = False,
    window_size: Any = UNBOUNDED, softcap: float = 0.0, alibi_slopes: Any = None, out: Any,
) -> Cost:  # fmt: skip
    """query[b, n, h, d], k_cache[b, s, h, d], v_cache[b, s, h, v] -> out[b, n, h, v]: counted like attention, plus 3 per rotated element of query and key."""
    table = block_table if page_table is None else page_table
    batch, longest = cached(query, k_cache, key, table)
    pairs = pairs_in(out, fact_in(out, WITHIN, batch * query[-3] * query[-2] * longest))
    cost = cost_of(query, k_cache, v_cache, pairs, is_causal, window_size, softcap, alibi_slopes)
    if rotary_cos is None:
        return cost
    turned = math.prod(query[:-1]) + (0 if key is None else math.prod(key[:-1]))
    return cost.plus(times(turned * 2 * rotary_cos[-1], ROTATED))
