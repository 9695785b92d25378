"""Tables that a forward creates and uses through views: the memory counts for as long as the table lives.

A mask, a rotary table or a basis keeps its values in ``count``, so it is a real tensor among meta tensors. Its views come and go.
The oracle is the storages that a dispatch mode sees.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch.func import jacfwd, jvp, vmap

import fxflops

from .calls import Calls
from .live_bytes import Live

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:FutureWarning"
)  # torch's own, by forward AD

VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t.t(),
    lambda t: t.view(64, 64),
    lambda t: t[None][0],
    lambda t: t.reshape(-1).unflatten(0, (64, 64)),
    lambda t: torch.cat([t[:32], t[32:]]),
    lambda t: t[:],
)
TABLES: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.zeros(64, 64),
    lambda: torch.ones(64, 64).triu(),
    lambda: torch.outer(torch.arange(64) * 1.0, torch.arange(64) / 64).cos(),
)


def drawn(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a forward that uses views of a table. It then needs the most memory, while the table may or may not be alive."""
    draw = random.Random(seed)
    table, views = draw.choice(TABLES), draw.choices(VIEWS, k=draw.randint(1, 3))
    lets_go = draw.random() < 0.5

    def forward(x: torch.Tensor) -> torch.Tensor:
        made = table()
        y = x
        for view in views:
            y = view(made) @ y
        if lets_go:
            del made
        return y.repeat(4, 4).sum()

    return forward


def basis(x: torch.Tensor) -> torch.Tensor:
    made = x.new_zeros(64, 64)
    made.diagonal().fill_(1)
    return made.view(64, 4, 16)


def pushed(x: torch.Tensor) -> torch.Tensor:
    return vmap(lambda t: jvp(lambda u: (u @ u.T).tanh().repeat(8, 8), (x[:4],), (t,))[1])(basis(x)).sum()


def forwards(x: torch.Tensor) -> torch.Tensor:
    return jacfwd(lambda u: (u @ u.T).tanh().repeat(8, 8))(x[:4]).square().sum()


@torch.no_grad()
def check(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, model = torch.randn(64, 16), Calls(function)
    function(x)  # torch creates some tensors only once
    with Live([x]) as live:
        function(x)
    with fxflops.profile(model) as block:
        model(x)
    assert fxflops.count(model, x).max_memory == live.peak
    assert fxflops.count(model, x.to("meta")).max_memory == live.peak
    assert fxflops.analyze(model, x, repeats=0).max_memory == live.peak
    assert block.report.max_memory == live.peak


@pytest.mark.parametrize("seed", range(12))
def test_views_of_a_table(seed: int) -> None:
    check(drawn(seed))


@pytest.mark.parametrize("function", [pushed, forwards])
def test_a_basis_of_forward_derivatives(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function)


@torch.no_grad()
def test_meta_tensors_with_which_torch_finds_shapes_hold_no_memory() -> None:
    """The tangent of a weight is a zero without elements. torch adds it on meta to find the shape of the sum."""
    linear, x = torch.nn.Linear(16, 32), torch.randn(64, 16)

    class Pushed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return jvp(lambda t: self.linear(t).tanh(), (x,), (x * 2,))[1]

    model = Pushed()
    with fxflops.profile(model) as block:
        model(x)
    assert fxflops.analyze(model, x, repeats=0).max_memory == block.report.max_memory
