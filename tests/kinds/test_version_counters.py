"""If a count writes to a tensor and restores it, it must also restore the version counter, so that the user's pending backward pass
works.

The oracle is the user's own pending backward pass. It raises if the counter of a saved tensor has changed, and its gradients are
compared with the gradients of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxflops

ROWS, WIDTH = 4, 8


class Buffers(nn.Module):
    """Changes its buffers in place and then uses them, so that autograd saves them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("ema", torch.ones(WIDTH))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("mask", torch.zeros(WIDTH, dtype=torch.bool))
        self.table = torch.ones(WIDTH)  # neither a parameter nor a buffer

    def forward(self, x: torch.Tensor, raises: bool = False) -> torch.Tensor:
        h = self.layer(x)
        self.ema.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.seen += 1
        self.empty.add_(1)
        self.mask[self.seen % WIDTH] = True
        self.table.add_(0.5)
        out = (h * self.ema * self.table).where(self.mask, h) * self.seen
        if raises:
            raise KeyError("the user's own")
        return out + self.empty.sum()


class Reads(Buffers):
    """The same model, but it reads a value, so it is counted on its real tensors."""

    def forward(self, x: torch.Tensor, raises: bool = False) -> torch.Tensor:
        return super().forward(x, raises) if float(x.sum()) < 1e9 else x


class Cached(nn.Module):
    """A static cache, written at a given position."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(ROWS, WIDTH))
        self.at = torch.tensor([1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, self.at, x[:1].detach())
        self.at += 0
        return self.layer(x) @ self.keys.t()


class Renormed(nn.Module):
    """A table whose rows torch scales down in place when they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH, max_norm=0.5)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(torch.arange(ROWS)) * x)


