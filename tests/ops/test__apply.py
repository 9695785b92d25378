"""Arguments as formulas receive them: under the op's own names, for overloads, methods and leaf modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.errors import FormulaError
from fxflops.ops import Formula, apply
from fxflops.ops._apply import names_of
from fxflops.records import Operation, Spec
from tests.oracle import cost_of

X, Y, W = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(5, 3)
IMAGE = torch.zeros(1, 2, 3, 3)


def test_an_overload_s_own_names() -> None:
    a, b, c = torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(3, 4)
    cost = cost_of(torch.ops.aten.addmm.default, self=a, mat1=b, mat2=c)
    assert (cost.macs, cost.adds) == (2 * 4 * 3, 2 * 4 * (2 + 1))


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "flops"),
    [
        # 2 x 2 outputs: 4 sums over 3, then one sum over 4, and a bias
        (nn.Bilinear(3, 4, 2), (X,), {"input2": Y}, 4 * (4 * (3 + 2) + 4 + 3 + 1)),
        (nn.Bilinear(3, 4, 2), (), {"input1": X, "input2": Y}, 4 * (4 * (3 + 2) + 4 + 3 + 1)),
        # 9 inputs of 2 channels meet 3 x 2 x 2 weights; 3 x 6 x 6 outputs, each with a bias
        (nn.ConvTranspose2d(2, 3, 2, stride=2), (IMAGE, (6, 6)), {}, 2 * 9 * 2 * 12 - 3 * 36 + 3 * 36),
    ],
)
def test_a_module_s_forward_given_more_than_its_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], flops: int
) -> None:
    assert cost_of(module, *args, **kwargs).flops == flops


@pytest.mark.parametrize("method", ["sum", "norm"])
def test_a_mapping_gives_a_method_itself_then_its_result(method: str) -> None:
    """``sum`` is written in C, ``norm`` in Python."""
    entry = Formula("own", lambda own, result, *args: 10 * own.numel() + result.numel(), style="mapping")
    ran = Operation("own", getattr(torch.Tensor, method), (Spec((2, 3)), 1), {}, Spec((2,)))
    assert apply(entry, ran).flops == 10 * 6 + 2


@pytest.mark.parametrize(
    ("style", "said"),
    [
        ("op", "with the op's own parameter names"),
        ("module", "with the module as the first argument"),
        ("mapping", "with the arguments that torch_flops passes"),
    ],
)
def test_an_error_says_how_the_formula_was_called(style: Any, said: str) -> None:
    def refuses(*args: Any, **kwargs: Any) -> int:
        raise ValueError("no")

    with pytest.raises(FormulaError, match=f"ValueError: no\nThe formula was called {said}; its signature is refuses"):
        apply(Formula("own", refuses, style=style), Operation("own", torch.exp, (Spec((2,)),), {}, Spec((2,))))


def function(input: Any, first: int, last: int) -> Any:
    return input


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (torch.ops.aten.addmm.default, (Spec((2,)), Spec((2, 3)), Spec((3, 2))), {"beta": 7}),
        ("aten::elu_backward", (Spec((2,)), 1.0, 1.0, 7), {}),
        (torch.ops.aten.elu_backward, (Spec((2,)), 1.0, 1.0, 7), {}),
        (torch.batch_norm, (Spec((2,)), None, None, None, None, True, 0.1, 7), {}),
        (torch.Tensor.addcmul, (Spec((2,)), Spec((2,)), Spec((2,))), {"value": 7}),
        (function, (Spec((2,)), 5, 7), {}),
        (function, (Spec((2,)), 5), {"last": 7}),
    ],
)
def test_a_keyword_only_parameter_is_found_wherever_the_op_has_it(target: Any, args: Any, kwargs: Any) -> None:
    def named(
        input: Spec, *, beta: int = 0, input_scale: int = 0, eps: int = 0, value: int = 0, last: int = 0, out: Any
    ) -> int:
        return beta + input_scale + eps + value + last

    assert apply(Formula("own", named), Operation("own", target, args, kwargs, Spec((2,)))).flops == 7


def test_the_names_of_what_nobody_knows_are_none() -> None:
    assert names_of("nowhere::to_be_found") == names_of(print) == ()


def test_a_module_s_setting_is_no_result() -> None:
    """``out`` is an attribute of the module here, and also the name of the formula's parameter for the result."""
    linear = nn.Linear(3, 4)
    linear.out = 5
    assert cost_of(linear, X).macs == 2 * 3 * 4


@pytest.mark.parametrize("args", [(X, W), (X,)], ids=["by position", "by name"])
def test_a_positional_parameter_with_the_name_of_a_later_one_is_refused(args: Any) -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            given = (x, w)[: len(args)]
            return F.linear(*given) if len(given) == 2 else F.linear(*given, weight=w)

    def wrong(weight: Any, *, out: Any) -> int:
        return int(weight.numel())

    def right(*, weight: Any, out: Any) -> int:
        return int(weight.numel())

    with pytest.raises(
        fxflops.FormulaError,
        match="parameter 'weight' gets the op's argument 'input', because both have the same position: write 'weight' after",
    ):
        fxflops.count(Product(), (X, W), formulas={F.linear: wrong})
    assert fxflops.count(Product(), (X, W), formulas={F.linear: right}).total_flops == W.numel()
