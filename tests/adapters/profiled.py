"""Models, an engine and a clock for comparing the adapters of DeepSpeed's profilers with the originals."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn


class Clock:
    """A clock whose steps get longer and longer.

    With a real clock, two modules of a list may show the same time to the last printed digit. torch then prints one line for both.
    """

    def __init__(self) -> None:
        self.readings = 0

    def time(self) -> float:
        self.readings += 1
        return self.readings**2 / 100

    perf_counter = time


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


class Branches(nn.Module):
    """Functions called in its own forward, a module under two parents, an uncalled module, and a module called several times."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.stem = nn.Conv2d(3, 4, 3)
        self.first, self.second = nn.Sequential(nn.Conv2d(4, 4, 3), act), nn.Sequential(act, nn.BatchNorm2d(4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.unused = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.head, self.act = nn.MultiheadAttention(4, 2), F.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(F.relu(self.stem(x)))).flatten(2).transpose(1, 2)
        for block in (*self.blocks, self.blocks[0]):
            x = torch.add(x, self.act(block(x)))
        return self.head(x, x, x)[0].matmul(x.transpose(1, 2))


IMAGE = torch.randn(2, 3, 8, 8)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(10, 10)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(self.linear(batch[0]), batch[1])


def tiny_gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


class Timer:
    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def elapsed(self, reset: bool) -> float:
        return self.milliseconds


class Engine:
    """The parts of a DeepSpeed engine that are printed."""

    world_size, dp_world_size, mp_world_size, has_moe_layers = 8, 4, 2, False

    def __init__(self, timed: bool) -> None:
        self._timed = timed

    def train_micro_batch_size_per_gpu(self) -> int:
        return 16

    def wall_clock_breakdown(self) -> bool:
        return self._timed

    def timers(self, name: str) -> Timer:
        return Timer({"f": 10.0, "b": 21.0, "s": 1.5}[name[0]])  # "forward"; DeepSpeed says "fwd"


def state(model: nn.Module) -> list[Any]:
    return [
        (name, module.training, sorted(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]
