"""MaxText's number, by hand from its published source, with the names of its config."""

from __future__ import annotations

import pytest

from benchmarks.models.published import PUBLISHED
from fxflops import InputError, trainers

B, T = 2, 4096
"""per_device_batch_size, max_target_length"""


def total(name: str, length: int = T) -> int:
    return trainers.estimate("maxtext", PUBLISHED[name], [length] * B).total


def test_a_dense_model() -> None:
    emb_dim, mlp_dim, num_query_heads, num_kv_heads, head_dim, vocab_size = 4096, 14336, 32, 8, 128, 128256
    ffn = 2 * B * T * mlp_dim * emb_dim * 2 + 2 * B * T * mlp_dim * emb_dim
    qkv = 2 * B * T * emb_dim * (num_query_heads + 2 * num_kv_heads) * head_dim
    projection = 2 * B * T * emb_dim * num_query_heads * head_dim
    attention = 4 * B * T**2 * num_query_heads * head_dim // 2
    embedding = 2 * B * T * emb_dim * vocab_size
    assert total("Llama-3.1-8B") == 3 * ((ffn + qkv + projection + attention) * 32 + embedding)


def test_experts_with_their_gate() -> None:
    emb_dim, moe_mlp_dim = 4096, 14336
    ffn = 2 * B * T * emb_dim * 8 + 2 * (6 * B * T * moe_mlp_dim * emb_dim)
    attention = 2 * B * T * emb_dim * (32 + 16) * 128 + 2 * B * T * emb_dim * 4096 + 4 * B * T**2 * 4096 // 2
    assert total("Mixtral-8x7B") == 3 * ((ffn + attention) * 32 + 2 * B * T * emb_dim * 32000)


def test_latent_attention_and_shared_experts() -> None:
    emb_dim, heads = 7168, 128
    q = 2 * B * T * (emb_dim * 1536 + 1536 * heads * 192)
    kv = 2 * B * T * (emb_dim * (512 + 64) + 512 * heads * (128 + 128))
    attention = 2 * B * T * T * heads * (192 + 128) // 2
    projection = 2 * B * T * emb_dim * heads * 128
    dense, expert = 6 * B * T * 18432 * emb_dim, 6 * B * T * 2048 * emb_dim
    ffn = dense * 3 + (2 * B * T * emb_dim * 256 + expert + 8 * expert) * 58
    assert total("DeepSeek-V3") == 3 * (ffn + (q + kv + attention + projection) * 61 + 2 * B * T * emb_dim * 129280)


@pytest.mark.parametrize("length", [512, T])
def test_windows_in_five_of_six_layers(length: int) -> None:
    """Gemma 3 12B: num_decoder_layers 48, sliding_window_size 1024, attention_pattern_length 6."""
    emb_dim, mlp_dim, heads, kv_heads, head_dim = 3840, 15360, 16, 8, 256
    window = min(1024, length)
    everywhere = 2 * B * length**2 * heads * head_dim
    local = 4 * B * (length * window - window**2 // 2) * heads * head_dim
    matrices = 3 * 2 * B * length * mlp_dim * emb_dim + 2 * B * length * emb_dim * (heads + 2 * kv_heads) * head_dim
    matrices += 2 * B * length * emb_dim * heads * head_dim
    embedding = 2 * B * length * emb_dim * 262208
    assert total("Gemma3-12B", length) == 3 * (8 * everywhere + 40 * local + 48 * matrices + embedding)


def test_another_formula_is_refused() -> None:
    with pytest.raises(InputError, match="fxflops does not implement maxtext's formula for llama4_text"):
        trainers.estimate("maxtext", {**PUBLISHED["Llama-2-7B"], "model_type": "llama4_text"}, [8])
