"""Operators of a trace become operations: the overload that fits, the arguments, and the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxflops.names import Absent
from fxflops.ops import BASE
from fxflops.records import Spec
from fxflops.trace_files.operations import Operations, tensor_dtype
from fxflops.trace_files.reading import Event

aten = torch.ops.aten


def shown(name: str, *arguments: tuple[str, Any, str], strides: Any = None) -> Event:
    """Return an event whose arguments have these types, shapes and texts."""
    types, shapes, texts = (list(column) for column in zip(*arguments, strict=True))
    args = {
        "Input type": types,
        "Input Dims": shapes,
        "Concrete Inputs": texts,
        "Input Strides": strides or [[]] * len(types),
    }
    return Event(name, "cpu_op", 0, 1, (1, 1), args)


def tensor(*shape: int, kind: str = "float") -> tuple[str, Any, str]:
    return kind, list(shape), ""


def number(text: str) -> tuple[str, Any, str]:
    return "Scalar", [], text


def numbers(text: str) -> tuple[str, Any, str]:
    return "ScalarList", [], text


NONE = "", [], ""
CONV = shown(
    "aten::convolution", tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), NONE, numbers("[1, 1]"), numbers("[1, 1]"),
    numbers("[1, 1]"), number("False"), numbers("[0, 0]"), number("1"),
)  # fmt: skip


@pytest.fixture
def operations() -> Operations:
    return Operations(BASE, torch.bfloat16)


@pytest.mark.parametrize(
    ("event", "overload", "out"),
    [
        (CONV, aten.convolution.default, Spec((2, 4, 8, 8))),
        (shown("aten::sum", tensor(2, 3), NONE), aten.sum.default, Spec(())),
        (shown("aten::sum", tensor(2, 3), numbers("[1]"), number("False"), NONE), aten.sum.dim_IntList, Spec((2,))),
        (shown("aten::add", tensor(2, 3), tensor(kind="double"), number("1")), aten.add.Tensor, Spec((2, 3))),
        (shown("aten::empty", numbers("[4, 2]"), number("15"), number("0"), NONE, NONE, NONE), aten.empty.memory_format,
         Spec((4, 2), torch.bfloat16)),
        (shown("aten::cat", ("TensorList", [[2, 3], [4, 3]], ""), number("0")), aten.cat.default,
         Spec((6, 3), torch.bfloat16)),
    ],
)  # fmt: skip
def test_the_overload_is_the_one_that_fits(operations: Operations, event: Event, overload: Any, out: Spec) -> None:
    found = operations.of(event)
    assert found.target is overload
    assert (found.out, found.out.dtype) == (out, out.dtype)


def test_arguments_are_those_of_a_dispatch_mode(operations: Operations) -> None:
    scaled = shown("aten::add", tensor(2, 3), tensor(2, 3), number("0.5"))
    assert operations.of(scaled).kwargs == {"alpha": 0.5}
    found = operations.of(CONV)
    assert found.args == ((2, 3, 8, 8), (4, 3, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    assert operations.of(CONV) is found


def test_the_result_follows_the_strides(operations: Operations) -> None:
    arguments = tensor(2, 3, 4), numbers("[24]")
    plain = shown("aten::view", *arguments, strides=[[12, 4, 1], []])
    turned = shown("aten::view", *arguments, strides=[[12, 1, 3], []])
    assert operations.of(plain).out == (24,)
    assert operations.of(turned).out is None  # a tensor with these strides cannot be viewed so


def test_an_operator_of_nobody_is_known_by_its_name(operations: Operations) -> None:
    found = operations.of(shown("nobodys::scan", tensor(2, 3, kind="c10::Half")))
    assert (found.op, found.target) == ("nobodys::scan", Absent("nobodys::scan"))
    assert found.args == (Spec((2, 3)),)
    assert found.args[0].dtype is torch.float16


def test_arguments_that_fit_no_schema_are_not_guessed(operations: Operations) -> None:
    found = operations.of(shown("aten::mm", number("1"), tensor(2, 3)))
    assert found.target == "aten::mm"
    assert found.out is None


@pytest.mark.parametrize(
    ("event", "seen"),
    [
        (shown("aten::mm", tensor(2, 3), tensor(3, 5)), True),
        (shown("aten::native_batch_norm", tensor(2, 3, 4, 4), *[tensor(3)] * 4, number("True"), number("0.1"), number("1e-5")),
         True),
        (shown("aten::linear", tensor(2, 3), tensor(5, 3), NONE), None),
        (shown("aten::type_as", tensor(2, 3), tensor(2, 3)), None),
        (shown("nobodys::scan", tensor(2, 3)), True),
    ],
)  # fmt: skip
def test_operators_that_call_others_are_looked_into(operations: Operations, event: Event, seen: bool | None) -> None:
    found = operations.sees(event)
    assert found is seen or (seen is None and not found)


def test_dtypes_by_their_names_in_cpp() -> None:
    dtypes = {
        "float": torch.float32,
        "long int": torch.int64,
        "c10::BFloat16": torch.bfloat16,
        "c10::Half": torch.float16,
        "c10::Float8_e4m3fn": torch.float8_e4m3fn,
        "c10::complex<float>": torch.complex64,
        "Scalar": None,
        "c10::Mystery": None,
    }
    assert {name: tensor_dtype(name) for name in dtypes} == dtypes
