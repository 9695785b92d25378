"""The CPU kernels of ``EmbeddingBag`` return extra tables along with the bags, and the meta kernels return them in other sizes.

The oracle is a dispatch mode that tracks the storages of the real kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops

from .live_bytes import Live

KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "sparse": {"sparse": True},
    "padded": {"padding_idx": 2},
    "ends": {"include_last_offset": True},
    "f64": {"dtype": torch.float64},
    "bf16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_peak_has_the_tables_of_the_cpu(mode: str, kind: str, learns: bool) -> None:
    if (mode, kind) == ("max", "sparse"):
        pytest.skip("torch has no sparse gradient of a maximum")
    model = nn.EmbeddingBag(32, 16, mode=mode, **KINDS[kind])
    ids, offsets = torch.randint(0, 32, (12,)), torch.tensor([0, 3, 6, 9, 12][: 5 if kind == "ends" else 4])
    with Live([*model.parameters(), ids, offsets]) as live, torch.set_grad_enabled(learns):
        out = model(ids, offsets)
    del out
    with torch.set_grad_enabled(learns):
        assert fxflops.count(model, (ids, offsets), mode="as_is").max_memory == live.peak
        assert fxflops.analyze(model, (ids, offsets), mode="as_is", repeats=0, progress=False).max_memory == live.peak
