"""Bytes read and written by a call, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxflops
from fxflops.records import COMMUNICATION, Call, Count, Counted, Operation, Spec
from fxflops.roofline.traffic import Traffic, compute_dtype, nbytes, traffic_of

X, INDEX = torch.randn(2, 4), torch.tensor([[0, 1, 1], [2, 0, 1]])
ROWS, TWO = torch.tensor([3, 5]), torch.randn(2, 16)


class Does(nn.Module):
    """A model of one function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def traffic(model: object, *args: torch.Tensor) -> Traffic:
    """The traffic of the last call."""
    module = model if isinstance(model, nn.Module) else Does(model)
    return traffic_of(fxflops.analyze(module, args, repeats=0, trace="record").counted[-1])


@pytest.mark.parametrize(
    ("model", "args", "read", "written"),
    [
        (nn.Linear(6, 8), (torch.randn(4, 6),), 4 * (4 * 6 + 6 * 8 + 8), 4 * (4 * 8)),
        (nn.LayerNorm(8), (torch.randn(4, 8),), 4 * (4 * 8 + 8 + 8), 4 * (4 * 8)),
        (nn.Conv2d(2, 3, 3, padding=1), (torch.randn(1, 2, 5, 5),), 4 * (50 + 3 * 2 * 9 + 3), 4 * (3 * 25)),
        (nn.BatchNorm1d(4), (X,), 4 * (8 + 4 * 4), 4 * 8),  # weight, bias, running mean and variance
        (torch.add, (X, X), 4 * 16, 4 * 8),
        (torch.gt, (X, X), 4 * 16, 8),
        # Lookups: six indices of 8 bytes, and the rows (elements) that they read
        (nn.Embedding(100, 4), (INDEX,), 6 * 8 + 6 * 16, 6 * 16),
        (lambda i, w: F.embedding(i, w), (INDEX, torch.randn(100, 4)), 6 * 8 + 6 * 16, 6 * 16),
        (nn.EmbeddingBag(100, 4), (INDEX,), 6 * 8 + 6 * 16, 2 * 16),
        (lambda x, i: torch.gather(x, 1, i), (X, INDEX), 6 * 8 + 6 * 4, 6 * 4),
        (lambda x, i: x[i], (torch.randn(9, 4), INDEX[0]), 3 * 8 + 3 * 16, 3 * 16),
        # Moves, creations, writes
        (lambda x: x.clone(), (X,), 32, 32),
        (lambda x: x.half(), (X,), 32, 16),
        (lambda x: torch.zeros_like(x), (X,), 0, 32),
        (lambda x, y: x.copy_(y), (X.clone(), X), 32, 32),
        (lambda x, y: torch.add(x, x, out=y), (X, X.clone()), 64, 32),
        (lambda x: torch.diag_embed(x), (X,), 32, 2 * 64),
        (lambda x: torch.diag(x[0]), (X,), 16, 64),
        # Indexed writes in place change only the elements that the indices name; a sum also reads these
        (lambda x, i, y: x.index_copy_(0, i, y), (torch.randn(64, 16), ROWS, TWO), 2 * 8 + 128, 128),
        (lambda x, i, y: x.index_copy_(dim=0, index=i, source=y), (torch.randn(64, 16), ROWS, TWO), 2 * 8 + 128, 128),
        (lambda x, i, y: x.index_add_(0, i, y), (torch.randn(64, 16), ROWS, TWO), 2 * 8 + 128 + 128, 128),
        (lambda x, i: x.index_fill_(1, i, 2.0), (torch.randn(64, 16), ROWS), 2 * 8, 64 * 2 * 4),
        (lambda x, i, y: x.index_put_((i,), y), (torch.randn(64, 16), ROWS, TWO), 2 * 8 + 128, 128),
        (lambda x, i: x.index_put_((i,), x.new_ones(())), (torch.randn(64, 16), ROWS), 2 * 8 + 4, 128),
        (lambda x, i: x.index_put_((i, i), x.new_ones(2)), (torch.randn(64, 16), ROWS), 4 * 8 + 8, 8),
        (lambda x, i, y: x.index_put_((i,), y, accumulate=True), (torch.randn(64, 16), ROWS, TWO), 144 + 128, 128),
        (lambda x, i: x.scatter_(0, i, 1.0), (torch.randn(64, 16), INDEX), 6 * 8, 6 * 4),
        (lambda x, i, y: x.scatter_add_(0, i, y), (torch.randn(64, 3), INDEX, torch.randn(2, 3)), 48 + 24 + 24, 24),
        (lambda x, i, y: x.index_copy(0, i, y), (torch.randn(64, 16), ROWS, TWO), 4096 + 16 + 128, 4096),
        # Lists: the first list of a copy is only written
        (lambda x, y: torch._foreach_copy_([*x], [*y.half()]), (X.clone(), X), 16, 32),
        (lambda x, y: torch._foreach_add_([*x], [*y]), (X.clone(), X), 64, 32),
        (lambda x: torch._foreach_zero_([*x]), (X.clone(),), 0, 32),
        # Nothing moves, or possibly nothing
        (lambda x: x.view(8), (X,), 0, 0),
        (lambda x: x[:, 1:], (X,), 0, 0),
        (lambda x: x.contiguous(), (X,), 0, 0),
        (lambda x: x.float(), (X,), 0, 0),
        (lambda x: x.type_as(x), (X,), 0, 0),
        (lambda i: i.long(), (INDEX,), 0, 0),
        (lambda i: i.bool().bool(), (INDEX,), 0, 0),
        (lambda i: i.int(), (INDEX,), 6 * 8, 6 * 4),
        (lambda x: torch.empty_like(x).zero_(), (X,), 0, 32),
        (nn.Dropout(), (X,), 0, 0),
    ],
)  # fmt: skip
def test_bytes(model: object, args: tuple[torch.Tensor, ...], read: int, written: int) -> None:
    assert traffic(model, *args) == (read, written)


