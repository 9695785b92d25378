"""Sparse tensors take the memory of their indices and values, wherever they come from, and a run leaves both unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops

from .live_bytes import Live

NODES, WIDTH, EDGES = 64, 16, 256
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]


def adjacency() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(NODES * NODES, generator=generator)[:EDGES]
    return torch.sparse_coo_tensor(torch.stack([places // NODES, places % NODES]), torch.ones(EDGES), (NODES, NODES))


def coo() -> torch.Tensor:
    return adjacency().coalesce()


def csr() -> torch.Tensor:
    return coo().to_sparse_csr()


def csc() -> torch.Tensor:
    return coo().to_sparse_csc()


def bsr() -> torch.Tensor:
    return coo().to_dense().to_sparse_bsr((8, 8))


class Graph(nn.Module):
    """A layer and a sparse matrix, which is held as ``hold`` says."""

    def __init__(self, matrix: torch.Tensor, hold: str = "buffer") -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        if hold == "buffer":
            self.register_buffer("matrix", matrix)
        elif hold == "attribute":
            self.matrix = matrix
        elif hold == "list":
            self.held = [matrix]

    def forward(self, x: torch.Tensor, matrix: torch.Tensor | None = None) -> torch.Tensor:
        if matrix is None:
            matrix = self.held[0] if hasattr(self, "held") else self.matrix
        return (matrix @ self.layer(x)).square().sum()


class Makes(Graph):
    """Creates the sparse matrix again in each forward."""

    def forward(self, x: torch.Tensor, matrix: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, self.matrix.to_dense().to_sparse())


class Learns(nn.Module):
    """A table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, WIDTH, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).square().sum()


x = torch.randn(NODES, WIDTH)
CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], list[torch.Tensor]]]] = {}
for layout in (coo, csr, csc, bsr):
    for hold in ("buffer", "attribute", "list"):

        def held(layout: Any = layout, hold: str = hold) -> tuple[nn.Module, tuple[Any, ...], list[torch.Tensor]]:
            matrix = layout()
            return Graph(matrix, hold), (x,), [matrix, x]

        CASES[f"{layout.__name__} {hold}"] = held

    def given(layout: Any = layout) -> tuple[nn.Module, tuple[Any, ...], list[torch.Tensor]]:
        matrix = layout()
        return Graph(coo(), "none"), (x, matrix), [matrix, x]

    CASES[f"{layout.__name__} input"] = given


def made() -> tuple[nn.Module, tuple[Any, ...], list[torch.Tensor]]:
    matrix = coo()
    return Makes(matrix), (x,), [matrix, x]


def learns() -> tuple[nn.Module, tuple[Any, ...], list[torch.Tensor]]:
    ids = torch.arange(0, 200, 2)
    return Learns(), (ids,), [ids]


CASES["made"] = made
CASES["sparse gradient"] = learns


def peak(model: nn.Module, args: tuple[Any, ...], held: list[torch.Tensor], backward: bool) -> int:
    live = Live([*model.parameters(), *held])
    with live, torch.set_grad_enabled(backward):
        out = model(*args)
        if backward:
            out.backward()
    for parameter in model.parameters():
        parameter.grad = None
    return live.peak


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_peak_has_indices_and_values(name: str, backward: bool) -> None:
    if backward and name.startswith("bsr"):
        pytest.skip("torch has no such gradient on a CPU")
    model, args, held = CASES[name]()
    truth = peak(model, args, held, backward)
    with torch.set_grad_enabled(backward):
        assert fxflops.count(model, args, mode="as_is", backward=backward).max_memory == pytest.approx(truth, abs=16)
        report = fxflops.analyze(model, args, mode="as_is", backward=backward, repeats=0)
        assert report.max_memory == pytest.approx(truth, abs=16)
        with fxflops.profile(model) as p:
            out = model(*args)
            if backward:
                out.backward()
    assert p.report.max_memory == pytest.approx(truth, abs=16)


def test_by_hand() -> None:
    model, args, _ = CASES["coo input"]()
    report = fxflops.count(model, args, mode="as_is")
    # two i64 indices and an f32 value for each edge, plus the features
    assert report.memory["inputs"] == EDGES * (8 + 8 + 4) + NODES * WIDTH * 4


def scaled(matrix: torch.Tensor) -> None:
    matrix.mul_(2)


def added(matrix: torch.Tensor) -> None:
    matrix.add_(torch.eye(NODES).to_sparse())


def valued(matrix: torch.Tensor) -> None:
    (matrix._values() if matrix.layout is torch.sparse_coo else matrix.values()).mul_(3)


def zeroed(matrix: torch.Tensor) -> None:
    matrix.zero_()


@pytest.mark.parametrize("layout", [coo, csr, csc])
@pytest.mark.parametrize("write", [scaled, added, valued, zeroed])
def test_what_a_forward_writes_to_is_as_before(write: Callable[[Any], None], layout: Any) -> None:
    if layout is not coo and write in (scaled, added, zeroed):
        pytest.skip("torch has no such write to compressed matrices")

    class Writes(Graph):
        def forward(self, x: torch.Tensor, matrix: torch.Tensor | None = None) -> torch.Tensor:
            with torch.no_grad():
                write(self.matrix)
            return super().forward(x)

    model = Writes(layout())
    matrix = model.matrix
    dense, version = matrix.to_dense(), matrix._version
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            fxflops.count(model, x, mode="as_is")
            fxflops.count(model, x, mode="as_is", backward=True)
            fxflops.analyze(model, x, mode="as_is", repeats=2)
    assert model.matrix is matrix
    assert matrix._version == version
    assert torch.equal(matrix.to_dense(), dense)
