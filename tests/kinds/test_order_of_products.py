"""An einsum with three or more operands is counted in the order in which torch computes its products.

If opt_einsum is installed and enabled, it chooses the order; here a stand-in for it does. The oracles are torch's FlopCounterMode
and the storages that a dispatch mode sees.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fxflops import Report, analyze, count, profile
from fxflops.roofline.devices import Device

from .live_bytes import Live

SHAPES = [(16, 16), (16, 8), (8, 2)]


class Chain(nn.Module):
    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,jk,kl->il", *factors)


class OneList(nn.Module):
    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,jk,kl", [*factors])


class Numbers(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [0, 3])


class Changing(nn.Module):
    """Three equal calls. The optimizer is disabled for the second."""

    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        outs = []
        for enabled in (True, False, True):
            before = opt_einsum.m.enabled  # type: ignore[attr-defined]
            opt_einsum.m.enabled = enabled and before  # type: ignore[attr-defined]
            outs.append(torch.einsum("ij,jk,kl->il", *factors))
            opt_einsum.m.enabled = before  # type: ignore[attr-defined]
        return torch.stack(outs)


class LastFirst:
    """Stands in for opt_einsum: contracts the last two operands first."""

    @staticmethod
    def contract_path(equation: str, *operands: Any, **_: Any) -> Any:
        random.seed(0)  # as opt_einsum's random searches do
        left = len(operands)
        return [(number - 2, number - 1) for number in range(left, 1, -1)], None


class OuterFirst:
    """Contracts the first and the last operand first. In a chain they share no dimension, so this is an outer product."""

    @staticmethod
    def contract_path(equation: str, *operands: Any, **_: Any) -> Any:
        return [(0, 2), (0, 1)], None


@pytest.fixture(params=[LastFirst, OuterFirst, None], ids=["last first", "outer first", "none"])
def optimizer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    chosen = request.param
    values = {
        "enabled": chosen is not None,
        "is_available": lambda: chosen is not None,
        "get_opt_einsum": lambda: chosen,
    }
    for name, value in values.items():
        monkeypatch.setattr(opt_einsum.m, name, value)  # type: ignore[attr-defined]
    return chosen


def factors() -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones(shape, requires_grad=True) for shape in SHAPES)


def contractions(call: Any) -> int:
    """Return the multiply-accumulates that torch's counter sees."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("model", [Chain(), OneList(), Numbers(), Changing()], ids=lambda model: type(model).__name__)
def test_the_products_are_those_that_torch_takes(optimizer: Any, model: nn.Module) -> None:
    given = factors()
    expected = contractions(lambda: model(*given))
    state = random.getstate()
    with profile(model) as p:
        model(*given)
    reports = {
        "count": count(model, given),
        "analyze": analyze(model, given, repeats=2, progress=False),
        "profile": p.report,
        "a copy": Report.from_dict(count(model, given).to_dict()),
    }
    # In either order, only the outer product is elementwise, and torch's counter leaves it out.
    outer = (2 if isinstance(model, Changing) else 1) * 16 * 16 * 8 * 2 if optimizer is OuterFirst else 0
    assert {name: report.recount("torch").total_flops for name, report in reports.items()} == dict.fromkeys(
        reports, 2 * expected
    )
    assert {name: report.total_macs for name, report in reports.items()} == dict.fromkeys(reports, expected + outer)
    assert optimizer is LastFirst or random.getstate() == state  # LastFirst seeds the generator itself
    device = Device("one", {"f32": 1e9}, 1e9)
    assert sum(row.flops or 0 for row in reports["count"].roofline(device).rows) == 2 * (expected + outer)


def test_a_count_leaves_the_generator_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"enabled": True, "is_available": lambda: True, "get_opt_einsum": lambda: LastFirst}.items():
        monkeypatch.setattr(opt_einsum.m, name, value)  # type: ignore[attr-defined]
    given = factors()
    random.seed(1)
    Chain()(*given)
    expected = random.getstate()
    random.seed(1)
    with profile() as p:
        Chain()(*given)
    assert random.getstate() == expected
    assert p.report.total_macs == contractions(lambda: Chain()(*given))


@pytest.mark.parametrize("backward", [False, True])
def test_temporaries_are_those_of_that_order(optimizer: Any, backward: bool) -> None:
    model = Held()
    x = torch.ones(4, 32)

    def step() -> None:
        out = model(x)
        if backward:
            out.backward(torch.ones(()).expand_as(out))

    step()
    model.zero_grad()
    with Live([*model.parameters(), x]) as measured, torch.set_grad_enabled(backward):
        step()
    model.zero_grad()
    report = count(model, x, backward=backward)
    assert report.max_memory == measured.peak


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(32, 64))
        self.b = nn.Parameter(torch.ones(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ni,ij,jk->nk", x, self.a, self.b).relu()
