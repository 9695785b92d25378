"""Counting under autocast. On meta, autocast does nothing, so the count casts by itself what the model's device would cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from tests.devices import DEVICES


class Casting(nn.Module):
    """Runs its body under autocast."""

    def __init__(self, body: nn.Module, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.body = body
        self.device_type = device
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast(self.device_type, self.dtype):
            return self.body(x)


class Call(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def attention(x: torch.Tensor) -> torch.Tensor:
    q = x.view(1, 2, -1, 16)
    return F.scaled_dot_product_attention(q, q, q)


def apart(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return x.float() @ x.float().T


BODIES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), (8, 16)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)),
        (2, 3, 12, 12),
    ),
    "norms": (nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Softmax(-1), nn.Linear(16, 4)), (8, 16)),
    "attention": (Call(attention), (8, 16)),
    "sum": (Call(lambda x: x.softmax(-1).sum(0)), (8, 16)),
    "mixed": (Call(lambda x: torch.cat([x, torch.ones_like(x, dtype=torch.float32)])), (8, 16)),
    "losses": (Call(lambda x: F.mse_loss(x, torch.zeros_like(x))), (8, 16)),
    "matmul": (Call(lambda x: torch.einsum("ij,kj->ik", x, x) + x @ x.T), (8, 16)),
    "powers": (Call(lambda x: x.pow(2).mean().exp()), (8, 16)),
    "double": (Call(lambda x: x.double().sin()), (8, 16)),
    "without": (Call(apart), (8, 16)),
    "twice": ((layer := nn.Linear(16, 16)) and nn.Sequential(layer, nn.ReLU(), layer), (8, 16)),
}


def dtypes(report: fxflops.Report) -> list[tuple[str, str, str]]:
    return [(call.op, call.path, repr(call.out)) for call in report.calls if call.op != "to"]


TEMPORARIES = ("convolutions", "norms", "attention", "losses")
"""Their kernels allocate temporaries, with or without autocast."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_counted_as_it_runs(name: str, backward: bool, device: str) -> None:
    body, shape = BODIES[name]
    model, x = Casting(body, device).to(device), torch.randn(shape, device=device)
    counted = fxflops.count(model, x, backward=backward)
    ran = fxflops.analyze(model, x, backward=backward, trace="record", repeats=0, progress=False)
    assert counted.trace == "counted on the meta device", counted.trace_reason
    assert dtypes(counted) == dtypes(ran)
    assert counted.total_training_flops == ran.total_training_flops
    if device == "cpu" and name not in TEMPORARIES:
        assert counted.max_memory == ran.max_memory


def test_around_a_count_it_does_what_it_does_inside() -> None:
    body, shape = BODIES["mlp"]
    x = torch.randn(shape)
    inside = fxflops.count(Casting(body, "cpu"), x)
    with torch.autocast("cpu", torch.bfloat16):
        around = fxflops.count(body, x)
    assert [repr(call.out) for call in around.calls] == [repr(call.out) for call in inside.calls]
    assert around.max_memory == inside.max_memory
    assert fxflops.count(body, x).calls[0].out.dtype is torch.float32


def test_of_another_device_it_casts_nothing() -> None:
    body, shape = BODIES["mlp"]
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        model, x = Casting(body, "cpu").to("meta"), torch.randn(shape, device="meta")
        counted = fxflops.count(model, x, device=device)
        assert {call.out.dtype for call in counted.calls} == {dtype}


class Outside(nn.Module):
    """Memory peaks after autocast has ended, when its copies of the weights are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.linear(x)
        return x.repeat(1, 256).relu().relu()


def test_weights_that_were_cast_are_freed_with_the_region() -> None:
    model, x = Outside(), torch.randn(8, 256)
    large = 8 * 256 * 256 * 2
    with torch.no_grad():
        held = 4 * (256 * 256 + 256) + x.nbytes + 2 * 8 * 256  # the layer's output has half the width
        assert fxflops.count(model, x).max_memory == held + 2 * large
