"""vLLM's kernels of a paged cache, by the names of their functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.records import Cost
from tests.library_stand_ins import library
from tests.ops.test_flash_attn import summed, textbook, whole

OPS = "vllm._custom_ops"
REST = "num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes, kv_cache_dtype, k_scale, v_scale"
FUNCTIONS = {
    f"{OPS}:paged_attention_v1": f"out, query, key_cache, value_cache, {REST}",
    f"{OPS}:paged_attention_v2": f"out, exp_sum, max_logits, tmp_out, query, key_cache, value_cache, {REST}",
    f"{OPS}:reshape_and_cache": "key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale",
    f"{OPS}:rms_norm": "out, input, weight, epsilon",
    f"{OPS}:fused_add_rms_norm": "input, residual, weight, epsilon",
    f"{OPS}:rotary_embedding": "positions, query, key, head_size, cos_sin_cache, is_neox",
}
V1, V2, WRITE, RMS_NORM, ADD_RMS_NORM, ROTARY = FUNCTIONS


@pytest.fixture(scope="module")
def vllm() -> Iterator[Any]:
    with library(FUNCTIONS) as find:
        yield find


class Decodes(nn.Module):
    """One new token per sequence: its key and value are written to the cache, and its query reads the pages."""

    def __init__(self, find: Any, lengths: Any, h: int, d: int, second: bool = False) -> None:
        super().__init__()
        self.find, self.h, self.d, self.second = find, h, d, second
        self.register_buffer("lengths", lengths)
        self.register_buffer("keys", torch.zeros(9, 2, d // 4, 16, 4))
        self.register_buffer("values", torch.zeros(9, 2, d, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b = len(x)
        self.find(WRITE)(x[:, :2], x[:, :2], self.keys, self.values, torch.arange(b), "auto", None, None)
        out, tables = torch.empty_like(x), torch.zeros(b, 4, dtype=torch.int32)
        middle = (torch.empty(b), torch.empty(b), torch.empty(b)) if self.second else ()
        call = self.find(V2 if self.second else V1)
        call(out, *middle, x, self.keys, self.values, 2, 1.0, tables, self.lengths, 16, 50, None, "auto", None, None)
        return out


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("lengths", [[1], [3, 5], [16, 17, 40], [9, 9], [50, 1, 2, 3]], ids=str)
def test_a_token_meets_the_keys_of_its_sequence(vllm: Any, lengths: list[int], second: bool) -> None:
    h, d = 4, 8
    model = Decodes(vllm, torch.tensor(lengths, dtype=torch.int32), h, d, second)
    report = fxflops.count(model, torch.randn(len(lengths), h, d))
    assert report.complete, report.missing  # the kernel's output is not mistaken for unwritten memory
    [attention] = [each for each in report.counted if each.call.op == "attention"]
    assert whole(summed(*(textbook(1, s, h, d, d) for s in lengths)), attention.cost)
    assert attention.macs == report.total_macs == h * sum(lengths) * 2 * d
    [write] = [each for each in report.counted if each.call.op == "cache_write"]
    assert write.cost == Cost()


def test_lengths_without_values_count_as_the_longest(vllm: Any) -> None:
    model = Decodes(vllm, torch.tensor([3, 5], dtype=torch.int32), 4, 8).to("meta")
    assert fxflops.count(model, torch.randn(2, 4, 8, device="meta")).total_macs == 4 * 2 * 50 * 16


class Writes(nn.Module):
    """Calls a kernel that writes its result to an argument."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call, self.weight = call, nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        self.call(out, x, self.weight)
        return out


def test_norms_and_rotary_embeddings_are_torchs(vllm: Any) -> None:
    x = torch.randn(5, 8)
    wanted = fxflops.count(nn.RMSNorm(8), x).total_flops
    own = fxflops.count(Writes(lambda out, x, w: vllm(RMS_NORM)(out, x, w, 1e-6)), x)
    assert (own.complete, own.total_flops) == (True, wanted)
    added = fxflops.count(Writes(lambda out, x, w: vllm(ADD_RMS_NORM)(x, out, w, 1e-6)), x)
    assert (added.complete, added.total_flops) == (True, wanted + 5 * 8)
    angles, positions = torch.randn(9, 4), torch.arange(5)
    turned = fxflops.count(Writes(lambda out, x, w: vllm(ROTARY)(positions, x, out, 4, angles, True)), x)
    assert turned.total_flops == 3 * 2 * 5 * 8  # x1 * cos - x2 * sin, or x1 * sin + x2 * cos, of queries and keys
