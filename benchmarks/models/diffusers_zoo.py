"""Every diffusers model, made small with random weights, and inputs for its forward.

    python -m benchmarks.models.diffusers_zoo [--only FluxTransformer2DModel,VQModel] [--out FILE.jsonl]

This command runs each model once on the CPU, eagerly, and prints one JSON line per model.

A constructor's parameter takes its value from the model's case, otherwise from SMALL, otherwise its own default. A forward's
parameter takes it from the case, otherwise from INPUTS, otherwise its own default. So a case holds only the exceptions.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import diffusers
import torch
from diffusers.models.transformers.transformer_wan_animate_2 import WanAnimate2KVCache
from torch import nn
from torch.utils._pytree import tree_map

from benchmarks.models.torchvision_zoo import Built, run_each

Draw = partial[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """The exceptions for one model: settings of its constructor, and inputs of its forward."""

    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], object] | None = None  # called with the built model, before its forward

    def on(self, **inputs: Any) -> Case:
        return replace(self, inputs=inputs)

    def after(self, prepare: Callable[[Any], object]) -> Case:
        return replace(self, prepare=prepare)


def small(**config: Any) -> Case:
    return Case(config)


def x(*shape: int) -> Draw:
    """Return a recipe for a random tensor, which is drawn when the model is built."""
    return partial(torch.randn, *shape)


def ids(below: int, *shape: int) -> Draw:
    return partial(torch.randint, below, shape)


def ones(*shape: int) -> Draw:
    return partial(torch.ones, *shape)


def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Draw:
    return partial(torch.zeros, *shape, dtype=dtype)


def mask(*shape: int) -> Draw:
    return partial(torch.ones, *shape, dtype=torch.bool)


def values(*numbers: float | list[int]) -> Draw:
    return partial(torch.tensor, numbers)


def span(start: int, stop: int) -> Draw:
    return partial(torch.arange, start, stop)


def part(name: str) -> partial[nn.Module]:
    """Return a recipe for another model of this zoo, as a constructor's argument."""
    return partial(lambda: build(name)[0])


def share_z_image(controlnet: nn.Module) -> None:
    """Give a ControlNet the embedders and refiners of the transformer that it controls, which it shares."""
    diffusers.ZImageControlNetModel.from_transformer(controlnet, build("ZImageTransformer2DModel")[0])


# Width 32 is 2 heads of 16, and their rotary embedding has 4 + 6 + 6 features. There are two layers of each kind, and 8 text tokens.
SMALL: dict[str, Any] = {
    "attention_head_dim": 16,
    "axes_dims": (4, 6, 6),
    "axes_dims_rope": (4, 6, 6),
    "caption_channels": 32,
    "caption_projection_dim": 32,
    "context_in_dim": 32,
    "cross_attention_dim": 32,
    "depth": 2,
    "dim": 32,
    "ff_dim": 64,
    "ffn_dim": 64,
    "freq_dim": 32,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "joint_attention_dim": 32,
    "layers_per_block": 1,
    "mlp_ratio": 2.0,
    "model_dim": 32,
    "norm_num_groups": 8,
    "num_attention_heads": 2,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "num_layers": 2,
    "num_refiner_layers": 1,
    "num_single_layers": 2,
    "pooled_projection_dim": 32,
    "rope_axes_dim": (4, 6, 6),
    "rope_dim_list": [4, 6, 6],
    "text_dim": 32,
    "text_embed_dim": 32,
    "time_dim": 32,
    "time_embed_dim": 32,
}
IMAGE, VIDEO = x(1, 3, 32, 32), x(1, 3, 9, 32, 32)
LATENT, LATENT_VIDEO = x(1, 4, 8, 8), x(1, 16, 2, 8, 8)
PROTEIN = {"is_in_context_conditioning": zeros(1, 8), "supports_local_latent": ones(1, 8)}
PROTEIN_CONTACTS = ("hbond", "pistack", "pication", "saltbridge", "hydrophobic", "metal-coord")
INPUTS: dict[str, Any] = {
    "encoder_attention_mask": mask(1, 8),
    "encoder_hidden_states": x(1, 8, 32),
    "encoder_hidden_states_mask": mask(1, 8),
    "img_ids": x(16, 3),
    "pooled_projections": x(1, 32),
    "sample": IMAGE,
    "timestep": values(500),
    "txt_ids": x(8, 3),
}

