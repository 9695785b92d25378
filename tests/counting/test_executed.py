"""What torch ran of an einsum of three operands, where opt_einsum is installed: a stand-in for it tells torch the path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fxflops import Report, analyze, count
from fxflops.ops.einsum import by_path, einsum
from fxflops.records import Spec
from fxflops.roofline.devices import Device

SHAPES = [(16, 16), (16, 8), (8, 2)]
LEFT_TO_RIGHT, FROM_THE_RIGHT = 16 * 16 * 8 + 16 * 8 * 2, 16 * 8 * 2 + 16 * 16 * 2


class Chain(nn.Module):
    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,jk,kl->il", *factors)


class Lists(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [0, 3])


class Optimizer:
    """In the place of opt_einsum: the last two first."""

    @staticmethod
    def contract_path(equation: str, *operands: Any, **_: Any) -> Any:
        assert equation in ("ij,jk,kl->il", "ab,bc,cd->ad", "AB,BC,CD->AD")
        return [(1, 2), (0, 1)], None


@pytest.fixture
def optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"enabled": True, "is_available": lambda: True, "get_opt_einsum": lambda: Optimizer}.items():
        monkeypatch.setattr(opt_einsum.m, name, value)


@pytest.mark.parametrize("model", [Chain(), Lists()], ids=["equation", "lists"])
def test_the_report_says_what_ran_and_judges_by_it(optimizer: None, model: nn.Module) -> None:
    factors = tuple(torch.ones(shape) for shape in SHAPES)
    with FlopCounterMode(display=False) as counter:
        model(*factors)
    assert counter.get_total_flops() == 2 * FROM_THE_RIGHT
    report = analyze(model, factors, repeats=2, progress=False)
    assert report.total_macs == report.recount("torch").total_macs == LEFT_TO_RIGHT
    said = f"run in opt_einsum's order, {FROM_THE_RIGHT:,} MACs; counted from left to right, {LEFT_TO_RIGHT:,}"
    assert list(report.remarks.values()) == [said]
    assert said in " ".join(str(report).split())
    assert [str(row[-1]).endswith(f"; {said}") for row in report.table.rows if row[1] == "einsum"] == [True]
    device = Device("one", {"f32": 1e9}, 1e9)
    assert [row.flops for row in report.roofline(device).rows] == [2 * FROM_THE_RIGHT]
    assert list(Report.from_dict(report.to_dict()).remarks.values()) == [said]


def test_nothing_is_said_where_torch_goes_from_left_to_right(optimizer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = tuple(torch.ones(shape) for shape in SHAPES)
    assert count(Chain(), factors).remarks
    monkeypatch.setattr(opt_einsum.m, "enabled", False)
    assert not count(Chain(), factors).remarks


def test_a_path_costs_its_products() -> None:
    """Three factors of which the outer two share nothing: their product is an outer one."""
    operands = ("ij,jk,kl->il", *map(Spec, SHAPES))
    assert by_path(operands, [(1, 2), (0, 1)]).macs == FROM_THE_RIGHT
    assert by_path(operands, [(0, 2), (0, 1)]).macs == 16 * 16 * 8 * 2 + 16 * 8 * 16 * 2
    assert by_path(operands, [(0, 1), (0, 1)]) == einsum(*operands, out=Spec((16, 2)))
