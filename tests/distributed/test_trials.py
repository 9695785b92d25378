"""Which trials are extrapolated from a few layers, and which are simulated with all layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxflops.distributed.trials import Outcome, Trial, Trials
from tests.distributed import simulates
from tests.distributed.steps import DEVICE, LINKS

pytestmark = simulates
LAYERS = 8


class Stack(nn.Module):
    """A stack of equal layers, or if ``grows``, of layers that become wider."""

    def __init__(self, grows: bool, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8 * (i + 1) if grows else 8, bias=False) for i in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[..., :8]
        return x


def stack(grows: bool) -> Any:
    def build(mesh: Any, layers: int = LAYERS) -> Any:
        model, x = Stack(grows, layers), torch.ones(4, 8)

        def step() -> None:
            model(x)

        return model, step

    return build


@pytest.mark.parametrize("grows", [False, True])
def test_layers_are_left_out_only_if_they_are_alike(grows: bool) -> None:
    build = stack(grows)
    simulations = 0

    def done() -> None:
        nonlocal simulations
        simulations += 1

    trials = [Trial({"dp": 2}, build), Trial({"dp": 4}, build)]
    few, whole = (
        Trials(DEVICE, LINKS, None, differs=(), layers=layers, done=done).outcomes(trials) for layers in (LAYERS, None)
    )
    for extrapolated, simulated in zip(few, whole, strict=True):
        assert isinstance(extrapolated, Outcome)
        assert isinstance(simulated, Outcome)
        assert extrapolated.simulation.figures == simulated.simulation.figures
    # Without layers: each trial once. With layers: each trial from a few layers; the first trial also whole; the other also whole
    # if the first differs.
    assert simulations == 2 + 3 + grows


def test_a_trial_over_the_limit_has_no_bound_and_one_that_raises_has_a_reason() -> None:
    def fails(mesh: Any) -> Any:
        raise ValueError("not on this mesh")

    trials = [Trial({"dp": 2}, stack(False)), Trial({"dp": 2}, fails)]
    too_large, reason = Trials(DEVICE, LINKS, limit=1, differs=()).outcomes(trials)
    assert isinstance(too_large, Outcome)
    assert too_large.bound is None
    assert isinstance(reason, str)
    assert "ValueError: not on this mesh" in reason