# fmt: off
TRANSFORMERS: dict[str, Case] = {
    "AceStepTransformer1DModel": small(in_channels=24, audio_acoustic_hidden_dim=8, sliding_window=4).on(
        hidden_states=x(1, 16, 8), context_latents=x(1, 16, 16), timestep=values(0.5), timestep_r=values(0.5)
    ),
    "AllegroTransformer3DModel": small(sample_height=8, sample_width=8, sample_frames=2).on(
        hidden_states=x(1, 4, 2, 8, 8)
    ),
    "AnyFlowFARTransformer3DModel": small(chunk_partition=(1, 1)).on(
        hidden_states=x(1, 2, 16, 8, 8), timestep=x(1, 2), r_timestep=x(1, 2), chunk_partition=[1, 1]
    ),
    "AnyFlowTransformer3DModel": small().on(hidden_states=x(1, 2, 16, 8, 8), timestep=x(1, 2), r_timestep=x(1, 2)),
    "AuraFlowTransformer2DModel": small(
        sample_size=8, num_mmdit_layers=2, num_single_dit_layers=2, pos_embed_max_size=16
    ).on(hidden_states=LATENT),
    "BriaFibo2Transformer2DModel": small(
        in_channels=4, n_layers=2, n_refiner_layers=1, n_heads=2, cap_feat_dim=32, injection_layer_ids=(1,),
        min_num_gist_tokens=2, max_num_gist_tokens=4, gist_step=1, gist_min_text_len=2, gist_max_text_len=16,
    ).on(hidden_states=x(1, 4, 8, 8), timestep=values(0.5), encoder_hidden_states=x(1, 2, 8, 32)),
    "BriaFiboTransformer2DModel": small(in_channels=8, text_encoder_dim=16).on(
        hidden_states=x(1, 16, 8), text_encoder_layers=[x(1, 8, 16)] * 4
    ),
    "BriaTransformer2DModel": small(in_channels=8).on(hidden_states=x(1, 16, 8)),
    "ChromaTransformer2DModel": small(
        in_channels=8, approximator_num_channels=8, approximator_hidden_dim=16, approximator_layers=1
    ).on(hidden_states=x(1, 16, 8)),
    "ChronoEditTransformer3DModel": small().on(hidden_states=LATENT_VIDEO),
    "CogVideoXTransformer3DModel": small(sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=8).on(
        hidden_states=x(1, 2, 16, 8, 8)
    ),
    "CogView3PlusTransformer2DModel": small(condition_dim=8, pos_embed_max_size=8, sample_size=8).on(
        hidden_states=x(1, 16, 8, 8), original_size=x(1, 2), target_size=x(1, 2), crop_coords=x(1, 2)
    ),
    "CogView4Transformer2DModel": small(condition_dim=8, sample_size=8, rope_axes_dim=(8, 8)).on(
        hidden_states=x(1, 16, 8, 8), original_size=x(1, 2), target_size=x(1, 2), crop_coords=x(1, 2)
    ),
    "ConsisIDTransformer3DModel": small(
        sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=8, is_train_face=True,
        cross_attn_dim_head=8, cross_attn_num_heads=2, LFE_id_dim=32, LFE_vit_dim=32, LFE_depth=5, LFE_dim_head=8,
        LFE_num_heads=2, LFE_num_querie=4, LFE_output_dim=21, LFE_ff_mult=2,
    ).on(hidden_states=x(1, 2, 16, 8, 8), id_cond=x(1, 32), id_vit_hidden=[x(1, 6, 32)] * 5),
    "CosmosTransformer3DModel": small(adaln_lora_dim=8, max_size=(4, 8, 8)).on(
        hidden_states=LATENT_VIDEO, padding_mask=ones(1, 1, 8, 8), fps=16
    ),
    "DiTTransformer2DModel": small(sample_size=8, norm_num_groups=32).on(hidden_states=LATENT, class_labels=values(1)),
    "DreamLiteTransformer2DModel": small(in_channels=32).on(hidden_states=x(1, 32, 8, 8)),
    "DualTransformer2DModel": small(in_channels=32).on(
        hidden_states=x(1, 32, 8, 8), encoder_hidden_states=x(1, 77 + 257, 32)
    ),
    "EasyAnimateTransformer3DModel": small(
        in_channels=16, out_channels=16, patch_size=2, mmdit_layers=1, text_embed_dim_t5=32
    ).on(hidden_states=LATENT_VIDEO, encoder_hidden_states_t5=x(1, 8, 32)),
    "ErnieImageTransformer2DModel": small(ffn_hidden_size=64, in_channels=8, out_channels=8, text_in_dim=32).on(
        hidden_states=x(1, 8, 4, 4), text_bth=x(1, 8, 32), text_lens=values(8)
    ),
    "Flux2Transformer2DModel": small(in_channels=8, axes_dims_rope=(4, 4, 4, 4), timestep_guidance_channels=32).on(
        hidden_states=x(1, 16, 8), img_ids=x(16, 4), txt_ids=x(8, 4), guidance=values(4.0)
    ),
    "Flux3Transformer2DModel": small(
        in_channels=8, cond_in_channels=8, axes_dims_rope=(4, 4, 4, 4), timestep_channels=32
    ).on(
        hidden_states=x(1, 16, 8), img_ids=x(16, 4), txt_ids=x(8, 4), timestep=values(0.5),
        image_cond_hidden_states=x(1, 16, 8), image_cond_ids=x(16, 4),
    ),
    "FluxTransformer2DModel": small(in_channels=8, guidance_embeds=True).on(
        hidden_states=x(1, 16, 8), guidance=values(4.0)
    ),
    "GlmImageTransformer2DModel": small(condition_dim=8, prior_vq_quantizer_codebook_size=64).on(
        hidden_states=x(1, 16, 8, 8), prior_token_id=ids(64, 1, 16), prior_token_drop=zeros(1, dtype=torch.bool),
        target_size=x(1, 2), crop_coords=x(1, 2),
    ),
    "HeliosTransformer3DModel": small(rope_dim=(4, 6, 6)).on(
        hidden_states=LATENT_VIDEO, indices_hidden_states=values([4, 5]), indices_latents_history_short=values([2, 3]),
        indices_latents_history_mid=values([0, 1]), indices_latents_history_long=values([0, 1, 2, 3]),
        latents_history_short=x(1, 16, 2, 8, 8), latents_history_mid=x(1, 16, 2, 8, 8),
        latents_history_long=x(1, 16, 4, 8, 8),
    ),
    "HiDreamImageTransformer2DModel": small(
        patch_size=2, in_channels=4, caption_channels=[32, 32], text_emb_dim=32, max_resolution=(8, 8),
        llama_layers=[0, 1, 2, 3],
    ).on(
        hidden_states=LATENT, timesteps=values(500), encoder_hidden_states_t5=x(1, 8, 32),
        encoder_hidden_states_llama3=x(4, 1, 8, 32), pooled_embeds=x(1, 32),
    ),
    "HunyuanDiT2DModel": small(
        in_channels=4, patch_size=2, sample_size=8, cross_attention_dim_t5=32, text_len=8, text_len_t5=8
    ).on(
        hidden_states=LATENT, timestep=values(500.0), text_embedding_mask=mask(1, 8),
        encoder_hidden_states_t5=x(1, 8, 32), text_embedding_mask_t5=mask(1, 8), image_meta_size=x(1, 6),
        style=zeros(1), image_rotary_emb=(x(16, 16), x(16, 16)),
    ),
    "HunyuanImageTransformer2DModel": small(
        in_channels=8, out_channels=8, rope_axes_dim=(8, 8), text_embed_2_dim=32
    ).on(
        hidden_states=x(1, 8, 4, 4), timestep=values(500.0), encoder_hidden_states_2=x(1, 8, 32),
        encoder_attention_mask_2=mask(1, 8),
    ),
    "HunyuanVideo15Transformer3DModel": small(in_channels=16, text_embed_2_dim=32, image_embed_dim=32).on(
        hidden_states=LATENT_VIDEO, timestep=values(500.0), encoder_hidden_states_2=x(1, 8, 32),
        encoder_attention_mask_2=mask(1, 8), image_embeds=x(1, 8, 32),
    ),
    "HunyuanVideoFramepackTransformer3DModel": small(
        has_image_proj=True, image_proj_dim=32, has_clean_x_embedder=True
    ).on(
        hidden_states=LATENT_VIDEO, image_embeds=x(1, 4, 32), guidance=values(4.0), indices_latents=values(2, 3),
        latents_clean=x(1, 16, 2, 8, 8), indices_latents_clean=values(0, 1), latents_history_2x=x(1, 16, 2, 8, 8),
        indices_latents_history_2x=values(0, 1), latents_history_4x=x(1, 16, 4, 8, 8),
        indices_latents_history_4x=values(0, 1, 2, 3),
    ),
    "HunyuanVideoTransformer3DModel": small().on(hidden_states=LATENT_VIDEO, guidance=values(4.0)),
    "Ideogram4Transformer2DModel": small(in_channels=8, adaln_dim=16, llm_features_dim=32, mrope_section=(3, 3, 2)).on(
        hidden_states=x(1, 24, 8), encoder_hidden_states=x(1, 24, 32), position_ids=ids(8, 1, 24, 3),
        timestep=values(0.5), segment_ids=zeros(1, 24), indicator=ids(4, 1, 24),
    ),
    "JoyImageEditPlusTransformer3DModel": small().on(
        hidden_states=x(1, 16, 16, 1, 2, 2), shape_list=[[(1, 4, 4)]], encoder_hidden_states_mask=ones(1, 8)
    ),
    "JoyImageEditTransformer3DModel": small().on(hidden_states=LATENT_VIDEO),
    "Kandinsky5Transformer3DModel": small(in_text_dim=32, in_text_dim2=32, num_visual_blocks=2).on(
        hidden_states=x(1, 2, 8, 8, 4), visual_rope_pos=(span(0, 2), span(0, 4), span(0, 4)), text_rope_pos=span(0, 8)
    ),
    "Kandinsky6SRTransformer3DModel": small(in_visual_dim=8, out_visual_dim=8, num_visual_blocks=2).on(
        hidden_states=x(1, 2, 16, 16, 17)
    ),
    "Kandinsky6Transformer3DModel": small(
        in_text_dim=32, in_text_dim2=32, num_text_blocks=2, num_visual_blocks=2, visual_cond=False
    ).on(hidden_states=x(1, 2, 8, 8, 16), audio_hidden_states=x(1, 8, 20)),
    "Krea2Transformer2DModel": small(
        in_channels=8, timestep_embed_dim=32, text_hidden_dim=32, num_text_layers=2, text_num_attention_heads=2,
        text_num_key_value_heads=2, text_intermediate_size=64, num_layerwise_text_blocks=1, num_refiner_text_blocks=1,
    ).on(hidden_states=x(1, 16, 8), encoder_hidden_states=x(1, 8, 2, 32), position_ids=x(24, 3)),
    "LTX2VideoTransformer3DModel": small(
        in_channels=8, out_channels=8, audio_in_channels=8, audio_out_channels=8, audio_num_attention_heads=2,
        audio_attention_head_dim=8, audio_cross_attention_dim=16, pos_embed_max_pos=20,
    ).on(
        hidden_states=x(1, 32, 8), audio_hidden_states=x(1, 4, 8), audio_encoder_hidden_states=x(1, 8, 32),
        audio_encoder_attention_mask=mask(1, 8), num_frames=2, height=4, width=4, audio_num_frames=4,
    ),
    "LTXVideoTransformer3DModel": small(in_channels=8, out_channels=8).on(
        hidden_states=x(1, 32, 8), num_frames=2, height=4, width=4
    ),
    "LatteTransformer3DModel": small(
        in_channels=4, out_channels=8, patch_size=2, sample_size=8, video_length=2, norm_type="ada_norm_single",
        norm_elementwise_affine=False, num_embeds_ada_norm=1000, activation_fn="gelu-approximate", attention_bias=True,
    ).on(hidden_states=x(1, 4, 2, 8, 8), encoder_attention_mask=None),
    "LongCatAudioDiTTransformer": small(dit_dim=32, dit_depth=2, dit_heads=2, dit_text_dim=32, latent_dim=8).on(
        hidden_states=x(1, 16, 8), attention_mask=mask(1, 16), latent_cond=x(1, 16, 8), timestep=values(0.5)
    ),
    "LongCatImageTransformer2DModel": small(in_channels=8).on(hidden_states=x(1, 16, 8)),
    "Lumina2Transformer2DModel": small(
        sample_size=8, num_kv_heads=1, multiple_of=16, axes_dim_rope=(4, 6, 6), axes_lens=(32, 32, 32), cap_feat_dim=32
    ).on(hidden_states=x(1, 16, 8, 8)),
    "LuminaNextDiT2DModel": small(sample_size=8, num_kv_heads=2, multiple_of=16).on(
        hidden_states=LATENT, encoder_mask=mask(1, 8),
        image_rotary_emb=partial(torch.randn, 8, 8, 8, dtype=torch.cfloat), cross_attention_kwargs={},
    ),
    "MiniMaxH3Transformer3DModel": small(
        in_channels=4, audio_in_channels=8, time_embed_hidden_dim=32, rope_freq_dim=2
    ).on(
        hidden_states=x(1, 4, 16), audio_hidden_states=x(1, 4, 8), timestep_indices=zeros(16), token_tags=zeros(16),
        position_ids=ids(8, 16, 3), text_indices=span(0, 8), video_indices=span(8, 12), audio_indices=span(12, 16),
    ),
    "MiniMaxMusic3RVQDepthDecoder": small(audio_vocab_size=32).on(inputs_embeds=x(1, 8, 32)),
    "MiniMaxMusic3Transformer1DModel": small(
        in_channels=8, condition_dim=32, ff_inner_dim=64, rotary_dim=8, fourier_embedding_dim=16
    ).on(hidden_states=x(1, 8, 16), timestep=values(0.5), encoder_hidden_states=x(1, 16, 32)),
    "MochiTransformer3DModel": small().on(hidden_states=x(1, 12, 2, 8, 8)),
    "MotifVideoTransformer3DModel": small(
        in_channels=16, num_decoder_layers=1, image_embed_dim=32, enable_text_cross_attention_dual=True,
        enable_text_cross_attention_single=True,
    ).on(hidden_states=LATENT_VIDEO, image_embeds=x(1, 4, 32)),
    "NucleusMoEImageTransformer2DModel": small(
        in_channels=16, out_channels=4, num_layers=5, num_experts=4, moe_intermediate_dim=16, capacity_factors=2.0
    ).on(hidden_states=x(1, 16, 16), img_shapes=[(1, 4, 4)]),
    "OmniGenTransformer2DModel": small(
        vocab_size=64, pad_token_id=0, pos_embed_max_size=8, time_step_dim=32,
        rope_scaling={"short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
    ).on(
        hidden_states=LATENT, input_ids=ids(64, 1, 8), input_img_latents=[x(1, 4, 4, 4)],
        input_image_sizes={0: [[2, 6]]}, attention_mask=ones(1, 25, 25), position_ids=ids(8, 1, 25),
    ),
    "OvisImageTransformer2DModel": small(in_channels=8, out_channels=8).on(hidden_states=x(1, 16, 8)),
    "PRXTransformer2DModel": small(in_channels=4, axes_dim=[8, 8], bottleneck_size=16, resolution_embeds=True).on(
        hidden_states=LATENT
    ),
    "PixArtTransformer2DModel": small(sample_size=8).on(
        hidden_states=LATENT, added_cond_kwargs={"resolution": None, "aspect_ratio": None}
    ),
    "PriorTransformer": small(embedding_dim=16, num_embeddings=8).on(
        hidden_states=x(1, 16), proj_embedding=x(1, 16), encoder_hidden_states=x(1, 8, 16), attention_mask=mask(1, 8)
    ),
    "QwenImage21Transformer2DModel": small(in_channels=8, out_channels=8, mlp_ratio=2).on(
        hidden_states=x(1, 16, 8), img_shapes=[[(1, 4, 4)]], img_mask=partial(torch.tensor, [[False] * 8 + [True] * 4]),
    ),
    "QwenImageTransformer2DModel": small(in_channels=16, out_channels=4).on(
        hidden_states=x(1, 16, 16), img_shapes=[[(1, 4, 4)]]
    ),
    "SD3Transformer2DModel": small(
        sample_size=8, pos_embed_max_size=8, dual_attention_layers=(0,), qk_norm="rms_norm"
    ).on(hidden_states=x(1, 16, 8, 8)),
    "SanaTransformer2DModel": small(
        in_channels=4, out_channels=4, num_cross_attention_heads=2, cross_attention_head_dim=16, sample_size=8,
        guidance_embeds=True, qk_norm="rms_norm_across_heads",
    ).on(hidden_states=LATENT, guidance=values(4.0)),
    "SanaVideoTransformer3DModel": small(num_cross_attention_heads=2, cross_attention_head_dim=16).on(
        hidden_states=LATENT_VIDEO
    ),
    "SkyReelsV2Transformer3DModel": small(inject_sample_info=True).on(hidden_states=LATENT_VIDEO, fps=zeros(1)),
    "StableAudio3DiTModel": small(
        io_channels=8, embed_dim=32, cond_token_dim=32, global_cond_dim=32, local_add_cond_dim=9,
        timestep_features_dim=32, num_memory_tokens=4,
    ).on(hidden_states=x(1, 8, 16), timestep=values(0.5), global_hidden_states=x(1, 32), local_add_cond=x(1, 9, 16)),
    "StableAudioDiTModel": small(
        sample_size=16, in_channels=8, out_channels=8, num_key_value_attention_heads=1, time_proj_dim=16,
        global_states_input_dim=32, cross_attention_input_dim=32,
    ).on(hidden_states=x(1, 8, 16), global_hidden_states=x(1, 1, 32), rotary_embedding=(x(17, 8), x(17, 8))),
    "T5FilmDecoder": small(input_dims=8, targets_length=16, d_model=32, d_kv=16, d_ff=64).on(
        encodings_and_masks=[(x(1, 8, 32), ones(1, 8))], decoder_input_tokens=x(1, 16, 8),
        decoder_noise_time=values(0.5),
    ),
    "Transformer2DModel": small(in_channels=32).on(hidden_states=x(1, 32, 8, 8), timestep=None),
    "TransformerTemporalModel": small(in_channels=32).on(
        hidden_states=x(2, 32, 8, 8), num_frames=2, timestep=None, encoder_hidden_states=None
    ),
    "WanTransformer3DModel": small().on(hidden_states=LATENT_VIDEO),
    "WanVACETransformer3DModel": small(vace_layers=[0, 1], vace_in_channels=8).on(
        hidden_states=LATENT_VIDEO, control_hidden_states=x(1, 8, 2, 8, 8)
    ),
    "ZImageTransformer2DModel": small(
        n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=32, axes_dims=[4, 6, 6],
        axes_lens=[64, 64, 64],
    ).on(x=[x(16, 1, 8, 8)], t=values(0.5), cap_feats=[x(8, 32)]),
    "Cosmos3OmniTransformer": small(
        latent_channel=4, patch_latent_dim=16, vocab_size=64, action_gen=True, action_dim=4, num_embodiment_domains=2,
        sound_gen=True, sound_dim=8, rope_axes_dim=(4, 2, 2),
    ).on(
        input_ids=ids(64, 8), text_indexes=span(0, 8), position_ids=ids(8, 3, 24), und_len=8, sequence_length=24,
        vision_tokens=[x(1, 4, 2, 4, 4)], vision_token_shapes=[(2, 2, 2)], vision_sequence_indexes=span(8, 16),
        vision_mse_loss_indexes=span(8, 16), vision_timesteps=ones(8), vision_noisy_frame_indexes=[span(0, 2)],
        sound_tokens=[x(8, 4)], sound_token_shapes=[(4, 1, 1)], sound_sequence_indexes=span(16, 20),
        sound_mse_loss_indexes=span(16, 20), sound_timesteps=ones(4), sound_noisy_frame_indexes=[span(0, 4)],
        action_tokens=[x(4, 4)], action_token_shapes=[(4, 1, 1)], action_sequence_indexes=span(20, 24),
        action_mse_loss_indexes=span(20, 24), action_timesteps=ones(4), action_noisy_frame_indexes=[span(0, 4)],
        action_domain_ids=[zeros(1)],
    ),
    "RFD4ProteinaTransformer": small(
        nlayers=2, token_dim=32, nheads=2, dim_cond=16, pair_repr_dim=16, latent_dim=8, token_type_emb_dim=8,
        cath_emb_dim=8, t_emb_dim=16, seq_sep_dim=8, tri_mult_c=16, num_sequence_classes=16,
    ).on(
        bb_ca=x(1, 8, 3), local_latents=x(1, 8, 8), bb_ca_time=values(0.5), local_latents_time=values(0.5),
        padding_mask=mask(1, 8), token_type=ids(7, 1, 8), atom37_mask=mask(1, 8, 37), conditioning=PROTEIN
        | {f"condition_{kind}_1_atom": ids(4, 1, 8, 37) for kind in PROTEIN_CONTACTS}
        | {name: ids(2, 1, 8) for name in ("molecule_iid", "molecule_entity_id", "condition_index-group_1_token")}
        | {"token_bond_path_length": ids(8, 1, 8, 8)}, recycle_depth=2,
    ),
    "SanaWMLTX2RefinerTransformer3DModel": small(
        in_channels=8, out_channels=8, audio_in_channels=8, audio_out_channels=8, audio_num_attention_heads=2,
        audio_attention_head_dim=8, audio_cross_attention_dim=16,
    ).on(hidden_states=x(1, 32, 8), timestep=x(1, 32), video_rotary_emb=(x(1, 32, 32), x(1, 32, 32))),
    "SanaWMTransformer3DModel": small(
        in_channels=8, softmax_every_n=2, linear_head_dim=16, chunk_plucker_channels=8,
        chunk_plucker_post_attn_blocks=2,
    ).on(
        hidden_states=x(1, 8, 2, 8, 8), timestep=x(1, 1, 2), encoder_hidden_states=x(1, 1, 8, 32),
        camera_conditions=x(1, 2, 20), chunk_plucker=x(1, 8, 2, 8, 8),
    ),
    "WanAnimate2Transformer3DModel": small(text_len=8, in_dim=8, out_dim=4).on(
        hidden_states=[x(4, 1, 8, 8)], condition_latents=[x(4, 1, 8, 8)], encoder_hidden_states=[x(8, 32)], seq_len=16,
        encoder_hidden_states_image=x(1, 4, 1280), offset_grid_sizes=values([1, 4, 4]), kv_cache_mode="extract",
        kv_cache=partial(WanAnimate2KVCache, 2),
    ),
    "WanAnimateTransformer3DModel": small(
        in_channels=12, latent_channels=4, out_channels=4, image_dim=32, added_kv_proj_dim=32, motion_encoder_size=16,
        motion_encoder_channel_sizes={"4": 8, "8": 8, "16": 8}, motion_style_dim=16, motion_dim=4,
        motion_encoder_dim=16, face_encoder_hidden_dim=32, face_encoder_num_heads=2, inject_face_latents_blocks=2,
    ).on(
        hidden_states=x(1, 12, 3, 8, 8), encoder_hidden_states=x(1, 512, 32), encoder_hidden_states_image=x(1, 4, 32),
        pose_hidden_states=x(1, 4, 2, 8, 8), face_pixel_values=x(1, 3, 5, 16, 16),
    ),
}

# The conditional UNets read attention_head_dim as the number of heads, and reject num_attention_heads.
UNETS: dict[str, Case] = {
    "AudioLDM2UNet2DConditionModel": small(
        num_attention_heads=None, attention_head_dim=2, block_out_channels=(16, 32),
        cross_attention_dim=((None, 32, 32), (None, 32, 32)), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).on(sample=LATENT, encoder_hidden_states_1=x(1, 4, 32)),
    "DreamLiteUNetModel": small(num_attention_heads=None, attention_head_dim=2, block_out_channels=(16, 32, 32)).on(
        sample=LATENT
    ),
    "I2VGenXLUNet": small(attention_head_dim=8, block_out_channels=(16, 32, 32, 32)).on(
        sample=x(1, 4, 2, 8, 8), fps=values(16), image_latents=x(1, 4, 2, 8, 8), image_embeddings=x(1, 32),
    ),
    "Kandinsky3UNet": small(
        time_embedding_dim=32, groups=8, attention_head_dim=8, block_out_channels=(16, 32, 32, 32), encoder_hid_dim=32,
        layers_per_block=2,
    ).on(sample=LATENT, encoder_attention_mask=mask(1, 8)),
    "StableCascadeUNet": small(
        block_out_channels=(32, 32), num_attention_heads=(2, 2), down_num_layers_per_block=(1, 2),
        up_num_layers_per_block=(2, 1), conditioning_dim=32, timestep_ratio_embedding_dim=16, clip_text_in_channels=32,
        clip_text_pooled_in_channels=32, clip_image_in_channels=32, switch_level=(False,),
    ).on(
        sample=x(1, 16, 8, 8), timestep_ratio=values(0.5), clip_text_pooled=x(1, 1, 32), clip_text=x(1, 8, 32),
        clip_img=x(1, 1, 32),
    ),
    "UNet1DModel": small(sample_size=64, extra_in_channels=64).on(sample=x(1, 2, 64)),
    "UNet2DConditionModel": small(
        num_attention_heads=None, attention_head_dim=2, block_out_channels=(16, 32, 32, 32)
    ).on(sample=LATENT),
    "UNet2DModel": small(attention_head_dim=8, block_out_channels=(16, 32, 32, 32)),
    "UNet3DConditionModel": small(
        num_attention_heads=None, attention_head_dim=8, block_out_channels=(16, 32, 32, 32)
    ).on(sample=x(1, 4, 2, 8, 8)),
    "UNetMotionModel": small(block_out_channels=(16, 32, 32, 32), motion_num_attention_heads=2).on(
        sample=x(1, 4, 2, 8, 8), encoder_hidden_states=x(2, 8, 32)
    ),
    "UNetSpatioTemporalConditionModel": small(
        block_out_channels=(32, 32, 64, 64), addition_time_embed_dim=8, projection_class_embeddings_input_dim=24,
        num_frames=2,
    ).on(sample=x(1, 2, 8, 8, 8), encoder_hidden_states=x(1, 1, 32), added_time_ids=x(1, 3)),
    "UVit2DModel": small(
        cond_embed_dim=32, micro_cond_encode_dim=8, micro_cond_embed_dim=40, encoder_hidden_size=32, vocab_size=64,
        codebook_size=48, in_channels=32, block_out_channels=32, num_res_blocks=1, downsample=True, upsample=True,
        block_num_heads=2, sample_size=8,
    ).on(input_ids=ids(64, 1, 8, 8), pooled_text_emb=x(1, 32), micro_conds=x(1, 5)),
}

AUTOENCODERS: dict[str, Case] = {
    "AsymmetricAutoencoderKL": small(
        down_block_types=("DownEncoderBlock2D",) * 2, down_block_out_channels=(32, 64), layers_per_down_block=1,
        up_block_types=("UpDecoderBlock2D",) * 2, up_block_out_channels=(32, 64), norm_num_groups=32,
    ).on(mask=ones(1, 1, 32, 32)),
    "AutoencoderDC": small(
        latent_channels=4, attention_head_dim=8, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(16, 32),
        decoder_block_out_channels=(16, 32), encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
    ),
    "AutoencoderKL": small(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32),
    ),
    "AutoencoderKLAllegro": small(block_out_channels=(16, 16, 32, 32), sample_size=32)
    .on(sample=x(1, 3, 24, 32, 32))
    .after(lambda vae: vae.enable_tiling()),
    "AutoencoderKLCogVideoX": small(block_out_channels=(16, 16, 32, 32), latent_channels=4).on(sample=VIDEO),
    "AutoencoderKLCosmos": small(
        encoder_block_out_channels=(16, 16, 32, 32), decode_block_out_channels=(16, 32, 32, 32),
        attention_resolutions=(4,), resolution=32, latent_channels=4,
    ).on(sample=VIDEO),
    "AutoencoderKLFlux2": small(block_out_channels=(16, 16, 32, 32), latent_channels=4),
    "AutoencoderKLHunyuanImage": small(
        in_channels=3, out_channels=3, latent_channels=8, block_out_channels=(32, 64, 64), spatial_compression_ratio=4,
        sample_size=32,
    ),
    "AutoencoderKLHunyuanImageRefiner": small(block_out_channels=(16, 16, 32, 32, 32), latent_channels=8).on(
        sample=VIDEO
    ),
    "AutoencoderKLHunyuanVideo": small(block_out_channels=(16, 16, 32, 32), latent_channels=4).on(sample=VIDEO),
    "AutoencoderKLHunyuanVideo15": small(block_out_channels=(16, 16, 32, 32, 32), latent_channels=8).on(sample=VIDEO),
    "AutoencoderKLKVAE": small(channels=32, num_enc_blocks=1, num_dec_blocks=1, z_channels=4, ch_mult=(1, 2)),
    "AutoencoderKLKVAEAudio": small(encoder_dim=8, latent_dim=128, codebook_dim=8, decoder_dim=64, attn_num_heads=2).on(
        sample=x(1, 1, 9600)
    ),
    "AutoencoderKLKVAEVideo": small(ch=32, num_res_blocks=1, z_channels=4, ch_mult=(1, 1, 2, 2)).on(sample=VIDEO),
    "AutoencoderKLLTX2Audio": small(base_channels=32, num_res_blocks=1, latent_channels=4, mel_bins=16).on(
        sample=x(1, 2, 16, 16)
    ),
    "AutoencoderKLLTX2Video": small(
        latent_channels=8, block_out_channels=(16, 16, 32, 32), decoder_block_out_channels=(16, 32, 64),
        layers_per_block=(1, 1, 1, 1, 1), decoder_layers_per_block=(1, 1, 1, 1),
    ).on(sample=x(1, 3, 9, 64, 64)),
    "AutoencoderKLLTXVideo": small(
        latent_channels=8, block_out_channels=(16, 16, 32, 32), decoder_block_out_channels=(16, 16, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1), decoder_layers_per_block=(1, 1, 1, 1, 1),
    ).on(sample=VIDEO),
    "AutoencoderKLMagvit": small(block_out_channels=(16, 16, 32, 32), latent_channels=4).on(sample=VIDEO),
    "AutoencoderKLMiniMaxH3": small(
        latent_channels=8, block_out_channels=(16, 16, 16, 32, 32, 32), decoder_num_layers=2,
        decoder_num_attention_heads=2, decoder_attention_head_dim=16, decoder_ffn_mult=2, latents_mean=(0.0,) * 8,
        latents_std=(1.0,) * 8,
    ).on(sample=x(1, 3, 34, 32, 32)),
    "AutoencoderKLMiniMaxH3Audio": small(
        encoder_dim=8, latent_dim=128, latent_channels=8, decoder_dim=128, num_attention_heads=2
    ).on(sample=x(1, 1, 8000)),
    "AutoencoderKLMochi": small(
        encoder_block_out_channels=(32, 32, 64, 64), decoder_block_out_channels=(32, 32, 64, 64),
        layers_per_block=(1, 1, 1, 1, 1),
    ).on(sample=x(1, 3, 7, 32, 32)),
    "AutoencoderKLQwenImage": small(base_dim=8, num_res_blocks=1).on(sample=VIDEO),
    "AutoencoderKLQwenImage21": small(base_dim=8, decoder_base_dim=8, num_res_blocks=1).on(sample=x(1, 4, 1, 32, 32)),
    "AutoencoderKLTemporalDecoder": small(down_block_types=("DownEncoderBlock2D",) * 2, block_out_channels=(32, 64)).on(
        sample=x(2, 3, 32, 32), num_frames=2
    ),
    "AutoencoderKLWan": small(base_dim=8, num_res_blocks=1).on(sample=VIDEO),
    "AutoencoderOobleck": small(
        encoder_hidden_size=8, downsampling_ratios=[2, 4], channel_multiples=[1, 2], decoder_channels=8,
        decoder_input_channels=4,
    ).on(sample=x(1, 2, 256)),
    "AutoencoderRAE": small(
        encoder_hidden_size=64, encoder_num_hidden_layers=2, decoder_hidden_size=32, decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2, decoder_intermediate_size=64, encoder_patch_size=8, encoder_input_size=32,
        patch_size=8, image_size=32,
    ),
    "AutoencoderSAME": small(
        patch_size=16, encoder_channels=32, encoder_c_mults=[2], encoder_strides=[4], encoder_transformer_depths=[2],
        latent_dim=16, dim_heads=16,
    ).on(sample=x(1, 2, 1024)),
    "AutoencoderTiny": small(
        encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16), num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    ),
    "AutoencoderVidTok": small(ch=32, num_res_blocks=1, ch_mult=[1, 2, 2, 2]).on(sample=x(1, 3, 17, 32, 32)),
    "ConsistencyDecoderVAE": small(
        encoder_block_out_channels=(32, 32, 32, 32), encoder_layers_per_block=1,
        decoder_block_out_channels=(32, 32, 64, 64), decoder_layers_per_block=1,
    ),
    "Cosmos3AVAEAudioTokenizer": small(
        vocoder_input_dim=8, dec_dim=8, dec_strides=(2, 2, 2, 2, 2), enc_dim=16, enc_intermediate_dim=32,
        enc_num_layers=2, enc_num_blocks=1, enc_latent_dim=16,
    ).on(sample=x(1, 2, 1920)),
    "Kandinsky6SRVAE": small(
        latent_channels=8, encoder_block_out_channels=(16, 16, 32, 32, 32),
        decoder_block_out_channels=(16, 16, 32, 32, 32),
    ).on(sample=VIDEO),
    "LTX2VideoDiffusionDecoderModel": small(
        latent_channels=8, decoder_head_dim=8, decoder_stage_channels=(64, 32, 16, 16, 8),
        decoder_stage_depths=(1, 1, 1, 1, 1), decoder_stage_kernels=((3, 3, 3),) * 4, decoder_stage5_kernel=(3, 3, 3),
        decoder_t_emb_dim=32,
    ).on(z=x(1, 8, 2, 3, 3)),
    "LongCatAudioDiTVae": small(
        channels=8, c_mults=[1, 2, 4], strides=[2, 4, 8], latent_dim=8, encoder_latent_dim=16, downsampling_ratio=64
    ).on(sample=x(1, 1, 1024)),
    "MMAudioVAE": small(mel_bins=16, latent_channels=8, hidden_channels=16, n_fft=64, hop_length=16).on(
        sample=x(1, 1024)
    ),
    "MMAudioVocoder": small(num_mels=16, upsample_initial_channel=128).on(mel=x(1, 16, 8)),
    "MiniMaxMusic3Vocoder": small(latent_channels=8, decoder_input_dim=32, decoder_hidden_dim=64).on(
        latents=x(1, 8, 8)
    ),
    "RFD4ProteinaAutoencoder": small(
        atom37_mask=[[True] * 37] * 16, allowed_residue_types=[[True] * 16] * 7, latent_dim=8, n_residue_types=16,
        nlayers=2, token_dim=32, nheads=2, dim_cond=16, pair_repr_dim=16, token_type_emb_dim=8,
    ).on(
        z_latent=x(1, 8, 8), ca_coors_nm=x(1, 8, 3), padding_mask=mask(1, 8), token_type=ids(7, 1, 8),
        atom37_mask=mask(1, 8, 37), conditioning=PROTEIN,
    ),
    "VQModel": small(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32), num_vq_embeddings=32,
    ),
}

