"""Operators that torch composes from others are run by their parts, if the device counted for has these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.trace.composed import is_one_operator


class ReadsImages(nn.Module):
    """Put an image's features into the places reserved for them in a sentence, as vision-language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(10, 8), nn.Linear(4, 8)

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        words = self.embed(ids)
        places = (ids == 3).unsqueeze(-1).expand_as(words)
        return words.masked_scatter(places, self.project(image)).sum()


def test_gradients_of_scattered_features_need_no_real_tensors() -> None:
    args = torch.tensor([[1, 3, 3, 2]]), torch.randn(2, 4)
    counted = fxflops.count(ReadsImages(), args, backward=True)
    assert (counted.trace, counted.trace_reason) == ("counted on the meta device", "")
    computed = fxflops.analyze(ReadsImages(), args, backward=True, repeats=0, progress=False)
    assert counted.total_flops == computed.total_flops
    assert counted.max_memory == computed.max_memory


OPERATORS = [torch.Tensor.add, torch.cumsum, torch.full_like, torch.stack, torch.Tensor.__eq__, torch.Tensor.fill_]
MORE_THAN_ONE = [
    torch.Tensor.to,
    torch.where,
    torch.diff,
    torch.isinf,
    torch.ldexp,
    torch.Tensor.norm,
    torch.cartesian_prod,
]


@pytest.mark.parametrize("func", OPERATORS + MORE_THAN_ONE, ids=lambda func: func.__name__)
def test_one_operator_is_all_that_a_dispatch_mode_sees(func: Any) -> None:
    assert is_one_operator(func) == (func in OPERATORS)
