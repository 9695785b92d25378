"""Every transformers model type, made small with random weights, and inputs for its forward.

    python -m benchmarks.models.transformers_zoo [--only bert,llava] [--out FILE.jsonl]

This command runs each type once on the CPU, eagerly, and prints one JSON line per type. If the file already has lines, it skips
the types in them.

A setting of a config takes its value from the type's SETTINGS, otherwise from its default made small by SMALL. An input of a
forward comes from the type's case in INPUTS, otherwise from the rule for its name. So these tables hold only the exceptions.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import inspect
import json
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.utils import logging

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
Values = dict[str, Any]

TOKENS = 12
VOCABULARY = 256
LAYERS = 2
WIDTHS = (64, 128)
FIRST_SPECIAL = 200  # special tokens whose ids do not fit into the small vocabulary get new ids from here on

# Maximum values of settings, by name. Lists of layer counts are reduced element by element; other lists stay as they are.
AT_MOST: dict[int, str] = {
    LAYERS: """
        num_hidden_layers encoder_layers decoder_layers num_layers num_decoder_layers num_encoder_layers n_layer
        n_layers depth depths layers num_blocks num_experts_per_tok moe_topk moe_k top_k_experts
        encoder_num_hidden_layers decoder_num_hidden_layers conf_num_hidden_layers l_layers
        x_layers r_layers speech_encoder_layers t2u_encoder_layers t2u_decoder_layers text_encoder_num_layers
        num_self_attends_per_block pred_num_hidden_layers resampler_depth decoder_num_layers num_spatial_layers
        aligner_num_add_layers num_global_layers num_shared_experts moe_num_shared_experts n_shared_experts
        memory_attention_num_layers mit_num_hidden_layers num_loops folding_trunk_num_hidden_layers
        stage_numb_of_layers mask_time_length mask_feature_length
    """,
    1: "first_k_dense_replace topk_group n_group num_expert_group num_kv_shared_layers",
    4: """
        num_attention_heads num_heads encoder_attention_heads decoder_attention_heads n_head n_heads attention_heads
        decoder_num_attention_heads encoder_num_attention_heads decoder_num_heads resampler_n_heads resampler_heads
        num_experts n_routed_experts num_local_experts moe_num_experts index_n_heads linear_num_heads
        linear_num_key_heads linear_num_value_heads num_self_attention_heads num_cross_attention_heads
        decoder_self_attention_heads decoder_cross_attention_heads conf_num_attention_heads
        speech_encoder_attention_heads t2u_encoder_attention_heads t2u_decoder_attention_heads
        pred_num_attention_heads num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads
        num_sliding_attention_heads cross_num_attention_heads mit_num_attention_heads num_codebooks num_quantizers
        zero_expert_num index_topk expert_capacity
    """,
    100: "max_source_positions",
    8: "num_queries num_denoising two_stage_num_proposals train_num_points num_frames resampler_n_latents",
    16: """
        qk_nope_head_dim qk_rope_head_dim v_head_dim index_head_dim linear_key_head_dim linear_value_head_dim
        linear_head_dim d_kv attention_head_size mamba_d_state state_size ssm_state_size o_lora_rank hc_lowrank
        gated_norm_rank laurel_rank resampler_head_dim dim_head attention_window mamba_chunk_size chunk_size
    """,
    32: """
        head_dim swa_head_dim q_lora_rank kv_lora_rank moe_intermediate_size shared_expert_intermediate_size
        shared_intermediate_size moe_shared_expert_intermediate_size global_head_dim cross_head_dim
        hidden_size_per_layer_input expert_ffn_hidden_size share_expert_dim
    """,
    64: """
        hidden_size d_model n_embd embed_dim decoder_hidden_size out_hidden_size encoder_hidden_size
        projection_dim embedding_size text_hidden_size hidden_dim output_dim adapter_in_dim adapter_out_dim
        projector_hidden_size image_text_hidden_size word_embed_proj_dim decoder_dim vision_output_dim
        hidden_size_global vision_hidden_size pooler_output_size project_dim emb_dim encoder_hidden_dim mit_hidden_size
        fpn_hidden_size mask_feature_size codebook_dim audio_hidden_size cross_hidden_size attention_hidden_size
        output_hidden_size projection_hidden_size reassemble_hidden_size projection_size text_embed_dim lru_width
    """,
    128: """
        intermediate_size encoder_ffn_dim decoder_ffn_dim mlp_dim ffn_dim d_ff ffn_hidden_size dim_feedforward
        encoder_feedforward_dim decoder_intermediate_size encoder_dim_feedforward decoder_dim_feedforward n_inner
        dense_intermediate_size d_inner dim_ff intermediate_size_mlp codebook_size num_embeddings
        speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim mit_intermediate_size
        projection_intermediate_size use_double_wide_mlp_size
    """,
    VOCABULARY: """
        vocab_size decoder_vocab_size audio_vocab_size input_vocab_size output_vocab_size text_vocab_size
        src_vocab_size tgt_vocab_size t2u_vocab_size vocab_size_per_layer_input vision_vocab_size unpadded_vocab_size
        text_encoder_vocab_size
    """,
    4096: "max_position_embeddings model_max_length max_seq_len",
}
SMALL = {name: most for most, names_of in AT_MOST.items() for name in names_of.split()}
LAYER_COUNTS = "num_hidden_layers num_layers n_layer n_layers decoder_layers depth encoder_layers".split()

MROPE: Values = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}

TINY_VIT: Values = {"embed_dim": 64, "depth": 2, "num_heads": 4}


def letters(number: int) -> str:
    """Return the digits of a number as letters, as chameleon writes its codes."""
    return "".join(chr(ord("A") + int(digit)) for digit in str(number))


def intraclass() -> Values:
    """Return the kernels, strides and paddings of a block with convolutions along rows and along columns."""
    block: Values = {"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]}
    for ratio, size in (("long", 7), ("mid", 5), ("short", 3)):
        half = size // 2
        block[f"vertical_long_to_small_conv_{ratio}ratio"] = [[size, 1], [1, 1], [half, 0]]
        block[f"horizontal_small_to_long_conv_{ratio}ratio"] = [[1, size], [1, 1], [0, half]]
        block[f"symmetric_conv_long_{ratio}ratio"] = [[size, size], [1, 1], [half, half]]
    return block


# Settings that the rules do not find, by one or several model types. A nested dict is for a nested config.
SETTINGS: dict[str, Values] = {
    "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker paddleocr_vl_text glm4v_text": MROPE,
    "glm_ocr_text glm_image_text": MROPE,
    "glm4v_moe_text": {
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
    },
    "align": {"projection_dim": 640},
    "aria": {"projector_patch_to_query_dict": {64: 8}},
    "autoformer informer time_series_transformer": {"prediction_length": 8, "context_length": 16},
    "bamba granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 32},
    "bamba": {"attn_layer_indices": [1]},
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 2},
    "cvt": {"depth": (1, 2, 3)},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "ministral hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "gemma3 t5gemma2_encoder shieldgemma2": {"mm_tokens_per_image": 16},
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "step3p5": {"sliding_window": 8},
    "reformer": {"axial_pos_embds_dim": (16, 48)},
    "codegen gptj": {"rotary_dim": 8},
    "helium": {"head_dim": 16},
    "lilt": {"hidden_size": 96},
    "longcat_flash": {"qk_rope_head_dim": 16, "head_dim": 16},
    "vitmatte": {"fusion_hidden_sizes": [32, 32, 32, 32]},
    "glm5_next_text": {"index_topk": 16},
    "vipllava": {"vision_feature_layers": [-2, -1, 1]},
    "blip_text_model": {"encoder_hidden_size": 64},
    "sam_hq_vision_model sam_vision_model": {"output_channels": 64},
    "sam_hq_mask_decoder": {"vit_dim": 64},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "fun_asr_nano_adaptor": {"intermediate_size": 16},
    "llama4_vision_model": {
        "intermediate_size": 256,
        "vision_output_dim": 64,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
    },
    "clvp_encoder clvp_decoder": {"hidden_size": 128},
    "llava_next llava_next_video granite4_vision": {"image_grid_pinpoints": [[112, 224]]},
    "llava_onevision": {"image_grid_pinpoints": [[112, 224]]},
    "deepseek_ocr2_sam_vision_model unlimited_ocr_sam_vision_model": {
        "downsample_channels": [32, 64],
        "output_channels": 32,
    },
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "blt": {"encoder_hash_byte_group_vocab": 500},
    "blip-2 instructblip instructblipvideo": {
        "image_token_index": 250,
        "video_token_index": 250,
        "num_query_tokens": 8,
    },
    "jev": {"hidden_size": 64},
    "blip_2_qformer instructblip_qformer instructblipvideo_qformer": {"encoder_hidden_size": 64},
    "gemma4": {
        "vision_config": lambda: small_config("gemma4_vision"),
        "audio_config": lambda: small_config("gemma4_audio"),
    },
    "embedding_gemma2": {"vision_config": lambda: small_config("gemma4_vision")},
    "gemma4_unified": {"vision_config": lambda: small_config("gemma4_unified_vision")},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_ocr2_text unlimited_ocr_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "depth_pro": {"patch_size": 112, "intermediate_hook_ids": [1, 0]},
    "edgetam_vision_model": {
        "backbone_channel_list": [2048, 1024, 512, 256],
        "backbone_config": {"model_args": {"features_only": True, "out_indices": [1, 2, 3, 4]}},
    },
    "efficientloftr": {"hidden_size": 256, "num_attention_heads": 8},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}
    },
    "hunyuan_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2, 2]}
    },
    "gradium_phonon_tts pocket_tts": {"flow_head_config": {"condition_dim": 64}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "gemma3n_vision": {"hidden_size": 2048, "vocab_offset": 64},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "idefics3_vision": {"image_size": 256},
    "inkling_vision": {"patch_size": 4, "n_layers": 3},
    "layoutlmv3": {"coordinate_size": 11, "shape_size": 10, "input_size": 64},
    "csm mimi mimi_decoder mimi_encoder": {"upsample_groups": 64, "codebook_dim": 256},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "muse_spark_audio": {"num_hidden_layers": 4, "out_hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 250} | {f"IMGIMG{letters(i)}Z": 110 + i for i in range(128)}},
    "emu3": {
        "vocabulary_map": {"<image>": 250, "<|extra_200|>": 251}
        | {f"<|visual token {i:06d}|>": 110 + i for i in range(128)}
    },
    "lw_detr": {"projector_scale_factors": [1.0]},
    "sam_vision_model sam_hq_vision_model": {"num_pos_feats": 32},
    "sam2_hiera_det_model": {"image_size": [128, 128]},
    "sam2_vision_model sam3_vision_model edgetam_vision_model": {
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]
    },
    "superglue": {"hidden_size": 256, "gnn_layers_types": ["self", "cross"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "eos_token_id": 2,
        "indexer_head_dim": 32,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [1],
        "ple_embed_dim": 64,
        "ngram_vocab_size_base": 100,
    },
    "t5gemma2_decoder t5gemma2_text": {"dropout_rate": 0.0},
    "timm_backbone": {"backbone": "resnet18"},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen2_5_omni_thinker qwen3_omni_moe_thinker": {"vision_start_token_id": 240, "audio_start_token_id": 241},
    "qwen3_omni_moe_talker": {"spatial_merge_size": 2},
    "seggpt": {"image_size": [128, 64]},
    "smolvlm_vision": {"image_size": 256},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "chmv2": {"backbone_config": {"return_class_token": True}},
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "florence_vision": {"projection_dim": 64},
    "kosmos-2": {"latent_query_num": 8},
    "voxtral": {"audio_token_id": 250},
    "nemotron_h_omni": {"image_token_id": 250},
    "molmo2": {"image_patch_id": 250},
    "phi4_multimodal_audio": {
        "ext_pw_out_channel": 64,
        "depthwise_separable_out_channel": 64,
        "nemo_conv_channels": 64,
    },
    "shieldgemma2": {"yes_token_index": 100, "no_token_index": 101},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "uvdoc": {"backbone_config": {"out_indices": [1, 2, 3, 4, 5, 6]}},
    "vits": {"vocab_size": 64},
    "xlstm": {"hidden_size": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "pp_ocrv5_server_det": {
        "intraclass_block_config": intraclass(),
        "kernel_list": [3, 2, 2],
        "scale_factor_list": [1, 2, 4, 8],
    },
    "pe_video_encoder": {"vision_config": {"model_args": TINY_VIT | {"img_size": 56}}},
    "perception_lm": {"vision_config": {"architecture": "vit_pe_core_large_patch14_336", "model_args": TINY_VIT}},
    "vibevoice_acoustic_tokenizer": {"num_filters": 4},
    "vibevoice_acoustic_tokenizer_encoder vibevoice_acoustic_tokenizer_decoder": {"num_filters": 4},
    "qwen2_5_omni_bigvgan": {"upsample_initial_channel": 128},
    "janus_vqgan": {"num_patches": 4, "base_channels": 32},
    "gemma3n_audio": {"vocab_offset": 192, "vocab_size": 64},
    "muse_glimmer muse_spark": {"out_hidden_size": 256},
    "pp_doclayout_v2": {"class_thresholds": [0.5] * 25, "class_order": list(range(25))},
    "gemma3n": {"audio_soft_tokens_per_image": 13},
    "emu3_vqgan": {"base_channels": 32, "hidden_size": 128},
}

CANNOT: dict[str, str] = {}


def names() -> list[str]:
    """Return the sorted model types."""
    return sorted(CONFIG_MAPPING_NAMES)


def build(name: str) -> Built:
    """Return the model in eval mode, and the args and kwargs of its forward."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    config = small_config(name)
    model = model_class(name, config)(config).eval()
    with torch.no_grad():
        return model, (), inputs_of(model, name)