HUNYUAN_TEXT: dict[str, Any] = {
    "timestep": values(500.0),
    "text_embedding_mask": mask(1, 8),
    "encoder_hidden_states_t5": x(1, 8, 32),
    "text_embedding_mask_t5": mask(1, 8),
    "image_meta_size": x(1, 6),
    "style": zeros(1),
    "image_rotary_emb": (x(16, 16), x(16, 16)),
}
UNION: dict[str, Any] = {
    "sample": LATENT,
    "added_cond_kwargs": {"text_embeds": x(1, 32), "time_ids": x(1, 6)},
}
CONTROLNETS: dict[str, Case] = {
    "ControlNetModel": small(
        num_attention_heads=None, attention_head_dim=2, block_out_channels=(16, 32, 32, 32),
        conditioning_embedding_out_channels=(8, 16),
    ).on(sample=LATENT, controlnet_cond=x(1, 3, 16, 16)),
    "ControlNetUnionModel": small(
        num_attention_heads=None, attention_head_dim=2, block_out_channels=(16, 32, 32, 32),
        conditioning_embedding_out_channels=(8, 16), addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=32 + 6 * 8, num_trans_channel=16, num_trans_head=2, num_proj_channel=16,
    ).on(controlnet_cond=[x(1, 3, 16, 16)], control_type=ones(1, 6), control_type_idx=[0], **UNION),
    "CosmosControlNetModel": small(
        n_controlnet_blocks=2, in_channels=18, latent_channels=10, model_channels=32, adaln_lora_dim=8,
        max_size=(4, 8, 8),
    ).on(
        controls_latents=x(1, 16, 2, 8, 8), latents=x(1, 8, 2, 8, 8), condition_mask=ones(1, 1, 2, 8, 8),
        padding_mask=ones(1, 1, 8, 8),
    ),
    "FluxControlNetModel": small(in_channels=8, guidance_embeds=True, num_mode=2).on(
        hidden_states=x(1, 16, 8), controlnet_cond=x(1, 16, 8), controlnet_mode=values([0]), guidance=values(4.0)
    ),
    "FluxMultiControlNetModel": small(controlnets=[part("FluxControlNetModel")] * 2).on(
        hidden_states=x(1, 16, 8), controlnet_cond=[x(1, 16, 8)] * 2, controlnet_mode=[values(0)] * 2,
        conditioning_scale=[1.0, 1.0], guidance=values(4.0),
    ),
    "HunyuanDiT2DControlNetModel": small(
        in_channels=4, patch_size=2, sample_size=8, transformer_num_layers=4, cross_attention_dim_t5=32,
        pooled_projection_dim=1024, text_len=8, text_len_t5=8,
    ).on(hidden_states=LATENT, controlnet_cond=LATENT, **HUNYUAN_TEXT),
    "HunyuanDiT2DMultiControlNetModel": small(controlnets=[part("HunyuanDiT2DControlNetModel")] * 2).on(
        hidden_states=LATENT, controlnet_cond=[LATENT] * 2, conditioning_scale=[1.0, 1.0], **HUNYUAN_TEXT
    ),
    "MultiControlNetModel": small(controlnets=[part("ControlNetModel")] * 2).on(
        sample=LATENT, controlnet_cond=[x(1, 3, 16, 16)] * 2, conditioning_scale=[1.0, 1.0]
    ),
    "MultiControlNetUnionModel": small(controlnets=[part("ControlNetUnionModel")] * 2).on(
        controlnet_cond=[[x(1, 3, 16, 16)]] * 2, control_type=[ones(1, 6)] * 2, control_type_idx=[[0]] * 2,
        conditioning_scale=[[1.0]] * 2, **UNION,
    ),
    "QwenImageControlNetModel": small(in_channels=16, out_channels=4).on(
        hidden_states=x(1, 16, 16), controlnet_cond=x(1, 16, 16), img_shapes=[[(1, 4, 4)]]
    ),
    "QwenImageMultiControlNetModel": small(controlnets=[part("QwenImageControlNetModel")]).on(
        hidden_states=x(1, 16, 16), controlnet_cond=[x(1, 16, 16)], conditioning_scale=[1.0], img_shapes=[[(1, 4, 4)]]
    ),
    "SD3ControlNetModel": small(sample_size=8, pos_embed_max_size=8, dual_attention_layers=(0,), qk_norm="rms_norm").on(
        hidden_states=x(1, 16, 8, 8), controlnet_cond=x(1, 16, 8, 8)
    ),
    "SD3MultiControlNetModel": small(controlnets=[part("SD3ControlNetModel")] * 2).on(
        hidden_states=x(1, 16, 8, 8), controlnet_cond=[x(1, 16, 8, 8)] * 2, conditioning_scale=[1.0, 1.0]
    ),
    "SanaControlNetModel": small(
        in_channels=4, out_channels=4, num_cross_attention_heads=2, cross_attention_head_dim=16, sample_size=8
    ).on(hidden_states=LATENT, controlnet_cond=LATENT),
    "SparseControlNetConditioningEmbedding": small(conditioning_embedding_channels=16, block_out_channels=(8, 16)).on(
        conditioning=IMAGE
    ),
    "SparseControlNetModel": small(
        num_attention_heads=2, block_out_channels=(16, 32, 32, 32), motion_num_attention_heads=2,
        use_simplified_condition_embedding=False, conditioning_channels=3, conditioning_embedding_out_channels=(8, 16),
        concat_conditioning_mask=True,
    ).on(
        sample=x(1, 4, 2, 8, 8), encoder_hidden_states=x(2, 8, 32), controlnet_cond=x(1, 3, 2, 16, 16),
        conditioning_mask=ones(1, 1, 2, 16, 16),
    ),
    "UNetControlNetXSModel": small(
        block_out_channels=(16, 32, 32, 32), ctrl_block_out_channels=(8, 8, 16, 16), ctrl_num_attention_heads=2,
        ctrl_max_norm_num_groups=8, ctrl_conditioning_embedding_out_channels=(8, 16), sample_size=8,
    ).on(sample=LATENT, controlnet_cond=x(1, 3, 16, 16)),
    "ZImageControlNetModel": small(
        control_layers_places=[0, 1], control_refiner_layers_places=[0], control_in_dim=16,
        add_control_noise_refiner="control_noise_refiner", n_refiner_layers=1, n_heads=2, n_kv_heads=2,
    )
    .on(x=[x(16, 1, 8, 8)], t=values(0.5), cap_feats=[x(8, 32)], control_context=[x(16, 1, 8, 8)])
    .after(share_z_image),
}

