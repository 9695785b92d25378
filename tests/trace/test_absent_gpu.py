"""Count for a GPU that this machine lacks: questions to the driver are answered meanwhile, and everything is restored afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxflops

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which answers itself")


class Asks(nn.Module):
    """A layer that runs differently on older GPUs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x if torch.cuda.get_device_capability(x.device) >= (8, 0) else x + x


def test_the_capability_is_that_of_the_gpu_whose_rules_are_taken() -> None:
    original = torch.cuda.get_device_capability, torch.autocast.__init__
    report = fxflops.count(Asks(), torch.ones(4, 4), device="cuda")
    assert report.total_macs == 64
    assert (torch.cuda.get_device_capability, torch.autocast.__init__) == original


def test_for_a_cpu_the_question_raises_as_ever() -> None:
    with pytest.raises(fxflops.RunError, match=r"CUDA|NVIDIA"):
        fxflops.count(Asks(), torch.ones(4, 4))
