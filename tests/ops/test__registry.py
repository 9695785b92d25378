"""Which parameters a formula may have, and which formula counts an op that is known only by its name."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxflops.names import Absent
from fxflops.ops import BASE
from fxflops.ops._registry import formula_for, is_method, parameters_of


def plain(input: Any, dim: int = 0, *, out: Any) -> int:
    return 1


def positional(input: Any, /, *rest: Any, out: Any, **more: Any) -> int:
    return 1


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> int:
    return plain(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (plain, (("input", "dim"), ("out",), False, False)),
        (wrapped, (("input", "dim"), ("out",), False, False)),
        (functools.partial(plain, dim=1), (("input",), ("dim", "out"), False, False)),
        (positional, (("input",), ("out",), True, True)),
        (functools.partial(positional), (("input",), ("out",), True, True)),
    ],
)
def test_parameters(function: Any, parameters: Any) -> None:
    assert parameters_of(function) == parameters


def test_an_operator_in_place_that_is_not_there_is_counted_as_the_plain_one() -> None:
    assert BASE.find(Absent("aten::gelu_.no_such")) is BASE.find(torch.ops.aten.gelu.default) is not None


def test_a_function_is_called_by_its_names() -> None:
    assert formula_for([torch.exp], plain).style == "op"


@pytest.mark.parametrize(
    ("function", "is_one"), [(torch.Tensor.exp, True), (torch.Tensor.norm, True), (torch.norm, False), (plain, False)]
)
def test_methods_written_in_c_and_in_python(function: Any, is_one: bool) -> None:
    assert is_method(function) is is_one


def test_formulas_for_one_run_keep_the_names_of_ops() -> None:
    def cost(*args: Any, out: Any) -> int:
        return 1

    registry = BASE.derive({torch.add: cost, F.silu: cost, "mylib::scan": cost})
    assert [registry.find(target).op for target in (torch.add, F.silu)] == ["add", "silu"]
    assert {"add", "silu", "scan"} <= {op for _, op in registry.user_formulas().values()}
    assert not BASE.derive(None).user_formulas()