OTHERS: dict[str, Case] = {
    "AceStepAudioTokenDetokenizer": small(audio_acoustic_hidden_dim=8, sliding_window=4).on(hidden_states=x(1, 4, 32)),
    "AceStepAudioTokenizer": small(
        audio_acoustic_hidden_dim=8, fsq_dim=32, fsq_input_levels=[4, 4, 4], sliding_window=4
    ).on(hidden_states=x(1, 4, 5, 8)),
    "AceStepConditionEncoder": small(
        text_hidden_dim=32, timbre_hidden_dim=8, num_lyric_encoder_hidden_layers=2, num_timbre_encoder_hidden_layers=2,
        sliding_window=4,
    ).on(
        text_hidden_states=x(1, 8, 32), text_attention_mask=mask(1, 8), lyric_hidden_states=x(1, 8, 32),
        lyric_attention_mask=mask(1, 8), refer_audio_acoustic_hidden_states_packed=x(1, 8, 8),
        refer_audio_order_mask=zeros(1),
    ),
    "AnimaTextConditioner": small(source_dim=32, target_dim=32, target_vocab_size=64, min_sequence_length=16).on(
        source_hidden_states=x(1, 8, 32), target_input_ids=ids(64, 1, 8)
    ),
    "AudioLDM2ProjectionModel": small(text_encoder_dim=16, text_encoder_1_dim=24, langauge_model_dim=32).on(
        hidden_states=x(1, 8, 16), hidden_states_1=x(1, 8, 24), attention_mask=mask(1, 8), attention_mask_1=mask(1, 8)
    ),
    "CLIPImageProjection": small().on(x=x(1, 32)),
    "Ideogram4PromptEnhancerHead": small(vocab_size=64).on(hidden_states=x(1, 8, 32)),
    "Kandinsky6SRLatentUpscalerBank": small(
        in_channels=8, stage_channels=(64, 32, 32), num_pre_blocks=1, num_mid_blocks=1, num_post_blocks=1,
        num_x2_adapter_blocks=1,
    ).on(latents=x(1, 8, 2, 4, 4), scale=2),
    "MiniMaxMusic3ConditionEncoder": small(condition_hidden_dim=32, num_condition_layers=2, out_dim=32).on(
        hidden_states=x(1, 8, 64)
    ),
    "MultiAdapter": small(adapters=[part("T2IAdapter")] * 2).on(xs=[x(1, 3, 64, 64)] * 2),
    "ReduxImageEncoder": small(redux_dim=32, txt_in_features=32).on(x=x(1, 8, 32)),
    "StableAudio3DurationEmbedder": small(output_dim=32, fourier_dim=16).on(seconds=values(10.0)),
    "StableAudioProjectionModel": small(text_encoder_dim=32, conditioning_dim=32, min_value=0, max_value=512).on(
        text_hidden_states=x(1, 8, 32), start_seconds=values(0.0), end_seconds=values(10.0)
    ),
    "T2IAdapter": small(channels=[16, 32, 32, 32], num_res_blocks=1).on(x=x(1, 3, 64, 64)),
    "UniDiffuserModel": small(
        clip_img_dim=32, num_text_tokens=8, in_channels=4, out_channels=4, sample_size=8, patch_size=2,
        use_data_type_embedding=True, norm_type="layer_norm", num_embeds_ada_norm=1000, activation_fn="gelu",
        use_patch_pos_embed=True, block_type="unidiffuser",
    ).on(
        latent_image_embeds=LATENT, image_embeds=x(1, 1, 32), prompt_embeds=x(1, 8, 32), timestep_img=values(500),
        timestep_text=values(500), data_type=1, encoder_hidden_states=None,
    ),
    "UniDiffuserTextDecoder": small(
        prefix_length=4, prefix_inner_dim=32, prefix_hidden_dim=16, vocab_size=64, n_positions=32, n_embd=32, n_layer=2,
        n_head=2,
    ).on(input_ids=ids(64, 1, 8), prefix_embeds=x(1, 4, 32)),
}

