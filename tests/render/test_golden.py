"""Printed output against approved files, on a terminal of a fixed width and with a fake clock.

``python tests/render/test_golden.py`` writes the files anew.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torchvision
from torch import nn

import fxflops
from benchmarks.pictures import Terminal
from fxflops.meters import meter
from fxflops.meters.timing import Usage
from fxflops.notebook import TorchFLOPsByFX
from fxflops.run import graph_run as run

GOLDEN = Path(__file__).parent / "golden"
WIDTH = 100
MS = 2**-10
"""About a millisecond. It is a power of two, so that sums are exact."""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = (
            project(x).view(b, n, self.heads, -1).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attended.transpose(1, 2).reshape(b, n, width))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn, self.mlp = Attention(width, 8), Mlp(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, width: int = 256, layers: int = 6, words: int = 2000) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


@torch.library.custom_op("golden::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1)


scan.register_fake(torch.empty_like)


class Ssm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outward(scan(self.inward(x)))


def unknown() -> nn.Module:
    return nn.Sequential(*(Ssm(64) for _ in range(3)), nn.Linear(64, 10))


class DoubleConv(nn.Sequential):
    def __init__(self, channels: int, out: int) -> None:
        halves = [(nn.Conv2d(n, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()) for n in (channels, out)]
        super().__init__(*halves[0], *halves[1])


class Up(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
        self.conv = DoubleConv(channels, channels // 2)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.cat([skip, self.up(x)], 1))


class UNet(nn.Module):
    """The network of https://arxiv.org/abs/1505.04597, with padding."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.downs = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(width << i, width << i + 1)) for i in range(4)
        )
        self.ups = nn.ModuleList(Up(width << i) for i in (4, 3, 2, 1))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.head(x)


def zeros_of(name: str) -> nn.Module:
    """A torchvision model with zeros as weights: drawing 100 million random numbers takes as long as running it."""
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None)
    for tensor in model.to_empty(device="cpu").state_dict().values():
        tensor.zero_()
    return model


def gpt2() -> fxflops.Report:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    return fxflops.count(model, torch.zeros(1, 512, dtype=torch.long))


def training() -> fxflops.Report:
    model = torchvision.models.vit_b_16(weights=None)
    return fxflops.count(model, torch.zeros(8, 3, 224, 224), backward=True, optimizer=torch.optim.AdamW)


SECONDS_CAP = run.SECONDS_CAP
FIRST: dict[str, Callable[[], fxflops.Report]] = {
    "gpt2": gpt2,
    "unet": lambda: fxflops.count(UNet(), torch.zeros(1, 3, 256, 256)),
    "training": training,
}
"""Runs for which only the first screen is kept. Its conclusion must name what dominates, and what to speed up first."""
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "resnet50": (lambda: zeros_of("resnet50"), lambda: torch.zeros(1, 3, 224, 224)),
    "vit_b_16": (lambda: zeros_of("vit_b_16"), lambda: torch.zeros(1, 3, 224, 224)),
    "llama": (Llama, lambda: torch.zeros(1, 128, dtype=torch.long)),
    "unknown": (unknown, lambda: torch.zeros(1, 32, 64)),
}


@contextlib.contextmanager
def terminal(**environment: str) -> Iterator[Terminal]:
    """A terminal of 100 columns, and a machine of two cores whose clock advances by about 1, 2, 3, 1 ... ms at each reading."""
    steps = itertools.accumulate(itertools.cycle((MS, 2 * MS, 3 * MS)))
    now: Any = lambda: next(steps)  # noqa: E731
    screen = Terminal()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH), "TERM": "xterm-256color", **environment}),
        mock.patch.object(run, "SECONDS_CAP", SECONDS_CAP),  # with this clock nobody waits
        mock.patch.object(run, "time", types.SimpleNamespace(perf_counter=now)),
        mock.patch.object(Usage, "now", side_effect=lambda: Usage(read := now(), read, 0)),
        mock.patch.object(meter.Clock.__init__, "__defaults__", (now,)),
        mock.patch.object(os, "cpu_count", return_value=2),
        mock.patch.object(torch, "get_num_threads", return_value=2),
        contextlib.redirect_stdout(screen),
    ):
        yield screen


def printed(name: str, **environment: str) -> str:
    """Print the summary, the tree and the largest rows of the table."""
    make, given = CASES[name]
    torch.manual_seed(0)
    model = make()
    with terminal(**environment) as screen:
        report = fxflops.analyze(model, given(), repeats=1, progress=False)
        print(report, end="\n\n")
        print(report.tree(depth=3), end="\n\n")
        flops = TorchFLOPsByFX(model)
        flops.propagate(given())
        flops.print_result_table(sort_by="flops", top=4, columns=["node_op", "op_target", "flops", "time"])
    text = re.sub(r"(?m)^measured .*\n(    .*\n)*", "", screen.getvalue())  # versions, the date and the machine
    text = re.sub(r"\(\S*test_golden\.py:\d+\)", "(here)", text)
    # a node of several calls divides its time among them by the machine's own clock
    return re.sub(r"(?m)^by operator, time.*$", lambda line: re.sub(r"[\d.]+%", "..%", line[0]), text)


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed(name: str) -> None:
    text = printed(name, NO_COLOR="1")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf8")


def first_screen(name: str) -> str:
    with torch.device("meta"):
        report = FIRST[name]()
    with terminal(NO_COLOR="1") as screen:
        print(report)
    return screen.getvalue()


@pytest.mark.parametrize("name", FIRST)
def test_the_first_screen(name: str) -> None:
    text = first_screen(name)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf8")


def test_what_is_printed_in_colour() -> None:
    environment = {name: "" for name in ("NO_COLOR",) if name in os.environ}
    text = printed("unknown", **environment)
    assert text == (GOLDEN / "unknown.ansi").read_text(encoding="utf8")
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == (GOLDEN / "unknown.txt").read_text(encoding="utf8")


if __name__ == "__main__":
    for each in CASES:
        (GOLDEN / f"{each}.txt").write_text(printed(each, NO_COLOR="1"), encoding="utf8")
    for each in FIRST:
        (GOLDEN / f"{each}.txt").write_text(first_screen(each), encoding="utf8")
    (GOLDEN / "unknown.ansi").write_text(printed("unknown"), encoding="utf8")
    sys.exit()