@pytest.mark.parametrize(
    ("function", "into"),
    [
        (lambda x: torch.topk(x, 2), lambda x, a, b: torch.topk(x, 2, out=(a, b))),
        (lambda x: torch.topk(x, 2), lambda x, a, b: torch.ops.aten.topk.values(x, 2, values=a, indices=b)),
        (lambda x: x.split([1, 3], 1), lambda x, a, b: torch.split_with_sizes_copy(x, [1, 3], 1, out=[a, b])),
        (torch.unbind, lambda x, a, b: torch.unbind_copy(x, out=[a, b])),
        (torch.aminmax, lambda x, a, b: torch.aminmax(x, out=(a, b))),
    ],
)
def test_given_results_are_written_and_not_read(function: Callable[[Tensor], Sequence[Tensor]], into: object) -> None:
    results = [torch.empty(result.shape, dtype=result.dtype) for result in function(X)]
    assert traffic(into, X, *results) == (4 * 8, sum(result.nbytes for result in results))


def test_copies_of_fsdp() -> None:
    """FSDP copies its shards into this rank's part of a buffer; after the all-gather, it copies the buffer into the parameters."""
    import torch.distributed.fsdp  # defines the operators

    fsdp, buffer = torch.ops.fsdp, torch.randn(2 * 8)
    shards, whole = [*X.view(8).split([6, 2])], [torch.empty(2, 6), torch.empty(2, 2)]
    assert traffic(lambda *args: fsdp.all_gather_copy_in(shards, buffer, [6, 2], 8, 1)) == (4 * 8, 4 * 8)
    assert traffic(lambda b: fsdp.split_with_sizes_copy(b.view(2, 8), [6, 2], 1, out=whole), buffer) == (64, 64)
    assert traffic(lambda x, out: fsdp.chunk_cat([x], 0, 2, out=out), X, torch.empty(2, 4)) == (32, 32)


def test_a_send_reads_and_a_receive_writes() -> None:
    c10d, tensors = torch.ops.c10d, (Spec((8,)),)
    sent = Call(Operation("send", c10d.send.default, (tensors, None, 1, 0), {}, None))
    received = Call(Operation("recv", c10d.recv_.default, (tensors, None, 0, 0), {}, None))
    rule = Count(fxflops.Cost(), COMMUNICATION)
    assert [traffic_of(Counted(call, rule)) for call in (sent, received)] == [(32, 0), (0, 32)]


def test_setitem_writes_what_is_put() -> None:
    def put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:, 1] = y
        return x

    assert traffic(put, X.clone(), X[:, 0]) == (8, 8)


def test_what_sparse_and_nested_tensors_hold() -> None:
    assert nbytes(Spec((100, 100), facts={"nnz": 3})) == 12
    assert nbytes(Spec((2, 9, 4), facts={"parts": (Spec((9, 4)), Spec((1, 4)))})) == 160


@pytest.mark.parametrize(
    ("args", "out", "dtype"),
    [
        ((Spec((2,)),), Spec((2,)), "f32"),
        ((Spec((2,)),), Spec((2,), torch.bfloat16), "bf16"),  # under autocast
        ((Spec((2,), torch.float8_e4m3fn),), Spec((2,), torch.bfloat16), "f8"),
        ((Spec((2,), torch.float16), Spec((2,), torch.int8)), Spec((2,), torch.float16), "f16"),
        ((Spec((2,), torch.complex64),), Spec((2,), torch.complex64), "c64"),
        ((Spec((2,), torch.quint8),), Spec((2,), torch.quint8), "i8"),
        ((Spec((2,), torch.int8),), Spec((2,), torch.int32), "i8"),
        ((Spec((2,), torch.int64),), Spec((2,), torch.int64), ""),
    ],
)
def test_compute_dtype(args: tuple[Spec, ...], out: Spec, dtype: str) -> None:
    call = Call(Operation("op", None, args, {}, out))
    assert compute_dtype(call) == dtype
    assert traffic_of(Counted(call, Count(fxflops.Cost()))) == (sum(map(nbytes, args)), nbytes(out))
