"""Configs of published language models in transformers' format, with the values of each model's own config.json."""

from __future__ import annotations

from typing import Any


def config(
    model_type: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """Return a config as a dict, with any further settings in ``more``."""
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab, **more,
    }  # fmt: skip


def latent(rank: int | None) -> dict[str, Any]:
    """Return the settings of DeepSeek's latent attention."""
    return {
        "q_lora_rank": rank, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip


def experts(number: int, top_k: int, width: int, names: str = "num_experts") -> dict[str, Any]:
    """Return the settings of a mixture of experts."""
    return {names: number, "num_experts_per_tok": top_k, "moe_intermediate_size": width}


VISION = {"in_channels": 3, "temporal_patch_size": 2, "spatial_merge_size": 2}
QWEN3_VISION = {"depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16,
                "deepstack_visual_indexes": [8, 16, 24], **VISION}  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention"]

PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-2-7B": config("llama", 32, 4096, 32, 32, 11008, 32000),
    "Llama-3.1-8B": config("llama", 32, 4096, 32, 8, 14336, 128256),
    "Llama-3.1-70B": config("llama", 80, 8192, 64, 8, 28672, 128256),
    "Llama-3.2-1B": config("llama", 16, 2048, 32, 8, 8192, 128256, tie_word_embeddings=True),
    "Qwen2.5-7B": config("qwen2", 28, 3584, 28, 4, 18944, 152064),
    "Qwen3-0.6B": config("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True),
    "Qwen3-8B": config("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128),
    "Qwen3-30B-A3B": config("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, **experts(128, 8, 768)),
    "Qwen1.5-MoE-A2.7B": config(
        "qwen2_moe", 24, 2048, 16, 16, 5632, 151936, shared_expert_intermediate_size=5632, **experts(60, 4, 1408)
    ),
    "Mistral-7B": config("mistral", 32, 4096, 32, 8, 14336, 32000, head_dim=128),
    "Mixtral-8x7B": config("mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2),
    "DeepSeek-V3": config(
        "deepseek_v3", 61, 7168, 128, 128, 18432, 129280, n_shared_experts=1, first_k_dense_replace=3, **latent(1536),
        **experts(256, 8, 2048, "n_routed_experts"),
    ),
    "DeepSeek-V2-Lite": config(
        "deepseek_v2", 27, 2048, 16, 16, 10944, 102400, n_shared_experts=2, first_k_dense_replace=1, **latent(None),
        **experts(64, 6, 1408, "n_routed_experts"),
    ),
    "Gemma3-12B": config("gemma3_text", 48, 3840, 16, 8, 15360, 262208, head_dim=256, sliding_window=1024),
    "gpt-oss-20b": config(
        "gpt_oss", 24, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, layer_types=ALTERNATING * 12,
    ),
    "gpt-oss-120b": config(
        "gpt_oss", 36, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=128, num_experts_per_tok=4,
        sliding_window=128, layer_types=ALTERNATING * 18,
    ),
    "Qwen2.5-VL-7B": {
        "model_type": "qwen2_5_vl",
        "text_config": config("qwen2_5_vl_text", 28, 3584, 28, 4, 18944, 152064),
        "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14,
                          "out_hidden_size": 3584, **VISION},
    },
    "Qwen3-VL-8B": {
        "model_type": "qwen3_vl",
        "text_config": config("qwen3_vl_text", 36, 4096, 32, 8, 12288, 151936, head_dim=128),
        "vision_config": {**QWEN3_VISION, "out_hidden_size": 4096},
    },
    "Qwen3-VL-30B-A3B": {
        "model_type": "qwen3_vl_moe",
        "text_config": config("qwen3_vl_moe_text", 48, 2048, 32, 4, 6144, 151936, head_dim=128, **experts(128, 8, 768)),
        "vision_config": {**QWEN3_VISION, "out_hidden_size": 2048},
    },
}  # fmt: skip
