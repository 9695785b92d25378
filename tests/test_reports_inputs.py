"""Reports of inputs of every type, of forwards that branch on values, and of parts that need no gradient."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.test_reports import Case, check, every_way, f, ints, of


@dataclass
class Batch:
    tokens: torch.Tensor
    weights: torch.Tensor
    scale: float = 1.0


Pair = namedtuple("Pair", ["x", "y"])


def while_large(m: Any, x: torch.Tensor) -> torch.Tensor:
    while x.max() > 1:
        x = m.halve(x)
    return x


def by_sign(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.narrow(x) if x.sum() > 0 else m.wide(x)


def halving(i: int) -> nn.Linear:
    linear = nn.Linear(i, i, bias=False)
    linear.weight.data = torch.eye(i) / 2
    return linear


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def encoded(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x = m.encoder(x)
    return m.head(x)


def inferred(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        x = m.encoder(x)
    return m.head(x.clone())


def cached_decoding(m: Any, x: torch.Tensor, steps: int) -> torch.Tensor:
    keys = x
    for _ in range(steps):
        x = m.project(x)
        keys = torch.cat([keys, x])
        x = (x @ keys.mT).softmax(-1) @ keys
    return x


b, i, o, t = 3, 5, 7, 11

CASES = [
    # ptflops#14, #93, #122; calflops#53, #63; thop PR#164: inputs of every type.
    Case("two-inputs", of(lambda m, x, y: x @ y), (f(b, i), f(i, o)), macs=b * i * o),
    Case("a-list", of(lambda m, xs: xs[0] @ xs[1]), [f(b, i), f(i, o)], macs=b * i * o),
    Case("a-dict", of(lambda m, batch: batch["x"] @ batch["y"]), {"x": f(b, i), "y": f(i, o)}, macs=b * i * o),
    Case("a-namedtuple", of(lambda m, pair: pair.x @ pair.y), Pair(f(b, i), f(i, o)), macs=b * i * o),
    Case("keywords", of(lambda m, x, *, y: x @ y), f(b, i), {"y": f(i, o)}, macs=b * i * o),
    Case("keywords-alone", of(lambda m, x=None, y=None: x @ y), (), {"y": f(i, o), "x": f(b, i)}, macs=b * i * o),
    Case(
        "any-keywords", of(lambda m, **batch: batch["x"] @ batch["y"]), (), {"y": f(i, o), "x": f(b, i)}, macs=b * i * o
    ),
    Case(
        "any-arguments", of(lambda m, *xs: xs[0] @ xs[1] @ xs[2]), (f(b, i), f(i, o), f(o, t)), macs=b * (i * o + o * t)
    ),
    Case(
        "a-dataclass",
        of(lambda m, batch: batch.tokens @ batch.weights * batch.scale),
        Batch(f(b, i), f(i, o)),
        macs=b * i * o,
    ),
    Case("nested", of(lambda m, x: x["a"][0]["b"] @ x["a"][1]), {"a": [{"b": f(b, i)}, f(i, o)]}, macs=b * i * o),
    Case(
        "none-and-flags",
        of(lambda m, x, mask, flag: m.l(x) if flag and mask is None else x, l=nn.Linear(i, o)),
        (f(b, i), None, True),
        macs=b * i * o,
    ),
    # pangaea-bench#11: forwards that symbolic tracing cannot follow.
    Case(
        "branch-on-a-value",
        of(by_sign, narrow=nn.Linear(i, 2), wide=nn.Linear(i, o)),
        torch.ones(b, i),
        macs=b * i * 2,
        without=("meta",),
    ),
    # 8 > 4 > 2 > 1: three halvings until no value is above 1.
    Case(
        "while-on-a-value",
        of(while_large, halve=halving(i)),
        torch.full((b, i), 8.0),
        macs=3 * b * i * i,
        without=("meta",),
    ),
    Case(
        "branch-on-a-shape",
        of(lambda m, x: m.a(x) if x.shape[0] > 2 else m.b(x), a=nn.Linear(i, o), b=nn.Linear(i, 1)),
        f(b, i),
        macs=b * i * o,
    ),
    Case(
        "rows-of-a-mask",
        of(lambda m, x, keep: m.l(x[keep]), l=nn.Linear(i, o)),
        (f(4, i), ints(True, False, True, True)),
        macs=3 * i * o,
        without=("meta",),
    ),
    # Every step: a projection of i*i, then the query meets (2, 3, 4) keys, i each, twice.
    Case(
        "a-growing-cache",
        of(cached_decoding, project=nn.Linear(i, i)),
        (f(1, i), 3),
        macs=3 * i * i + (2 + 3 + 4) * 2 * i,
    ),
    # ptflops#101: a frozen encoder, or one under no_grad or inference_mode, does the same work.
    Case("frozen", nn.Sequential(frozen(nn.Linear(i, o)), nn.Linear(o, t)), f(b, i), macs=b * (i * o + o * t)),
    Case(
        "encoder-under-no-grad",
        of(encoded, encoder=frozen(nn.Linear(i, o)), head=nn.Linear(o, t)),
        f(b, i),
        macs=b * (i * o + o * t),
    ),
    Case(
        "encoder-under-inference-mode",
        of(inferred, encoder=frozen(nn.Linear(i, o)), head=nn.Linear(o, t)),
        f(b, i),
        macs=b * (i * o + o * t),
    ),
]


@every_way(CASES)
def test_inputs(case: Case, way: str) -> None:
    check(case, way)
