"""What a run records about the machine it ran on."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import fxflops


@pytest.mark.parametrize(
    ("threads", "said"), [(4, "cpu (4 cores)"), (1, "cpu (4 cores, 1 thread)"), (2, "cpu (4 cores, 2 threads)")]
)
def test_threads_are_said_where_they_are_not_one_for_each_core(
    monkeypatch: pytest.MonkeyPatch, threads: int, said: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert fxflops.count(nn.ReLU(), torch.ones(2)).environment.device == said