# ----------------------------------------------------------------------------------------------------------- config


def small_config(name: str) -> PreTrainedConfig:
    kind = CONFIG_MAPPING[name]
    try:
        config = kind()
    except UNBUILT:
        return kind(**own_settings(kind.model_type))
    return reduced(config, {}, {})


UNBUILT = (ValueError, StrictDataclassClassValidationError)  # raised if a class's defaults do not make a config


def reduced(config: PreTrainedConfig, own: Values, ids: dict[int, int]) -> PreTrainedConfig:
    """Return a smaller copy of a config. Derived values are derived again, from the smaller settings."""
    kind = type(config)
    own = own_settings(kind.model_type) | own
    own |= {name: value() for name, value in own.items() if callable(value)}
    values, before = {}, dict(vars(config))
    given = {name for name in settings_of(kind) if name in before and is_given(name, before[name], kind)}
    layers = kept_layers(kind, before)
    staged = any(isinstance(before.get(name), list | tuple) for name in STAGED)
    for name in settings_of(kind):
        value = before.get(name)
        if isinstance(value, PreTrainedConfig):
            nested = own.get(name)
            values[name] = nested if isinstance(nested, PreTrainedConfig) else reduced(value, nested or {}, ids)
        elif name in layers:
            values[name] = layers[name]
        elif name in given:
            values[name] = small(name, value, ids, staged)
    values |= {"per_layer_config": layers["per_layer_config"]} if "per_layer_config" in layers else {}
    fit_heads(values, before)
    fit_image(values, staged)
    fit_backbone(values, before, kind)
    values |= {key: value for key, value in own.items() if not isinstance(values.get(key), PreTrainedConfig)}
    fit_rope(values, before)
    return kind(**values)


