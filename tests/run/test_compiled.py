"""The compiled model's own run: its latency, its graph breaks at the author's lines, and no recompilation in the next call."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.run.compiled import OTHER_THREAD, _frames_of, first_runs
from fxflops.run.uncompiled import uncompiled

X = torch.randn(4, 8)
SLEEP = 0.02


@pytest.fixture(autouse=True)
def forgotten() -> None:
    torch._dynamo.reset()


def analyzed(model: Any, x: torch.Tensor = X, **settings: Any) -> fxflops.Report:
    return fxflops.analyze(model, x, **{"repeats": 3, "progress": False, **settings})


def compiled(model: nn.Module, backend: Any = "eager", **settings: Any) -> Any:
    return torch.compile(model.eval(), backend=backend, **settings)


def sleeps(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend whose compiled code takes at least SLEEP seconds."""

    def run(*args: Any) -> Any:
        time.sleep(SLEEP)
        return graph(*args)

    return run


def does_not_compile(model: Any, x: torch.Tensor = X) -> bool:
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        model(x)
    return True


def helped(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(end="")  # broken: helper
    return y.cos()


class Breaking(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        if self.way == "branch" and x.sum() > 1e9:  # broken: branch
            x = x + 1
        if self.way == "helper":
            x = helped(x)
        if self.way == "loop":
            for _ in range(2):
                print(end="")  # broken: loop
        if self.way == "last":
            print(end="")  # broken: last
            return x
        return self.b(x).relu()


class Outer(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = Breaking(way)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def line_of(way: str) -> str:
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    return f"{__file__}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# broken: {way}'))}"


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("way", ["branch", "helper", "loop", "last"])
def test_a_break_has_its_reason_and_its_line(way: str, outer: bool) -> None:
    model = compiled((Outer if outer else Breaking)(way))
    for _ in range(2):  # first compiled by the analysis, then compiled already
        view = analyzed(model).compiled
        assert view is not None
        assert [each.where for each in view.breaks] == [line_of(way)]
        assert view.breaks[0].reason
        assert does_not_compile(model)


def test_the_breaks_of_another_model_of_this_class_are_not_its_own() -> None:
    analyzed(compiled(Breaking("branch")))
    view = analyzed(compiled(Breaking("no"))).compiled
    assert view is not None
    assert (view.breaks, view.graphs) == ((), 1)


def test_a_break_of_which_torch_has_no_record_has_its_line() -> None:
    model = compiled(Breaking("branch"))
    analyzed(model)
    torch._dynamo.utils.graph_break_reasons.clear()
    view = analyzed(model).compiled
    assert view is not None
    assert view.breaks == (("", line_of("branch")),)


def test_the_latency_is_the_compiled_models_and_the_other_the_eager_ones() -> None:
    report = analyzed(compiled(nn.Linear(8, 8), sleeps))
    view = report.compiled
    assert view is not None
    assert view.latency is not None
    assert report.latency is not None
    assert report.latency < SLEEP <= view.latency
    assert view.timing is not None
    assert view.timing.repeats == 3
    assert view.speedup == report.latency / view.latency
    assert report.total_flops == fxflops.count(nn.Linear(8, 8), X).total_flops
    assert report.environment.compiled


def in_place(model: nn.Module) -> nn.Module:
    model.eval().compile(backend=sleeps)
    return model


def its_forward(model: nn.Module) -> nn.Module:
    model.forward = torch.compile(model.forward, backend=sleeps)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("make", [in_place, its_forward])
def test_a_model_that_is_compiled_otherwise(make: Callable[[nn.Module], nn.Module]) -> None:
    model = make(nn.Linear(8, 8).eval())
    view = analyzed(model).compiled
    assert view is not None
    assert view.latency is not None
    assert view.latency >= SLEEP
    assert does_not_compile(model)


def test_no_compiled_run() -> None:
    part = nn.Sequential(compiled(nn.Linear(8, 8)), nn.ReLU())
    assert analyzed(nn.Linear(8, 8)).compiled is None
    assert analyzed(part).compiled is None
    assert "counted and timed eagerly, not compiled" in str(analyzed(part))
    whole = compiled(nn.Linear(8, 8), backend=lambda graph, inputs: pytest.fail("it is compiled"))
    assert fxflops.count(whole, X).compiled is None
    assert analyzed(whole, repeats=0).compiled is None


def test_it_is_compiled_once() -> None:
    made = list[bool]()

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(True)
        return graph

    model = compiled(nn.Linear(8, 8), backend)
    first, again = analyzed(model).compiled, analyzed(model).compiled
    assert first is not None
    assert first.run.compiling is not None
    assert again is not None
    assert again.run.compiling is None
    assert made == [True]


def test_recompilations_are_told_with_the_guard_and_a_line() -> None:
    model = compiled(Breaking("no"))
    with torch.no_grad():
        model(X)
        model(torch.randn(5, 8))
        model._orig_mod.way = "branch"
        model(X)
    view = analyzed(model).compiled
    assert view is not None
    sizes, way = view.recompilations[-2:]
    first_line = Breaking.forward.__code__.co_firstlineno
    assert "size mismatch" in sizes.reason
    assert sizes.where == f"{__file__}:{first_line}"
    assert "way ==" in way.reason
    assert way.where == line_of("branch")


def test_the_backward_pass_is_compiled_too() -> None:
    model = compiled(nn.Linear(8, 8), "aot_eager")
    report = analyzed(model, backward=True)
    assert report.compiled is not None
    assert report.compiled.latency is not None
    assert report.compiled.backward_latency is not None
    assert all(p.grad is None for p in model.parameters())
    with torch.compiler.set_stance("fail_on_recompile"):
        model(X).sum().backward()


def test_the_state_is_as_it_was() -> None:
    model = compiled(nn.Sequential(nn.BatchNorm1d(8), nn.Dropout()))
    model.train()
    before, random = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    analyzed(model, mode="train")
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


def test_what_the_compiler_raises_is_told() -> None:
    report = analyzed(compiled(Breaking("branch"), fullgraph=True))
    assert report.compiled is not None
    assert report.compiled.latency is None
    assert report.compiled.speedup is None
    assert report.compiled.missing.startswith("the compiled model raised Unsupported")
    assert "not timed: the compiled model raised Unsupported" in str(report)
    assert report.latency is not None


def test_a_run_in_another_thread_makes_compiled_code_run_eagerly() -> None:
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        with uncompiled():
            begun.set()
            ended.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(10)
    try:
        assert first_runs(lambda: lambda: None).missing == OTHER_THREAD
    finally:
        ended.set()
        thread.join()
    assert not first_runs(lambda: lambda: None).missing


def test_the_watch_is_not_compiled_itself() -> None:
    model = compiled(Breaking("no"))
    with torch.no_grad():
        model(X)
        begun = torch._dynamo.utils.counters["frames"]["total"]
        ran = _frames_of(lambda: model(X))
    assert "forward" in [code.co_name for code in ran]
    assert torch._dynamo.utils.counters["frames"]["total"] == begun
