"""Every transformers model type, small with random weights, and the inputs of its forward.

    python -m benchmarks.models.transformers_zoo [--only bert,llava] [--out FILE.jsonl]

runs each once on the CPU, eagerly, and prints one JSON line per type; with a file that has lines already, it goes on
after them.

A setting of a config takes its value from the type's SETTINGS, else from its own default made small by SMALL; an input
of a forward from the type's case, else from the rule of its name. So a table of types holds only what no rule says.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import re
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.utils import logging

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
Values = dict[str, Any]

TOKENS = 12
VOCABULARY = 256
FIRST_SPECIAL = 200  # ids of special tokens that do not fit in the small vocabulary go from here up

# The most that a setting of this name may be; a list is made small element by element.
AT_MOST: dict[int, str] = {
    2: """
        num_hidden_layers encoder_layers decoder_layers num_layers num_decoder_layers num_encoder_layers n_layer
        n_layers depth depths layers num_blocks num_experts_per_tok moe_topk moe_k top_k_experts
        encoder_num_hidden_layers decoder_num_hidden_layers conf_num_hidden_layers num_encoder_blocks l_layers
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
        projection_dim embedding_size text_hidden_size hidden_dim output_dim adapter_out_dim projector_hidden_size
        image_text_hidden_size word_embed_proj_dim decoder_dim vision_output_dim hidden_size_global
        vision_hidden_size pooler_output_size project_dim emb_dim encoder_hidden_dim fpn_hidden_size
        mask_feature_size codebook_dim audio_hidden_size cross_hidden_size attention_hidden_size
        output_hidden_size projection_hidden_size projection_size text_embed_dim lru_width
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

# By model type: settings of the config that the rules do not find. A nested dict is for a config within.
SETTINGS: dict[str, Values] = {}

CANNOT: dict[str, str] = {}


def names() -> list[str]:
    """Model types, sorted."""
    return sorted(CONFIG_MAPPING_NAMES)


