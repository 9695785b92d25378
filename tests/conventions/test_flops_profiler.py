"""conventions "flops_profiler" and "flops_profiler_macs": the numbers of flops-profiler 0.1.2's own run.

They are compared on the models of the pool and op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flops_profiler import profiler
from torch import nn

from fxflops import Report, count
from tests.conventions.pool import POOL, copied, counted, lent
from tests.conventions.replaced import CASES, Runs, of, restored

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning"),
]

RAISING = {
    "hrnet": r"_upsample_flops_compute\(\) takes 1 positional argument",
    "unet": r"_upsample_flops_compute\(\) takes 1 positional argument",
}
"""Models on which the tool raises a TypeError: nn.Upsample passes its size by position."""

Numbers = tuple[int, int, int]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Restore torch: the tool leaves torch.matmul in place of torch.bmm, and all replacements and its stacks if the model raises."""
    with restored():
        yield
    for stack in (profiler.module_flop_count, profiler.module_mac_count, profiler.module_profile_lists):
        stack.clear()


def theirs(model: nn.Module, args: Any, kwargs: Any) -> Numbers:
    """(flops, macs, params) from a FlopsProfiler around a call of the model."""
    model, args, kwargs = copied(model.eval(), args, kwargs)
    profile = profiler.FlopsProfiler(model)
    profile.start_profile()
    model(*args, **kwargs)
    numbers = profile.get_total_flops(), profile.get_total_macs(), profile.get_total_params()
    profile.end_profile()
    return numbers


def theirs_of_forward(model: nn.Module, args: Any, kwargs: Any) -> Numbers:
    """The same from get_model_profile. It calls the model's forward directly, so the hooks miss what that forward itself calls."""
    model, args, kwargs = copied(model, args, kwargs)
    return profiler.get_model_profile(model, args=args, kwargs=kwargs, print_profile=False, as_string=False, warm_up=0)


def reports(model: nn.Module, args: Any, kwargs: Any) -> tuple[Report, Report]:
    return by_it(count(model, args, kwargs))


def by_it(report: Report) -> tuple[Report, Report]:
    flops, macs = report.recount("flops_profiler"), report.recount("flops_profiler_macs")
    assert flops.total_macs == macs.total_macs == report.total_macs
    assert flops.total_int_ops == macs.total_int_ops == 0
    return flops, macs


@pytest.mark.parametrize("name", [name for name in POOL if name not in RAISING])
def test_the_numbers_are_the_profilers(name: str) -> None:
    model, args, kwargs = lent(name)
    flops, macs = by_it(counted(name))
    own = flops[""].own.flops, macs[""].own.flops
    with restored():
        of_forward = theirs_of_forward(model, args, kwargs)
    assert (flops.total_flops - own[0], macs.total_flops - own[1], flops.total_params) == of_forward
    if any(own):
        assert (flops.total_flops, macs.total_flops, flops.total_params) == theirs(model, args, kwargs)


@pytest.mark.parametrize("name", RAISING)
def test_it_still_raises(name: str) -> None:
    with pytest.raises(TypeError, match=RAISING[name]):
        theirs(*lent(name))


@pytest.mark.parametrize("name", CASES)
def test_each_op_is_charged_as_it_does(name: str) -> None:
    model, x = CASES[name]()
    flops, macs = reports(model, x, None)
    assert (flops.total_flops, macs.total_flops) == theirs(model, (x,), {})[:2]


class Shared(nn.Module):
    """Two modules that share a third."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.first, self.second = nn.Sequential(nn.Linear(4, 4), act), nn.Sequential(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parameter, self.act = nn.Parameter(torch.zeros(1)), F.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


gelu, relu = F.gelu, F.relu

EXCEPTIONS: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], int, int]] = {
    # Charged by us, not seen by the tool, which does not replace functions under these names
    "imported before": (lambda: of(lambda x: relu(gelu(x)), 2, 4), 2 * 8, 0),
    "the second name of F.prelu": (lambda: of(lambda x: torch.prelu(x, torch.ones(1)), 2, 4), 8, 0),
    # Charged by us as methods, but not by the tool: Python's sum() adds like an operator
    "sum": (lambda: of(lambda x: sum([x, x]), 2, 4), 2 * 8, 0),
    # Charged twice by the tool
    "a module of two others": (lambda: (Shared(), torch.randn(2, 4)), 2 * 2 * 16 + 2 * 8, 2 * 2 * 16 + 4 * 8),
}
"""Cases in which we differ: the call, our FLOPs and the tool's."""


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_the_exceptions(name: str) -> None:
    build, mine, its = EXCEPTIONS[name]
    model, x = build()
    assert reports(model, x, None)[0].total_flops == mine
    assert theirs(model, (x,), {})[0] == its


def test_what_a_module_keeps_is_not_seen() -> None:
    flops, macs = reports(Keeps(), torch.randn(2, 4), None)
    assert flops.total_flops == macs.total_flops == 0 == theirs(Keeps(), (torch.randn(2, 4),), {})[0]
    assert flops.recount("fxflops").total_flops > 0


TRANSPOSED = r"name 'grofups' is not defined"


@pytest.mark.parametrize(
    ("module", "shape", "error", "mine"),
    [
        (
            nn.ConvTranspose2d(4, 6, 3, stride=2),
            (1, 4, 5, 5),
            TRANSPOSED,
            (2 * 6 * 9 * 4 * 25 + 6 * 2 * 2, 6 * 9 * 100),
        ),
        (nn.Conv1d(4, 6, 3, padding="same"), (1, 4, 5), "unsupported operand", (2 * 12 * 30 + 30, 12 * 30)),
        (nn.Upsample(scale_factor=2), (1, 4, 5, 5), "positional argument", (100, 0)),
        (nn.Upsample(size=(7, 8)), (1, 4, 5, 5), "positional argument", (56, 0)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_where_it_raises_we_count_what_it_means(
    module: nn.Module, shape: tuple[int, ...], error: str, mine: tuple[int, int]
) -> None:
    model, x = Runs(lambda part, x: part(x), module), torch.randn(shape)
    with restored(), pytest.raises((TypeError, NameError), match=error):
        theirs(model, (x,), {})
    flops, macs = reports(model, x, None)
    assert (flops.total_flops, macs.total_flops) == mine
