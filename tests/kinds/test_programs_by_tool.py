"""Under a tool's convention, a program must count as the tool itself counts it. Operators that the tool does not see must be listed
as missing, not counted as 0.

The oracle is the tool, run on the same kind of program in a separate process, because some tools leave hooks and patched torch
functions behind when they raise.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import multiprocessing
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fxflops
from fxflops.adapters import flops_profiler, fvcore, ptflops, thop, torchinfo

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's warnings about TorchScript, and the adapters' own
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool = nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        self.block = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(self.pool(self.relu(self.bn(self.conv(x)))).flatten(1))
        y = self.norm(y + F.relu(y))
        return self.head(torch.matmul(y, y.t()) @ y) * 2.0


class WithPart(nn.Module):
    """A model with a part of another kind."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.conv, self.pool, self.part, self.head = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.AdaptiveAvgPool2d(2),
            part,
            nn.Linear(16, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.part(self.pool(F.relu(self.conv(x))).flatten(1)))


class ByOperators(nn.Module):
    """A model that calls operators directly: packets, overloads, and a product that torch.jit calls by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(8, 8), nn.Parameter(torch.ones(4, 3, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.aten
        y = ops.conv2d(x, self.weight, padding=[1, 1])
        z = ops.upsample_nearest2d.vec(self.first(y), None, [2.0, 2.0])
        z = ops.layer_norm.default(z, [16]) + ops.sigmoid(z)
        return ops.linalg_matmul(z, ops.einsum("bchw->bcwh", [z]))


def part() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.LayerNorm(16))


def without_gradients(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.no_grad():
        return make()


PART = torch.zeros(2, 32)
PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    "eager": lambda: Net().eval(),
    "symbolic": lambda: torch.fx.symbolic_trace(Net().eval()),
    "make_fx": lambda: without_gradients(lambda: make_fx(Net().eval())(X)),
    "make_fx with gradients": lambda: make_fx(Net().eval())(X),
    "functionalized": lambda: without_gradients(lambda: make_fx(torch.func.functionalize(Net().eval()))(X)),
    "operators": lambda: ByOperators().eval(),
    "make_fx part": lambda: WithPart(make_fx(part())(PART)).eval(),
    "exported": lambda: torch.export.export(Net().eval(), (X,)).module(),
    "exported, decomposed": lambda: torch.export.export(Net().eval(), (X,)).run_decompositions().module(),
    "exported part": lambda: WithPart(torch.export.export(part(), (PART,)).module()),
    "scripted part": lambda: WithPart(torch.jit.script(part())).eval(),
    "frozen part": lambda: WithPart(torch.jit.freeze(torch.jit.script(part().eval()))).eval(),
    "traced part": lambda: WithPart(torch.jit.trace(part(), PART)).eval(),
    "scripted": lambda: torch.jit.script(Net().eval()),
    "traced": lambda: torch.jit.trace(Net().eval(), X),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Net().eval())),
}

MODULES = {"fvcore": "fvcore.nn", "flops_profiler": "flops_profiler.profiler"}
SCRIPTED = [kind for kind in PROGRAMS if kind.startswith(("scripted", "traced", "frozen"))]


def of_fvcore(model: nn.Module) -> Any:
    from fvcore.nn import FlopCountAnalysis

    counter = FlopCountAnalysis(model, X)
    return counter.total(), dict(counter.unsupported_ops())


def of_thop(model: nn.Module) -> Any:
    import thop

    return thop.profile(model, (X,), verbose=False)


def of_ptflops(model: nn.Module) -> Any:
    import ptflops

    return ptflops.get_model_complexity_info(model, (3, 8, 8), as_strings=False, input_constructor=lambda _: X)


def of_torchinfo(model: nn.Module) -> Any:
    import torchinfo

    found = torchinfo.summary(model, input_data=X, verbose=0)
    return found.total_mult_adds, found.total_params


def of_flops_profiler(model: nn.Module) -> Any:
    from flops_profiler.profiler import get_model_profile

    return get_model_profile(model, args=[X], print_profile=False, warm_up=0)


def by_fvcore(model: nn.Module) -> Any:
    counter = fvcore.FlopCountAnalysis(model, X)
    return counter.total(), dict(counter.unsupported_ops())


def by_torchinfo(model: nn.Module) -> Any:
    found = torchinfo.summary(model, input_data=X, verbose=0)
    return found.total_mult_adds, found.total_params


TOOLS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Any]]] = {
    "fvcore": (of_fvcore, by_fvcore),
    "thop": (of_thop, lambda model: thop.profile(model, (X,), verbose=False)),
    "ptflops": (
        of_ptflops,
        lambda model: ptflops.get_model_complexity_info(
            model, (3, 8, 8), as_strings=False, input_constructor=lambda _: X
        ),
    ),
    "torchinfo": (of_torchinfo, by_torchinfo),
    "flops_profiler": (
        of_flops_profiler,
        lambda model: flops_profiler.get_model_profile(model, args=[X], print_profile=False, warm_up=0),
    ),
}
"""By convention: the tool's own call, and our adapter's call."""


@cache  # nothing here changes a program; the tools run in another process
def program(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return PROGRAMS[kind]()


def answer(run: Callable[[nn.Module], Any], kind: str) -> Any:
    """Return a tool's result for a program, or the class of the error that it raises."""
    model = program(kind)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return run(model)
        except Exception as error:
            return type(error)