class Observed(nn.Module):
    """Quantization-aware training: observers with ranges, counters and a switch."""

    def __init__(self) -> None:
        super().__init__()
        from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

        self.layer = nn.Linear(WIDTH, WIDTH)
        self.fake = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fake(self.layer(x))  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """A model that writes to its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(F.relu(x, inplace=True) if not x.requires_grad else x)  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "buffers": Buffers,
    "on real tensors": Reads,
    "batch norm": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)),
    "batch norm, cumulative": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=None)),
    "instance norm": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True)
    ),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "cache": Cached,
    "max_norm": Renormed,
    "fake quantization": Observed,
    "writes to its input": InPlace,
}


def versions(tensors: Any) -> list[int]:
    return [each._version for each in tensors if isinstance(each, torch.Tensor)]


def held(model: nn.Module, *others: torch.Tensor) -> list[torch.Tensor]:
    """Return all tensors of a model: parameters, buffers, and plain attributes."""
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *plain, *others]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def profiled(model: nn.Module, x: torch.Tensor, **_: Any) -> None:
    """Profile other code: observing the model must not write to it."""
    with fxflops.profile(model), contextlib.suppress(KeyError):
        torch.ones(3) @ torch.ones(3)


Way = Callable[..., Any]
WAYS: dict[str, Way] = {
    "count": lambda model, x, **kw: fxflops.count(model, x, kw, mode="train"),
    "count, backward": lambda model, x, **kw: fxflops.count(model, x, kw, mode="train", backward=True),
    "count, with a step": lambda model, x, **kw: fxflops.count(
        model, x, kw, mode="train", backward=True, optimizer=torch.optim.AdamW
    ),
    "analyze": lambda model, x, **kw: fxflops.analyze(
        model, x, kw, mode="train", backward=True, repeats=1, progress=False
    ),
    "analyze, recorded": lambda model, x, **kw: fxflops.analyze(
        model, x, kw, mode="train", backward=True, repeats=1, progress=False, trace="record"
    ),
    "profile": profiled,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_pending_backward_pass_works_after_a_count(name: str, way: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().train(), torch.randn(ROWS, WIDTH)
    model(x.clone())  # initializes observers and power iterations
    undisturbed = copy.deepcopy(model)
    undisturbed(x.clone()).square().sum().backward()

    given = x.clone()
    pending = model(x.clone()).square().sum()
    tensors = held(model, given)
    before, values = versions(tensors), [each.clone() for each in tensors]
    WAYS[way](model, given)
    assert versions(tensors) == before
    assert all(map(torch.equal, tensors, values))
    pending.backward()
    assert all(map(torch.equal, gradients(model), gradients(undisturbed)))


@pytest.mark.parametrize("cls", [Buffers, Reads])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "profile"])
def test_also_after_an_error(cls: type[nn.Module], way: str) -> None:
    model, x = cls().train(), torch.randn(ROWS, WIDTH)
    pending = model(x).square().sum()
    tensors = held(model, x)
    before = versions(tensors)
    with pytest.raises(fxflops.FxflopsError, match="the user's own"):
        WAYS[way](model, x, raises=True)
    assert versions(tensors) == before
    pending.backward()


def test_an_input_of_a_pending_graph_that_the_model_writes_to() -> None:
    weight = torch.randn(WIDTH, requires_grad=True)
    x = torch.randn(ROWS, WIDTH) * weight
    pending = (x * x).sum()  # saves x
    fxflops.count(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)), x)
    fxflops.analyze(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)), x, repeats=1, progress=False)
    pending.backward()


def test_a_view_shares_its_counter() -> None:
    class Viewed(nn.Module):
        def __init__(self, base: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("part", base[:WIDTH])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.part.add_(1)

    base = torch.ones(2 * WIDTH)
    weight = torch.ones(2 * WIDTH, requires_grad=True)
    pending = (base * weight).sum()
    fxflops.count(Viewed(base), torch.ones(WIDTH))
    fxflops.analyze(Viewed(base), torch.ones(WIDTH), repeats=1, progress=False)
    assert base._version == 0
    pending.backward()


def test_tensors_without_a_counter() -> None:
    with torch.inference_mode():
        x = torch.randn(ROWS, WIDTH)
        frozen = nn.Linear(WIDTH, WIDTH)
    assert fxflops.count(nn.Linear(WIDTH, WIDTH), x).total_macs == ROWS * WIDTH * WIDTH
    assert fxflops.count(frozen, x).total_macs == ROWS * WIDTH * WIDTH


def test_gradients_so_far_keep_their_counter() -> None:
    model, x = nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, WIDTH)
    for _ in range(2):
        model(x).sum().backward()
    before = versions(p.grad for p in model.parameters())
    fxflops.count(model, x, backward=True, optimizer=torch.optim.SGD)
    fxflops.analyze(model, x, backward=True, repeats=1, progress=False)
    assert versions(p.grad for p in model.parameters()) == before


OPTIMIZERS = [
    cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
]
NOT_COUNTED = {"LBFGS", "SparseAdam"}  # LBFGS needs a closure; SparseAdam needs sparse gradients


@pytest.mark.parametrize("has_state", [False, True], ids=["new", "with state"])
@pytest.mark.parametrize(
    "cls", [cls for cls in OPTIMIZERS if cls.__name__ not in NOT_COUNTED], ids=lambda cls: cls.__name__
)
@pytest.mark.parametrize("kind", [Buffers, Reads])
def test_an_optimizer_whose_step_is_counted(cls: Any, has_state: bool, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind().train(), torch.randn(ROWS, WIDTH)
    optimizer = cls([p for p in model.parameters() if cls.__name__ != "Muon" or p.ndim == 2])
    if has_state:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    pending = model(x).square().sum()
    states = [each for state in optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    tensors = held(model, x, *states)
    before, values = versions(tensors), [each.clone() for each in tensors]
    fxflops.count(model, x, mode="train", backward=True, optimizer=optimizer)
    assert versions(tensors) == before
    assert all(map(torch.equal, tensors, values))
    pending.backward()
