"""Transformer Engine's modules, by the names of their forwards: they count like the same layers of torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from tests.library_stand_ins import library
from tests.ops.test_flash_attn import visible

TE = "transformer_engine.pytorch"
FUNCTIONS = {
    f"{TE}.module.linear:Linear.forward": "self, inp, is_first_microbatch=None, fp8_output=False",
    f"{TE}.module.layernorm_linear:LayerNormLinear.forward": "self, inp, is_first_microbatch=None, fp8_output=False",
    f"{TE}.module.layernorm_mlp:LayerNormMLP.forward": "self, inp, is_first_microbatch=None",
    f"{TE}.attention.dot_product_attention.dot_product_attention:DotProductAttention.forward": "self, query_layer, key_layer, value_layer, "
    "attention_mask=None, qkv_format=None, cu_seqlens_q=None, cu_seqlens_kv=None, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None, "
    "max_seqlen_q=None, max_seqlen_kv=None, attn_mask_type=None, window_size=None, **kwargs",
}
LINEAR, NORM_LINEAR, MLP, ATTENTION = FUNCTIONS
SHAPES = [(1, 2, 3), (4, 5, 6), (7, 8, 2), (3, 16, 4), (2, 3, 9)]


@pytest.fixture(scope="module")
def te() -> Iterator[Any]:
    with library(FUNCTIONS) as find:
        yield find


def made(cls: Any, shapes: dict[str, tuple[int, ...]], **attributes: Any) -> nn.Module:
    """A module of the class, with parameters of these shapes."""
    module: nn.Module = cls()
    for name, shape in shapes.items():
        module.register_parameter(name, nn.Parameter(torch.randn(shape)))
    for name, value in attributes.items():
        object.__setattr__(module, name, value)
    return module


def both(module: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    # Count for a GPU: its RMS norm is one kernel, the CPU's is made of parts.
    report = fxflops.count(module, x, backward=True, device="cuda")
    assert report.complete
    return {
        phase: tuple(
            sum(getattr(each, what) for each in report.counted if each.call.phase == phase)
            for what in ("flops", "macs")
        )
        for phase in ("forward", "backward")
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers(te: Any, shape: tuple[int, ...], bias: bool) -> None:
    n, i, o = shape
    x = torch.randn(n, i, requires_grad=True)
    own = made(te(LINEAR), {"weight": (o, i), **({"bias": (o,)} if bias else {})})
    assert both(own, x) == both(nn.Linear(i, o, bias=bias), x)
    normed = made(te(NORM_LINEAR), {"weight": (o, i), "layer_norm_weight": (i,)}, normalization="RMSNorm")
    assert both(normed, x) == both(nn.Sequential(nn.RMSNorm(i), nn.Linear(i, o, bias=False)), x)
    shapes = {"weight": (o, i), "bias": (o,), "layer_norm_weight": (i,), "layer_norm_bias": (i,)}
    assert both(made(te(NORM_LINEAR), shapes, normalization="LayerNorm"), x) == both(
        nn.Sequential(nn.LayerNorm(i), nn.Linear(i, o)), x
    )


def test_a_frozen_layer_has_no_gradient_of_its_weight(te: Any) -> None:
    x = torch.randn(4, 5, requires_grad=True)
    own, torchs = made(te(LINEAR), {"weight": (6, 5)}), nn.Linear(5, 6, bias=False)
    assert both(own.requires_grad_(False), x) == both(torchs.requires_grad_(False), x)


class Gated(nn.Module):
    def __init__(self, i: int, f: int) -> None:
        super().__init__()
        self.norm, self.both, self.last = nn.RMSNorm(i), nn.Linear(i, 2 * f), nn.Linear(f, i)

    def forward(self, x: torch.Tensor) -> Any:
        a, b = self.both(self.norm(x)).chunk(2, -1)
        return self.last(F.silu(a) * b)


@pytest.mark.parametrize("shape", SHAPES)
def test_mlps(te: Any, shape: tuple[int, ...]) -> None:
    n, i, f = shape
    x = torch.randn(n, i, requires_grad=True)
    shapes = {
        "fc1_weight": (2 * f, i),
        "fc1_bias": (2 * f,),
        "fc2_weight": (i, f),
        "fc2_bias": (i,),
        "layer_norm_weight": (i,),
    }
    own = made(te(MLP), shapes, activation="swiglu", normalization="RMSNorm")
    assert both(own, x) == both(Gated(i, f), x)


class Attends(nn.Module):
    def __init__(self, attention: nn.Module, **given: Any) -> None:
        super().__init__()
        self.attention, self.given = attention, given

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x, **self.given)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (4, 2, 2, 4), (6, 3, 1, 8), (3, 2, 4, 2), (5, 1, 3, 4)])
def test_attention_in_both_layouts_and_packed(te: Any, shape: tuple[int, ...]) -> None:
    s, b, h, d = shape
    module = made(
        te(ATTENTION),
        {},
        qkv_format="sbhd",
        attn_mask_type="causal",
        window_size=(-1, 0),
        flash_attention=SimpleNamespace(attention_dropout=0.0),
    )

    class Torchs(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return F.scaled_dot_product_attention(*[x.permute(1, 2, 0, 3)] * 3, is_causal=True)

    x = torch.randn(s, b, h, d, requires_grad=True)
    wanted = both(Torchs(), x)
    assert both(Attends(module), x) == wanted
    assert both(Attends(module, qkv_format="bshd"), x.detach().transpose(0, 1).contiguous().requires_grad_()) == wanted
    starts = torch.arange(0, (b + 1) * s, s, dtype=torch.int32)
    packed = x.detach().reshape(s * b, h, d).requires_grad_()
    assert both(Attends(module, qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts), packed) == wanted
    exact = fxflops.count(Attends(module), x, attention="exact")
    assert exact.total_macs == b * h * visible(s, s, -1, 0) * 2 * d
