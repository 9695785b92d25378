"""The compiled model's kernels, and the modules whose operations they compute."""

from __future__ import annotations

import shutil
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxflops
from fxflops.run import compiled_kernels as kernels
from fxflops.run.compiled_kernels import Emitted, called, compiled_kernels
from fxflops.run.outcome import CompiledKernel

X = torch.randn(4, 8)
compiles_in_copies = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a copy of a process that has used CUDA cannot use it, and so compiles nothing"
)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.norm(self.first(x)))
        print(end="")
        return self.last(x).softmax(-1)


@compiles_in_copies
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_kernels_have_the_modules_they_compute_and_the_cache_is_as_it_was() -> None:
    torch._dynamo.reset()
    model = torch.compile(Parts().eval())
    report = fxflops.analyze(model, X, repeats=2, kernels=True, progress=False)
    view = report.compiled
    assert view is not None
    assert view.run.kernels_missing == ""
    found = [(kernel.name.rpartition("::")[2].partition("cpp_fused")[0], {*kernel.paths}) for kernel in view.kernels]
    assert [paths for _, paths in found] == [{"first"}, {"norm", ""}, {"last"}, {""}]
    assert [name for name, _ in found if not name.startswith("graph_")] == ["addmm", "addmm"]
    assert all(kernel.seconds > 0 for kernel in view.kernels)
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        model(X)
    assert not torch._inductor.config.cpp.enable_kernel_profile
    rows = view.by_module()
    assert {*rows} == {"", "first", "norm", "last", "(no kernel)"}
    assert rows["first"].compiled_seconds == view.kernels[0].seconds


@compiles_in_copies
def test_a_backend_without_kernels() -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(8, 8).eval(), backend="eager")
    view = fxflops.analyze(model, X, repeats=2, kernels=True, progress=False).compiled
    assert view is not None
    assert view.run.kernels_missing == "the model's backend generates no inductor kernels"
    with pytest.raises(fxflops.FxflopsError, match="no inductor kernels"):
        view.by_module()


def raises() -> Any:
    raise ValueError("so it is\nin two lines")


def test_the_other_process_raises() -> None:
    torch._dynamo.reset()
    assert compiled_kernels(lambda: raises, {}) == ((), "compiling the model again raised ValueError: so it is")


def test_the_other_process_takes_too_long() -> None:
    found, why = compiled_kernels(lambda: threading.Event().wait, {}, limit=0.2)
    assert not found
    assert why.startswith("compiling the model again in a forked process took longer than")


def test_a_system_that_cannot_copy_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(kernels.os, "fork")
    assert compiled_kernels(lambda: raises, {}) == ((), "this system cannot fork a process")


def event(name: str, *children: Any) -> Any:
    return SimpleNamespace(name=name, cpu_children=children, cpu_time_total=len(name))


EMITTED = [
    Emitted(3, "extern_kernels.addmm", ("a",)),
    Emitted(3, "cpp_fused_relu_0", ("b", "")),
    Emitted(5, "torch.ops.mkldnn._linear_pointwise.default", ("c",)),
]


def test_calls_are_matched_in_the_order_in_which_they_were_written() -> None:
    relu = "graph_3_cpp_fused_relu_0"
    events = [
        event("## Call CompiledFxGraph x ##", event("Pregraph bytecode"), event("aten::addmm"), event(relu)),
        event("aten::add"),
        event("## Call CompiledFxGraph y ##", event("mkldnn::_linear_pointwise")),
    ]
    assert [*called(events, EMITTED)] == [
        CompiledKernel("aten::addmm", 11 / 1e6, ("a",)),
        CompiledKernel(relu, len(relu) / 1e6, ("b", "")),
        CompiledKernel("mkldnn::_linear_pointwise", 25 / 1e6, ("c",)),
    ]


def test_calls_that_do_not_match_are_not_guessed() -> None:
    with pytest.raises(LookupError, match="a run calls aten::mm, but inductor's code calls torch"):
        [*called([event("## Call CompiledFxGraph y ##", event("aten::mm"))], EMITTED)]
