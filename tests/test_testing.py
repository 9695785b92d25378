"""check_formula compares a formula with a reference in plain torch: agreement passes, a difference is shown with both numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import fxflops
from fxflops.ops import BASE
from fxflops.testing import check_formula

X = torch.ones(3, 8)


@pytest.fixture(autouse=True)
def _formulas_as_before() -> Iterator[None]:
    entries = dict(BASE.entries)
    yield
    BASE.entries.clear()
    BASE.entries.update(entries)


class Squared(torch.autograd.Function):
    """x * x by an operator that is opaque to torch."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.ops.checked.square(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor) -> torch.Tensor:
        return torch.ops.checked.square_backward(grads[0], *ctx.saved_tensors)  # type: ignore[attr-defined]


class Reference(Squared):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 2 * x * grads[0]


LIBRARY = torch.library.Library("checked", "FRAGMENT")
LIBRARY.define("square(Tensor x) -> Tensor")
LIBRARY.define("square_backward(Tensor grad, Tensor x) -> Tensor")
LIBRARY.define("project(Tensor x, Tensor w) -> Tensor")
LIBRARY.impl("square", lambda x: x * x, "CompositeExplicitAutograd")
LIBRARY.impl("square_backward", lambda grad, x: 2 * x * grad, "CompositeExplicitAutograd")
LIBRARY.impl("project", lambda x, w: x @ w.T, "CompositeExplicitAutograd")


def square(x: torch.Tensor) -> torch.Tensor:
    return Squared.apply(x)  # type: ignore[no-any-return]


def project(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.ops.checked.project(x, w)  # type: ignore[no-any-return]


def test_a_right_formula_passes() -> None:
    @fxflops.formula(torch.ops.checked.project)
    def of_project(x: fxflops.records.Spec, w: fxflops.records.Spec, *, out: fxflops.records.Spec) -> fxflops.Cost:
        k, n = w[-1], out.numel()
        return fxflops.Cost(macs=k * n, muls=k * n, adds=(k - 1) * n)

    check_formula(torch.ops.checked.project, torch.nn.functional.linear, (X, torch.ones(5, 8)))
    check_formula(nn.Linear(8, 4), lambda x: x @ torch.ones(8, 4) + 1, X)


def test_a_wrong_formula_is_named_with_both_numbers() -> None:
    @fxflops.formula(torch.ops.checked.project)
    def of_project(x: fxflops.records.Spec, w: fxflops.records.Spec, *, out: fxflops.records.Spec) -> int:
        return 2 * w[-1] * out.numel()

    with pytest.raises(
        AssertionError, match=r"(?s)formula of checked::project differs.*macs +0 +120\n.*flops +240 +225"
    ):
        check_formula(torch.ops.checked.project, torch.nn.functional.linear, (X, torch.ones(5, 8)))


def test_flops_may_differ_by_a_share() -> None:
    @fxflops.formula(torch.ops.checked.square)
    def of_square(x: fxflops.records.Spec, *, out: fxflops.records.Spec) -> int:
        return 25

    check_formula(torch.ops.checked.square, lambda x: x * x, X, rtol=0.05)
    with pytest.raises(AssertionError, match="differs from its reference"):
        check_formula(torch.ops.checked.square, lambda x: x * x, X, rtol=0.04)


def test_the_backward_pass_is_checked_too() -> None:
    @fxflops.formula(torch.ops.checked.square)
    def of_square(x: fxflops.records.Spec, *, out: fxflops.records.Spec) -> int:
        return out.numel()

    x = X.clone().requires_grad_()
    check_formula(square, lambda x: x * x, x)
    with pytest.raises(AssertionError, match="no formula counts checked::square_backward"):
        check_formula(square, lambda x: x * x, x, backward=True)

    @fxflops.formula(torch.ops.checked.square_backward)
    def of_derivative(grad: fxflops.records.Spec, *, out: fxflops.records.Spec) -> int:
        return 2 * out.numel()

    check_formula(square, Reference.apply, x, backward=True)
    # x * x has two gradients and adds them.
    with pytest.raises(AssertionError, match=r"(?s)backward +flops +48 +72"):
        check_formula(square, lambda x: x * x, x, backward=True)


def test_what_no_formula_counts_is_said() -> None:
    with pytest.raises(AssertionError, match=r"(?s)no formula counts checked::square, called by .*@fxflops.formula"):
        check_formula(torch.ops.checked.square, lambda x: x * x, X)
    with pytest.raises(
        AssertionError, match=r"no formula counts <lambda> as a whole; .* calls inside it are counted: mul, add"
    ):
        check_formula(lambda x: x * x + x, lambda x: x * x + x, X)
    with pytest.raises(fxflops.InputError, match="the reference has calls without a formula: checked::square"):
        check_formula(torch.relu, torch.ops.checked.square, X)


def test_results_must_match() -> None:
    @fxflops.formula(torch.ops.checked.square)
    def of_square(x: fxflops.records.Spec, *, out: fxflops.records.Spec) -> int:
        return out.numel()

    with pytest.raises(AssertionError, match=r"returns .*, but the reference returns .*"):
        check_formula(torch.ops.checked.square, lambda x: x[0] * x[0], X)