# Further cases, "Model@kind", for kinds of layers that the model's first case does not have.
VARIANTS: dict[str, Case] = {
    "AutoencoderKLWan@residual": small(
        base_dim=8, decoder_base_dim=8, num_res_blocks=1, z_dim=16, is_residual=True, in_channels=12, out_channels=12,
        patch_size=2,
    ).on(sample=VIDEO),
    "CogVideoXTransformer3DModel@rotary": small(
        sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=8, use_rotary_positional_embeddings=True,
        ofs_embed_dim=32, patch_size_t=2,
    ).on(hidden_states=x(1, 2, 16, 8, 8), image_rotary_emb=(x(16, 16), x(16, 16)), ofs=values(2.0)),
    "HunyuanVideoTransformer3DModel@token_replace": small(image_condition_type="token_replace").on(
        hidden_states=LATENT_VIDEO, guidance=values(4.0)
    ),
    "PriorTransformer@unclip": small(
        embedding_dim=16, num_embeddings=0, additional_embeddings=3, time_embed_act_fn="gelu", norm_in_type="layer",
        embedding_proj_norm_type="layer", encoder_hid_proj_type=None, added_emb_type=None, time_embed_dim=64,
        embedding_proj_dim=16,
    ).on(hidden_states=x(1, 16), proj_embedding=x(1, 16), encoder_hidden_states=None),
    "T2IAdapter@full_adapter_xl": small(channels=[16, 32, 32, 32], num_res_blocks=1, adapter_type="full_adapter_xl").on(
        x=x(1, 3, 64, 64)
    ),
    "T2IAdapter@light_adapter": small(channels=[16, 32, 32, 32], num_res_blocks=1, adapter_type="light_adapter").on(
        x=x(1, 3, 64, 64)
    ),
    "Transformer2DModel@patches": small(
        in_channels=4, out_channels=8, sample_size=8, patch_size=2, norm_type="ada_norm_zero", num_embeds_ada_norm=1000,
        cross_attention_dim=None, caption_channels=None, norm_elementwise_affine=False,
    ).on(hidden_states=LATENT, class_labels=values(1), encoder_hidden_states=None),
    "Transformer2DModel@vectorized": small(
        sample_size=4, num_vector_embeds=16, num_embeds_ada_norm=1000, norm_type="ada_norm"
    ).on(hidden_states=ids(16, 1, 16), timestep=partial(torch.tensor, 500)),
    "UNet1DModel@value": small(
        sample_size=16, in_channels=14, out_channels=14, time_embedding_type="positional", use_timestep_embedding=True,
        flip_sin_to_cos=False, freq_shift=1.0, down_block_types=("DownResnetBlock1D",) * 2, up_block_types=(),
        mid_block_type="ValueFunctionMidBlock1D", out_block_type="ValueFunction", block_out_channels=(16, 32),
        act_fn="mish", downsample_each_block=True,
    ).on(sample=x(1, 14, 16)),
    "UNet2DConditionModel@deepfloyd": small(
        num_attention_heads=None, attention_head_dim=8, block_out_channels=(16, 32),
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), resnet_time_scale_shift="scale_shift",
        act_fn="gelu", addition_embed_type="text", addition_embed_type_num_heads=2, encoder_hid_dim=32,
        cross_attention_norm="group_norm", class_embed_type="timestep",
    ).on(sample=LATENT, class_labels=values(1)),
    "UNet2DConditionModel@sdxl": small(
        num_attention_heads=None, attention_head_dim=(2, 2), block_out_channels=(16, 32),
        transformer_layers_per_block=(1, 2), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=32 + 6 * 8,
    ).on(sample=LATENT, added_cond_kwargs={"text_embeds": x(1, 32), "time_ids": x(1, 6)}),
    "UNet2DModel@fourier_skip": small(
        attention_head_dim=8, block_out_channels=(32, 64), time_embedding_type="fourier", freq_shift=0,
        down_block_types=("SkipDownBlock2D", "AttnSkipDownBlock2D"),
        up_block_types=("AttnSkipUpBlock2D", "SkipUpBlock2D"), downsample_type="resnet", upsample_type="resnet",
    ),
    "VQModel@spatial_norm": small(
        block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"), num_vq_embeddings=32, norm_type="spatial",
        vq_embed_dim=4, latent_channels=4,
    ),
    "WanTransformer3DModel@image": small(image_dim=32, added_kv_proj_dim=32, pos_embed_seq_len=8).on(
        hidden_states=LATENT_VIDEO, encoder_hidden_states=x(1, 512, 32), encoder_hidden_states_image=x(2, 4, 32)
    ),
}
# fmt: on

