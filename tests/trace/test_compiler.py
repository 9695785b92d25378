"""A forward that is the first to need torch's compiler. What the compiler's import computes is not part of the model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

import fxflops
from fxflops.torch_internals import DisableTorchFunction, is_torch_function_enabled, len_torch_function_stack
from fxflops.trace.compiler import run_operator
from tests.fresh import Fresh

FIRST = """
import sys
from typing import Any
import torch
import fxflops
from torch import nn
from torch.utils.checkpoint import checkpoint

scan = torch.library.custom_op("fxflops_tests::first", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
scan.register_fake(torch.empty_like)

class Scanning(nn.Module):
    def forward(self, x):
        return scan(x) + x

class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return checkpoint(self.linear, x, use_reentrant=False)

def profiled(model, x):
    with fxflops.profile(model) as p:
        model(x)
    return p.report

run = {"count": fxflops.count, "analyze": fxflops.analyze, "profile": profiled}[sys.argv[1]]
assert "torch._dynamo" not in sys.modules
finders = list(sys.meta_path)
report = run(globals()[sys.argv[2]](), torch.ones(2, 4))
assert sys.meta_path[:len(finders)] == finders and not any("fxflops" in repr(each) for each in sys.meta_path), sys.meta_path
import torch._dynamo
assert torch._dynamo.guards is sys.modules["torch._dynamo.guards"]
assert torch._dynamo.__spec__.submodule_search_locations
print(report.total_flops, [missing.op for missing in report.missing])
"""


@pytest.mark.parametrize(
    ("way", "model", "printed"),
    [
        ("count", "Checkpointed", "64 []\n"),
        ("profile", "Checkpointed", "64 []\n"),
        ("count", "Scanning", "8 ['fxflops_tests::first']\n"),
        ("analyze", "Scanning", "8 ['fxflops_tests::first']\n"),
        ("profile", "Scanning", "8 ['fxflops_tests::first']\n"),
    ],
)
def test_the_compilers_import_is_not_counted(way: str, model: str, printed: str, fresh: Fresh) -> None:
    ran = fresh.run("-c", FIRST, way, model)
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_what_another_thread_imports_takes_no_call_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo

    monkeypatch.setattr(torch._dynamo.__spec__, "_initializing", True, raising=False)
    assert fxflops.count(nn.Sequential(nn.Linear(4, 4), nn.Flatten()), torch.ones(2, 4)).total_flops == 64


def compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model.compile(backend="eager")
    return model


def compiled_forward() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    return model


COMPILED = {
    "model": lambda: torch.compile(nn.Linear(4, 4), backend="eager"),
    "part": lambda: nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager")),
    "in place": compiled_in_place,
    "forward": compiled_forward,
}


@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_what_is_compiled_is_said_to_run_eagerly(make: Any) -> None:
    model, x = make(), torch.ones(1, 4)
    with fxflops.profile(model) as p:
        model(x)
    for report in (fxflops.count(model, x), fxflops.analyze(model, x, repeats=0, progress=False), p.report):
        assert "counted and timed eagerly, not compiled" in str(report)
        assert fxflops.Report.from_dict(report.to_dict()).environment.compiled
    plain = fxflops.count(nn.Linear(4, 4), x)
    assert "compile" not in str(plain)


def test_a_part_that_is_compiled_is_timed_eagerly() -> None:
    ran = list[bool]()

    def backend(graph: Any, inputs: Any) -> Any:
        ran.append(True)
        return graph

    model = nn.Sequential(nn.Linear(4, 4))
    model[0].compile(backend=backend)
    fxflops.analyze(model, torch.ones(1, 4), repeats=1, progress=False)
    assert not ran


class Asks:
    """An operator that returns whether torch functions are enabled in it, and how many function modes are active."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self) -> tuple[bool, int]:
        return is_torch_function_enabled(), len_torch_function_stack()


@pytest.mark.parametrize(
    ("namespace", "disabled", "told"),
    [("aten", True, (False, 1)), ("mylib", True, (True, 0)), ("aten", False, (True, 1)), ("mylib", False, (True, 1))],
)
def test_an_operator_of_others_has_torchs_functions_unseen(
    namespace: str, disabled: bool, told: tuple[bool, int]
) -> None:
    with BaseTorchFunctionMode(), DisableTorchFunction() if disabled else nullcontext():
        assert run_operator(Asks(namespace), (), {}) == told
