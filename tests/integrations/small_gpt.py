"""A GPT-2 of 4 layers, 256 wide, with LoRA, and batches of varying lengths, for the tests of callbacks to train."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

from fxflops.roofline.devices import Device

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft", reason="peft is not installed")

DEVICE = Device("test", {"f32": 1e12}, 1e11)
LENGTHS = (16, 24, 32, 16, 24, 32, 8, 16)


def model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=500, n_positions=64, bos_token_id=0,
                                     eos_token_id=0, loss_type="ForCausalLM")  # fmt: skip
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    found: nn.Module = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    return found


def rows(lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 500, (length,), generator=generator) for length in lengths]
    return [{"input_ids": each, "labels": each} for each in tokens]


def collated(given: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in given]) for name in given[0]}