CASES = TRANSFORMERS | UNETS | AUTOENCODERS | CONTROLNETS | OTHERS | VARIANTS
CANNOT: dict[str, str] = {
    "ControlNetXSAdapter": "its forward only raises: it is a part of UNetControlNetXSModel",
    "MotionAdapter": "its forward is empty: it is a part of UNetMotionModel",
}
ABSTRACT = {"ModelMixin"}  # base classes


PACKAGES = [f"diffusers.models.{kind}" for kind in ("autoencoders", "controlnets", "transformers", "unets")]


def names() -> list[str]:
    return sorted({*classes(), *VARIANTS})


def classes() -> dict[str, type[nn.Module]]:
    """Return every model class that diffusers, or one of its model packages, exports, by name."""
    found = {}
    for package in [diffusers, *map(importlib.import_module, PACKAGES)]:
        for name in dir(package):
            member = getattr(package, name, None)  # None for pipelines that need packages which are not installed
            if inspect.isclass(member) and issubclass(member, nn.Module) and name not in ABSTRACT:
                found[name] = member
    return found


def class_of(name: str) -> type[nn.Module]:
    """Return a model class. Look in the model packages first: looking in diffusers itself would import its pipelines."""
    for package in PACKAGES:
        member = getattr(importlib.import_module(package), name, None)
        if member is not None:
            return member
    return classes()[name]


def build(name: str) -> Built:
    """Return the model in eval mode, and the args and kwargs of its forward."""
    torch.manual_seed(0)
    model, case = class_of(name.partition("@")[0]), CASES.get(name, Case())
    config = chosen(model.__init__, SMALL, case.config)
    inputs = chosen(model.forward, INPUTS, case.inputs)
    module = model(**drawn(config)).eval()
    if case.prepare:
        case.prepare(module)
    return module, (), drawn(inputs)


def chosen(function: Any, rules: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the general values for the function's parameters that have a rule, overridden by the model's own values."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    return {name: rule for name, rule in rules.items() if name in parameters} | own


def drawn(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf() if isinstance(leaf, partial) else leaf, tree)


if __name__ == "__main__":
    run_each(names(), build, CANNOT)
