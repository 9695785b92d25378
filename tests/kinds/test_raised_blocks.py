"""If a ``profile`` block raises, its report has everything that ran before, and the exception reaches the user unchanged.

The oracle is the same code, cut off before the line that raises, in a block that ends normally.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import schedule

import fxflops

ROWS, WIDTH = 4, 8


class Stops(nn.Module):
    """Two layers. In the call with number ``at``, an exception is raised between them."""

    def __init__(self, at: int = -1, error: BaseException | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.at, self.error, self.calls = at, error, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        self.calls += 1
        if self.error is not None and self.calls == self.at:
            raise self.error
        return self.second(x)  # type: ignore[no-any-return]


class Own(BaseException):
    pass


class Silent(Exception):
    def __str__(self) -> str:
        return ""


ERRORS = [ValueError("of the user\nin two lines"), KeyboardInterrupt(), SystemExit(3), Own("mine"), Silent()]


def totals(report: fxflops.Report) -> tuple[Any, ...]:
    return (
        report.total_macs,
        report.total_flops,
        report.total_backward_macs,
        report.total_optimizer_flops,
        [(row.op, row.path, row.phase) for row in report.calls],
        report.max_memory,
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, p: Any = None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(ROWS, WIDTH)).sum().backward()
        optimizer.step()
        if p is not None:
            p.step()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_report_has_what_ran_until_then(error: BaseException) -> None:
    model = Stops(at=3, error=error)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(type(error)) as caught, fxflops.profile(model, optimizer=optimizer) as p:
        train(model, optimizer, 5)
    assert caught.value is error

    whole = Stops()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    with fxflops.profile(whole, optimizer=optimizer) as expected:
        train(whole, optimizer, 2)
        optimizer.zero_grad()
        whole.first(torch.ones(ROWS, WIDTH)).relu()
    for mine, other in zip(totals(p.report), totals(expected.report), strict=True):
        assert mine == other
    assert p.report.total_macs == 5 * ROWS * WIDTH * WIDTH

    said = type(error).__name__
    assert p.report.trace == f"profiled until it raised {said}"
    assert p.report.trace_reason.startswith(said)
    assert "\n" not in p.report.trace_reason
    assert str(error).partition("\n")[0] in p.report.trace_reason
    assert p.report.trace in str(p.report)
    assert expected.report.trace == "profiled as it ran"
    assert said not in str(expected.report)


def in_backward(model: nn.Module) -> None:
    def stop(_: torch.Tensor) -> None:
        raise ValueError("of the user")

    out = model(torch.ones(ROWS, WIDTH))
    out.register_hook(stop)
    out.sum().backward()


def in_optimizer(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: [][0])  # type: ignore[func-returns-value]
    train(model, optimizer, 1)


def in_an_operation(model: nn.Module) -> None:
    model(torch.ones(ROWS, WIDTH + 1))


def in_checkpoint(model: nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint

    def again(x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:
            raise ValueError("of the user")
        return model(x)  # type: ignore[no-any-return]

    checkpoint(again, torch.ones(ROWS, WIDTH, requires_grad=True), use_reentrant=False).sum().backward()


def of_memory(model: nn.Module) -> None:
    model(torch.ones(ROWS, WIDTH))
    raise torch.OutOfMemoryError("too much")


BLOCKS: list[Callable[[nn.Module], None]] = [in_backward, in_optimizer, in_an_operation, in_checkpoint, of_memory]


@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
@pytest.mark.parametrize("block", BLOCKS)
def test_wherever_it_is_raised(block: Callable[[nn.Module], None], detail: str, tmp_path: Path) -> None:
    model = Stops()
    with pytest.raises(Exception) as plain:  # noqa: PT011
        block(Stops())
    with pytest.raises(type(plain.value)) as caught, fxflops.profile(model, detail=detail) as p:
        block(model)
    assert str(caught.value) == str(plain.value)
    assert type(plain.value).__name__ in p.report.trace
    if detail == "operations" and block is not in_an_operation:
        assert p.report.total_macs == 2 * ROWS * WIDTH * WIDTH
    # The report works like any other.
    str(p.report), p.report.to_html(), p.report.by_operator(), p.report.by_module()
    p.report.save(tmp_path / "report.json")
    assert fxflops.Report.load(tmp_path / "report.json").trace == p.report.trace
    # The model is unchanged, and another block works.
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with fxflops.profile(model) as again:
        model(torch.ones(ROWS, WIDTH))
    assert again.report.total_macs == 2 * ROWS * WIDTH * WIDTH


def test_strict_does_not_hide_the_users_exception() -> None:
    def block() -> None:
        torch.empty(3) + 1  # reads uninitialized memory
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"), fxflops.profile(strict=True) as p:
        block()
    assert not p.report.complete
    with pytest.raises(fxflops.FxflopsError), fxflops.profile(strict=True) as p:
        torch.empty(3) + 1


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize(("at", "recorded"), [(1, None), (3, 1), (5, 3)])
def test_a_loop_with_a_schedule(at: int, recorded: int | None) -> None:
    model = Stops(at=at, error=ValueError("of the user"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = schedule(wait=1, warmup=0, active=9)
    with pytest.raises(ValueError, match="of the user"), fxflops.profile(model, schedule=chosen) as p:
        train(model, optimizer, 9, p)
    if recorded is None:
        with pytest.raises(fxflops.FxflopsError, match="recorded none"):
            _ = p.report
        return
    assert p.report.total_macs == (2 * recorded + 1) * ROWS * WIDTH * WIDTH
    assert p.report.trace == "profiled until it raised ValueError"
