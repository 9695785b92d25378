"""Functions of other libraries are replaced during a run, however they were imported, and restored afterwards.

The oracle is the library itself: without a formula for its function, its operators are counted.
"""

from __future__ import annotations

import functools
import inspect
import queue
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.ops._libraries import KERNELS, LibraryFunction, library
from fxflops.ops._registry import BASE
from fxflops.records import Cost, Spec

NAME = "some_library.kernels:scan"
SOURCE = """
import torch

class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        if type(x.shape) is tuple or x.device.type == "meta":
            raise RuntimeError("no kernel for meta")
        ctx.save_for_backward(x, w)
        return x.cumsum(-1) * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return (grad * w).flip(-1).cumsum(-1).flip(-1), (grad * x.cumsum(-1)).sum(0)

def scan(x, w, *, times=1, **others):
    return Scan.apply(x, w)

def outer(x, w):
    return scan(x, w) + 1
"""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library with a kernel that is known by name: 3 FLOPs per element forward, 5 backward."""
    module = types.ModuleType("some_library.kernels")
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, "some_library", types.ModuleType("some_library"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries, functions = dict(BASE.entries), dict(BASE.library_functions)

    @library(NAME, op="scan", result=lambda x: Spec(x, x.dtype))
    def scan(*, x: Spec, times: int, out: Spec) -> Cost:
        return Cost(adds=3 * times * x.numel())

    @scan.backward(f"{NAME}.backward", op="scan_backward")
    def scan_backward(*, x: Spec, needs: Any, out: Any) -> Cost:
        return Cost(adds=5 * len(needs) * x.numel())

    yield module
    BASE.entries.clear()
    BASE.entries.update(entries)
    BASE.library_functions.clear()
    BASE.library_functions.update(functions)
    del KERNELS[NAME]


class Model(nn.Module):
    def __init__(self, scan: Any, **options: Any) -> None:
        super().__init__()
        self.first, self.weight, self.scan, self.options = nn.Linear(4, 6), nn.Parameter(torch.randn(6)), scan, options

    def forward(self, x: torch.Tensor) -> Any:
        return self.scan(self.first(x), self.weight, **self.options)


X = torch.randn(5, 4)
LINEAR = 5 * 6 * 8
BACKWARD = 5 * 2 * 30


def backward_of(report: Any) -> list[tuple[str, int]]:
    return [
        (each.call.op, each.flops)
        for each in report.counted
        if each.call.phase == "backward" and each.call.op == "scan_backward"
    ]


def test_it_counts_on_meta_without_its_kernel_and_with_its_gradient(kernels: Any) -> None:
    report = fxflops.count(Model(kernels.scan), X, backward=True)
    assert "meta" in str(report)
    assert (report.complete, report.total_flops) == (True, LINEAR + 3 * 30)
    assert backward_of(report) == [("scan_backward", BACKWARD)]
    assert fxflops.count(Model(kernels.scan, times=2, more="options"), X).total_flops == LINEAR + 2 * 3 * 30


def test_it_counts_the_same_where_it_runs(kernels: Any) -> None:
    model = Model(kernels.scan)
    report = fxflops.analyze(model, X, backward=True, repeats=1)
    assert (report.complete, report.total_flops) == (True, LINEAR + 3 * 30)
    assert backward_of(report) == [("scan_backward", BACKWARD)]
    with fxflops.profile(model) as p:
        out = model(X)
        out.sum().backward()
    assert [op for op, _ in backward_of(p.report)] == ["scan_backward"]
    assert p.report.complete
    wanted, weight = model.first(X).cumsum(-1), model.weight.grad
    assert torch.equal(out, wanted * model.weight)
    assert weight is not None
    torch.testing.assert_close(weight, wanted.sum(0))
    ops = {each.call.op for each in p.report.counted}
    assert not {"cumsum", "flip"} & ops  # its own operators are part of its single row


def test_the_function_is_what_it_was(kernels: Any) -> None:
    code, signature, apply = kernels.scan.__code__, inspect.signature(kernels.scan), kernels.Scan.apply
    seen = []

    def watched(x: Any, w: Any) -> Any:
        seen.append((inspect.signature(kernels.scan), kernels.scan.__name__, kernels.scan.__kwdefaults__))
        return kernels.scan(x, w)

    fxflops.count(Model(watched), X)
    assert seen[0] == (signature, "scan", {"times": 1})
    assert kernels.scan.__code__ is code
    assert kernels.Scan.apply == apply

    def raises(x: Any, w: Any) -> Any:
        raise KeyError("the model's own")

    with pytest.raises(fxflops.FxflopsError):
        fxflops.count(Model(raises), X)
    assert kernels.scan.__code__ is code


def test_arguments_that_it_does_not_take_raise_its_own_error(kernels: Any) -> None:
    with pytest.raises(fxflops.FxflopsError, match="missing"):
        fxflops.count(Model(lambda x, w: kernels.scan(x)), X)


def test_however_it_was_imported(kernels: Any) -> None:
    """Bound before the run, in a closure, a partial, a wrapper with parameters of its own, or called by the library itself."""
    scan = kernels.scan

    @functools.wraps(scan)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return scan(*args, **kwargs)

    for call in (scan, functools.partial(scan), lambda x, w: scan(w=w, x=x), wrapped):
        assert fxflops.count(Model(call), X).total_flops == LINEAR + 3 * 30
    assert fxflops.count(Model(kernels.outer), X).total_flops == LINEAR + 3 * 30 + 30


def test_a_library_that_the_forward_imports(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "some_library.kernels")

    def late(x: Any, w: Any) -> Any:
        sys.modules["some_library.kernels"] = kernels
        x = x * 1
        return kernels.scan(x, w)

    report = fxflops.count(Model(late), X)
    assert (report.complete, report.total_flops) == (True, LINEAR + 3 * 30 + 30)


def test_other_threads_run_it_as_ever(kernels: Any) -> None:
    results = queue.SimpleQueue[Any]()  # not a list, because a count empties a list that the model fills

    def both(x: Any, w: Any) -> Any:
        thread = threading.Thread(target=lambda: results.put(kernels.scan(torch.ones(2, 3), torch.ones(3)).tolist()))
        thread.start()
        thread.join()
        return kernels.scan(x, w)

    report = fxflops.count(Model(both), X)
    assert report.complete
    assert results.get_nowait() == [[1, 2, 3], [1, 2, 3]]


def test_a_users_formula_comes_first_by_name_and_for_the_function(kernels: Any) -> None:
    for target in (NAME, kernels.scan):
        report = fxflops.count(Model(kernels.scan), X, formulas={target: lambda *, x, out: 7})
        assert (report.complete, report.total_flops) == (True, LINEAR + 7)


def test_a_users_formula_for_a_function_of_plain_python(kernels: Any) -> None:
    """No rule gives its result, so its own code runs, on meta too. That code is part of its single row."""
    module = types.ModuleType("some_library.plain")
    exec("def twice(x):\n    return x * 2 + x", vars(module))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        model = nn.Sequential(nn.Linear(4, 6))
        model.forward = lambda x: vars(module)["twice"](nn.Sequential.forward(model, x))
        plain = fxflops.count(model, X)
        assert plain.total_flops == LINEAR + 2 * 30
        report = fxflops.count(model, X, formulas={"some_library.plain:twice": lambda *, x, out: 11})
        assert (report.complete, report.total_flops) == (True, LINEAR + 11)


def test_saved_reports_are_counted_again_with_and_without_the_library(kernels: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    report = fxflops.count(Model(kernels.scan), X, backward=True)
    report.save(tmp_path / "report.json")
    there = fxflops.Report.load(tmp_path / "report.json")
    assert there.recount().total_flops == report.total_flops
    assert there.recount(formulas={NAME: lambda *, x, out: 1}).total_flops == LINEAR + 1
    monkeypatch.delitem(sys.modules, "some_library.kernels")
    without = fxflops.Report.load(tmp_path / "report.json")
    assert without.recount().total_flops == report.total_flops


def test_checkpointing_runs_it_again(kernels: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    call = lambda x, w: checkpoint(kernels.scan, x, w, use_reentrant=False)  # noqa: E731
    report = fxflops.count(Model(call), X, backward=True)
    assert report.complete
    assert backward_of(report) == [("scan_backward", BACKWARD)]
    again = [each for each in report.counted if each.call.op == "scan"]
    assert [each.call.phase for each in again] == ["forward", "recompute"]


def test_functions_by_name_are_equal() -> None:
    one, other = LibraryFunction(NAME), LibraryFunction(NAME, len)
    assert (one, hash(one)) == (other, hash(other))
    assert one.backward == LibraryFunction(f"{NAME}.backward")
    assert one != LibraryFunction("another:scan")
