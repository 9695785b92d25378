"""Miscounts that users of FLOP counters reported, reduced to minimal cases: inputs, shared modules, parameters, control flow.

Each case names a report (``repository#number``) and states the multiply-accumulates by hand, as factors of named sizes.
Every case is counted in every possible way, and the number must always be the same. The other files named ``test_reports_*``
have the cases of one subject each.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import fxflops


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and its expected counts; ``without`` lists the ways in which it cannot be run."""

    id: str
    model: nn.Module
    args: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    macs: int = 0
    flops: int | None = None
    params: int | None = None
    without: tuple[str, ...] = ()


def of(function: Callable[..., Any], /, **held: Any) -> nn.Module:
    """A model with ``function`` as its forward. Keyword tensors become parameters, modules become submodules."""
    module: nn.Module = type("Model", (nn.Module,), {"forward": function})()
    for name, value in held.items():
        trainable = isinstance(value, torch.Tensor) and value.is_floating_point()
        setattr(module, name, nn.Parameter(value) if trainable else value)
    return module


def f(*shape: int) -> torch.Tensor:
    """Random floats of this shape."""
    return torch.randn(*shape)


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values)


def quietly(make: Callable[..., Any], *given: Any) -> Any:
    """Call ``make`` while ignoring torch's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*given)


def analyze(case: Case) -> fxflops.Report:
    return fxflops.analyze(case.model, case.args, case.kwargs, repeats=1)


def record(case: Case) -> fxflops.Report:
    return fxflops.analyze(case.model, case.args, case.kwargs, repeats=0, trace="record")


def count(case: Case) -> fxflops.Report:
    return fxflops.count(case.model, case.args, case.kwargs)


def grad(case: Case) -> fxflops.Report:
    with torch.enable_grad():
        return fxflops.analyze(case.model, case.args, case.kwargs, repeats=0)


def inference(case: Case) -> fxflops.Report:
    with torch.inference_mode():
        return fxflops.analyze(case.model, case.args, case.kwargs, repeats=0)


def compiled(case: Case) -> fxflops.Report:
    return fxflops.count(torch.compile(case.model), case.args, case.kwargs)


def meta(case: Case) -> fxflops.Report:
    inputs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (case.args, dict(case.kwargs)))
    # Tied parameters stay tied.
    twins = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in case.model.parameters()}
    return fxflops.count(copy.deepcopy(case.model, twins).to("meta"), *inputs)


def train(case: Case) -> fxflops.Report:
    return fxflops.count(case.model, case.args, case.kwargs, mode="train")


WAYS = {way.__name__: way for way in (analyze, record, count, grad, inference, compiled, meta, train)}


def every_way(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Parametrize a test with every case in every way that the case can be run."""
    assert len({case.id for case in cases}) == len(cases)
    pairs = [(case, way) for case in cases for way in WAYS if way not in case.without]
    return pytest.mark.parametrize(("case", "way"), pairs, ids=[f"{case.id}-{way}" for case, way in pairs])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Use one thread, which is faster for tiny tensors, and check that the process's switches are unchanged afterwards."""
    threads = torch.get_num_threads()
    before = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
    assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))


def check(case: Case, way: str) -> None:
    """Check the case's counts, and that nothing is missing."""
    with undisturbed():
        report = WAYS[way](case)
    assert report.total_macs == case.macs
    assert report.complete, [(missing.op, missing.shapes) for missing in report.missing]
    assert case.flops in (None, report.total_flops)
    assert case.params in (None, report.total_params)
    rows = report.by_module()
    assert rows[""].total.macs == sum(row.own.macs for row in rows.values()) == case.macs


class Twice(nn.Module):
    """One module under two names, both called."""

    def __init__(self, i: int) -> None:
        super().__init__()
        self.a = nn.Linear(i, i)
        self.b = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class TiedHead(nn.Module):
    """A language model whose head shares its weight with the embedding."""

    def __init__(self, vocabulary: int, d: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.head = nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


class ParametersOnly(nn.Module):
    """No submodules: all the work is in operators."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(f(i, o))
        self.layers = nn.ParameterList([f(o, o) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.weight
        for weight in self.layers:
            x = x @ weight
        return x


b, i, o, t, vocabulary = 3, 5, 7, 11, 13
block = nn.Linear(i, i)
BAG = ints(1, 2, 3, 4, 5, 6), ints(0, 2)

CASES = [
    # thop#98, ptflops#106: a module called twice does its work twice, under one name or two; its parameters count once.
    Case("aliased", Twice(i), f(b, i), macs=2 * b * i * i, params=i * i + i),
    Case("called-in-a-loop", nn.Sequential(*[block] * 9), f(b, i), macs=9 * b * i * i, params=i * i + i),
    Case(
        "shared-by-two-parents",
        nn.Sequential(nn.Sequential(block, nn.ReLU()), nn.Sequential(block, nn.Linear(i, o))),
        f(b, i),
        macs=b * (2 * i * i + i * o),
        params=i * i + i + i * o + o,
    ),
    # DeepSpeed#7256: one module on inputs of different sizes.
    Case(
        "shared-at-two-sizes",
        of(lambda m, x: m.block(x).sum() + m.block(x[1:]).sum(), block=block),
        f(b, i),
        macs=b * i * i + (b - 1) * i * i,
    ),
    Case(
        "never-called", of(lambda m, x: m.used(x), used=nn.Linear(i, o), spare=nn.Linear(i, o)), f(b, i), macs=b * i * o
    ),
    # trl#6708: a lookup is not a product. The head that shares its weight is a product, and the weight counts once.
    Case("embedding", nn.Embedding(vocabulary, i), ints([1, 2, 3], [4, 5, 6]), macs=0, flops=0, params=vocabulary * i),
    Case(
        "tied-head",
        TiedHead(vocabulary, i),
        ints([1, 2, 3], [4, 5, 6]),
        macs=(2 * 3) * i * vocabulary,
        params=vocabulary * i,
    ),
    # A bag of 2 rows and one of 4, i wide: (2 - 1) + (4 - 1) adds per column, no products.
    Case("bag", nn.EmbeddingBag(vocabulary, i, mode="sum"), BAG, macs=0, flops=4 * i),
    Case(
        "bag-function",
        of(lambda m, x, at: F.embedding_bag(x, m.w, at, mode="sum"), w=f(vocabulary, i)),
        BAG,
        macs=0,
        flops=4 * i,
    ),
    Case("bag-mean", nn.EmbeddingBag(vocabulary, i), BAG, macs=0, flops=4 * i + 2 * i),
    Case(
        "one-hot-matmul",
        of(lambda m, x: F.one_hot(x, vocabulary).float() @ m.w, w=f(vocabulary, i)),
        ints(1, 4),
        macs=2 * vocabulary * i,
        without=("meta",),
    ),
    # thop#197, ptflops#77: no submodules, only nn.Parameter and operators.
    Case("parameters-only", ParametersOnly(i, o), f(b, i), macs=b * (i * o + 2 * o * o), params=i * o + 2 * o * o),
    Case("module-root-is-a-leaf", nn.Linear(i, o), f(b, t, i), macs=b * t * i * o, flops=b * t * o * (2 * i)),
    Case("no-batch-dim", nn.Linear(i, o), f(i), macs=i * o, flops=o * 2 * i),
    Case("empty-batch", nn.Linear(i, o), f(0, i), macs=0, flops=0),
]


@every_way(CASES)
def test_reports(case: Case, way: str) -> None:
    check(case, way)
