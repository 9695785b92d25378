"""A user's own convention: its rows accept what ``formulas`` accepts, fail in the same ways, and warn when they count nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import Cost, FormulaError, Report, count
from fxflops.conventions import (
    ALL,
    BASE_MACS,
    CONVENTIONS,
    OF_MACS,
    SEES_BACKWARD,
    Convention,
    find_convention,
    list_conventions,
)

X = torch.ones(2, 8)
MODEL = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))


class Written(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, torch.ones(4, 8)))


def own(rows: Any) -> Convention:
    return Convention("own", "rows of mine", rows=rows)


def flops(report: Report, op: str) -> int:
    return report.by_operator()[op].total.flops


def as_in_a_recipe(*args: Any, out: Any, **kwargs: Any) -> int:
    return int(out.numel())


def of_module(module: nn.Linear, x: Any, *, out: Any) -> int:
    return 100 * module.in_features + module.out_features


def of_function(input: Any, weight: Any, bias: Any = None, *, out: Any) -> int:
    return 10 * int(weight[0])


def short(input: Any) -> int:
    return 1


@pytest.mark.parametrize(
    ("key", "row", "expected"),
    [
        (nn.Linear, as_in_a_recipe, 2 * 4 + 2 * 3),
        ("linear", as_in_a_recipe, 2 * 4 + 2 * 3),
        (nn.Linear, of_module, (800 + 4) + (400 + 3)),
        ("linear", of_function, 10 * (4 + 3)),
    ],
)
def test_a_row_is_called_as_a_formula_is(key: Any, row: Callable[..., int], expected: int) -> None:
    report = count(MODEL, X, convention=own({key: row}))
    assert (flops(report, "linear"), report.complete) == (expected, True)
    assert flops(report, "relu") == 2 * 4  # from the base convention
    assert report.total_macs == 2 * 8 * 4 + 2 * 4 * 3
    if key is nn.Linear:
        assert flops(count(MODEL, X, formulas={key: row}), "linear") == expected


def test_a_row_of_a_function_as_it_is_called() -> None:
    for how in ({"convention": own({F.linear: of_function})}, {"formulas": {F.linear: of_function}}):
        assert flops(count(Written(), X, **how), "linear") == 40  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [short, lambda *args, out, **kwargs: -1, 7])
def test_a_row_that_fails_is_the_users_to_mend(row: Any) -> None:
    for how in ({"convention": own({nn.Linear: row})}, {"formulas": {nn.Linear: row}}):
        with pytest.raises(FormulaError):
            count(MODEL, X, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"lineer": as_in_a_recipe}, r"the row for 'lineer' counts nothing: the op 'lineer' is unknown \(did you mean linear"),
        ({torch.relu: as_in_a_recipe}, "the formula for torch.relu counted nothing: the code calls relu as torch.nn.ReLU x1"),
        ({F.linear: as_in_a_recipe}, "the code calls linear as torch.nn.Linear x2"),
    ],
)  # fmt: skip
def test_a_row_that_counts_nothing_is_warned_of(rows: Any, said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        assert count(MODEL, X, convention=own(rows)).total_flops == count(MODEL, X).total_flops


def test_a_row_for_what_a_model_does_not_do_is_none_to_warn_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        count(MODEL, X, convention=own({nn.Conv2d: as_in_a_recipe, "conv": as_in_a_recipe, nn.ReLU: as_in_a_recipe}))
        for name in list_conventions():
            count(MODEL, X, convention=name)


def test_a_row_of_ours_that_fails_is_told_in_a_line() -> None:
    def row(input: Any, *, out: Any) -> int:
        raise ValueError("no such size")

    row.__module__ = "fxflops.conventions"
    report = count(MODEL, X).recount(own({"relu": row}))
    assert [missing.op for missing in report.missing] == ["relu"]
    assert "ValueError: no such size\nThe formula was called" in report.missing[0].why
    (difference,) = (each for each in report.explain("fxflops", own({"relu": row})).rows if each.op == "relu")
    assert difference.how_b.endswith("ValueError: no such size")


def test_those_of_macs_are_those_that_count_a_multiply_accumulate_once() -> None:
    report = count(nn.Linear(64, 64), torch.ones(1, 64))
    # The biases add 1 in 64, which rounding removes.
    each = {name: round(report.recount(name).total_flops / 64**2) for name in list_conventions()}
    assert each == {name: 1 if name in OF_MACS else 2 for name in list_conventions()}


class Scanned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1)


def stated(module: nn.Module, x: Any, *, out: Any) -> Cost:
    return Cost(macs=256, muls=256, adds=240)


@pytest.mark.parametrize("name", [*OF_MACS, "fxflops MACs"])
def test_a_users_formula_counts_in_macs_where_a_convention_does(name: str, tmp_path: Path) -> None:
    linear, x = nn.Linear(16, 16, bias=False), torch.ones(4, 16)
    convention = BASE_MACS if name == BASE_MACS.name else name
    alone = count(linear, x, convention=convention).total_flops
    report = count(nn.Sequential(linear, Scanned()), x, formulas={Scanned: stated})
    assert report.total_macs == 4 * 16 * 16 + 256
    assert report.recount(convention).total_flops == alone + 256
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").recount(convention).total_flops == alone + 256
    of_flops = report.recount(convention, formulas={Scanned: lambda module, x, *, out: 496})
    # An int states no MACs. A tool's convention counts the int itself; our MACs are the report's.
    assert of_flops.total_flops == alone + (0 if convention is BASE_MACS else 496)


@pytest.mark.parametrize("name", ["thop", "ptflops", "torchinfo", "flowflops_eager", "fvcore"])
def test_a_users_formula_for_a_charged_module_takes_the_place_of_the_charge(name: str) -> None:
    report = count(MODEL[0], X, convention=name, formulas={nn.Linear: lambda module, x, *, out: 7})
    assert report.total_flops == 7


def test_tools_that_see_all_operators_see_a_backward_pass() -> None:
    assert {name for name in CONVENTIONS if find_convention(name).operators == ALL} == SEES_BACKWARD
