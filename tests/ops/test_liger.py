"""Liger's kernels, by the names of their Functions: each counts as the torch layers that it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.records import Cost
from tests.library_stand_ins import counts, library, tensors
from tests.tape import Tape

LIGER = "liger_kernel.ops"
LOSS = (
    "ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction='mean', softcap=None, return_z_loss=False"
)
FUNCTIONS = {
    f"{LIGER}.rms_norm:LigerRMSNormFunction.apply": "X, W, eps, offset=0.0, casting_mode='llama', in_place=True, row_mode=None",
    f"{LIGER}.layer_norm:LigerLayerNormFunction.apply": "X, W, B, eps",
    f"{LIGER}.swiglu:LigerSiLUMulFunction.apply": "a, b, gate_multiplier=1.0, down_multiplier=1.0",
    f"{LIGER}.geglu:LigerGELUMulFunction.apply": "a, b",
    f"{LIGER}.rope:LigerRopeFunction.apply": "q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None",
    f"{LIGER}.cross_entropy:LigerCrossEntropyFunction.apply": f"_input, target, weight, {LOSS}",
    f"{LIGER}.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction.apply": f"_input, weight, target, bias=None, ce_weight=None, {LOSS}",
}
RMS, LAYER_NORM, SWIGLU, GEGLU, ROPE, LOSSES, FUSED = FUNCTIONS
ROWS = [(1, 2), (3, 4), (5, 7), (2, 16), (8, 3)]


@pytest.fixture(scope="module")
def liger() -> Iterator[Any]:
    with library(FUNCTIONS) as find:
        yield lambda name: lambda *args, **kwargs: find(name).apply(*args, **kwargs)


class Torch(nn.Module):
    """The same computation with torch's functions, on parameters of these shapes."""

    def __init__(self, function: Any, *shapes: tuple[int, ...], target: Any = None) -> None:
        super().__init__()
        self.function, self.target = function, target
        self.given = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self) -> Any:
        return self.function(*self.given, *(() if self.target is None else (self.target,)))


def in_torch(function: Any, *shapes: tuple[int, ...], target: Any = None) -> tuple[int, int]:
    """FLOPs of the forward and of the backward, without making the initial gradient."""
    # Count for a GPU: its kernels are whole where the CPU's are made of parts, e.g. RMS norm.
    report = fxflops.count(Torch(function, *shapes, target=target), backward=True, device="cuda")
    phases = {
        phase: sum(each.flops for each in report.counted if each.call.phase == phase)
        for phase in ("forward", "backward")
    }
    return phases["forward"], phases["backward"]


def both(counted: Any) -> tuple[int, int]:
    return counted.forward.flops, counted.backward.flops


def positional(function: Any, *names: str) -> Any:
    """Pass these names by position, because a Function's apply takes no keywords."""

    def call(**given: Any) -> Any:
        first = [given.pop(name) for name in names]
        return function(*first, **given)

    return call


@pytest.mark.parametrize("shape", ROWS)
def test_norms(liger: Any, shape: tuple[int, int]) -> None:
    n, k = shape
    given = tensors({"X": (n, k), "W": (k,)})
    counted = counts(positional(liger(RMS), "X", "W", "eps"), given, eps=1e-6)
    assert counted.out == shape
    assert both(counted) == in_torch(rms_norm, (n, k), (k,))
    counted = counts(positional(liger(LAYER_NORM), "X", "W", "B", "eps"), given | tensors({"B": (k,)}), eps=1e-6)
    assert both(counted) == in_torch(lambda x, w, b: F.layer_norm(x, (k,), w, b), (n, k), (k,), (k,))


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight)


@pytest.mark.parametrize("shape", ROWS)
def test_gated_activations(liger: Any, shape: tuple[int, int]) -> None:
    given = tensors({"a": shape, "b": shape})
    silu = counts(positional(liger(SWIGLU), "a", "b"), given)
    assert both(silu) == in_torch(lambda a, b: F.silu(a) * b, shape, shape)
    gelu = counts(positional(liger(GEGLU), "a", "b"), given)
    assert both(gelu) == in_torch(lambda a, b: F.gelu(a, approximate="tanh") * b, shape, shape)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 4, 3, 4), (1, 2, 5, 8), (3, 6, 2, 2), (2, 2, 7, 6)])
def test_rotary_embeddings_turn_pairs(liger: Any, shape: tuple[int, ...]) -> None:
    b, h, length, d = shape
    given = tensors({"q": (b, h, length, d), "k": (b, 2, length, d)})
    angles = {name: torch.randn(1, length, d) for name in ("cos", "sin")}
    counted = counts(positional(liger(ROPE), "q", "k", "cos", "sin"), given, **angles)
    assert counted.out == ((b, h, length, d), (b, 2, length, d))
    tape = Tape()
    for heads in (h, 2):
        x, turned = tape.leaf(b, h, length, d), tape.leaf(b, heads, length, d)
        cos, sin = (tape.leaf(1, 1, length, d, needs=False) for _ in range(2))
        tape.add(tape.multiply(turned, cos), tape.multiply(turned, sin))
        del x
    assert (counted.forward, counted.backward) == (tape.forward, tape.forward)


@pytest.mark.parametrize("shape", ROWS)
def test_losses_and_the_layer_before_them(liger: Any, shape: tuple[int, int]) -> None:
    n, c = shape
    i, target = 6, torch.randint(c, (n,))
    loss = counts(
        positional(liger(LOSSES), "_input", "target", "weight"),
        tensors({"_input": (n, c)}) | {"target": target},
        weight=None,
    )
    torchs = in_torch(F.cross_entropy, (n, c), target=target)
    assert loss.out[0] == ()
    assert loss.forward.flops == torchs[0]
    # softmax times the gradient of the loss, less that gradient at the target
    assert loss.backward == Cost(muls=n * c, others=2 * n * c, adds=n)
    given = tensors({"_input": (n, i), "weight": (c, i), "bias": (c,)}) | {"target": target}
    fused = counts(positional(liger(FUSED), "_input", "weight", "target", "bias"), given)
    tape = Tape()
    y = tape.contract("ni,ci->nc", tape.leaf(n, i), tape.leaf(c, i))
    y = tape.add(y, tape.leaf(1, c))
    assert fused.forward == loss.forward.plus(tape.forward)
    assert fused.backward == loss.backward.plus(tape.backward(y))
