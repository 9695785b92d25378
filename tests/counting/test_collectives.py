"""The bytes that each rank sends and receives in collectives, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fxflops.counting.collectives import KINDS, Collective, by_group, collectives
from fxflops.records import COMMUNICATION, Call, Count, Counted, Operation, Spec

N = 4
PART, WHOLE = Spec((3,)), Spec((N * 3,))  # 12 and 48 bytes
PIECES = (PART,) * N
GROUP, REDUCTION = "<ScriptObject>", "<ScriptObject>"


def row(op: str, args: tuple[Any, ...], out: Any = None, rank: int = 1, ranks: int | None = N) -> Collective:
    kwargs = {} if ranks is None else {"group": "dp", "ranks": ranks, "rank": rank}
    call = Call(Operation(op, op, args, kwargs, out), "layer", seconds=0.5)
    (found,) = collectives([Counted(call, Count(None, COMMUNICATION))])
    return found


CASES: dict[str, tuple[str, tuple[Any, ...], Any, tuple[int, int]]] = {
    # Each of 4 ranks sends 3/4 of 48 bytes twice: first partial sums, then sums.
    "all_reduce": ("allreduce", ((WHOLE,), GROUP, REDUCTION, None, True), ((WHOLE,), GROUP), (72, 72)),
    "functional all_reduce": ("all_reduce", (WHOLE, "sum", "0"), WHOLE, (72, 72)),
    # Each rank receives the three parts of the others, and sends as many.
    "all_gather": ("_allgather_base", (WHOLE, PART, GROUP, False), (WHOLE, GROUP), (36, 36)),
    "all_gather of a list": ("allgather", ((PIECES,), (PART,), GROUP), ((PIECES,), GROUP), (36, 36)),
    "functional all_gather": ("all_gather_into_tensor", (PART, N, "0"), WHOLE, (36, 36)),
    "reduce_scatter": ("_reduce_scatter_base", (PART, WHOLE, GROUP, REDUCTION), (PART, GROUP), (36, 36)),
    "functional reduce_scatter": ("reduce_scatter_tensor", (WHOLE, "sum", N, "0"), PART, (36, 36)),
    # Each rank sends and receives everything but its own quarter.
    "all_to_all": ("alltoall_base", (WHOLE, WHOLE, GROUP, (), ()), GROUP, (36, 36)),
    "all_to_all of a list": ("alltoall", (PIECES, PIECES, GROUP), (PIECES, GROUP), (36, 36)),
    # Rank 1 keeps 2 of the 12 rows that it sends, and 6 of the 12 that it receives.
    "uneven all_to_all": ("alltoall_base", (WHOLE, WHOLE, GROUP, (1, 6, 3, 2), (7, 2, 2, 1)), GROUP, (40, 24)),
    "functional all_to_all": ("all_to_all_single", (WHOLE, (1, 6, 3, 2), (7, 2, 2, 1), "0"), WHOLE, (40, 24)),
    "reshard": ("shard_dim_alltoall", (WHOLE, 0, 1, "0"), WHOLE, (36, 36)),
    "broadcast from here": ("broadcast", ((WHOLE,), GROUP, 1, 0, True), ((WHOLE,), GROUP), (48, 0)),
    "broadcast from elsewhere": ("broadcast", ((WHOLE,), GROUP, 0, 0, True), ((WHOLE,), GROUP), (0, 48)),
    "scatter from here": ("scatter", ((PART,), (PIECES,), GROUP, 1), ((PART,), GROUP), (36, 0)),
    "scatter from elsewhere": ("scatter", ((PART,), (), GROUP, 2), ((PART,), GROUP), (0, 12)),
    "reduce to here": ("reduce", ((WHOLE,), GROUP, REDUCTION, 1, 0), GROUP, (0, 48)),
    "reduce to elsewhere": ("reduce", ((WHOLE,), GROUP, REDUCTION, 0, 0), GROUP, (48, 0)),
    "gather to here": ("gather", ((PIECES,), (PART,), GROUP, 1), GROUP, (0, 36)),
    "gather to elsewhere": ("gather", ((), (PART,), GROUP, 3), GROUP, (12, 0)),
    "send": ("send", ((WHOLE,), GROUP, 0, 0), GROUP, (48, 0)),
    "recv": ("recv", ((WHOLE,), GROUP, 0, 0), GROUP, (0, 48)),
    "send_recv": ("batch_p2p_ops", (("isend", "irecv"), (0, 2), (0, 0), (PART, WHOLE), "0"), PART, (12, 48)),
}  # fmt: skip


@pytest.mark.parametrize(("op", "args", "out", "moved"), CASES.values(), ids=CASES)
def test_bytes(op: str, args: tuple[Any, ...], out: Any, moved: tuple[int, int]) -> None:
    found = row(op, args, out)
    assert found == Collective("layer", "forward", KINDS[op][0], "dp", N, 1, *moved, 0.5)


@pytest.mark.parametrize("case", ["all_reduce", "all_to_all", "reshard"])
def test_one_process_sends_nothing_to_itself(case: str) -> None:
    op, args, out, _ = CASES[case]
    assert row(op, args, out, rank=0, ranks=1)[6:8] == (0, 0)


def test_what_is_not_known_is_none() -> None:
    assert row("new_collective", (WHOLE,), WHOLE)[2:8] == ("new_collective", "dp", N, 1, None, None)
    assert row("all_reduce", (WHOLE, "sum", "0"), WHOLE, ranks=None)[3:8] == ("", None, 1, None, None)


def test_rows_are_summed_by_group() -> None:
    one, other = row("send", ((WHOLE,), GROUP, 0, 0)), row("send", ((PART,), GROUP, 0, 0))._replace(path="other")
    assert by_group([one, other]) == [Collective("", "", "send", "dp", N, 2, 60, 0, 1.0)]
    assert by_group([one, other._replace(sent=None)])[0].sent is None
