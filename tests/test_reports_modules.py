"""Reports of modules that differ from their class: subclassed, patched, wrapped, recursive, or called by another method."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.test_reports import Case, check, every_way, f, ints, of

b, i, o, r, t = 3, 5, 7, 2, 11


class Renamed(nn.Linear):
    """A linear layer under another name."""


class WithAdapter(nn.Linear):
    """A linear layer that does more work than one."""

    def __init__(self, i: int, o: int, r: int) -> None:
        super().__init__(i, o)
        self.a, self.b = nn.Parameter(f(r, i)), nn.Parameter(f(o, r))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.a), self.b)


class Standardized(nn.Conv2d):
    """A convolution whose weight is standardized at every call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return self._conv_forward(x, weight, self.bias)


class Identity(nn.Linear):
    """A linear layer that computes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Coded(nn.Module):
    """Its work is in its own methods."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(i, r), nn.Linear(r, i)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(x)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Tree(nn.Module):
    """A leaf is a row; an inner node is a product of its two children."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(2 * i, i)

    def forward(self, tree: Any) -> torch.Tensor:
        if isinstance(tree, torch.Tensor):
            return tree
        return self.join(torch.cat([self(child) for child in tree], -1))


class Labelled(torch.Tensor):
    """A user's own tensor class."""


