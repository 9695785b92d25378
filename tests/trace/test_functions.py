"""What is known about a function without running it: its name, and whether it may write to its arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxflops.records import Spec
from fxflops.trace.functions import computes, is_integral, qualified_name, with_callables, writes

aten = torch.ops.aten


def test_names() -> None:
    names = {
        aten.add.Tensor: "aten::add.Tensor",
        aten.relu.default: "aten::relu",
        aten.add: "aten::add",
        "mylib::scan": "mylib::scan",
        torch.Tensor.add: "Tensor.add",
        torch.add: "torch.add",
        F.layer_norm: "torch.nn.functional.layer_norm",
        operator.add: "_operator.add",
    }
    assert {func: qualified_name(func) for func in names} == names


def test_what_may_write() -> None:
    calls: list[tuple[Any, dict[str, Any], bool]] = [
        (aten.add_.Tensor, {}, True),
        (aten.add.Tensor, {}, False),
        (torch.Tensor.add_, {}, True),
        (torch.Tensor.__add__, {}, False),
        (torch.Tensor.__iadd__, {}, True),
        (torch.Tensor.__setitem__, {}, True),
        (torch.Tensor.__getitem__, {}, False),
        (torch.Tensor.data.__set__, {}, True),
        (torch.add, {}, False),
        (torch.add, {"out": None}, True),
        (F.relu, {"inplace": False}, True),
    ]
    assert [(func, kwargs) for func, kwargs, may in calls if writes(func, kwargs) is not may] == []


def test_functions_in_arguments_run_within() -> None:
    inside = [0]

    @contextmanager
    def within() -> Iterator[None]:
        inside[0] += 1
        yield
        inside[0] -= 1

    def depth(plus: int) -> int:
        return inside[0] + plus

    entered = with_callables((1, {"body": depth, "more": [depth, (depth,)]}), within)
    assert (entered[0], entered[1]["body"](10)) == (1, 11)
    assert [entered[1]["more"][0](20), entered[1]["more"][1][0](30)] == [21, 31]
    assert inside == [0]


def test_what_computes_takes_tensors_and_returns_some() -> None:
    spec = Spec((2, 3))
    assert computes(torch.add, (spec,), {}, spec)
    assert computes(torch.add, (), {"input": (spec,)}, (1, (spec,)))
    assert not computes(torch.add, (spec,), {}, 3)
    assert not computes(torch.zeros, ((2, 3),), {}, spec)
    assert not computes(torch.ops.higher_order.cond, (spec,), {}, spec)


@pytest.mark.parametrize(
    ("dtype", "positions"), [(torch.int32, True), (torch.bool, True), (torch.float16, False), (torch.complex64, False)]
)
def test_positions_are_integral(dtype: torch.dtype, positions: bool) -> None:
    assert is_integral(torch.zeros(2, dtype=dtype)) is positions
