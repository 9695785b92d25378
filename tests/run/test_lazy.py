"""Lazy modules are counted as the modules that they become on the inputs, and are lazy again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fxflops import InputError, RunError, TorchFLOPsByFX, analyze, count

X = torch.randn(2, 3, 8, 8)


def lazy() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5))


def counted(model: nn.Module) -> Any:
    return count(model, X)


def analyzed(model: nn.Module) -> Any:
    return analyze(model, X, repeats=1, progress=False)


def recorded(model: nn.Module) -> Any:
    return analyze(model, X, repeats=1, progress=False, trace="record")


def trained(model: nn.Module) -> Any:
    return count(model, X, backward=True, optimizer=torch.optim.SGD)


def propagated(model: nn.Module) -> Any:
    return TorchFLOPsByFX(model).propagate(X)


def everything(model: nn.Sequential) -> list[Any]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    layers = [
        (id(m), type(m), m.training, {k: dict(v) if isinstance(v, dict) else v for k, v in vars(m).items()})
        for m in model
    ]
    return [*layers, [(name, id(t), type(t), t.size()) for name, t in tensors], torch.get_rng_state().tolist()]  # fmt: skip


@pytest.mark.parametrize("way", [counted, analyzed, recorded, trained, propagated])
def test_lazy_modules_are_lazy_again(way: Callable[[nn.Module], Any]) -> None:
    model = lazy()
    before = everything(model)
    report = way(model)
    # 2 x 4 x 6 x 6 outputs with 3 x 3 x 3 MACs each, then 2 x 5 outputs with 4 x 6 x 6 MACs each
    assert report.total_macs == 288 * 27 + 10 * 144
    assert report.total_params == 4 * 27 + 4 + 2 * 4 + 144 * 5 + 5
    assert report.complete
    assert everything(model) == before
    assert isinstance(model[0].weight, UninitializedParameter)
    assert isinstance(model[1].running_mean, UninitializedBuffer)
    model(X)
    assert [type(layer) for layer in model] == [nn.Conv2d, nn.BatchNorm2d, nn.Flatten, nn.Linear]


def test_where_the_first_run_raises() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(4, 4))
    with pytest.raises(RunError, match=r"initializes its lazy modules\n.*cannot be multiplied"):
        count(model, torch.randn(2, 5))
    assert type(model[0]) is nn.LazyLinear
    assert isinstance(model[0].weight, UninitializedParameter)


def test_a_lazy_module_that_is_not_reached() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.LazyLinear(3), nn.LazyLinear(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = Two()
    with pytest.raises(InputError, match="run the model once"):
        count(model, torch.randn(2, 5))
    assert type(model.used) is nn.LazyLinear
