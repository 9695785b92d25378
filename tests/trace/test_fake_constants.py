"""In a simulated rank, what ``build`` computes from constants alone has values, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from fxflops.distributed import simulate
from fxflops.errors import RunError
from tests.distributed import simulates

pytestmark = [
    simulates,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # from torch.distributed itself
]
GIVEN = torch.tensor([2.0, 3.0])


def through_a_view() -> Any:
    x = torch.zeros(2, 3)
    x[1].add_(2.5)
    x.t()[0] = 7
    return x.tolist()


def masked() -> Any:
    x = torch.arange(6).view(2, 3)
    return x[x > 2].tolist(), torch.nonzero(x > 3).tolist(), bool((x > 4).any()), torch.equal(x, x + 0)


def written_again() -> Any:
    x = torch.rand(3)
    y = torch.ones(3)
    y.mul_(x)
    return [*(y * 0 + 2).tolist(), y.numel()]


KNOWN: dict[str, Callable[[], Any]] = {
    "the rates of stochastic depth": lambda: torch.linspace(0, 0.1, 12).tolist(),
    "split by stages": lambda: [x.tolist() for x in torch.linspace(0, 0.1, 12).split([3, 3, 6])],
    "one of them": lambda: [x.item() for x in torch.linspace(0, 0.1, 3)],
    "a literal": lambda: (torch.tensor([[1, 2], [3, 4]]) @ torch.eye(2, dtype=torch.int64)).tolist(),
    "a literal of one": lambda: float(torch.tensor(3.0) * 2 + 1),
    "another dtype": lambda: torch.ones(2).view(torch.int32).tolist(),
    "a conjugate": lambda: torch.tensor([1 + 2j]).real.tolist(),
    "written through a view": through_a_view,
    "by masks": masked,
    "a tensor made outside": lambda: (GIVEN * 2).tolist(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_build_reads_what_it_computes_from_constants(name: str) -> None:
    read = []

    def build(mesh: Any) -> Any:
        read.append(KNOWN[name]())
        model, x = nn.Linear(8, 8), torch.ones(4, 8)
        return model, lambda: model(x)

    simulate(build, {"dp": 2}, differs=())
    assert read == [KNOWN[name]()]


def overwritten() -> Any:
    x = torch.zeros(3)
    x[1:].uniform_()
    return x.tolist()


UNKNOWN: dict[str, Callable[[], Any]] = {
    "a parameter": lambda: nn.Linear(8, 8).weight[0].tolist(),
    "random numbers": lambda: torch.rand(3).tolist(),
    "unwritten": lambda: torch.empty(3).tolist(),
    "overwritten": overwritten,
    "multiplied by what is unknown": written_again,
    "sent": lambda: [x for x in [torch.ones(2)] if dist.all_reduce(x) or x[0].item()],
    "large": lambda: torch.zeros(2**14 + 1)[0].item(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_build_reads_nothing_else(name: str) -> None:
    def build(mesh: Any) -> Any:
        UNKNOWN[name]()

    told = r"build reads the value .*computed from constants alone, with at most 16,384 elements each.*\n  at .*test_fake_constants\.py:\d"
    with pytest.raises(RunError, match=told):
        simulate(build, {"dp": 2})


def test_the_step_reads_no_constants_of_build() -> None:
    def build(mesh: Any) -> Any:
        model, rates = nn.Linear(8, 8), torch.linspace(0, 1, 3)
        return model, lambda: rates.tolist()

    with pytest.raises(RunError, match=r"the step reads the value.*\n  at .*test_fake_constants\.py:\d+ in <lambda>"):
        simulate(build, {"dp": 2})


def test_a_tensor_made_outside_is_not_written_to() -> None:
    def build(mesh: Any) -> Any:
        torch.as_tensor(GIVEN).view(1, 2).add_(1)
        model, x = nn.Linear(8, 8), torch.ones(4, 8)
        return model, lambda: model(x)

    simulate(build, {"dp": 2}, differs=())
    assert GIVEN.tolist() == [2, 3]
