"""Count models larger than this machine, built on meta from their configs: a forward, a decode step, a training step.

    python benchmarks/large.py [--models llama-3-405b,...]

Each model runs in a fresh process. The table is ``benchmarks/results/large.md``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops

RESULTS = Path(__file__).parent / "results"
CONTEXT = 2**17


def language_model(config: Any) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """Return a causal language model, inputs for a prompt of 2,048 tokens, and inputs for one token after 131,071 cached tokens."""
    import transformers as hf

    model = hf.AutoModelForCausalLM.from_config(config)
    cache = hf.DynamicCache(config=config)
    prompt = {"input_ids": torch.zeros(1, 2048, dtype=torch.long, device="cpu"), "use_cache": False}
    token = {"input_ids": torch.zeros(1, 1, dtype=torch.long, device="cpu"), "use_cache": True}
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    key = value = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if hasattr(config, "kv_lora_rank"):  # latent attention caches one compressed vector per token
        heads, key, value = 1, config.kv_lora_rank, config.qk_rope_head_dim
    for layer in range(config.num_hidden_layers):
        cache.update(torch.empty(1, heads, CONTEXT - 1, key), torch.empty(1, heads, CONTEXT - 1, value), layer)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return model, prompt, {**token, name: cache}


def llama() -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    import transformers as hf

    return language_model(
        hf.LlamaConfig(
            hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128,
            num_key_value_heads=8, vocab_size=128256, max_position_embeddings=CONTEXT + 8,
        )
    )  # fmt: skip


def deepseek() -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    import transformers as hf

    return language_model(hf.DeepseekV3Config())


def mixtral() -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    import transformers as hf

    return language_model(hf.MixtralConfig())


def vit_22b() -> tuple[nn.Module, dict[str, Any], None]:
    import transformers as hf

    config = hf.ViTConfig(
        hidden_size=6144, num_hidden_layers=48, num_attention_heads=48, intermediate_size=24576, patch_size=14
    )
    return hf.ViTModel(config), {"pixel_values": torch.empty(1, 3, 224, 224)}, None


def sdxl() -> tuple[nn.Module, dict[str, Any], None]:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=128, block_out_channels=(320, 640, 1280), attention_head_dim=(5, 10, 20), cross_attention_dim=2048,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
    )  # fmt: skip
    added = {"text_embeds": torch.empty(1, 1280), "time_ids": torch.empty(1, 6)}
    inputs = {"sample": torch.empty(1, 4, 128, 128), "timestep": 10, "encoder_hidden_states": torch.empty(1, 77, 2048)}
    return model, {**inputs, "added_cond_kwargs": added}, None


def flux() -> tuple[nn.Module, dict[str, Any], None]:
    from diffusers import FluxTransformer2DModel

    inputs = {
        "hidden_states": torch.empty(1, 4096, 64), "encoder_hidden_states": torch.empty(1, 512, 4096),
        "pooled_projections": torch.empty(1, 768), "timestep": torch.empty(1), "guidance": torch.empty(1),
        "img_ids": torch.empty(4096, 3), "txt_ids": torch.empty(512, 3),
    }  # fmt: skip
    return FluxTransformer2DModel(guidance_embeds=True), inputs, None


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any], dict[str, Any] | None]]] = {
    "llama-3-405b": llama,
    "deepseek-v3-671b": deepseek,
    "mixtral-8x7b": mixtral,
    "vit-22b": vit_22b,
    "sdxl-unet": sdxl,
    "flux-dev": flux,
}


def measured(name: str) -> dict[str, Any]:
    start = time.perf_counter()
    with torch.device("meta"):
        model, inputs, token = MODELS[name]()
    found: dict[str, Any] = {"built": time.perf_counter() - start, "cells": []}
    works: dict[str, Callable[[], fxflops.Report]] = {"forward": lambda: fxflops.count(model, kwargs=inputs)}
    if token is not None:
        works["decode at 128k"] = lambda: fxflops.count(model, kwargs=token)
    works["training step, AdamW"] = lambda: fxflops.count(
        model, kwargs=inputs, backward=True, optimizer=torch.optim.AdamW
    )
    for work, run in works.items():
        start = time.perf_counter()
        report = run()
        macs = report.total_macs + (report.total_backward_macs or 0)
        found["cells"].append(
            {"work": work, "seconds": time.perf_counter() - start, "params": report.total_params, "macs": macs,
             "complete": report.complete, "trace": report.trace, "memory": report.max_memory, "calls": len(report.calls),
             "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}
        )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    lines = [
        "# Models larger than the machine",
        "",
        f"{os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}. Prompts of 2,048 tokens; seconds to "
        "count, after the model is built; MB is the largest resident set of the whole process so far.",
        "",
        "| model | params | built (s) | work | count (s) | calls | MACs | predicted memory | complete | MB |",
        "|---|---:|---:|---|---:|---:|---:|---:|---|---:|",
    ]
    for name in options.models.split(","):
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        for cell in found["cells"]:
            lines.append(
                f"| {name} | {fxflops.units.count(cell['params'])} | {found['built']:.1f} | {cell['work']} | {cell['seconds']:.2f} "
                f"| {cell['calls']:,} | {fxflops.units.count(cell['macs'])} | {fxflops.units.size(cell['memory'])} "
                f"| {'yes' if cell['complete'] else 'NO'}, {cell['trace']} | {cell['MB']:.0f} |"
            )
            print(lines[-1], flush=True)
        (RESULTS / "large.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
