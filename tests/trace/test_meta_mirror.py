"""Meta tensors that stand for real ones: when they lose their values, and how calls see them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.counting.counts import UNKNOWN_PATH

X = torch.ones(3, 4)


class Into(nn.Module):
    """Writes into a tensor that it made, and multiplies only if the values of that tensor say so."""

    def __init__(self, made: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        into = self.made()
        torch.add(x, 1, out=into)
        return into @ into.T if into.sum() > 0 else into


@pytest.mark.parametrize("run", [fxflops.count, partial(fxflops.analyze, repeats=0, progress=False)])
@pytest.mark.parametrize("made", [partial(torch.zeros, 3, 4), partial(torch.empty, 0)], ids=["of its size", "empty"])
def test_what_out_is_given_has_the_result(run: Callable[..., fxflops.Report], made: Callable[[], torch.Tensor]) -> None:
    report = run(Into(made), X)
    assert report.total_macs == 3 * 4 * 3
    assert report.by_operator()["add"].total.flops == 12


class Guarded(nn.Module):
    """Has a second path for the case that its call raises, which it does not on real tensors."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.call(x)
        except Exception:
            return x.exp()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x, x, out=torch.empty(0)),
        lambda x: torch.mul(x, float(x.sum().item())),
        lambda x: torch.mul(x, x[x > 0].shape[0]),
    ],
    ids=["empty out", "item", "mask"],
)
def test_a_model_that_catches_the_error_of_the_meta_device_is_counted_on_the_path_that_it_takes(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    report = fxflops.count(Guarded(call), torch.ones(2000, 1000))
    assert report.calls[-1].op in ("add", "mul")
    assert "exp" not in {each.op for each in report.calls}


def test_an_error_of_the_model_itself_needs_no_real_tensors() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, x, alpha="no metadata")  # type: ignore[arg-type]

    report = fxflops.count(Guarded(refuse), torch.ones(2, 3))
    assert (report.trace, report.calls[-1].op) == ("counted on the meta device", "exp")


def test_a_model_on_meta_that_catches_the_error_of_reading_a_value_is_not_complete() -> None:
    model, x = Guarded(lambda x: torch.mul(x, float(x.sum().item()))), torch.ones(2, 3)
    assert fxflops.count(model, x).complete
    report = fxflops.count(model, x.to("meta"))
    assert [missing.why for missing in report.missing] == [UNKNOWN_PATH]
    with pytest.raises(fxflops.MissingFormulaError, match="would take another path"):
        fxflops.count(model, x.to("meta"), strict=True)


def test_the_operand_of_a_call_with_out_keeps_its_values() -> None:
    class Kept(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = torch.arange(4.0)
            torch.mul(table, x, out=torch.zeros(3, 4))
            return x @ x.T if table.sum() > 0 else x

    report = fxflops.count(Kept(), X)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert report.total_macs == 3 * 4 * 3


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 2


class Filled(nn.Module):
    """Fills a tensor that it made, and passes it to a function whose inside autograd does not see."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.act, self.way = nn.Linear(4, 4), nn.Tanh(), way

    def forward(self, x: torch.Tensor) -> Any:
        filled = torch.empty_like(x)
        filled.copy_(self.layer(x))
        return Doubled.apply(filled) if self.way == "function" else checkpoint(self.act, filled, use_reentrant=True)


@pytest.mark.parametrize("run", [fxflops.count, partial(fxflops.analyze, repeats=0, progress=False)])
@pytest.mark.parametrize("way", ["function", "checkpoint"])
def test_what_was_written_to_learns_through_a_function(run: Callable[..., fxflops.Report], way: str) -> None:
    assert (
        run(Filled(way), X, backward=True).total_backward_macs == 3 * 4 * 4
    )  # of the weight: the input needs no gradient


class FilledInside(nn.Module):
    """Fills a tensor inside a function that autograd does not look into, and continues with it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(checkpoint(self.fill, x, use_reentrant=True))

    def fill(self, x: torch.Tensor) -> torch.Tensor:
        filled = torch.empty_like(x)
        filled.copy_(self.layer(x))
        return filled


def test_what_was_written_to_inside_a_function_learns_behind_it() -> None:
    report = fxflops.count(FilledInside(), X.clone().requires_grad_(), backward=True)
    assert report.total_backward_macs == 4 * 3 * 4 * 4  # of the weights and inputs of both layers
    assert report.total_recompute_flops > 0


class Turned(nn.Module):
    """Transposes its table in place between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.table
        self.table.t_()
        return y @ self.table


def test_a_table_that_is_turned_over_lies_otherwise_from_then_on() -> None:
    model = Turned()
    report = fxflops.count(model, X)
    assert report.trace == "counted on the meta device"
    assert [call.out for call in report.calls if call.op == "matmul"] == [(3, 6), (3, 4)]
    assert report.total_macs == 2 * 3 * 4 * 6
    assert model.table.shape == (4, 6)


class TwoOutputs(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * 2, x


def test_the_gradients_of_an_input_that_is_returned_are_added() -> None:
    report = fxflops.count(TwoOutputs(), X.clone().requires_grad_(), backward=True)
    assert report.total_backward_flops == X.numel() + X.numel()  # times 2, and the sum of both gradients


class Thawing(nn.Module):
    """A layer that is used twice. Its bias needs a gradient only from the second time on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fc.bias.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        self.fc.bias.requires_grad = True
        return self.fc(y)


def test_a_parameter_that_the_forward_thaws_has_a_gradient_from_then_on() -> None:
    model, x = Thawing(), torch.randn(3, 4)
    report = fxflops.count(model, x, backward=True)
    assert report.trace == "counted on the meta device"
    assert not model.fc.bias.requires_grad
    products = 3 * (3 * 4 * 4)  # both gradients of the weight, and the gradient of y
    assert report.total_backward_macs == products
    assert report.by_operator("backward")["sum"].total.flops == (3 - 1) * 4
    assert fxflops.analyze(model, x, backward=True, repeats=0).total_backward_flops == report.total_backward_flops
