"""Sparse tensors take the memory of their indices and values, as inputs, parameters, results and gradients.

The oracle is the CPU allocator: the bytes that are live in a run on top of the bytes that were live before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from benchmarks.allocator import allocated

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
SCALARS = 64
"""Allowed difference in bytes, for a few numbers that torch wraps in tensors inside its operators."""


class Runs(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.run(*tensors)


def of_layout(layout: torch.layout) -> torch.Tensor:
    """Return an adjacency matrix of 200 nodes in which a tenth of the elements are not zero."""
    dense = torch.rand(200, 200, generator=torch.Generator().manual_seed(0)).gt(0.9).float()
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    with warnings.catch_warnings(action="ignore"):
        return dense if layout is torch.strided else dense.to_sparse(layout=layout, **blocks)


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storages, by torch's own names for its parts."""
    parts = [tensor]
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return sum(part.untyped_storage().nbytes() for part in parts)


COO, CSR, DENSE = torch.sparse_coo, torch.sparse_csr, torch.strided
FEATURES = torch.ones(200, 8)
CASES: dict[str, tuple[torch.layout, Callable[..., Any]]] = {
    "to_sparse": (DENSE, lambda x, d: x.to_sparse()),
    "to_sparse_csr": (DENSE, lambda x, d: x.to_sparse_csr()),
    "to_sparse_bsr": (DENSE, lambda x, d: x.to_sparse_bsr((2, 2))),
    "product": (COO, lambda x, d: torch.sparse.mm(x, d)),
    "twice": (COO, lambda x, d: x * 2),
    "summed and coalesced": (COO, lambda x, d: (x + x).coalesce()),
    "made dense": (COO, lambda x, d: x.to_dense()),
    "into another layout": (COO, lambda x, d: x.to_sparse_csr()),
    "its values": (COO, lambda x, d: x.values().sum()),
    "made of parts": (DENSE, lambda x, d: torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 2]]), d[0, :2], (3, 3))),
    "CSR, negated": (CSR, lambda x, d: -x),
    "CSC, copied": (torch.sparse_csc, lambda x, d: x.clone()),
    "BSR, copied": (torch.sparse_bsr, lambda x, d: x.clone()),
    "BSC, copied": (torch.sparse_bsc, lambda x, d: x.clone()),
}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_the_allocator_s(name: str) -> None:
    layout, run = CASES[name]
    model, given = Runs(run), (of_layout(layout), FEATURES)
    truth = allocated(lambda: model(*given), sum(map(nbytes, given)))
    reports = [fxflops.count(model, given), fxflops.analyze(model, given, repeats=0, progress=False)]
    with fxflops.profile(model) as profiled:
        model(*given)
    for report in (*reports, profiled.report):
        assert abs((report.max_memory or 0) - truth.held) <= SCALARS
        assert report.memory["inputs"] == sum(map(nbytes, given)) or report is profiled.report


def test_a_sparse_buffer_and_a_sparse_gradient() -> None:
    model = Runs(lambda d: torch.sparse.mm(model.adjacency, d))  # type: ignore[arg-type]
    adjacency = of_layout(COO)
    model.register_buffer("adjacency", adjacency)
    assert fxflops.count(model, FEATURES).memory["buffers"] == nbytes(adjacency)
    table, ids = nn.Embedding(100, 8, sparse=True), torch.arange(10)
    table(ids).sum().backward()
    assert table.weight.grad is not None
    assert fxflops.count(table, ids, backward=True).memory["gradients"] == nbytes(table.weight.grad)
