"""FlashAttention, by the names of its functions: textbook attention per sequence, on counting numbers. The library is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fxflops
from fxflops.records import Cost
from tests.library_stand_ins import Calls, counts, library
from tests.oracle import Tally, numbers, tallying

V2 = "flash_attn.flash_attn_interface"
V3 = "flash_attn_interface"
LAST = "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False"
V3_LAST = "softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0"  # fmt: skip
PACKED = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
FUNCTIONS = {
    f"{V2}:flash_attn_func": f"q, k, v, dropout_p=0.0, {LAST}",
    f"{V2}:flash_attn_qkvpacked_func": f"qkv, dropout_p=0.0, {LAST}",
    f"{V2}:flash_attn_kvpacked_func": f"q, kv, dropout_p=0.0, {LAST}",
    f"{V2}:flash_attn_varlen_func": f"q, k, v, {PACKED}, dropout_p=0.0, {LAST}, block_table=None",
    f"{V2}:flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, dropout_p=0.0, {LAST}",
    f"{V2}:flash_attn_varlen_kvpacked_func": f"q, kv, {PACKED}, dropout_p=0.0, {LAST}",
    f"{V2}:flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
    "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False",
    f"{V3}:flash_attn_func": f"q, k, v, {V3_LAST}",
    f"{V3}:flash_attn_varlen_func": f"q, k, v, {PACKED}, seqused_q=None, seqused_k=None, {V3_LAST}",
    f"{V3}:flash_attn_qkvpacked_func": "qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None, "
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0",
}  # fmt: skip
SHAPES = [
    # batch, queries, keys, heads, key heads, key width, value width
    (1, 4, 4, 1, 1, 2, 2),
    (2, 3, 5, 2, 2, 4, 4),
    (2, 6, 4, 4, 2, 3, 5),
    (3, 1, 7, 6, 1, 2, 2),
    (1, 5, 5, 3, 3, 8, 4),
]


@pytest.fixture(scope="module")
def flash() -> Iterator[Any]:
    with library(FUNCTIONS) as find:
        yield find


def textbook(n: int, s: int, h: int, d: int, v: int, masked: bool = False, dropout: bool = False, softcap: bool = False, alibi: bool = False) -> Tally:  # fmt: skip
    """softmax(scale * q k' + mask) v of one sequence, where each query head has its own keys."""
    q, k, values, one = numbers(h, n, d), numbers(h, s, d), numbers(h, s, v), numbers(1)
    with tallying() as tally:
        scores = q @ k.transpose(0, 2, 1) * one
        if softcap:
            scores = np.exp(scores / one) * one  # exp stands for tanh
        if alibi:
            scores = scores + numbers(h, 1, 1) * numbers(1, n, s)
        if masked:
            scores = scores + numbers(n, s)
        exps = np.exp(scores)
        weights = exps / np.sum(exps, axis=-1, keepdims=True)
        if dropout:
            weights = weights * numbers(h, n, s)
        weights @ values
    return tally


def gradients(n: int, s: int, h: int, g: int, d: int, v: int, dropout: bool = False, softcap: bool = False) -> Tally:
    """With weights P: P' grad; dP = grad v'; dS = P * (dP - sum of P * dP); dS k and dS' q, scaled. Keys sum over their group."""
    q, k, values, grad, p, one = (
        numbers(h, n, d), numbers(h, s, d), numbers(h, s, v), numbers(h, n, v), numbers(h, n, s), numbers(1),
    )  # fmt: skip
    with tallying() as tally:
        of_weights = grad @ values.transpose(0, 2, 1)
        if dropout:
            of_weights = of_weights * one
        of_scores = p * (of_weights - np.sum(p * of_weights, axis=-1, keepdims=True))
        if softcap:
            of_scores = of_scores * (one - p * p)
        _ = of_scores @ k * one
        of_key, of_value = of_scores.transpose(0, 2, 1) @ q * one, p.transpose(0, 2, 1) @ grad
        np.sum(of_key.reshape(g, h // g, s, d), axis=1)
        np.sum(of_value.reshape(g, h // g, s, v), axis=1)
    return tally


def times(n: int, tally: Tally) -> Tally:
    return Tally(n * tally.muls, n * tally.adds, n * tally.others)


def summed(*tallies: Tally) -> Tally:
    return Tally(*(sum(getattr(each, name) for each in tallies) for name in ("muls", "adds", "others")))


def whole(tally: Tally, cost: Cost) -> bool:
    return (tally.muls, tally.adds, tally.others) == tuple(cost[1:])


@pytest.mark.parametrize("version", [V2, V3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch(flash: Any, shape: tuple[int, ...], version: str) -> None:
    b, n, s, h, g, d, v = shape
    given = {"q": torch.randn(b, n, h, d), "k": torch.randn(b, s, g, d), "v": torch.randn(b, s, g, v)}
    counted = counts(flash(f"{version}:flash_attn_func"), given)
    assert counted.out == (b, n, h, v)
    assert whole(times(b, textbook(n, s, h, d, v)), counted.forward)
    assert whole(times(b, gradients(n, s, h, g, d, v)), counted.backward)
    assert counted.forward.macs == b * h * n * s * (d + v)
    assert counted.backward.macs == 2 * counted.forward.macs


@pytest.mark.parametrize(
    ("options", "textbooks", "of_gradients"),
    [
        ({"causal": True}, {"masked": True}, {}),
        ({"window_size": (2, 0)}, {"masked": True}, {}),
        ({"dropout_p": 0.1}, {"dropout": True}, {"dropout": True}),
        ({"softcap": 30.0}, {"softcap": True}, {"softcap": True}),
    ],
    ids=str,
)
def test_options(flash: Any, options: dict[str, Any], textbooks: dict[str, Any], of_gradients: dict[str, Any]) -> None:
    b, n, s, h, g, d, v = SHAPES[2]
    given = {"q": torch.randn(b, n, h, d), "k": torch.randn(b, s, g, d), "v": torch.randn(b, s, g, v)}
    counted = counts(flash(f"{V2}:flash_attn_func"), given, **options)
    assert whole(times(b, textbook(n, s, h, d, v, **textbooks)), counted.forward)
    assert whole(times(b, gradients(n, s, h, g, d, v, **of_gradients)), counted.backward)


def test_slopes_of_alibi_and_what_else_is_returned(flash: Any) -> None:
    b, n, s, h, g, d, v = SHAPES[1]
    given = {"q": torch.randn(b, n, h, d), "k": torch.randn(b, s, g, d), "v": torch.randn(b, s, g, v)}
    slopes = torch.randn(h)
    counted = counts(flash(f"{V2}:flash_attn_func"), given, alibi_slopes=slopes, return_attn_probs=True)
    assert whole(times(b, textbook(n, s, h, d, v, alibi=True)), counted.forward)
    assert counted.out == ((b, n, h, v), (b, h, n), (0,))


def visible(n: int, s: int, left: int, right: int) -> int:
    """Count a window's pairs one by one: https://github.com/Dao-AILab/flash-attention, ``flash_attn_func``."""
    return sum(
        (left < 0 or j >= i + s - n - left) and (right < 0 or j <= i + s - n + right)
        for i in range(n)
        for j in range(s)
    )


@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 2), (-1, 1), (0, -1)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_attention_counts_the_pairs_of_the_window(flash: Any, shape: tuple[int, ...], window: tuple[int, int], causal: bool) -> None:  # fmt: skip
    b, n, s, h, g, d, v = shape
    given = {"q": torch.randn(b, n, h, d), "k": torch.randn(b, s, g, d), "v": torch.randn(b, s, g, v)}
    options = {"causal": causal, "window_size": window}
    counted = counts(flash(f"{V2}:flash_attn_func"), given, count_attention="exact", **options)
    pairs = b * h * visible(n, s, window[0], 0 if causal else window[1])
    assert counted.forward.macs == pairs * (d + v)
    assert counted.backward.macs == 2 * pairs * (d + v)


LENGTHS = [([3], [3]), ([2, 4], [2, 4]), ([1, 5, 2], [4, 1, 3]), ([7, 1], [2, 6]), ([1, 1, 1, 1], [3, 5, 2, 9])]


def starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


@pytest.mark.parametrize("version", [V2, V3])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_each_packed_sequence_meets_its_own_keys(
    flash: Any, lengths: tuple[list[int], list[int]], version: str
) -> None:
    queries, keys = lengths
    h, g, d = 4, 2, 3
    given = {"q": torch.randn(sum(queries), h, d), "k": torch.randn(sum(keys), g, d), "v": torch.randn(sum(keys), g, d)}
    given |= {"cu_seqlens_q": starts(queries), "cu_seqlens_k": starts(keys)}
    longest = {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys)}
    counted = counts(flash(f"{version}:flash_attn_varlen_func"), given, **longest)
    assert counted.out == (sum(queries), h, d)
    assert whole(summed(*(textbook(n, s, h, d, d) for n, s in zip(*lengths, strict=True))), counted.forward)
    assert whole(summed(*(gradients(n, s, h, g, d, d) for n, s in zip(*lengths, strict=True))), counted.backward)
    exact = counts(flash(f"{version}:flash_attn_varlen_func"), given, count_attention="exact", causal=True, **longest)
    assert exact.forward.macs == h * sum(visible(n, s, -1, 0) for n, s in zip(*lengths, strict=True)) * 2 * d


def test_without_values_packed_sequences_count_as_the_longest(flash: Any) -> None:
    given = {"q": torch.randn(7, 2, 3), "k": torch.randn(9, 2, 3), "v": torch.randn(9, 2, 3)}
    given |= {
        "cu_seqlens_q": torch.zeros(3, dtype=torch.int32).to("meta"),
        "cu_seqlens_k": torch.zeros(3, dtype=torch.int32).to("meta"),
    }
    counted = counts(flash(f"{V2}:flash_attn_varlen_func"), given, max_seqlen_q=4, max_seqlen_k=5)
    assert counted.forward.macs == 2 * 2 * 4 * 5 * 6


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_tensors_count_as_their_parts(flash: Any, shape: tuple[int, ...]) -> None:
    b, n, s, h, g, d, _ = shape
    apart = {"q": torch.randn(b, n, h, d), "k": torch.randn(b, s, g, d), "v": torch.randn(b, s, g, d)}
    of_parts = counts(flash(f"{V2}:flash_attn_func"), apart)
    kv = {"q": apart["q"], "kv": torch.randn(b, s, 2, g, d)}
    assert counts(flash(f"{V2}:flash_attn_kvpacked_func"), kv) == of_parts
    same = {name: torch.randn(b, n, h, d) for name in "qkv"}
    qkv = counts(flash(f"{V2}:flash_attn_qkvpacked_func"), {"qkv": torch.randn(b, n, 3, h, d)}, causal=True)
    assert qkv == counts(flash(f"{V2}:flash_attn_func"), same, causal=True)
    grouped = {"q": same["q"], **{name: torch.randn(b, n, g, d) for name in "kv"}}
    beside = counts(flash(f"{V3}:flash_attn_qkvpacked_func"), {"qkv": torch.randn(b, n, h + 2 * g, d)}, num_heads_q=h)
    assert beside == counts(flash(f"{V3}:flash_attn_func"), grouped)


@pytest.mark.parametrize("lengths", [each for _, each in LENGTHS], ids=str)
def test_packed_sequences_in_one_tensor(flash: Any, lengths: list[int]) -> None:
    total, h, d = sum(lengths), 2, 3
    both = {"cu_seqlens_q": starts(lengths), "cu_seqlens_k": starts(lengths)}
    longest = {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
    apart = {name: torch.randn(total, h, d) for name in "qkv"} | both
    of_parts = counts(flash(f"{V2}:flash_attn_varlen_func"), apart, **longest)
    one = {"qkv": torch.randn(total, 3, h, d), "cu_seqlens": starts(lengths)}
    assert counts(flash(f"{V2}:flash_attn_varlen_qkvpacked_func"), one, max_seqlen=max(lengths)) == of_parts
    two = {"q": torch.randn(total, h, d), "kv": torch.randn(total, 2, h, d)} | both
    assert counts(flash(f"{V2}:flash_attn_varlen_kvpacked_func"), two, **longest) == of_parts


CACHES = [([3, 1], 1), ([8, 8], 1), ([5], 3), ([0, 2, 4], 2), ([6, 7, 1, 2], 1)]


@pytest.mark.parametrize(("lengths", "n"), CACHES, ids=str)
def test_a_cache_counts_as_far_as_it_is_filled(flash: Any, lengths: list[int], n: int) -> None:
    b, h, g, d, room = len(lengths), 4, 2, 6, 8
    find = flash(f"{V2}:flash_attn_with_kvcache")
    caches = {
        "q": torch.randn(b, n, h, d),
        "k_cache": torch.randn(b, room, g, d),
        "v_cache": torch.randn(b, room, g, d),
    }
    given = caches | {"cache_seqlens": torch.tensor(lengths, dtype=torch.int32)}
    counted = counts(find, given, backward=False)
    assert counted.out == (b, n, h, d)
    assert whole(summed(*(textbook(n, s, h, d, d) for s in lengths if s)), counted.forward) or 0 in lengths
    assert counted.forward.macs == h * n * sum(lengths) * 2 * d
    assert counts(find, caches, backward=False).forward.macs == h * n * b * room * 2 * d
    assert counts(find, caches, backward=False, cache_seqlens=2).forward.macs == h * n * b * 2 * 2 * d
    new = {"k": torch.randn(b, n, g, d), "v": torch.randn(b, n, g, d)}
    assert counts(find, given | new, backward=False).forward.macs == h * n * sum(s + n for s in lengths) * 2 * d
    turned = {"rotary_cos": torch.randn(room, 2), "rotary_sin": torch.randn(room, 2)}
    rotated = counts(find, given | new | turned, backward=False).forward.flops
    x1, x2, cos, sin = (numbers(b, n, h + g, 2) for _ in range(4))
    with tallying() as tally:
        _ = x1 * cos - x2 * sin, x1 * sin + x2 * cos
    assert rotated == counts(find, given | new, backward=False).forward.flops + tally.flops


def test_pages_of_a_cache(flash: Any) -> None:
    given = {
        "q": torch.randn(2, 1, 4, 6), "k_cache": torch.randn(9, 16, 2, 6), "v_cache": torch.randn(9, 16, 2, 6),
        "block_table": torch.zeros(2, 3, dtype=torch.int32),
    }  # fmt: skip
    find = flash(f"{V2}:flash_attn_with_kvcache")
    assert counts(find, given, backward=False).forward.macs == 4 * 2 * 3 * 16 * 12
    filled = given | {"cache_seqlens": torch.tensor([17, 40], dtype=torch.int32)}
    assert counts(find, filled, backward=False).forward.macs == 4 * (17 + 40) * 12


def test_flop_counter_mode_does_not_see_it(flash: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    given = {name: torch.randn(2, 3, 4, 5) for name in "qkv"}
    report = fxflops.count(Calls(flash(f"{V2}:flash_attn_func"), given, {}), convention="torch")
    with FlopCounterMode(display=False) as counter:
        given["q"] * 1  # all that it sees of such a model
    assert report.total_flops == counter.get_total_flops() == 0
    assert report.total_macs == 2 * 4 * 3 * 3 * 10


def test_it_is_predicted_as_torchs_own_attention(flash: Any) -> None:
    """flash_attn and torch order the dims of heads and length differently, but the work is the same, so the time is too."""
    given = {name: torch.randn(2, 512, 8, 64, dtype=torch.bfloat16) for name in "qkv"}
    own = fxflops.count(Calls(flash(f"{V2}:flash_attn_func"), given, {"causal": True}))
    shuffled = {
        name: tensor.transpose(1, 2).contiguous()
        for name, tensor in zip(("query", "key", "value"), given.values(), strict=True)
    }
    torchs = fxflops.count(
        Calls(torch.nn.functional.scaled_dot_product_attention, shuffled, {"is_causal": True}), device="cuda"
    )
    assert own.predict("H100 SXM").seconds == pytest.approx(torchs.predict("H100 SXM").seconds)
