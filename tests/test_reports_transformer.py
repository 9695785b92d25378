"""Reports of nn.MultiheadAttention and PyTorch's own transformer layers, with every kind of arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.test_reports import Case, check, every_way, f, of

b, n, s, h, e, w = 2, 5, 7, 4, 12, 17  # batch, queries, keys, heads, width, width of the hidden layer
vk, vv = 11, 13  # widths of keys and values where they differ


def mha(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(e, h, **options).eval()


def attended(queries: int, keys: int) -> int:
    """Per sample: e/h for a score and e/h for its value, in each of h heads."""
    return 2 * queries * keys * e


def self_attended(tokens: int) -> int:
    """Per sample: the query, key, value and output projections, and the attention."""
    return 4 * tokens * e * e + attended(tokens, tokens)


def cross_attended(queries: int, keys: int) -> int:
    """Per sample: query and output projections for each query, key and value projections for each key."""
    return 2 * queries * e * e + 2 * keys * e * e + attended(queries, keys)


def layer(kind: type[nn.Module] = nn.TransformerEncoderLayer, **options: Any) -> nn.Module:
    return kind(e, h, w, **{"dropout": 0.0, "batch_first": True, **options})


FIRST, LATER = f(b, n, e), f(n, b, e)
KEYS, LATER_KEYS = f(b, s, e), f(s, b, e)
PADDED = torch.tensor([[False] * n, [False] * (n - 2) + [True] * 2])
CAUSAL = torch.ones(n, n, dtype=torch.bool).triu(1)
SELF, CROSS, HIDDEN = self_attended(n), cross_attended(n, s), 2 * n * e * w
ENCODER = SELF + HIDDEN  # per sample
DECODER = SELF + CROSS + HIDDEN

CASES = [
    # thop#197, torchinfo#226, olmoearth_pretrain#605: projections and both products, with or without the weights.
    Case("mha", mha(batch_first=True), (FIRST, FIRST, FIRST), macs=b * SELF, params=4 * e * e + 4 * e),
    Case("mha-without-weights", mha(batch_first=True), (FIRST, FIRST, FIRST), {"need_weights": False}, macs=b * SELF),
    Case(
        "mha-weights-of-heads",
        mha(batch_first=True),
        (FIRST, FIRST, FIRST),
        {"average_attn_weights": False},
        macs=b * SELF,
    ),
    Case("mha-sequence-first", mha(), (LATER, LATER, LATER), macs=b * SELF),
    Case("mha-unbatched", mha(), (f(n, e), f(n, e), f(n, e)), macs=SELF),
    Case("mha-cross", mha(), (LATER, LATER_KEYS, LATER_KEYS), macs=b * CROSS),
    Case(
        "mha-cross-without-weights", mha(batch_first=True), (FIRST, KEYS, KEYS), {"need_weights": False}, macs=b * CROSS
    ),
    Case("mha-no-bias", mha(bias=False), (LATER, LATER_KEYS, LATER_KEYS), macs=b * CROSS, params=4 * e * e),
    # Keys of width vk and values of width vv, each projected to e.
    Case(
        "mha-kdim-vdim",
        mha(kdim=vk, vdim=vv),
        (LATER, f(s, b, vk), f(s, b, vv)),
        macs=b * (2 * n * e * e + s * vk * e + s * vv * e + attended(n, s)),
    ),
    # One extra key and value, not projected.
    Case("mha-bias-kv", mha(add_bias_kv=True), (LATER, LATER_KEYS, LATER_KEYS), macs=b * (CROSS + attended(n, 1))),
    Case("mha-zero-attn", mha(add_zero_attn=True), (LATER, LATER_KEYS, LATER_KEYS), macs=b * (CROSS + attended(n, 1))),
    Case("mha-mask", mha(), (LATER, LATER, LATER), {"attn_mask": CAUSAL}, macs=b * SELF),
    Case("mha-float-mask", mha(), (LATER, LATER, LATER), {"attn_mask": f(n, n)}, macs=b * SELF),
    Case("mha-mask-of-heads", mha(), (LATER, LATER, LATER), {"attn_mask": f(b * h, n, n)}, macs=b * SELF),
    Case(
        "mha-causal",
        mha(),
        (LATER, LATER, LATER),
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
        macs=b * SELF,
    ),
    Case("mha-padding", mha(batch_first=True), (FIRST, FIRST, FIRST), {"key_padding_mask": PADDED}, macs=b * SELF),
    Case(
        "mha-in-a-model",
        of(lambda m, x: m.attention(x, x, x)[0], attention=mha(batch_first=True)),
        FIRST,
        macs=b * SELF,
    ),
    # svit#5, pytorch#126268: an encoder layer's fast path is one operator; it counts like its parts.
    Case("encoder-layer", layer(), FIRST, macs=b * ENCODER),
    Case("encoder-layer-sequence-first", layer(batch_first=False), LATER, macs=b * ENCODER),
    Case("encoder-layer-norm-first", layer(norm_first=True, activation="gelu"), FIRST, macs=b * ENCODER),
    Case("encoder-layer-own-activation", layer(activation=torch.sigmoid), FIRST, macs=b * ENCODER),
    Case("encoder-layer-unbatched", layer(), f(n, e), macs=ENCODER),
    Case("encoder-layer-no-bias", layer(bias=False), FIRST, macs=b * ENCODER),
    Case("encoder-layer-masked", layer(), FIRST, {"src_mask": CAUSAL, "is_causal": True}, macs=b * ENCODER),
    # Two layers. Tokens that the mask leaves out are still in the tensor and count.
    Case("encoder", nn.TransformerEncoder(layer(), 2), FIRST, macs=2 * b * ENCODER),
    Case(
        "encoder-padded",
        nn.TransformerEncoder(layer(), 2),
        FIRST,
        {"src_key_padding_mask": PADDED},
        macs=2 * b * ENCODER,
        without=("meta",),
    ),
    Case("decoder-layer", layer(nn.TransformerDecoderLayer), (FIRST, KEYS), macs=b * DECODER),
    Case(
        "decoder-layer-masked",
        layer(nn.TransformerDecoderLayer),
        (FIRST, KEYS),
        {"tgt_mask": CAUSAL, "tgt_is_causal": True},
        macs=b * DECODER,
    ),
    Case("decoder", nn.TransformerDecoder(layer(nn.TransformerDecoderLayer), 2), (FIRST, KEYS), macs=2 * b * DECODER),
    # One encoder layer over s source tokens, two decoder layers over n targets.
    Case(
        "transformer",
        nn.Transformer(e, h, 1, 2, w, dropout=0.0, batch_first=True),
        (KEYS, FIRST),
        macs=b * (self_attended(s) + 2 * s * e * w) + 2 * b * DECODER,
    ),
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@every_way(CASES)
def test_transformers(case: Case, way: str) -> None:
    check(case, way)