def build(name: str) -> Built:
    """The model in eval mode, and the args and kwargs of its forward."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    config = small_config(name)
    model = model_class(name, config)(config).eval()
    with torch.no_grad():
        return model, (), inputs_of(model, name)


# ----------------------------------------------------------------------------------------------------------- config


def small_config(name: str) -> PreTrainedConfig:
    return reduced(CONFIG_MAPPING[name](), SETTINGS.get(name, {}), {})


def reduced(config: PreTrainedConfig, own: Values, ids: dict[int, int]) -> PreTrainedConfig:
    """The same config, smaller: what it derives from its settings is derived anew from the smaller ones."""
    usual, values = type(config)(), {}
    layers = kept_layers(config)
    for field in dataclasses.fields(type(config)):
        value = getattr(config, field.name, None)
        if isinstance(value, PreTrainedConfig):
            values[field.name] = reduced(value, own.get(field.name, {}), ids)
        elif field.name in layers:
            values[field.name] = layers[field.name]
        elif field.name not in INHERITED and is_set(field, value, usual):
            values[field.name] = small(field.name, value, ids)
    values |= {key: value for key, value in own.items() if not isinstance(value, dict) or key not in values}
    fit_heads(values, config)
    fit_rope(values)
    return type(config)(**values)


INHERITED = {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"is_encoder_decoder"}


def is_set(field: dataclasses.Field[Any], value: Any, usual: PreTrainedConfig) -> bool:
    """Whether the value was given, by the class or by the config around, rather than derived."""
    if field.default is None:
        return bool(value is not None and value != getattr(usual, field.name, None))
    return True


def small(name: str, value: Any, ids: dict[int, int]) -> Any:
    if isinstance(value, bool):
        return value
    if re.search(r"token_(id|index)s?$", name):
        return small_id(value, ids)
    if name == "image_size":
        return value
    if name in SMALL:
        return at_most(value, SMALL[name])
    return value


def at_most(value: Any, most: int) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(at_most(v, most) for v in value)
    return min(value, most) if isinstance(value, int) else value


def small_id(value: Any, ids: dict[int, int]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(small_id(v, ids) for v in value)
    if not isinstance(value, int) or value < FIRST_SPECIAL:
        return value
    return ids.setdefault(value, FIRST_SPECIAL + len(ids))


def kept_layers(config: PreTrainedConfig) -> Values:
    """Settings of as few layers as have every kind of layer: one of each distinct row of the per-layer lists."""
    fields = [field.name for field in dataclasses.fields(type(config))]
    counts = [name for name in LAYER_COUNTS if isinstance(config.__dict__.get(name), int)]
    if not counts:
        return {}
    count = config.__dict__[counts[0]]
    lists = {name: v for name in fields if is_per_layer(name, v := getattr(config, name, None), count)}
    if not lists:
        return {}
    rows = list(zip(*lists.values(), strict=True))
    keep = sorted({rows.index(row) for row in rows})
    keep += [i for i in range(count) if i not in keep][: max(0, 2 - len(keep))]
    return {name: [v[i] for i in sorted(keep)] for name, v in lists.items()} | {counts[0]: len(keep)}


def is_per_layer(name: str, value: Any, count: int) -> bool:
    named = re.search(r"layer|block|types|pattern|pool", name)
    return isinstance(value, list | tuple) and len(value) == count and bool(named)


def fit_heads(values: Values, config: PreTrainedConfig) -> None:
    """As many key and value heads as heads, or two if they were fewer, or one."""
    for heads, groups in HEADS_AND_GROUPS:
        before, after = getattr(config, groups, None), values.get(heads)
        if groups in values and isinstance(before, int) and isinstance(after, int):
            values[groups] = after if before == getattr(config, heads) else min(before, 2, after)


HEADS_AND_GROUPS = (
    ("num_attention_heads", "num_key_value_heads"),
    ("swa_num_attention_heads", "swa_num_key_value_heads"),
    ("cross_num_attention_heads", "cross_num_key_value_heads"),
    ("num_heads", "num_kv_heads"),
)


def fit_rope(values: Values) -> None:
    """Sections of a multimodal rotary embedding that add up to half of the smaller head."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    sections = rope.get("mrope_section")
    if not sections:
        return
    head = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    half = int(head * rope.get("partial_rotary_factor", 1)) // 2
    scaled = [max(1, s * half // sum(sections)) for s in sections]
    scaled[0] += half - sum(scaled)
    values["rope_parameters"] = rope | {"mrope_section": scaled}


# ------------------------------------------------------------------------------------------------------------ model


def model_class(name: str, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """AutoModel's class; without one, another auto class's; without any, the widest class that takes this config."""
    module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    for mapping in MAPPINGS:
        found = getattr(modeling_auto, mapping).get(name)
        if found:
            found = found if isinstance(found, str) else found[0]
            return getattr(module, found, None) or getattr(importlib.import_module("transformers"), found)
    takers = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, PreTrainedModel) and member.config_class is type(config)
        and "forward" in member.__dict__
    ]  # fmt: skip
    if not takers:
        raise LookupError(f"no class of {module.__name__} takes a {type(config).__name__}")
    return takers[-1]


MAPPINGS = ["MODEL_MAPPING_NAMES", *sorted(name for name in vars(modeling_auto) if re.fullmatch(r"MODEL_FOR_\w+_NAMES", name) and name != "MODEL_FOR_BACKBONE_MAPPING_NAMES")]
MAPPINGS.append("MODEL_FOR_BACKBONE_MAPPING_NAMES")


# ----------------------------------------------------------------------------------------------------------- inputs


def inputs_of(model: PreTrainedModel, name: str) -> Values:
    parameters = inspect.signature(model.forward).parameters
    config = model.config
    values: Values = {}
    for pixels in ("pixel_values", "pixel_values_images"):
        if pixels in parameters:
            values |= {pixels: image(vision_config(config))}
    if "input_values" in parameters:
        values |= {"input_values": torch.randn(1, 8000)}
    if "input_features" in parameters:
        values |= {"input_features": torch.randn(1, 100, setting(config, "num_mel_bins", "feature_size", "input_dim"))}
    if "input_ids" in parameters:
        values |= text(model, config, values)
    if "decoder_input_ids" in parameters and setting(config, "is_encoder_decoder"):
        values |= {"decoder_input_ids": words(vocabulary(model), 6)}
    if "bbox" in parameters:
        values |= {"bbox": torch.tensor([10, 20, 30, 40]).expand(1, TOKENS, 4).contiguous()}
    return values


def text(model: PreTrainedModel, config: PreTrainedConfig, others: Values) -> Values:
    ids = words(vocabulary(model), TOKENS)
    mask = torch.ones_like(ids)
    return {"input_ids": ids, "attention_mask": mask}


def vocabulary(model: PreTrainedModel) -> int:
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (NotImplementedError, AttributeError):
        return VOCABULARY


def words(below: int, count: int) -> Tensor:
    return torch.randint(min(3, below - 1), min(below, 100), (1, count))


def image(config: PreTrainedConfig) -> Tensor:
    size = setting(config, "image_size", "img_size") or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(1, setting(config, "num_channels", "in_channels", "in_chans") or 3, height, width)


def vision_config(config: PreTrainedConfig) -> PreTrainedConfig:
    for name in ("vision_config", "image_config", "encoder", "backbone_config", "perception_encoder"):
        inner = getattr(config, name, None)
        if isinstance(inner, PreTrainedConfig):
            return vision_config(inner)
    return config


def setting(config: PreTrainedConfig, *names: str) -> Any:
    return next((v for name in names if (v := getattr(config, name, None)) is not None), None)


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
    """Whether the model runs, and for how long; on one that takes too long, an alarm raises TimeoutError."""
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
