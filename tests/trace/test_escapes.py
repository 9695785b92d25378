"""What torch cannot tell of: data that leaves it, and memory that nothing seen has written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fxflops import MissingFormulaError, analyze


class Runs(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


def filled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2, 3)
    out[:] = x
    other = torch.empty_like(x).copy_(x)
    torch.add(x, 1, out=other)
    return torch.baddbmm(torch.empty(1, 2, 2), x[None], x.T[None], beta=0) + out.sum() + other.sum()


ESCAPES = {
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "__array__": lambda x: torch.tensor(__import__("numpy").asarray(x)),
    "data_ptr": lambda x: x + x.data_ptr() * 0,
    "unseen write to torch.empty": lambda x: torch.empty(2, 3) + x,
}


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_missing(name: str) -> None:
    model, x = Runs(ESCAPES[name]), torch.ones(2, 3)
    report = analyze(model, x, trace="record", repeats=0)
    assert [m.op for m in report.missing] == [name]
    assert not report.complete
    with pytest.raises(MissingFormulaError, match=name):
        analyze(model, x, trace="record", repeats=0, strict=True)


def test_what_is_written_is_known() -> None:
    assert analyze(Runs(filled), torch.ones(2, 3), trace="record", repeats=0).complete


def test_integers_that_are_read_are_positions() -> None:
    model = Runs(lambda x: x[torch.arange(2).numpy().tolist()])
    assert analyze(model, torch.ones(2, 3), trace="record", repeats=0).complete
