"""On meta, a count reports a lookup of a row that the table does not have. On real tensors torch raises."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)


class Scaled(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(ids)


class Positions(nn.Module):
    """Learned positions, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(torch.arange(x.shape[1]))


LOOKUPS = [nn.Embedding(10, 4), Scaled(10, 4), Written()]
ROWS = {(0, 9): 9, (0, 10): 10, (-1, 3): -1, (): 0}
"""Indices, and the one that is reported if torch raises."""


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("ids", ROWS, ids=str)
@pytest.mark.parametrize("model", LOOKUPS, ids=lambda model: type(model).__name__)
def test_a_lookup_that_raises_is_told(model: nn.Module, ids: tuple[int, ...], backward: bool) -> None:
    given = torch.tensor([ids], dtype=torch.long)
    expected = []
    try:
        model(given)
    except IndexError:
        expected = [f"looks up row {ROWS[ids]} of a table with 10 rows: the model itself raises an IndexError"]
    report = fxflops.count(model, given, backward=backward)
    said = [*report.remarks.values()]
    assert said == expected
    assert report.complete
    assert all(each in str(report) for each in said)
    again = fxflops.Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert [*again.remarks.values()] == said


def test_a_sequence_longer_than_the_learnt_positions() -> None:
    assert not fxflops.count(Positions(), torch.ones(1, 10, 4)).remarks
    assert "row 11 of a table with 10 rows" in str(fxflops.count(Positions(), torch.ones(1, 12, 4)))


def test_indices_without_values_are_not_known() -> None:
    with torch.device("meta"):
        assert not fxflops.count(nn.Embedding(10, 4), torch.full((1, 2), 99)).remarks


def test_each_of_two_lookups_of_one_kind_is_told_for_itself() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids) + self.table(ids + 5)

    found = fxflops.count(Twice(), torch.tensor([[7, 2]])).remarks
    assert [*found.values()] == ["looks up row 12 of a table with 10 rows: the model itself raises an IndexError"]