INHERITED = {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"is_encoder_decoder"}
STAGED = """num_heads num_attention_heads hidden_sizes depths in_channels embed_dims encoder_hidden_sizes patch_sizes
    encoder_in_channels embed_dim_per_stage blocks_per_stage in_channels_list stage_in_channels conv_dims
    kernel_sizes""".split()


def own_settings(model_type: str) -> Values:
    return {
        name: value
        for prefix, values in SETTINGS.items()
        if model_type in prefix.split()
        for name, value in values.items()
    }


def settings_of(kind: type[PreTrainedConfig]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in INHERITED]


def is_given(name: str, value: Any, kind: type[PreTrainedConfig]) -> bool:
    """Return whether a value was given by the class or by the enclosing config, rather than derived from other settings."""
    if next(field.default for field in dataclasses.fields(kind) if field.name == name) is not None:
        return True
    if isinstance(value, PreTrainedConfig):
        return True
    return value is not None and bool(value != vars(usual(kind)).get(name))


@functools.cache
def usual(kind: type[PreTrainedConfig]) -> PreTrainedConfig:
    return kind()


def small(name: str, value: Any, ids: dict[int, int], staged: bool) -> Any:
    if isinstance(value, bool):
        return value
    if re.search(r"token_(id|index)s?$", name):
        return small_id(value, ids)
    if name == "deepstack_visual_indexes":
        return type(value)(range(min(2, len(value))))
    if name in {"fullatt_block_indexes", "global_attn_indexes"}:
        return type(value)([1])
    if name in SMALL and (SMALL[name] == LAYERS or not (staged and SMALL[name] in WIDTHS)):
        return at_most(value, SMALL[name])
    return value


def at_most(value: Any, most: int) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(at_most(v, most) for v in value) if most == LAYERS else value
    return min(value, most) if isinstance(value, int) else value


