"""A step whose operator results are remembered leaves the same record as a step that runs each operator."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.distributed.rank_mode import Rank
from fxflops.torch_internals import fake_tensors


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)).mul_(0.5)


class Net(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.blocks, self.checkpointed = nn.ModuleList(Block() for _ in range(3)), checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def record(checkpointed: bool, remembered: bool) -> Any:
    """Return the calls of training steps with their costs and results, the peak memory, and whether the report is complete."""
    mode = fake_tensors()[1](allow_non_fake_inputs=True)
    with mode, Rank(mode) if remembered else nullcontext():
        model, x = Net(checkpointed), torch.randn(2, 4, 8)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        with fxflops.profile(model, optimizer=optimizer) as p:
            for _ in range(2):
                step()
    report = p.report
    calls = [
        (each.call.path, each.call.phase, each.call.op, each.flops, repr(each.call.args), repr(each.call.out))
        for each in report.counted
    ]
    return calls, report.max_memory, dict(report.memory), report.complete


@pytest.mark.parametrize("checkpointed", [False, True])
def test_remembered_operators_leave_the_same_record(checkpointed: bool) -> None:
    expected = record(checkpointed, remembered=False)
    assert len(expected[0]) > 200
    assert record(checkpointed, remembered=True) == expected


class Keeping(TorchDispatchMode):
    """A user's mode that happens to have an attribute named like a simulated rank's."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.results.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_users_mode_with_results_is_no_simulated_rank() -> None:
    with Keeping() as mode, fxflops.profile() as p:
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert p.report.total_macs == 2 * 3 * 4
    assert "aten.mm.default" in mode.results
