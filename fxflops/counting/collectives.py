"""Compute the bytes that a process sends and receives in each collective, and sums of these bytes by module, operation and group.

The bytes are the fewest that any algorithm can transfer. For a sum, for example, the ring algorithm transfers this number. The bus
bandwidth that nccl-tests prints is these bytes per second (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). With n
processes:

- In an all_gather, a reduce_scatter or an all_to_all, a process sends and receives (n-1)/n of S bytes. S is the size of the gathered result
  in an all_gather, and the size of a process's input in a reduce_scatter or an all_to_all. An all_reduce transfers twice as many bytes as a
  reduce_scatter.
- The root of a broadcast or a scatter sends the bytes that the other processes receive. The root of a reduce or a gather receives
  the bytes that the other processes send.

A real transport may send more bytes: other processes may relay a broadcast, and Gloo and tree algorithms may round sizes up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..records import COMMUNICATION, Call, Counted, grouped, specs_in


class Transfer(NamedTuple):
    """Bytes that a process sends and receives."""

    sent: int
    received: int


class Collective(NamedTuple):
    """The calls of one collective operation in one module, phase and process group.

    ``group`` is the name of the mesh dimension, or another description of the group. ``ranks`` is the number of processes in the
    group, None if unknown. ``sent`` and ``received`` are the bytes of this process, None if unknown. ``seconds`` is the time until
    the calls return; an asynchronous transfer may end later.
    """

    path: str
    phase: str
    op: str
    group: str
    ranks: int | None
    calls: int
    sent: int | None
    received: int | None
    seconds: float | None

    @property
    def key(self) -> tuple[Any, ...]:
        return self[:5]

    def plus(self, other: Collective) -> Collective:
        """Return the sum of two rows with the same key."""
        sums: Any = map(known_sum, zip(self[5:], other[5:], strict=True))
        return Collective(*self.key, *sums)


def collectives(counted: Iterable[Counted]) -> list[Collective]:
    """Return a row for each collective in each module and phase, in run order."""
    return _summed(_row_of(each.call) for each in counted if each.rule == COMMUNICATION)


def by_group(rows: Iterable[Collective]) -> list[Collective]:
    """Sum the rows over modules and phases."""
    return _summed(row._replace(path="", phase="") for row in rows)


def transferred(rows: Sequence[Collective]) -> tuple[int | None, int | None]:
    """Return the bytes sent and the bytes received in all rows. A sum is None if the bytes of a row are unknown."""
    return known_sum(row.sent for row in rows), known_sum(row.received for row in rows)


def sent_by_group(rows: Iterable[Collective]) -> dict[str, int | None]:
    """Return the bytes sent in each group; None for a group with a collective whose bytes are unknown."""
    return {group: known_sum(sizes) for group, sizes in grouped((row.group, row.sent) for row in rows).items()}


def known_sum(values: Iterable[Any]) -> Any:
    """Return the sum of values; None if any value is None."""
    listed = [*values]
    return None if None in listed else sum(listed)


def _row_of(call: Call) -> Collective:
    op, transfer = KINDS.get(call.op, (call.op, None))
    n, rank = call.kwargs.get("ranks"), call.kwargs.get("rank")
    sent, received = (None, None) if transfer is None or n is None else transfer(call, n, rank)
    return Collective(call.path, call.phase, op, call.kwargs.get("group", ""), n, 1, sent, received, call.seconds)


def _summed(rows: Iterable[Collective]) -> list[Collective]:
    """Add up rows with the same key. The result is in order of first appearance."""
    sums: dict[tuple[Any, ...], Collective] = {}
    for row in rows:
        sums[row.key] = sums[row.key].plus(row) if row.key in sums else row
    return list(sums.values())


def _bytes(value: Any) -> int:
    return sum(spec.nbytes for spec in specs_in(value))


def _operands(call: Call) -> list[int]:
    """Return the sizes in bytes of the first two arguments and of the result. Leave out values that contain no tensors."""
    first, second = (*call.args, (), ())[:2]
    return [nbytes for value in (first, second, call.out) if (nbytes := _bytes(value))]


def _gathered(call: Call, n: int, rank: int) -> Transfer:
    """Return the bytes of an all_gather or a reduce_scatter. A process sends and receives the size of the other processes' parts."""
    operands = _operands(call)
    return Transfer(*2 * (max(operands, default=0) - min(operands, default=0),))


