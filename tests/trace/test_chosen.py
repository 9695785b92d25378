"""The backward pass of attention, counted on meta: that of the kernel which the model's device takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fxflops
from fxflops.structure import fill, template_of
from fxflops.trace.chosen import Chosen

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
N, D, HEADS = 16, 32, 4


class Attention(nn.Module):
    def __init__(self, attend: Callable[..., torch.Tensor], heads: int = HEADS) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.attend = attend
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(-1, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(-1, N, D))


def masked(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(N, N).tril().to(q.device, dtype))


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def learned_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, (q @ k.transpose(-1, -2)))


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5),
    "bool mask": masked(torch.bool),
    "float mask": masked(torch.float32),
    "one twice": lambda q, k, v: F.scaled_dot_product_attention(q, k, k),
    "grouped": grouped,
    "learned mask": learned_mask,
    "written out": written_out,
    "dropout": dropped,
}


def backward_calls(report: fxflops.Report) -> list[tuple[str, str, str]]:
    return sorted((call.op, call.path, repr(call.out)) for call in report.calls if call.phase == "backward")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WAYS)
def test_counted_as_it_runs(name: str, device: str) -> None:
    model, x = Attention(WAYS[name]).to(device), torch.randn(2, N, D, device=device)
    counted = fxflops.count(model, x, backward=True)
    ran = fxflops.analyze(model, x, backward=True, trace="record", repeats=0, progress=False)
    assert counted.trace == "observed on meta", counted.trace_reason
    assert backward_calls(counted) == backward_calls(ran)
    assert counted.total_backward_flops == ran.total_backward_flops
    assert counted.complete


def test_the_weights_of_the_attention_are_not_kept() -> None:
    """Fused, an attention over n positions keeps no n x n tensor; written out, it does."""
    x = torch.randn(2, N, D)
    fused, plain = (fxflops.count(Attention(WAYS[name]), x, backward=True) for name in ("plain", "written out"))
    ran = fxflops.analyze(Attention(WAYS["plain"]), x, backward=True, trace="record", repeats=0, progress=False)
    assert fused.max_memory == ran.max_memory < plain.max_memory


def test_a_meta_model_has_no_device_to_choose_for() -> None:
    with torch.device("meta"):
        model, x = Attention(F.scaled_dot_product_attention), torch.empty(2, N, D)
    ops = fxflops.count(model, x, backward=True).by_operator("backward")
    assert "attention_backward" not in ops


Q, K, V = (torch.empty(2, 4, length, 8, device="meta") for length in (16, 24, 24))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((Q, K, V), {}),
        ((Q, K, K), {}),
        ((Q, Q, Q, None, 0.0, True), {"scale": 0.3}),
        ((), {"value": V, "query": Q, "key": K}),
        ((Q.transpose(1, 2).contiguous().transpose(1, 2), K, V), {}),
    ],
)
def test_the_fused_kernel_of_the_cpu_is_what_torch_dispatches(args: Any, kwargs: Any) -> None:
    template, tensors = template_of((args, kwargs))
    chosen = Chosen(torch.device("cpu"), lambda made: None)
    with torch.no_grad():
        fused = chosen._fused(F.scaled_dot_product_attention, template, tensors)
        way = chosen._way_of(F.scaled_dot_product_attention, template, tensors)
    assert fused is not None
    assert way is not None
    (one,), (other,) = fused.steps, way.steps
    assert (one.operator, one.made, one.gone, fused.returned) == (other.operator, other.made, other.gone, way.returned)
    outs = []
    for step in (one, other):
        given, named = fill(step.template, *(tensors[number] for number in step.given))
        outs.append(step.operator(*given, **named)[0])
    assert outs[0].stride() == outs[1].stride()


@pytest.mark.parametrize(
    "kwargs", [{"dropout_p": 0.1}, {"attn_mask": torch.empty(16, 24, device="meta")}, {"enable_gqa": True}]
)
def test_other_calls_are_asked_of_fake_tensors(kwargs: Any) -> None:
    template, tensors = template_of(((Q, K, V), kwargs))
    with torch.no_grad():
        assert (
            Chosen(torch.device("cpu"), lambda made: None)._fused(F.scaled_dot_product_attention, template, tensors)
            is None
        )