def small_id(value: Any, ids: dict[int, int]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(small_id(v, ids) for v in value)
    if not isinstance(value, int) or value < FIRST_SPECIAL:
        return value
    return ids.setdefault(value, FIRST_SPECIAL + len(ids))


def kept_layers(kind: type[PreTrainedConfig], before: Values) -> Values:
    """Return the settings of the fewest layers (at least two) that include every kind of layer.

    A kind is a distinct combination of values in the per-layer lists and of settings that single layers override.
    """
    counted = [name for name in LAYER_COUNTS if isinstance(before.get(name), int)]
    if not counted:
        return {}
    count = before[counted[0]]
    lists = {name: v for name in settings_of(kind) if is_per_layer(name, v := before.get(name), count)}
    own = layers_own(before)
    if not lists and not own:
        return {}
    rows = list(zip(*lists.values(), [sorted(own.get(i, {})) for i in range(count)], strict=True))
    first = {rows.index(row) for row in rows}
    keep = sorted(first | set([i for i in range(count) if i not in first][: max(0, 2 - len(first))]))
    kept = {name: type(v)(v[i] for i in keep) for name, v in lists.items()} | {counted[0]: len(keep)}
    if own:
        kept["per_layer_config"] = {new: small_layer(own[i]) for new, i in enumerate(keep) if i in own}
    return kept


def layers_own(before: Values) -> dict[int, Values]:
    """Return the settings that single layers override, by the index of the layer."""
    return dict(getattr(before.get("_heterogeneity_spec"), "per_layer_overrides", {}))


def small_layer(before: Values) -> Values:
    values = {name: small(name, value, {}, staged=False) for name, value in before.items()}
    if "num_key_value_heads" in values:
        values["num_key_value_heads"] = min(values["num_key_value_heads"], 2)
        fit_heads(values, before)
    return values


def is_per_layer(name: str, value: Any, count: int) -> bool:
    named = re.search(r"layer|block|types|pattern|pool|intermediate_size|sparsity", name)
    return count > 1 and isinstance(value, list | tuple) and len(value) == count and bool(named)


def fit_heads(values: Values, before: Values) -> None:
    """Reduce the number of key and value heads: equal to the heads if it was equal before, otherwise at most two."""
    for heads, groups in HEADS_AND_GROUPS:
        if isinstance(values.get(groups), int) and isinstance(values.get(heads), int):
            after = values[heads]
            values[groups] = after if before[groups] == before[heads] else min(before[groups], 2, after)


HEADS_AND_GROUPS = (
    ("num_attention_heads", "num_key_value_heads"),
    ("num_attention_heads", "num_key_value_attention_heads"),
    ("swa_num_attention_heads", "swa_num_key_value_heads"),
    ("cross_num_attention_heads", "cross_num_key_value_heads"),
    ("encoder_num_attention_heads", "encoder_num_key_value_heads"),
    ("decoder_num_attention_heads", "decoder_num_key_value_heads"),
    ("num_attention_heads", "num_kv_heads"),
    ("num_heads", "num_key_value_heads"),
)


def fit_image(values: Values, staged: bool) -> None:
    """Reduce the image to at most 8 x 8 patches."""
    size, patch = values.get("image_size"), values.get("patch_size")
    if isinstance(size, int) and isinstance(patch, int) and patch >= 8 and not staged:
        values["image_size"] = min(size, 8 * patch)


def fit_backbone(values: Values, before: Values, kind: type[PreTrainedConfig]) -> None:
    """Give a backbone one layer for each of its outputs, and at least two. The outputs of a backbone in stages do not change."""
    if values.pop("_out_features", None) is values.pop("_out_indices", None) is None and "_out_indices" not in before:
        return
    indices = before["_out_indices"]
    if indices is None or indices == vars(usual(kind)).get("_out_indices"):
        return
    if isinstance(values.get("num_hidden_layers"), int):
        count = values["num_hidden_layers"] = max(2, len(indices))
        indices = list(range(count - len(indices) + 1, count + 1))
    values["out_indices"] = indices


def fit_rope(values: Values, before: Values) -> None:
    """Scale the sections of a multimodal rotary embedding so that they add up to half of the reduced head size."""
    rope = values.get("rope_parameters", before.get("rope_parameters"))
    if not isinstance(rope, dict) or not rope.get("mrope_section"):
        return
    sections = rope["mrope_section"]
    head = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    half = int(head * rope.get("partial_rotary_factor", 1)) // 2
    scaled = [max(1, s * half // sum(sections)) for s in sections]
    scaled[0] += half - sum(scaled)
    values["rope_parameters"] = rope | {"mrope_section": scaled}


# ------------------------------------------------------------------------------------------------------------ model


def model_class(name: str, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class to build: from AutoModel, otherwise from another auto class.

    If no auto class has one, take the last class in the modeling file that takes this config.
    """
    if name in CLASSES:
        return getattr(transformers, CLASSES[name])  # type: ignore[no-any-return]
    module = module_of(config)
    for mapping in MAPPINGS:
        found = getattr(modeling_auto, mapping).get(name)
        if found:
            found = found if isinstance(found, str) else found[0]
            return getattr(module, found, None) or getattr(transformers, found)
    takers = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, PreTrainedModel) and member.config_class is type(config)
        and "forward" in member.__dict__
    ]  # fmt: skip
    if not takers:
        raise LookupError(f"no class of {module.__name__} takes a {type(config).__name__}")
    return takers[-1]


def module_of(config: PreTrainedConfig) -> Any:
    """Return the modeling module next to the config's module. A type without one uses another type's classes: return transformers."""
    try:
        return importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ModuleNotFoundError as error:
        if "transformers" not in str(error.name):
            raise
        return transformers


# For these types, the auto classes name only a part of the model.
CLASSES = {"musicgen": "MusicgenForConditionalGeneration", "musicgen_melody": "MusicgenMelodyForConditionalGeneration"}
MAPPINGS = [
    "MODEL_MAPPING_NAMES",
    *sorted(
        name
        for name in vars(modeling_auto)
        if re.fullmatch(r"MODEL_FOR_\w+_NAMES", name) and name != "MODEL_FOR_BACKBONE_MAPPING_NAMES"
    ),
]
MAPPINGS.append("MODEL_FOR_BACKBONE_MAPPING_NAMES")


# ----------------------------------------------------------------------------------------------------------- inputs


def inputs_of(model: PreTrainedModel, name: str) -> Values:
    """Return the inputs of a forward. Images and sounds are made first, because the text needs a token for each of their features."""
    wanted = inspect.signature(inspect.unwrap(model.forward)).parameters
    values: Values = {}
    for modality in (images, sounds):
        values |= {key: value for key, value in modality(model, wanted).items() if key in wanted}
    case = INPUTS.get(name)
    values |= case(model) if case else {}
    if "input_ids" in wanted and "input_ids" not in values:
        values = text(model, wanted, values) | values
    if "decoder_input_ids" in wanted and "decoder_input_ids" not in values and model.config.is_encoder_decoder:
        values |= {"decoder_input_ids": words(6, vocabulary(model))}
    if "bbox" in wanted:
        values |= {"bbox": torch.tensor([10, 20, 30, 40]).expand(1, TOKENS, 4).contiguous()}
    return {key: value for key, value in values.items() if value is not None}


def x(*shape: int) -> Tensor:
    return torch.randn(*shape)


def words(count: int, below: int = VOCABULARY) -> Tensor:
    """Return random ids of ordinary words: above the usual special tokens, and below the special tokens with new ids."""
    return torch.randint(min(30, below - 1), min(below, 60), (1, count))


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.long)


def text(model: PreTrainedModel, wanted: Mapping[str, Any], others: Values) -> Values:
    """Return a text: words, then one placeholder for each feature of the images, videos and sounds, then words."""
    parts = [words(4, vocabulary(model))]
    kinds = [torch.zeros(1, 4, dtype=torch.long)]
    for kind, (modality, method, inputs) in enumerate(MODALITIES, start=1):
        owner = next((module for module in model.modules() if hasattr(module, method)), None)
        token = placeholder(owner.config, modality) if owner else None
        if token is not None and any(others.get(key) is not None for key in inputs):
            count = features(getattr(owner, method), others)
            parts.append(torch.full((1, count), token))
            kinds.append(torch.full((1, count), kind))
    parts.append(words(TOKENS - 4, vocabulary(model)))
    kinds.append(torch.zeros(1, TOKENS - 4, dtype=torch.long))
    ids = torch.cat(parts, 1)
    values = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": torch.cat(kinds, 1)}
    values["moe_mm_token_type_ids"] = values["mm_token_type_ids"]
    return {key: value for key, value in values.items() if key in wanted}


MODALITIES = (
    ("image", "get_image_features", {"pixel_values"}),
    ("video", "get_video_features", {"pixel_values_videos"}),
    ("audio", "get_audio_features", {"input_features", "input_values"}),
)


def placeholder(config: PreTrainedConfig, modality: str) -> int | None:
    names = [f"{modality}_token_id", f"{modality}_token_index"]
    if modality == "image":
        names += ["media_token_id", "image_patch_id", "media_placeholder_token_id"]
    return setting(config, *names)  # type: ignore[no-any-return]


def features(method: Callable[..., Any], others: Values) -> int:
    """Return the number of features that the model makes of these inputs, by calling ``method``."""
    wanted = inspect.signature(inspect.unwrap(method)).parameters
    found = method(**{key: value for key, value in others.items() if key in wanted})
    if not isinstance(found, Tensor | tuple | list):
        found = found.last_hidden_state if found.get("pooler_output") is None else found.pooler_output
    found = [found] if isinstance(found, Tensor) else found
    return sum(part.shape[:-1].numel() for part in found)


def vocabulary(model: PreTrainedModel) -> int:
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (NotImplementedError, AttributeError):
        return VOCABULARY


def images(model: PreTrainedModel, wanted: Mapping[str, Any]) -> Values:
    """Return an image or a clip. A model of any resolution gets the patches as rows, and their grid."""
    config = model.config if wanted.keys() & {"grid_thw", "hidden_states"} else inner(model.config, VISION)
    height, width = GRID
    for name in ("grid_thw", "image_grid_thw"):
        if name in wanted:
            rows = x(height * width, patch_width(config))
            grid = torch.tensor([[1, height, width]])
            return {name: grid, "pixel_values": rows} | ({"hidden_states": rows} if name == "grid_thw" else {})
    if "pixel_values" not in wanted and "pixel_values_videos" in wanted:
        return {"pixel_values_videos": picture(config, setting(config, *FRAMES) or 4)}
    frames = setting(config, *FRAMES) if "input_ids" not in wanted or "xclip" in config.model_type else None
    pixels = picture(config, frames) if frames else picture(config)
    sizes = torch.tensor([pixels.shape[-2:]])
    return {"pixel_values": pixels} | ({"image_sizes": sizes} if takes_sizes(model) else {})


VISION = """vlm_config vision_config image_config backbone_config encoder_config encoder perception_encoder_config
    vision_tower_config image_encoder_config detector_config vit_config""".split()
AUDIO = """audio_config speech_config asr_config encoder_config audio_encoder_config acoustic_config encoder
    backbone_config""".split()
FRAMES = ["num_frames", "frames_per_clip"]
GRID = (4, 8)


def patch_width(config: PreTrainedConfig) -> int:
    channels = setting(config, "in_channels", "in_chans", "num_channels") or 3
    patch, frames = setting(config, "patch_size") or 14, setting(config, "temporal_patch_size", "patch_temporal") or 1
    return int(channels * frames * patch**2)


def takes_sizes(model: PreTrainedModel) -> bool:
    """Return whether the model needs image_sizes because it takes images of any size, as pixtral does."""
    return "pixtral" in {setting(c, "model_type") for c in (model.config, inner(model.config, VISION))}


def picture(config: PreTrainedConfig, *leading: int) -> Tensor:
    size = setting(config, "image_size", "img_size") or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = setting(config, "num_channels", "in_channels", "in_chans")
    return x(1, *leading, channels if isinstance(channels, int) else 3, height, width)


def sounds(model: PreTrainedModel, wanted: Mapping[str, Any]) -> Values:
    """Return a waveform (with a channel dimension for a codec) and mel frames (bins first for an encoder like Whisper's)."""
    config = inner(model.config, AUDIO)
    bins = setting(config, *BINS) or 80
    mel = x(1, FRAMES_OF_MEL, bins)
    mask = ones(1, FRAMES_OF_MEL)
    if setting(config, "max_source_positions") and not vars(config).keys() & FRAMES_FIRST:
        mel, mask = x(1, bins, 2 * config.max_source_positions), ones(1, 2 * config.max_source_positions)
    channels = setting(config, "audio_channels") or (1 if setting(config, "codebook_size", "n_codebooks") else None)
    wave = x(1, channels, SAMPLES) if channels else x(1, SAMPLES)
    masks = {"input_features_mask": mask.bool(), "feature_attention_mask": mask}
    return {"input_features": mel, "input_values": wave} | masks


BINS = """feature_projection_input_dim input_dim num_mel_bins feature_size mel_bins input_feat_per_channel
    input_feat_size""".split()
FRAMES_FIRST = {"input_feat_per_channel", "feature_projection_input_dim"}
FRAMES_OF_MEL = 200
SAMPLES = 8000


def inner(config: PreTrainedConfig, names: list[str]) -> PreTrainedConfig:
    """Follow these names to nested configs, as deep as they go, and return the innermost config."""
    for name in names:
        found = vars(config).get(name)
        if isinstance(found, PreTrainedConfig):
            return inner(found, names)
    return config


def setting(config: PreTrainedConfig, *names: str) -> Any:
    return next((v for name in names if (v := getattr(config, name, None)) is not None), None)


# By model type: inputs of the forward. They add to the inputs of the rules or replace them; None removes an input.
INPUTS: dict[str, Callable[[Any], Values]] = {
    "audio-spectrogram-transformer": lambda m: {"input_values": x(1, m.config.max_length, m.config.num_mel_bins)},
    "autoformer": lambda m: series(m.config),
    "informer": lambda m: series(m.config),
    "time_series_transformer": lambda m: series(m.config),
    "blip_2_qformer": lambda m: {"query_embeds": x(1, 8, 64), "encoder_hidden_states": x(1, 6, 64)},
    "instructblip_qformer": lambda m: {"query_embeds": x(1, 8, 64), "encoder_hidden_states": x(1, 6, 64)},
    "instructblipvideo_qformer": lambda m: {"query_embeds": x(1, 8, 64), "encoder_hidden_states": x(1, 6, 64)},
    "blt_global_transformer": lambda m: {"inputs_embeds": x(1, 6, 64)},
    "bridgetower_vision_model": lambda m: {"image": picture(m.config)},
    "clap": lambda m: {"input_features": x(1, 1, 256, 64), "is_longer": torch.tensor([[False]])},
    "clap_audio_model": lambda m: {"input_features": x(1, 1, 256, 64), "is_longer": torch.tensor([[False]])},
    "clvp": lambda m: {"input_features": x(1, 80, 128)},
    "colmodernvbert": lambda m: tiles(m.config),
    "csm_depth_decoder_model": lambda m: {"input_ids": words(3)},
    "decision_transformer": lambda m: trajectory(m.config),
    "deepseek_vl_hybrid": lambda m: {"high_res_pixel_values": picture(m.config.high_res_vision_config)},
    "dia": lambda m: {"decoder_input_ids": torch.randint(5, 60, (1, 6, 9)), "input_features": None},
    "fastspeech2_conformer_hifigan": lambda m: {"spectrogram": x(1, 20, m.config.model_in_dim)},
    "speecht5_hifigan": lambda m: {"spectrogram": x(1, 20, m.config.model_in_dim)},
    "flava_multimodal_model": lambda m: {"hidden_states": x(1, TOKENS, 64)},
    "florence_vision": lambda m: {"hidden_states": x(1, 3, 64, 64)},
    "gemma3n_audio": lambda m: {"audio_mel": x(1, 128, 128), "audio_mel_mask": torch.zeros(1, 128, dtype=torch.bool)},
    "granite_speech_encoder": lambda m: {"hidden_states": x(1, 100, m.config.input_dim)},
    "granite_speech_plus_encoder": lambda m: {"hidden_states": x(1, 100, m.config.input_dim)},
    "idefics": lambda m: {
        "pixel_values": picture(m.config.vision_config, 1),
        "image_attention_mask": ones(1, TOKENS, 1),
    },
    "idefics2": lambda m: tiles(m.config),
    "idefics3": lambda m: tiles(m.config),
    "modernvbert": lambda m: tiles(m.config),
    "smolvlm": lambda m: tiles(m.config),
    "ultravbert": lambda m: tiles(m.config),
    "idefics2_perceiver": lambda m: {"context": x(1, 16, 64), "attention_mask": ones(1, 16)},
    "instructblip": lambda m: {"qformer_input_ids": words(6)},
    "instructblipvideo": lambda m: {"qformer_input_ids": words(6), "pixel_values": picture(m.config.vision_config, 4)},
    "jev": lambda m: {
        "marks": torch.tensor([[4, 8]]),
        "num_options": torch.tensor([[2, 2]]),
        "question_type_ids": torch.tensor([[0, 1]]),
    },
    "lightglue": lambda m: {"pixel_values": x(1, 2, 3, 64, 64)},
    "superglue": lambda m: {"pixel_values": x(1, 2, 3, 64, 64)},
    "efficientloftr": lambda m: {"pixel_values": x(1, 2, 3, 64, 64)},
    "lxmert": lambda m: {"visual_feats": x(1, 5, m.config.visual_feat_dim), "visual_pos": x(1, 5, 4)},
    "mimi_decoder": lambda m: {"latents": x(1, 64, 10)},
    "mllama": lambda m: {
        "pixel_values": picture(m.config.vision_config, 1, 4),
        "aspect_ratio_ids": torch.tensor([[6]]),
        "aspect_ratio_mask": ones(1, 1, 4),
        "cross_attention_mask": ones(1, TOKENS, 1, 4),
    },
    "mllama_vision_model": lambda m: {
        "pixel_values": picture(m.config, 1, 4),
        "aspect_ratio_ids": torch.tensor([[6]]),
        "aspect_ratio_mask": ones(1, 1, 4),
    },
    "musicgen_decoder": lambda m: {"input_ids": torch.randint(5, 60, (4, 8)), "attention_mask": None},
    "musicgen_melody_decoder": lambda m: {"input_ids": torch.randint(5, 60, (4, 8)), "attention_mask": None},
    "oneformer": lambda m: {"task_inputs": words(m.config.task_seq_len)},
    "patchtsmixer": lambda m: {"past_values": x(1, m.config.context_length, m.config.num_input_channels)},
    "patchtst": lambda m: {"past_values": x(1, m.config.context_length, m.config.num_input_channels)},
    "timesfm": lambda m: {
        "past_values": x(1, 64),
        "past_values_padding": torch.zeros(1, 64),
        "freq": torch.zeros(1, 1, dtype=torch.long),
    },
    "timesfm2_5": lambda m: {"past_values": x(1, 64)},
    "perceiver": lambda m: {"inputs": x(1, 20, m.config.d_model)},
    "pix2struct": lambda m: flattened(m.config.vision_config),
    "pix2struct_vision_model": lambda m: flattened(m.config),
    "kosmos_2_5_vision_model": lambda m: flattened(m.config),
    "phi4_multimodal_audio": lambda m: {"hidden_states": x(1, 100, m.config.input_size), "mask": ones(1, 100).bool()},
    "qwen2_5_omni_bigvgan": lambda m: {"mel_spectrogram": x(1, m.config.mel_dim, 20)},
    "rag": lambda m: {
        "context_input_ids": torch.randint(5, 60, (5, 16)),
        "context_attention_mask": ones(5, 16),
        "doc_scores": x(1, 5),
    },
    "seggpt": lambda m: {
        "prompt_pixel_values": x(1, 3, 64, 64),
        "prompt_masks": x(1, 3, 64, 64),
        "pixel_values": x(1, 3, 64, 64),
    },
    "speecht5": lambda m: {"input_values": x(1, 20, 64), "decoder_input_values": x(1, 10, 64)},
    "vibevoice_acoustic_tokenizer": lambda m: {"input_values": x(1, 1, 6400)},
    "vibevoice_acoustic_tokenizer_decoder": lambda m: {"hidden_states": x(1, m.config.hidden_size, 4)},
    "vibevoice_acoustic_tokenizer_encoder": lambda m: {"hidden_states": x(1, 1, 6400)},
    "video_llama_3": lambda m: {"image_merge_sizes": torch.tensor([2])},
    "video_llama_3_vision": lambda m: {"merge_sizes": torch.tensor([2])},
    "siglip2": lambda m: packed(m.config.vision_config),
    "siglip2_vision_model": lambda m: packed(m.config),
    "lfm2_vl": lambda m: packed(m.config.vision_config),
    "paddleocr_vl_vision": lambda m: {"pixel_values": x(1, 32, 3, 14, 14), "grid_thw": torch.tensor([[1, *GRID]])},
    "paddleocr_vl": lambda m: {"pixel_values": x(32, 3, 14, 14)},
    "kimi_k25": lambda m: {"pixel_values": x(32, 3, 14, 14)},
    "kimi_k25_vision": lambda m: {"pixel_values": x(32, 3, 14, 14)},
    "xcodec": lambda m: {"input_values": x(1, 1, 16000)},
    "llava_next": lambda m: pinpointed(m.config),
    "llava_next_video": lambda m: pinpointed(m.config),
    "llava_onevision": lambda m: pinpointed(m.config),
    "granite4_vision": lambda m: pinpointed(m.config),
    "edgetam": lambda m: {"pixel_values": x(1, 3, 128, 128)},
    "seamless_m4t": lambda m: {"input_features": x(1, 100, 160), "input_ids": None},
    "seamless_m4t_v2": lambda m: {"input_features": x(1, 100, 160), "input_ids": None},
    "pop2piano": lambda m: {"input_features": x(1, 20, 64), "input_ids": None},
    "vibevoice_asr": lambda m: {"input_values": x(1, 1, 6400)},
    "speech-encoder-decoder": lambda m: {"input_features": None},
    "qwen3_omni_moe_talker_text": lambda m: {"input_ids": None, "inputs_embeds": x(1, TOKENS, 64)},
    "blt": lambda m: {"use_cache": False},
    "csm": lambda m: {"input_values": None},
    "kyutai_speech_to_text": lambda m: {
        "input_values": None,
        "input_ids": torch.randint(5, 60, (1, 6, 5)),
        "attention_mask": None,
    },
    "granite_speech": lambda m: {"input_features_mask": None},
    "granite_speech_plus": lambda m: {"input_features_mask": None},
    "kosmos-2": lambda m: {"image_embeds_position_mask": torch.arange(TOKENS)[None] < 8},
    "nemotron_h_omni": lambda m: {"pixel_values": x(32, 768), "image_grid_hw": torch.tensor([GRID])},
    "omdet-turbo": lambda m: {
        "pixel_values": x(1, 3, 224, 224),
        "classes_input_ids": torch.randint(5, 60, (2, 8)),
        "classes_attention_mask": ones(2, 8),
        "tasks_input_ids": words(8),
        "tasks_attention_mask": ones(1, 8),
        "classes_structure": torch.tensor([2]),
    },
    "pe_audio": lambda m: {"input_values": x(1, 1, SAMPLES)},
    "pe_audio_encoder": lambda m: {"input_values": x(1, 1, SAMPLES)},
    "inkling_audio": lambda m: {"audio_input_ids": torch.randint(0, 255, (10, 80))},
    "inkling_vision": lambda m: {"pixel_values": x(6, 2, 4, 4, 3)},
    "inkling_mm_model": lambda m: {"pixel_values": x(6, 2, 4, 4, 3)},
    "gemma4_vision": lambda m: positioned(m.config, "pixel_position_ids"),
    "janus_vqgan": lambda m: {"pixel_values": x(1, 3, 64, 64)},
    "qwen2_5_omni_audio_encoder": lambda m: {"input_features": x(128, 200), "feature_lens": torch.tensor([200])},
    "qwen3_omni_moe_audio_encoder": lambda m: {"input_features": x(128, 200), "feature_lens": torch.tensor([200])},
    "qwen3_omni_moe_talker_code_predictor": lambda m: {"input_ids": words(1), "generation_steps": 1},
    "nemotron3_5_transcribe_word_timestamp": lambda m: {"inputs_embeds": x(1, TOKENS, 64)},
    "unlimited_ocr_vision_encoder": lambda m: {"patch_embeds": x(1, 64, 8, 8)},
    "deepseek_ocr2_encoder": lambda m: {"inputs_embeds": x(1, 32, 64), "num_patches": 16},
    "fun_asr_nano": lambda m: {"input_features": x(1, 100, 560), "input_features_mask": ones(1, 100)},
    "fun_asr_nano_encoder": lambda m: {"input_features": x(1, 100, 560), "input_features_mask": ones(1, 100)},
    "gemma4_audio": lambda m: mels(128),
    "gemma4": lambda m: positioned(m.config.vision_config, "image_position_ids") | mels(128),
    "gemma4_unified": lambda m: positioned(m.config.vision_config, "image_position_ids") | {"input_features": None},
    "embedding_gemma2": lambda m: positioned(m.config.vision_config, "image_position_ids") | {"input_features": None},
    "granite_speech5_ctc": lambda m: {"input_features": x(1, 100, 320)},
    "granite_speech5_encoder": lambda m: {"input_features": x(1, 100, 320)},
    "qwen3_asr": lambda m: {"input_features": x(1, 128, 200), "input_features_mask": ones(1, 200)},
    "qwen3_asr_encoder": lambda m: {"input_features": x(1, 128, 200), "input_features_mask": ones(1, 200)},
    "glmasr": lambda m: {"input_features": x(1, 128, 200), "input_features_mask": ones(1, 200)},
    "glmasr_encoder": lambda m: {"input_features": x(1, 128, 200)},
    "voxtral_realtime_encoder": lambda m: {"input_features": x(1, 128, 200)},
    "voxtral_realtime_text": lambda m: {"t_cond": x(1, 64)},
    "vibevoice": lambda m: {"input_values": x(1, 1, 6400), "padding_mask": ones(1, 6400).bool()},
    "moss_transcribe_diarize": lambda m: {"padding_mask": ones(1, 200).bool()},
    "colqwen2": lambda m: {"pixel_values": x(1, 32, 1176)},
    "dia_decoder": lambda m: {"input_ids": torch.randint(5, 60, (1, 6, 9)), "encoder_hidden_states": x(1, 6, 64)},
    "depth_pro": lambda m: {"pixel_values": x(1, 3, 448, 448)},
    "fuyu": lambda m: {"pixel_values": x(1, 4, 2700), "image_patches_indices": torch.arange(4)[None]},
    "molmo2_vision": lambda m: {"pixel_values": x(1, 729, 588)},
    "molmo2": lambda m: {
        "pixel_values": x(1, 729, 588),
        "image_grids": torch.tensor([[2, 2, 2, 2]]),
        "image_num_crops": torch.tensor([1]),
        "image_token_pooling": torch.randint(0, 729, (8, 4)),
    },
    "moshi_depth": lambda m: {"input_ids": words(3), "last_hidden_state": x(1, 3, m.config.input_size)},
    "muse_glimmer_assistant": lambda m: {"noise_embeds": x(1, 4, 64), "context_hidden_states": x(1, TOKENS, 320)},
    "muse_spark_audio": lambda m: {"input_values": x(1, 7680)},
    "musicgen": lambda m: {"input_values": None, "decoder_input_ids": torch.randint(5, 60, (4, 6))},
    "musicgen_melody": lambda m: {"input_features": x(1, 20, 12), "decoder_input_ids": torch.randint(5, 60, (4, 6))},
    "t5gemma2_decoder": lambda m: {"encoder_hidden_states": x(1, 8, 64), "encoder_attention_mask": ones(1, 8)},
    "tvp": lambda m: {"pixel_values": x(1, 8, 3, 64, 64)},
    "xclip_vision_model": lambda m: {"pixel_values": picture(m.config, 8)[0]},
    "qwen2_5_omni_dit": lambda m: {
        "hidden_states": x(1, 48, 80),
        "condition_vector": x(1, 48, 80),
        "speaker_embedding": x(1, 48, 192),
        "quantized_code": torch.randint(0, 100, (1, 24)),
        "time_step": torch.rand(()),
    },
    "qwen2_audio": lambda m: {
        "input_ids": torch.tensor([[5, 6, m.config.audio_token_id, 7, 8]]),
        "attention_mask": ones(1, 5),
    },
    "blt_local_decoder": lambda m: {
        "input_ids": None,
        "attention_mask": None,
        "inputs_embeds": x(1, TOKENS, 64),
        "patch_embeds": x(1, TOKENS, 64),
    },
    "sam3_detr_decoder": lambda m: attended(),
    "sam3_mask_decoder": lambda m: queried(),
    "sam3_lite_text_detr_decoder": lambda m: attended(),
    "sam3_lite_text_mask_decoder": lambda m: queried(),
    "pe_video": lambda m: {"pixel_values_videos": x(1, 4, 3, 56, 56)},
    "pe_video_encoder": lambda m: {"pixel_values_videos": x(1, 4, 3, 56, 56)},
    "pe_audio_video": lambda m: {"input_values": x(1, 1, SAMPLES), "pixel_values_videos": x(1, 4, 3, 56, 56)},
    "pe_audio_video_encoder": lambda m: {"input_values": x(1, 1, SAMPLES), "pixel_values_videos": x(1, 4, 3, 56, 56)},
    "blt_local_encoder": lambda m: {
        "attention_mask": None,
        "num_patches": 6,
        "patch_ids": torch.arange(TOKENS)[None] // 2,
    },
    "emu3": lambda m: {"image_sizes": torch.tensor([[64, 64]])},
    "granite_docling": lambda m: tiles(m.config) | {"pixel_attention_mask": ones(1, 2).bool()},
    "minicpm_ocr_vision": lambda m: {"pixel_values": x(1, 3, 16, 512), "target_sizes": torch.tensor([GRID])},
    "minicpmv4_6_vision": lambda m: {"pixel_values": x(1, 3, 16, 512), "target_sizes": torch.tensor([GRID])},
    "minicpmv4_7_vision": lambda m: {"pixel_values": x(1, 3, 16, 512), "target_sizes": torch.tensor([GRID])},
    "molmo2_adapter": lambda m: {"image_features": x(1, 64, 128), "pooled_patches_idx": torch.randint(0, 64, (16, 4))},
    "neomme": lambda m: {"pixel_values": x(8, 3072)},
    "perception_lm": lambda m: {"pixel_values": x(1, 1, 3, 336, 336)},
    "pp_ocrv5_mobile_rec": lambda m: {"pixel_values": x(1, 3, 96, 320)},
    "sam3_detr_encoder": lambda m: {
        "vision_features": [x(1, 64, 8, 8)],
        "vision_pos_embeds": [x(1, 64, 8, 8)],
        "text_features": x(1, 6, 64),
    },
    "sam3_lite_text_detr_encoder": lambda m: {
        "vision_features": [x(1, 64, 8, 8)],
        "vision_pos_embeds": [x(1, 64, 8, 8)],
        "text_features": x(1, 6, 64),
    },
    "voxtral_realtime": lambda m: {
        "input_features": x(1, 128, 200),
        "input_ids": words(25),
        "attention_mask": ones(1, 25),
        "num_delay_tokens": 6,
    },
    "qwen2_5_omni_talker": lambda m: {
        "thinker_reply_part": x(1, 4, m.config.embedding_size),
        "input_ids": words(1),
        "attention_mask": None,
        "input_text_ids": words(1),
        "image_grid_thw": None,
    },
    "dots3_note": lambda m: {"input_features": x(1, 128, 200), "chunk_sample_lengths": torch.tensor([160 * 200])},
    "dots3_note_audio_encoder": lambda m: {
        "input_features": x(1, 128, 200),
        "chunk_sample_lengths": torch.tensor([160 * 200]),
    },
    "inkling2": lambda m: {"pixel_values": x(32, 40, 40, 3)},
    "inkling2_vision": lambda m: {"pixel_values": x(32, 40, 40, 3)},
    "muse_spark": lambda m: {"input_values": x(1, 7680)},
}


def series(config: PreTrainedConfig) -> Values:
    """Return a time series: a past that is long enough for the longest lag, a future, and their time features."""
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    return {
        "past_values": x(1, past),
        "past_time_features": x(1, past, config.num_time_features),
        "past_observed_mask": torch.ones(1, past),
        "future_values": x(1, future),
        "future_time_features": x(1, future, config.num_time_features),
    }


def trajectory(config: PreTrainedConfig, steps: int = 5) -> Values:
    return {
        "states": x(1, steps, config.state_dim),
        "actions": x(1, steps, config.act_dim),
        "rewards": x(1, steps, 1),
        "returns_to_go": x(1, steps, 1),
        "timesteps": torch.arange(steps)[None],
        "attention_mask": ones(1, steps),
    }


def tiles(config: PreTrainedConfig) -> Values:
    """Return two images in one row of the batch."""
    return {"pixel_values": picture(inner(config, VISION), 2)}


def pinpointed(config: PreTrainedConfig) -> Values:
    """Return an image as two tiles side by side and a thumbnail, with its size."""
    side = config.vision_config.image_size
    return {"pixel_values": picture(config.vision_config, 3), "image_sizes": torch.tensor([[side, 2 * side]])}


def flattened(config: PreTrainedConfig) -> Values:
    """Return flattened patches. The first two values of each are its row and column."""
    patches = x(1, 16, 2 + config.patch_embed_hidden_size)
    patches[..., 0] = torch.arange(16) // 4 + 1
    patches[..., 1] = torch.arange(16) % 4 + 1
    return {"flattened_patches": patches, "attention_mask": ones(1, 16)}


def positioned(config: PreTrainedConfig, name: str) -> Values:
    """Return the patches of an image with 6 x 6 patches, and the column and row of each under ``name``."""
    width = (
        3 * (config.patch_size * (setting(config, "pooling_kernel_size") if "unified" in config.model_type else 1)) ** 2
    )
    columns, rows = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="xy")
    return {"pixel_values": x(1, 36, width), name: torch.stack([columns, rows], -1).reshape(1, 36, 2)}


def mels(bins: int) -> Values:
    return {"input_features": x(1, FRAMES_OF_MEL, bins), "input_features_mask": ones(1, FRAMES_OF_MEL).bool()}


def attended() -> Values:
    """Return what a detection decoder attends to: the features of an 8 x 8 image, and of some words."""
    return {
        "vision_features": x(1, 64, 64),
        "vision_pos_encoding": x(1, 64, 64),
        "text_features": x(1, 6, 64),
        "spatial_shapes": torch.tensor([[8, 8]]),
    }


def queried() -> Values:
    """Return mask queries, and a feature pyramid with three levels."""
    return {
        "decoder_queries": x(1, 8, 64),
        "backbone_features": [x(1, 64, side, side) for side in (32, 16, 8)],
        "encoder_hidden_states": x(1, 64, 64),
    }


def packed(config: PreTrainedConfig) -> Values:
    """Return the patches of an image in sequence, and its height and width in patches."""
    return {
        "pixel_values": x(1, 32, patch_width(config)),
        "pixel_attention_mask": ones(1, 32),
        "spatial_shapes": torch.tensor([GRID]),
    }


# ----------------------------------------------------------------------------------------------------- command line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="comma-separated model types")
    parser.add_argument("--out", type=Path, help="add the lines to this file as well, and skip the types it has")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = set(lines_of(options.out))
    for name in options.only.split(",") if options.only else names():
        if name in done:
            continue
        line = json.dumps({"model": name, **run_one(name)})
        print(line, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")


def lines_of(path: Path | None) -> Iterator[str]:
    if path and path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)["model"]


def run_one(name: str, seconds: int = 60) -> Values:
    """Build and run a model. Return whether it runs, with its seconds or the error. After ``seconds``, an alarm raises TimeoutError."""
    if name in CANNOT:
        return {"runs": False, "why": CANNOT[name]}
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        model, args, kwargs = build(name)
        start = time.perf_counter()
        with torch.no_grad():
            model(*args, **kwargs)
        return {"runs": True, "seconds": round(time.perf_counter() - start, 3)}
    except Exception as error:
        return {"runs": False, "why": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    finally:
        signal.alarm(0)


def ring(*_: object) -> None:
    raise TimeoutError("too long")


if __name__ == "__main__":
    main()