class Meter(nn.Module):
    """A wrapper that stores what it saw."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[torch.Size] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        self.seen.append(out.shape)
        return out


def patched() -> nn.Module:
    """A module patched with an adapter: the instance gets another forward."""
    linear = nn.Linear(i, o)
    linear.a, linear.b = nn.Parameter(f(r, i)), nn.Parameter(f(o, r))
    plain = linear.forward
    linear.forward = types.MethodType(lambda m, x: plain(x) + x @ m.a.mT @ m.b.mT, linear)
    return linear


def replaced() -> nn.Module:
    linear = nn.Linear(i, o)
    linear.forward = lambda x: x * 2
    return nn.Sequential(linear)


def widened(module: nn.Module) -> nn.Module:
    module.register_forward_pre_hook(lambda module, given: (torch.cat([given[0], given[0]]),))
    return module


def rows(m: Any, x: torch.Tensor) -> torch.Tensor:
    def each() -> Any:
        for row in x:
            yield m.l(row)

    return torch.stack(list(each()))


def power(x: torch.Tensor, n: int) -> torch.Tensor:
    """By squaring: x^5 is (x^2)^2 x."""
    if n == 1:
        return x
    half = power(x, n // 2)
    return half @ half @ x if n % 2 else half @ half


def threes(function: Callable[..., Any]) -> nn.Module:
    return of(lambda m, x, y: function(x, y), function=function)


PRODUCT = b * i * o
X, Y = f(b, i), f(i, o)
ADAPTED = b * (i * o + i * r + r * o)

CASES = [
    # thop#89, flopth#5: the class is not the one in the table, but the work is the same.
    Case("renamed", Renamed(i, o), X, macs=PRODUCT),
    Case("adapted", WithAdapter(i, o, r), X, macs=ADAPTED),
    Case("does-nothing", nn.Sequential(Identity(i, o)), X, macs=0, flops=0),
    # 3 x 3 x 2 windows in 4 x 5 outputs.
    Case("standardized", Standardized(2, o, 3), f(b, 2, 6, 7), macs=b * o * (4 * 5) * 2 * 9),
    # calflops#30, thop#194: adapters patched into the instance.
    Case("patched", nn.Sequential(patched()), X, macs=ADAPTED, without=("meta",)),
    Case("replaced", replaced(), X, macs=0, flops=b * i, without=("meta",)),
    # Twice as many rows reach the layer.
    Case("pre-hook", widened(nn.Linear(i, o)), X, macs=2 * PRODUCT),
    Case("other-methods", of(lambda m, x: m.coder.decode(m.coder.encode(x)), coder=Coded()), X, macs=2 * b * i * r),
    Case("bypassed-call", of(lambda m, x: m.l.forward(x), l=nn.Linear(i, o)), X, macs=PRODUCT),
    # Three inner nodes.
    Case("recursive-module", Tree(), [[f(b, i), f(b, i)], [f(b, i), f(b, i)]], macs=3 * b * (2 * i) * i),
    Case("recursive-function", of(lambda m, x: power(x, 5)), f(i, i), macs=3 * i**3),
    Case("generator", of(rows, l=nn.Linear(i, o)), X, macs=PRODUCT),
    Case("wrapped", Meter(Meter(nn.Linear(i, o))), X, macs=PRODUCT),
    Case("data-parallel", nn.DataParallel(nn.Linear(i, o)), X, macs=PRODUCT, without=("meta",)),
    Case(
        "module-dict",
        of(
            lambda m, x: sum(head(x) for head in m.heads.values()),
            heads=nn.ModuleDict({"a": nn.Linear(i, o), "b": nn.Linear(i, o)}),
        ),
        X,
        macs=2 * PRODUCT,
    ),
    Case(
        "parameter-dict",
        of(lambda m, x: x @ m.ws["a"] @ m.ws["b"], ws=nn.ParameterDict({"a": f(i, r), "b": f(r, o)})),
        X,
        macs=b * (i * r + r * o),
    ),
    # torch_flops's README: a function is the same however it is reached.
    Case("unbound-method", of(lambda m, x, y: torch.Tensor.matmul(x, y)), (X, Y), macs=PRODUCT),
    Case("operator-of-aten", of(lambda m, x, y: torch.ops.aten.mm(x, y)), (X, Y), macs=PRODUCT),
    Case("operator-of-aten-overload", of(lambda m, x, y: torch.ops.aten.mm.default(x, y)), (X, Y), macs=PRODUCT),
    Case("function-of-nn", of(lambda m, x, y: torch._C._nn.linear(x, y.mT)), (X, Y), macs=PRODUCT),
    Case("partial", of(lambda m, x, y: functools.partial(torch.matmul, x)(y)), (X, Y), macs=PRODUCT),
    Case(
        "reduced-with", of(lambda m, *xs: functools.reduce(torch.matmul, xs)), (X, Y, f(o, t)), macs=b * (i * o + o * t)
    ),
    Case("mapped", of(lambda m, x: torch.stack(list(map(m.l, x.unbind()))), l=nn.Linear(i, o)), X, macs=PRODUCT),
    Case("held-function", threes(torch.matmul), (X, Y), macs=PRODUCT),
    Case(
        "attention-by-function",
        of(
            lambda m, x: F.multi_head_attention_forward(x, x, x, 4, 2, m.w, m.c, None, None, False, 0.0, m.o, m.c[:4])[
                0
            ],
            w=f(12, 4),
            c=f(12),
            o=f(4, 4),
        ),
        f(b, 1, 4),
        macs=b * 4 * 4 * 4 + 2 * b * b * 4,
    ),
    # A tensor's class does not affect its work.
    Case("own-tensor", of(lambda m, x: x.as_subclass(Labelled) @ m.w, w=Y), X, macs=PRODUCT),
    Case("own-tensor-given", of(lambda m, x: x @ m.w, w=Y), X.as_subclass(Labelled), macs=PRODUCT, without=("meta",)),
    Case("buffer", of(lambda m, x: F.linear(x, m.l.weight.detach()), l=nn.Linear(i, o)), X, macs=PRODUCT),
    # A weight computed by another layer, one for each sample.
    Case(
        "dynamic-weights",
        of(lambda m, x: torch.bmm(m.l(x).view(b, o, i), x[..., None]), l=nn.Linear(i, o * i)),
        X,
        macs=b * i * (o * i) + b * o * i,
    ),
    Case(
        "dynamic-kernels",
        of(lambda m, x: F.conv1d(x.view(1, b * 2, t), m.w.view(b * r, 2, 3), groups=b), w=f(b, r, 2, 3)),
        f(b, 2, t),
        macs=b * r * (t - 2) * 2 * 3,
    ),
    Case(
        "chosen-head",
        of(lambda m, x, which: m.heads[which](x), heads=nn.ModuleList([nn.Linear(i, o), nn.Linear(i, t)])),
        (X, 1),
        macs=b * i * t,
    ),
    Case(
        "chosen-by-tensor",
        of(lambda m, x, which: m.heads[int(which)](x), heads=nn.ModuleList([nn.Linear(i, o), nn.Linear(i, t)])),
        (X, ints(1)),
        macs=b * i * t,
        without=("meta",),
    ),
    Case("returns-a-dict", of(lambda m, x: {"out": [m.l(x)], "none": None}, l=nn.Linear(i, o)), X, macs=PRODUCT),
]


@every_way(CASES)
def test_modules(case: Case, way: str) -> None:
    check(case, way)
