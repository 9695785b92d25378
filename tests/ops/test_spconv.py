"""spconv's convolutions, by the names of their functions: pairs of points, found one by one. Uses the library if it is installed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.records import Cost
from tests.library_stand_ins import library

FUNCTION = "spconv.pytorch.functional:indice_subm_conv"
GEMM = "spconv.pytorch.functional:implicit_gemm"
OFFSETS = [*itertools.product((-1, 0, 1), repeat=2)]
# points, inputs, outputs
SHAPES = [(1, 1, 1), (4, 3, 2), (9, 2, 5), (12, 4, 4), (7, 8, 1)]


class Conv(torch.autograd.Function):
    """Each output adds up its neighbors, weighted by their relative places. The pairs are listed per place."""

    @staticmethod
    def forward(ctx: Any, features: Any, filters: Any, pairs: Any) -> Any:
        ctx.save_for_backward(features, filters, pairs)
        out = features.new_zeros(len(features), len(filters))
        for place, (sources, targets) in enumerate(pairs.unbind(1)):
            used = sources >= 0
            out.index_add_(0, targets[used].long(), features[sources[used].long()] @ filters[:, place].T)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        features, filters, _ = ctx.saved_tensors
        return torch.zeros_like(features), torch.zeros_like(filters), None


def points(n: int) -> tuple[torch.Tensor, int]:
    """Return the pairs of n grid points as [inputs and outputs, places, points], with -1 for no pair, and the number of pairs."""
    at = [(i // 4, (i * 3) % 4) for i in range(n)]
    pairs = torch.full((2, len(OFFSETS), n), -1, dtype=torch.int32)
    number = 0
    for place, (dy, dx) in enumerate(OFFSETS):
        found = [(at.index((y + dy, x + dx)), i) for i, (y, x) in enumerate(at) if (y + dy, x + dx) in at]
        number += len(found)
        for i, (source, target) in enumerate(found):
            pairs[0, place, i], pairs[1, place, i] = source, target
    return pairs, number


@pytest.fixture
def spconv() -> Iterator[Any]:
    def body(features: Any, filters: Any, indice_pairs: Any = None, pair_fwd: Any = None, **others: Any) -> Any:
        pairs = indice_pairs if pair_fwd is None else torch.stack((pair_fwd, pair_fwd))
        return Conv.apply(features, filters, pairs)

    given = "features, filters, indice_pairs, indice_pair_num, num_activate_out, algo, timer=None, bias=None"
    table = "features, filters, pair_fwd, pair_bwd, num_activate_out, masks, is_train, is_subm, timer=None, bias=None"
    with library({FUNCTION: given, GEMM: table}, body) as find:
        yield find


class Model(nn.Module):
    def __init__(self, call: Any, i: int, o: int, n: int, *given: Any) -> None:
        super().__init__()
        self.call, self.given = call, given
        self.features, self.filters = nn.Parameter(torch.randn(n, i)), nn.Parameter(torch.randn(o, len(OFFSETS), i))

    def forward(self) -> Any:
        return self.call(self.features, self.filters, *self.given)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_pair_is_a_product(spconv: Any, shape: tuple[int, ...]) -> None:
    n, i, o = shape
    pairs, number = points(n)
    counts = pairs[0].ge(0).sum(1)
    report = fxflops.count(Model(spconv(FUNCTION), i, o, n, pairs, counts, n, None), backward=True)
    assert report.complete
    forward, backward = (each for each in report.counted if each.call.op.startswith("sparse_conv"))
    products = number * i * o
    assert forward.cost == Cost(macs=products, muls=products, adds=products - n * o)
    assert backward.cost.macs == backward.cost.muls == 2 * products
    assert backward.cost.adds == (products - n * i) + (products - o * int(counts.gt(0).sum()) * i)
    by_table = fxflops.count(Model(spconv(GEMM), i, o, n, pairs[0], None, n, None, True, True))
    assert by_table.total_macs == products


@pytest.mark.skipif(find_spec("spconv") is None, reason="spconv is not installed")
@pytest.mark.parametrize("kind", ["SubMConv3d", "SparseConv3d"])
def test_the_library_itself(kind: str) -> None:
    import spconv.pytorch as library
    from spconv.pytorch.conv import ConvAlgo

    torch.manual_seed(0)
    side, i, o = 5, 3, 4
    at = (torch.rand(2, side, side, side) < 0.3).nonzero().int().contiguous()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = getattr(library, kind)(i, o, 3, padding=1, bias=False, algo=ConvAlgo.Native)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(library.SparseConvTensor(x, at, [side] * 3, 2)).features

    seen = {tuple(each) for each in at.tolist()}
    inside = range(side)
    number = sum(
        (b, z + dz, y + dy, x + dx) in seen if kind == "SubMConv3d" else {z + dz, y + dy, x + dx} <= {*inside}
        for b, z, y, x in seen
        for dz, dy, dx in itertools.product((-1, 0, 1), repeat=3)
    )
    assert fxflops.count(Net(), torch.randn(len(at), i)).total_macs == number * i * o
