"""The weights that a forward reads, by hand, for every way to write a lookup."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxflops import closed_form, count
from fxflops.symbolic.weights import weights_read

ROWS, WIDTH, TOKENS, F32 = 50, 8, 6, 4


class Scaled(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 3.0


class Own(nn.Module):
    """A module with a table and a way to look up its rows."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(ROWS, WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.look = look

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.look(ids, self.table) + self.bias


def and_product(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.linear(F.embedding(ids, table), table).sum(-1, keepdim=True)


def and_product_of_a_view(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return (F.embedding(ids, table) @ table.t()).sum(-1, keepdim=True)


TAKEN, TABLE, BIAS = TOKENS * WIDTH * F32, ROWS * WIDTH * F32, WIDTH * F32
CASES: dict[str, tuple[nn.Module, int]] = {
    "module": (nn.Embedding(ROWS, WIDTH), TAKEN),
    "subclass": (Scaled(ROWS, WIDTH), TAKEN),
    "bag": (nn.EmbeddingBag(ROWS, WIDTH), TAKEN),
    "function": (Own(F.embedding), TAKEN + BIAS),
    "function of torch": (Own(lambda ids, table: torch.embedding(table, ids)), TAKEN + BIAS),
    "detached": (Own(lambda ids, table: F.embedding(ids, table.detach())), TAKEN + BIAS),
    "with a product": (Own(and_product), TABLE + BIAS),
    "with a product of a view": (Own(and_product_of_a_view), TABLE + BIAS),
}
INDEXED: dict[str, Any] = {
    "index": lambda ids, table: table[ids],
    "index_select": lambda ids, table: table.index_select(0, ids.flatten()),
}


@pytest.mark.parametrize("case", CASES)
def test_param_bytes_are_the_rows_of_an_embedding(case: str) -> None:
    model, read = CASES[case]
    form = closed_form(model, torch.zeros(2, 2, dtype=torch.long), dynamic_shapes=({0: "n"},))
    assert form.evaluate("param_bytes", n=TOKENS // 2) == read


@pytest.mark.parametrize("case", INDEXED)
def test_an_index_into_a_parameter_takes_rows(case: str) -> None:
    read = weights_read(count(Own(INDEXED[case]), torch.zeros(2, 3, dtype=torch.long)))
    assert {each.name: each.taken for each in read} == {"table": TAKEN, "bias": None}


def test_rows_of_all_calls_of_a_module_are_added() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = Scaled(ROWS, WIDTH)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.table(a).sum() + self.table(b).sum()

    ids = torch.zeros(4, dtype=torch.long)
    read = weights_read(count(Twice(), (ids, ids[:2])))
    assert sum(each.taken or 0 for each in read) == TAKEN