def _reduced(call: Call, n: int, rank: int) -> Transfer:
    """Return the bytes of an all_reduce, which is a reduce_scatter followed by an all_gather."""
    return Transfer(*2 * (math.ceil(2 * (n - 1) * _bytes(call.args[0]) / n),))


def _exchanged(call: Call, n: int, rank: int) -> Transfer:
    """Return the bytes that an all_to_all sends to and receives from the other processes."""
    sent, out = (call.args[1], call.args[0]) if call.op.startswith("alltoall") else (call.args[0], call.out)
    splits: Any = ((), ())
    if call.op == "alltoall_base":
        splits = call.args[4], call.args[3]
    elif call.op == "all_to_all_single":
        splits = call.args[2], call.args[1]
    return Transfer(*(_others(value, sizes, n, rank) for value, sizes in zip((sent, out), splits, strict=True)))


def _others(value: Any, splits: tuple[int, ...], n: int, rank: int) -> int:
    """Return the size in bytes of a tensor, or of a list with a tensor per process. Leave out this process's own part."""
    parts = [spec.nbytes for spec in specs_in(value)]
    all_bytes = sum(parts)
    if len(parts) == n > 1:
        return all_bytes - parts[rank]
    return all_bytes - (all_bytes * splits[rank] // max(sum(splits), 1) if splits else all_bytes // n)


def _from_root(call: Call, n: int, rank: int) -> Transfer:
    """Return the bytes of a broadcast or a scatter. The first argument of a scatter has the size of one process's part."""
    nbytes = _bytes(call.args[0])
    if rank != _root(call):
        return Transfer(0, nbytes)
    return Transfer(nbytes * (n - 1 if call.op == "scatter" else n > 1), 0)


def _to_root(call: Call, n: int, rank: int) -> Transfer:
    """Return the bytes of a reduce or a gather. Every process contributes the same number of bytes."""
    nbytes = _bytes(call.args[1] if call.op.startswith("gather") else call.args[0])
    if rank != _root(call):
        return Transfer(nbytes, 0)
    return Transfer(0, nbytes * (n - 1 if call.op.startswith("gather") else n > 1))


def _root(call: Call) -> int:
    """Return the rank of the root process, which is the collective's first int argument."""
    return next(value for value in call.args if type(value) is int)


def _sent(call: Call, n: int, rank: int) -> Transfer:
    return Transfer(_bytes(call.args[0]), 0)


def _received(call: Call, n: int, rank: int) -> Transfer:
    return Transfer(0, _bytes(call.args[0]))


def _several(call: Call, n: int, rank: int) -> Transfer:
    ops, tensors = call.args[0], [*specs_in(call.args[3])]
    moved = [(op, tensor.nbytes) for op, tensor in zip(ops, tensors, strict=True)]
    return Transfer(*(sum(nbytes for op, nbytes in moved if op == side) for side in ("isend", "irecv")))


def _kinds() -> Iterator[tuple[str, tuple[str, Callable[[Call, int, int], Transfer]]]]:
    for kind, transfer, names in (
        ("all_reduce", _reduced, "allreduce allreduce_coalesced all_reduce all_reduce_coalesced"),
        (
            "all_gather",
            _gathered,
            "allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced all_gather_into_tensor "
            "all_gather_into_tensor_out all_gather_into_tensor_coalesced",
        ),
        (
            "reduce_scatter",
            _gathered,
            "reduce_scatter _reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_out "
            "reduce_scatter_tensor_coalesced",
        ),
        ("all_to_all", _exchanged, "alltoall alltoall_base all_to_all_single shard_dim_alltoall"),
        ("broadcast", _from_root, "broadcast"),
        ("scatter", _from_root, "scatter"),
        ("reduce", _to_root, "reduce"),
        ("gather", _to_root, "gather gather_into_tensor"),
        ("send", _sent, "send isend"),
        ("recv", _received, "recv recv_any_source irecv"),
        ("send_recv", _several, "batch_p2p_ops"),
    ):
        yield from ((name, (kind, transfer)) for name in names.split())


KINDS = dict(_kinds())
"""Maps an operator's name to its collective and the function that returns its bytes."""
