"""Megatron-LM's number, by hand from its published source, with the names of its arguments."""

from __future__ import annotations

from benchmarks.models.published import PUBLISHED
from fxflops import trainers

FORWARD_AND_BACKWARD, MULTIPLY_AND_ADD = 3, 2


def total(name: str, lengths: list[int]) -> int:
    return trainers.estimate("megatron", PUBLISHED[name], lengths).total


def test_grouped_queries() -> None:
    """Llama 3.1 8B, rows of 8,192: num_query_groups 8, kv_channels 128, swiglu."""
    hidden_size, ffn_hidden_size, num_layers, padded_vocab_size = 4096, 14336, 32, 128256
    query_projection_size, key_projection_size = 128 * 32, 128 * 8
    linear = 6 * hidden_size * 3 * ffn_hidden_size * num_layers
    linear += 6 * num_layers * hidden_size * (query_projection_size + 2 * key_projection_size + query_projection_size)
    linear += 6 * hidden_size * padded_vocab_size
    core = FORWARD_AND_BACKWARD * MULTIPLY_AND_ADD * query_projection_size // 2 * 2 * num_layers
    assert total("Llama-3.1-8B", [8192] * 2) == 2 * 8192 * linear + 2 * 8192**2 * core
    assert total("Llama-3.1-8B", [100, 300]) == 400 * linear + (100**2 + 300**2) * core  # a packed row


def test_experts_without_their_router() -> None:
    """Mixtral 8x7B: moe_router_topk 2, every layer with experts."""
    hidden_size, moe_ffn_hidden_size, num_layers = 4096, 14336, 32
    linear = 6 * hidden_size * 3 * moe_ffn_hidden_size * 2 * num_layers
    linear += 6 * num_layers * hidden_size * (4096 + 1024 + 1024 + 4096) + 6 * hidden_size * 32000
    assert total("Mixtral-8x7B", [512]) == 512 * linear + 512**2 * 6 * 4096 * num_layers


def test_latent_attention_and_shared_experts() -> None:
    """DeepSeek-V3: moe_layer_freq [0] * 3 + [1] * 58, moe_shared_expert_intermediate_size 2048, without MTP."""
    hidden_size, num_attention_heads = 7168, 128
    qk_head_dim, qk_pos_emb_head_dim, v_head_dim, q_lora_rank, kv_lora_rank = 128, 64, 128, 1536, 512
    q_term = q_lora_rank * (hidden_size + num_attention_heads * (qk_head_dim + qk_pos_emb_head_dim) + 1)
    kv_term = kv_lora_rank * (hidden_size + num_attention_heads * (qk_head_dim + v_head_dim) + 1)
    attention = q_term + kv_term + hidden_size * qk_pos_emb_head_dim + num_attention_heads * v_head_dim * hidden_size
    linear = 6 * (attention * 61 + hidden_size * 129280)
    linear += 6 * hidden_size * (18432 * 3 * 3 + 2048 * 8 * 3 * 58 + 2048 * 3 * 58)
    core = 6 * (num_attention_heads * (qk_head_dim + qk_pos_emb_head_dim) // 2 + num_attention_heads * v_head_dim // 2)
    assert total("DeepSeek-V3", [1024]) == 1024 * linear + 1024**2 * core * 61


def test_the_vocabulary_is_padded_and_a_layer_without_gate_has_two_matrices() -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    linear = 6 * 768 * (4 * 768) * 2 * 12 + 6 * 12 * 768 * 4 * 768 + 6 * 768 * 50304
    assert trainers.estimate("megatron", config, [64]).total == 64 * linear + 64**2 * 6 * 768 * 12


def test_linear_attention() -> None:
    """A small Qwen3-Next: attention_output_gate, and the gated delta net in one of two layers."""
    config = {
        "model_type": "qwen3_next", "num_experts": 0, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 128, "linear_num_key_heads": 2,
        "linear_key_head_dim": 3, "linear_num_value_heads": 4, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention"],
    }  # fmt: skip
    qk_dim, v_dim = 2 * 3, 4 * 5
    linear_self_attn_term = 16 * (2 * qk_dim + 2 * v_dim + 2 * 4) + 4 * (2 * qk_dim + v_dim) + 4 * 5**2 * 4 + 16 * v_dim
    standard_self_attn_term = 16 * (32 + 16 + 16 + 32) + 32 * 16
    linear = 6 * (linear_self_attn_term + standard_self_attn_term + 16 * 24 * 3 * 2 + 16 * 128)
    assert trainers.estimate("megatron", config, [10]).total == 10 * linear + 100 * 6 * 32
