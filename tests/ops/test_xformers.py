"""xformers' attention, by the names of its functions and masks: textbook attention, and the pairs of masks one by one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.library_stand_ins import counts, library, tensors
from tests.ops.test_flash_attn import SHAPES, gradients, summed, textbook, times, whole

ARGUMENTS = "query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None"
NAMES = [f"xformers.ops.fmha:memory_efficient_attention{end}" for end in ("", "_forward", "_forward_requires_grad")]


@pytest.fixture(scope="module")
def attention() -> Iterator[Any]:
    with library(dict.fromkeys(NAMES, ARGUMENTS)) as find:
        yield find


def mask(kind: str, **attributes: Any) -> Any:
    """A mask whose class has the name of one of xformers' classes."""
    made = type(kind, (), {})()
    vars(made).update(attributes)
    return made


def lengths(*each: int, used: tuple[int, ...] | None = None) -> Any:
    starts = [0]
    for length in each:
        starts.append(starts[-1] + length)
    return SimpleNamespace(seqstart_py=starts, **({} if used is None else {"seqlen_py": [*used]}))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch(attention: Any, shape: tuple[int, ...]) -> None:
    b, n, s, h, _, d, v = shape
    given = tensors({"query": (b, n, h, d), "key": (b, s, h, d), "value": (b, s, h, v)})
    counted = counts(attention(NAMES[0]), given)
    assert counted.out == (b, n, h, v)
    assert whole(times(b, textbook(n, s, h, d, v)), counted.forward)
    assert whole(times(b, gradients(n, s, h, h, d, v)), counted.backward)
    assert counted.forward.macs == b * h * n * s * (d + v)
    assert counts(attention(NAMES[1]), given).forward == counted.forward
    sums = counts(attention(NAMES[2]), given, backward=False)
    assert (sums.forward, sums.out) == (counted.forward, ((b, n, h, v), (b, h, n)))
    dropped = counts(attention(NAMES[0]), given, p=0.1)
    assert whole(times(b, textbook(n, s, h, d, v, dropout=True)), dropped.forward)


def test_groups_of_heads_and_tensors_without_heads(attention: Any) -> None:
    heads = counts(attention(NAMES[0]), tensors(dict.fromkeys(("query", "key", "value"), (2, 5, 6, 3))))
    grouped = counts(attention(NAMES[0]), tensors(dict.fromkeys(("query", "key", "value"), (2, 5, 2, 3, 3))))
    assert (heads.forward, heads.backward) == (grouped.forward, grouped.backward)
    one = counts(attention(NAMES[0]), tensors(dict.fromkeys(("query", "key", "value"), (2, 5, 3))))
    assert one.forward.macs == 2 * 5 * 5 * 6


def test_a_tensor_is_added_and_learns(attention: Any) -> None:
    given = tensors({"query": (2, 4, 3, 5), "key": (2, 6, 3, 5), "value": (2, 6, 3, 5)})
    plain = counts(attention(NAMES[0]), given)
    biased = counts(attention(NAMES[0]), given | tensors({"attn_bias": (1, 3, 4, 6)}))
    assert biased.forward.adds - plain.forward.adds == 2 * 3 * 4 * 6
    assert biased.backward.adds - plain.backward.adds == 2 * 3 * 4 * 6 - 3 * 4 * 6  # summed over the batch


CAUSAL = [
    # the mask, and whether query i sees key j of n and s: https://github.com/facebookresearch/xformers, ``attn_bias.py``
    (mask("LowerTriangularMask"), lambda i, j, n, s: j <= i),
    (mask("LowerTriangularFromBottomRightMask"), lambda i, j, n, s: j <= i + s - n),
    (mask("LocalAttentionFromBottomRightMask", window_left=1, window_right=2), lambda i, j, n, s: i - 1 <= j + n - s <= i + 2),
    (mask("LowerTriangularFromBottomRightLocalAttentionMask", _window_size=2), lambda i, j, n, s: i + s - n - 2 < j <= i + s - n),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sees"), CAUSAL, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_masks_leave_pairs(attention: Any, shape: tuple[int, ...], given: Any, sees: Any) -> None:
    b, n, s, h, _, d, v = shape
    call = attention(NAMES[0])
    parts = tensors({"query": (b, n, h, d), "key": (b, s, h, d), "value": (b, s, h, v)})
    pairs = b * h * sum(sees(i, j, n, s) for i in range(n) for j in range(s))
    assert counts(call, parts, attn_bias=given, count_attention="exact").forward.macs == pairs * (d + v)
    assert whole(times(b, textbook(n, s, h, d, v, masked=True)), counts(call, parts, attn_bias=given).forward)


PACKED = [
    ((3,), (3,)), ((2, 4), (2, 4)), ((1, 5, 2), (4, 1, 3)), ((7, 1), (2, 6)), ((1, 1, 1, 1), (3, 5, 2, 9)),
]  # fmt: skip


@pytest.mark.parametrize(("queries", "keys"), PACKED)
def test_packed_sequences_meet_their_own_keys(attention: Any, queries: tuple[int, ...], keys: tuple[int, ...]) -> None:
    h, d, call = 2, 3, attention(NAMES[0])
    parts = tensors({"query": (1, sum(queries), h, d), "key": (1, sum(keys), h, d), "value": (1, sum(keys), h, d)})
    given = mask("BlockDiagonalMask", q_seqinfo=lengths(*queries), k_seqinfo=lengths(*keys))
    counted = counts(call, parts, attn_bias=given)
    pairs = [*zip(queries, keys, strict=True)]
    assert whole(summed(*(textbook(n, s, h, d, d) for n, s in pairs)), counted.forward)
    assert whole(summed(*(gradients(n, s, h, h, d, d) for n, s in pairs)), counted.backward)
    causal = mask("BlockDiagonalCausalMask", q_seqinfo=lengths(*queries), k_seqinfo=lengths(*keys))
    exact = counts(call, parts, attn_bias=causal, count_attention="exact")
    assert exact.forward.macs == h * 2 * d * sum(j <= i for n, s in pairs for i in range(n) for j in range(s))
    padded = lengths(*(9 for _ in keys), used=keys)
    room = tensors(
        {"query": (1, sum(queries), h, d), "key": (1, 9 * len(keys), h, d), "value": (1, 9 * len(keys), h, d)}
    )
    offset = mask("BlockDiagonalCausalWithOffsetPaddedKeysMask", q_seqinfo=lengths(*queries), k_seqinfo=padded)
    exact = counts(call, room, attn_bias=offset, count_attention="exact")
    assert exact.forward.macs == h * 2 * d * sum(j <= i + s - n for n, s in pairs for i in range(n) for j in range(s))
