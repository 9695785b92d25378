"""When fvcore calls handles and with what, compared with the adapter: autograd.Functions, torchvision's operators."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import fxflops
from fxflops.adapters import fvcore as ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fvcore scripts a function when it is imported
    import fvcore.nn as original


def passed_on(function: Any) -> Any:
    """A decorator like torch.amp.custom_fwd: all functions that it wraps share one code object."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args)

    return wrapped


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, scale: float) -> Any:
        return (x @ w) * scale, x + 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


class Inherits(Scaled):
    """The same forward under another class name."""


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Wrapped(torch.autograd.Function):
    @staticmethod
    @passed_on
    def forward(ctx: Any, n: int, x: torch.Tensor, none: None, *rest: Any) -> torch.Tensor:
        return x.clone()

    @staticmethod
    @passed_on
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient, None, None, None


class WrappedToo(torch.autograd.Function):
    @staticmethod
    @passed_on
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ x

    @staticmethod
    @passed_on
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient


NAMES = "Scaled", "Inherits", "WithSetup", "Wrapped", "WrappedToo"


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = Scaled.apply(self.fc(x), self.fc.weight, 3)
        c = WithSetup.apply(b) + Inherits.apply(x, x[:4].t() @ x[:4], 2.5)[0]
        return a.sum() + c.sum() + Wrapped.apply(7, WrappedToo.apply(x), None, x, "word").sum()


class Heads(nn.Module):
    def forward(self, x: torch.Tensor, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rois = torch.cat([torch.zeros(len(boxes), 1), boxes], 1)
        pooled = torchvision.ops.roi_align(x, rois, (2, 2), 1.0, -1)
        bent = torchvision.ops.deform_conv2d(x, torch.zeros(1, 18, 6, 6), torch.ones(4, 4, 3, 3))
        parts = torchvision.ops.ps_roi_align(x, rois, 2)
        kept = torchvision.ops.nms(boxes, scores, 0.5)
        return pooled.sum() + bent.sum() + parts.sum() + torchvision.ops.roi_pool(x, rois, 2).sum() + scores[kept].sum()


MODELS: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], list[str]]] = {
    "functions": (Functions(), (torch.ones(4, 4),), [f"prim::PythonOp.{name}" for name in NAMES]),
    "torchvision": (
        Heads(),
        (torch.ones(1, 4, 8, 8), torch.tensor([[0.0, 0, 4, 4], [1, 1, 5, 6]]), torch.ones(2)),
        [f"torchvision::{name}" for name in ("roi_align", "deform_conv2d", "ps_roi_align", "nms", "roi_pool")],
    ),
}


def described(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        kind = value.type().kind()
        if value.isCompleteTensor():
            found.append(
                (kind, value.type().sizes(), value.type().dim(), value.type().dtype(), value.type().scalarType())
            )
        else:
            found.append((kind, value.node().kind(), value.toIValue()))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["owner", "caller"])
@pytest.mark.parametrize("name", MODELS)
def test_handles_of_operators_that_are_not_aten(name: str, mode: str) -> None:
    model, inputs, kinds = MODELS[name]
    found = []
    for module in (original, ours):
        given: dict[str, Any] = {}

        def handle(kind: str, given: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> int:
            outs = [] if kind in ("prim::PythonOp.Scaled", "prim::PythonOp.Inherits") else described(outputs)
            given[kind] = described(inputs), outs, outputs[0].node().kind()
            return 5

        analysis = module.FlopCountAnalysis(model, inputs).ancestor_mode(mode)
        handles = {kind: functools.partial(handle, kind, given) for kind in kinds}
        analysis.set_op_handle(**handles).unsupported_ops_warnings(False)
        found.append((analysis.by_module_and_operator(), given))
        assert set(given) == set(kinds)
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore")
def test_without_a_handle_they_are_unsupported() -> None:
    model, inputs, kinds = MODELS["functions"]
    found = []
    for module in (original, ours):
        analysis = module.FlopCountAnalysis(model, inputs).unsupported_ops_warnings(False)
        found.append((analysis.total(), analysis.unsupported_ops()))
    assert found[0] == found[1]
    assert found[1][1] == Counter({**dict.fromkeys(kinds, 1), "aten::sum": 3, "aten::add": 3})
    report = fxflops.count(model, inputs)  # which counts what the functions do inside
    assert report.total_macs == 6 * 4 * 4 * 4
    assert report.complete


def test_values() -> None:
    """Unique names, and kinds of types and nodes. What a run cannot know is None; asking a non-tensor for sizes is an error."""
    seen: dict[str, Any] = {}

    def handle(inputs: list[Any], outputs: list[Any]) -> int:
        seen["names"] = [value.debugName() for value in (*inputs, *outputs)]
        seen["strides"] = outputs[0].type().strides(), outputs[0].type().device()
        seen["list"] = [(item.toIValue(), item.type().kind(), item.node().kind()) for item in inputs[3].node().inputs()]
        seen["made by"] = outputs[0].node().kind()
        with pytest.raises(RuntimeError, match="IntType is not a tensor") as raised:
            inputs[8].type().sizes()
        assert isinstance(raised.value, fxflops.InputError)
        return 1

    analysis = ours.FlopCountAnalysis(nn.Conv2d(2, 3, 3), torch.ones(1, 2, 5, 5))
    assert analysis.set_op_handle("aten::_convolution", handle).total() == 1
    assert len(set(seen["names"])) == len(seen["names"]) == 14
    assert seen["strides"] == (None, None)
    assert seen["list"] == [(1, "IntType", "prim::Constant")] * 2
    assert seen["made by"] == "aten::_convolution"


class Spelled(nn.Module):
    """Calls operators by names that differ from those in a trace."""

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.linalg.matmul(x, torch.multiply(x, x)).subtract(x).divide(torch.true_divide(x, x))
        z = [
            torch.special.expit(y),
            torch.special.softmax(y, 1),
            torch.special.erf(y),
            torch.special.i1(y),
            y.absolute(),
        ]
        z += [
            torch.clip(y, 0),
            torch.ger(y[0], y[0]),
            torch.moveaxis(y, 0, 1),
            y.fix_().negative(),
            torch.arccos(y),
            y.arctan2(y),
        ]
        z += [
            torch.greater(y, 0),
            y.less(0),
            torch.not_equal(y, 0),
            torch.det(y),
            torch.inverse(x),
            torch.ops.aten.multiply(y, y),
        ]
        pooled = F.adaptive_max_pool1d(y[None], 2, return_indices=True)
        return torch.concat([*z[:3], torch.linalg.matrix_power(y, 2), torch.row_stack([y, y])]), z, pooled


@pytest.mark.filterwarnings("ignore")
def test_operators_have_the_names_that_a_trace_gives_them() -> None:
    counts = []
    for tool in (original, ours):
        flops = tool.FlopCountAnalysis(Spelled(), torch.eye(3) + torch.rand(3, 3))
        flops = flops.set_op_handle("aten::mul", handle("mul")).set_op_handle(
            "aten::adaptive_max_pool1d", handle("pool")
        )
        counts.append((flops.by_operator(), flops.unsupported_ops(), flops.total()))
    assert counts[0] == counts[1]


def handle(name: str) -> Any:
    return lambda inputs, outputs: Counter({name: 7})