@cache
def answers(tool: str) -> dict[str, Any]:
    """Return the tool's own answers for all programs, computed in another process."""
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    importlib.import_module(MODULES.get(tool, tool))
    for kind in PROGRAMS:
        program(kind)  # before the processes start, so that they inherit it
    found = elsewhere(TOOLS[tool][0], [kind for kind in PROGRAMS if kind not in SCRIPTED])
    for kind in SCRIPTED:
        found |= elsewhere(TOOLS[tool][0], [kind])
    return found


def elsewhere(run: Callable[[nn.Module], Any], kinds: list[str]) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        torch.set_num_threads(1)
        theirs.send({kind: answer(run, kind) for kind in kinds})

    child = context.Process(target=work)
    child.start()
    found: dict[str, Any] = ours.recv()
    child.join()
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_an_adapter_answers_as_the_tool(tool: str) -> None:
    apart = {}
    for kind, theirs in answers(tool).items():
        ours = answer(TOOLS[tool][1], kind)
        if isinstance(theirs, type):
            # If the tool raises, our adapter raises too for TorchScript. Otherwise it gives a number with a warning, or the count
            # of the whole model.
            raised = fxflops.FxflopsError if theirs is StopIteration else theirs
            agrees = issubclass(ours, raised) if kind in SCRIPTED else not isinstance(ours, type)
        else:
            agrees = theirs == (None, None) or ours == theirs  # the first value of ptflops is None, because it gave up
        if not agrees:
            apart[kind] = ours, theirs
    assert not apart
    assert answers(tool).keys() == PROGRAMS.keys()


@pytest.mark.parametrize("tool", ["fvcore", "thop", "torchinfo"])
def test_a_convention_counts_as_the_tool(tool: str) -> None:
    counted = {kind: fxflops.count(program(kind), X, convention=tool).total_flops for kind in PROGRAMS}
    theirs = {kind: found[0] for kind, found in answers(tool).items() if not isinstance(found, type)}
    assert {kind: counted[kind] for kind in theirs} == theirs
    assert theirs


@pytest.mark.parametrize("kind", PROGRAMS)
def test_no_program_is_0_and_complete(kind: str) -> None:
    base = fxflops.count(program(kind), X)
    assert base.complete
    for convention in fxflops.list_conventions():
        report = base.recount(convention)
        assert report.total_flops or not report.complete, convention
        assert report.total_macs == base.total_macs, convention  # MACs do not depend on the convention


@pytest.mark.parametrize("kind", ["exported", "make_fx part", "scripted part", "operators"])
def test_all_ways_of_counting_see_the_same(kind: str, tmp_path: Path) -> None:
    model = program(kind)
    for tool in TOOLS:
        counted = fxflops.count(model, X, convention=tool)
        wanted = counted.total_flops, [(each.op, each.calls) for each in counted.missing]
        with torch.no_grad(), fxflops.profile(model) as profiled:
            model(X)
        analyzed = fxflops.analyze(model, X, convention=tool)
        analyzed.save(tmp_path / "report.json")
        for report in (profiled.report.recount(tool), analyzed, fxflops.Report.load(tmp_path / "report.json")):
            assert (report.total_flops, [(each.op, each.calls) for each in report.missing]) == wanted
        assert fxflops.Report.load(tmp_path / "report.json").recount("fxflops").complete


def test_an_exported_resnet_by_fvcore() -> None:
    from torchvision.models import resnet18

    x = torch.zeros(1, 3, 64, 64)
    exported = torch.export.export(resnet18().eval(), (x,)).module()
    report = fxflops.count(exported, x, convention="fvcore")
    assert (report.total_flops, report.complete) == (148_965_376, True)  # fvcore 0.1.5's number for this program
    assert fvcore.FlopCountAnalysis(exported, x).total() == 148_965_376


@pytest.mark.parametrize("tool", ["thop", "ptflops", "torchinfo", "flops_profiler"])
@pytest.mark.parametrize("kind", ["exported", "make_fx"])
def test_a_tool_that_sees_no_operators_says_so(tool: str, kind: str) -> None:
    model = program(kind)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="a lower bound"):
            TOOLS[tool][1](model)


def test_a_missing_operator_is_named_with_the_reason() -> None:
    report = fxflops.count(program("exported"), X, convention="thop")
    conv = next(each for each in report.missing if each.op == "conv")
    assert "thop does not see operators that the model's code calls directly" in conv.reason
    assert not report.recipe()  # a user's formula would not help
    with pytest.raises(fxflops.FxflopsError, match="thop does not see"):
        fxflops.count(program("exported"), X, convention="thop", strict=True)
