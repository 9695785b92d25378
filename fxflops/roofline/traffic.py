"""The fewest bytes that a call must move, if each of its tensors is read from or written to memory once.

A call's intermediate results are assumed to stay in caches. A view moves no bytes. A lookup reads only the rows that it returns, and an
indexed write in place (``index_copy_``, ``scatter_add_``) writes only the elements that it changes.
Convolutions and pools read only the elements inside their windows.

A spec has no strides and no identity. So an expanded argument, or one that is passed twice, is counted in full. Calls that can return a view
are counted as 0 bytes, even if they copy: ``reshape`` and ``flatten``, ``contiguous`` and ``to`` that keep shape and dtype, and ``x[[0, 2]]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch

from ..counting.arithmetic import output_arguments
from ..ops._traits import LOOKUPS, MAYBE_NOTHING, OVERWRITES, UNINITIALIZED
from ..records import COMMUNICATION, Call, Counted, Spec, specs_in
from .windows import unread_bytes

UNREAD = {"num_batches_tracked"}
"""Module buffers that are not counted as read."""
INDEXED = frozenset("index_copy index_add index_reduce index_put index_fill scatter scatter_add scatter_reduce".split())
"""Ops that in place write only to the positions that their indices name."""
INDICES = frozenset({torch.int64, torch.int32})
GATHER_COPY = "all_gather_copy_in"
"""FSDP's operator that copies the sharded parameters into this rank's part of the buffer of an all-gather."""


class Traffic(NamedTuple):
    """The bytes that a call reads, and the bytes that it writes."""

    read: int = 0
    written: int = 0


def traffic_of(counted: Counted, each_row: bool = False) -> Traffic:
    """Return the bytes that one call moves. Return 0 for a view, for a query of metadata, and for an op that may have returned its argument
    unchanged.

    A lookup reads one row per index, but at most the bytes of the whole table. With ``each_row``, the bytes may exceed the size of the table.
    """
    call, reason = counted.call, counted.rule if isinstance(counted.rule, str) else ""
    out, inputs = list(specs_in(call.out)) or _written_arguments(call), inputs_of(call)
    if reason == COMMUNICATION:
        # Some collectives read their second argument and write the first. Other collectives read the first and return the result.
        first, second = ([*specs_in(argument)] for argument in (*call.args, (), ())[:2])
        if second:
            return Traffic(_sum(second), _sum(first))
        return Traffic(0 if call.op.startswith("recv") else _sum(first), _sum(out))
    if (lookup := looked_up(call)) is not None:
        table, taken = lookup
        indices = _sum(spec for spec in inputs if spec is not table)
        return Traffic(indices + (taken if each_row else min(taken, nbytes(table))), _sum(out))
    if call.op == GATHER_COPY:  # its results are views of the second argument: the part that it wrote, and the whole
        return Traffic(_sum(specs_in(call.args[0])), _sum(out[:1]))
    if call.op in OVERWRITES:  # the first argument, a tensor or a list, is only written
        only_written = len([*specs_in(call.args[:1])])
        return Traffic(_sum(inputs[only_written:]), _sum(out) or _sum(specs_in(call.args[-1])))
    if call.op in INDEXED and _is_in_place(call):
        positions = _written_positions(call, inputs) * inputs[0].dtype.itemsize
        return Traffic(_sum(inputs[1:]) + (positions if counted.flops else 0), positions)
    if reason == "create":
        return Traffic() if call.op in UNINITIALIZED else Traffic(0, _sum(out))
    if reason and (reason != "move" or not out):
        return Traffic()
    alike = out[:1] == inputs[:1] and [spec.dtype for spec in out[:1]] == [spec.dtype for spec in inputs[:1]]
    if call.op in MAYBE_NOTHING and not counted.flops and alike:
        return Traffic()
    own = [spec for name, value in call.settings.items() if name not in UNREAD for spec in specs_in(value)]
    return Traffic(_sum(inputs) + _sum(own) - unread_bytes(call), _sum(out))


def _written_arguments(call: Call) -> list[Spec]:
    """Return the tensors that a call without a result writes.

    These are the tensors in ``out=``, or the first argument of an operator whose name ends in "_". A fused optimizer also writes its states,
    but not the gradients in its second list.
    """
    if outputs := output_arguments(call.operation):
        return [spec for name in outputs for spec in specs_in(call.kwargs[name])]
    if not _is_in_place(call):
        return []
    states = call.args[2:] if _name(call).startswith("_fused_") else ()
    return [*specs_in(call.args[:1]), *specs_in(states)]


def _name(call: Call) -> str:
    """Return the name of the function or operator that was called, without the overload's name."""
    return str(getattr(call.target, "__name__", "")).partition(".")[0]


def _is_in_place(call: Call) -> bool:
    """Return whether a call writes to its first argument, by the name of what was called."""
    name = _name(call)
    return name.endswith("_") and not name.endswith("__")


def _written_positions(call: Call, inputs: Sequence[Spec]) -> int:
    """Return how many elements an indexed write changes, if no two indices are equal. ``inputs`` are the call's tensors: the tensor that is
    written to, the indices, and the source if it is a tensor.

    How many elements a mask selects depends on its values; the result is then the number of elements of the source.
    """
    written, *others = inputs
    if call.op.startswith("scatter"):
        positions = others[0].numel()
    elif call.op == "index_fill":
        dim = call.args[1] if len(call.args) > 1 else call.kwargs["dim"]
        positions = others[0].numel() * written.numel() // max(written[dim], 1) if len(written) else 1
    elif call.op == "index_put" and all(index.dtype in INDICES for index in others[:-1]):
        indices = call.args[1] if len(call.args) > 1 else call.kwargs["indices"]
        left = [size for size, index in zip_longest(written, indices) if index is None]
        positions = math.prod((*torch.broadcast_shapes(*others[:-1]), *left))
    else:
        positions = others[-1].numel()
    return min(positions, written.numel())


def inputs_of(call: Call) -> list[Spec]:
    """Return a call's input tensors, except the tensors in ``out=``."""
    outputs = output_arguments(call.operation)
    given = [spec for name, value in call.kwargs.items() if name not in outputs for spec in specs_in(value)]
    return [*specs_in(call.args), *given]


def looked_up(call: Call) -> tuple[Spec, int] | None:
    """For a lookup, return the table, and the bytes of the rows that the lookup reads, one row per index; None if the call is not a lookup.

    The table is the first input. For an embedding, the table is the first matrix of a non-integer dtype.
    """
    inputs = inputs_of(call) if call.op in LOOKUPS else []
    if not any(spec.is_integral for spec in inputs[call.op == "getitem" :]):
        return None
    table, taken = inputs[0], _sum(specs_in(call.out))
    if call.op.startswith("embedding"):
        own = specs_in(dict(call.settings))
        table = next((spec for spec in (*own, *inputs) if len(spec) == 2 and not spec.is_integral), table)
    if call.op == "embedding_bag":
        indices = next((spec.numel() for spec in inputs if spec is not table), 0)
        taken = indices * table[-1] * table.dtype.itemsize
    return table, taken


def nbytes(spec: Spec) -> int:
    """Return the bytes of a tensor's elements. For a sparse tensor, these are its stored values; for a nested tensor, its parts."""
    if "parts" in spec.facts:
        return _sum(spec.facts["parts"])
    elements = int(spec.facts["nnz"]) if "nnz" in spec.facts else spec.numel()
    return elements * spec.dtype.itemsize


def compute_dtype(call: Call) -> str:
    """Return the dtype that decides how fast a call is. The deciding dtype is the narrowest dtype of the call's real and complex tensors, e.g. "f16".

    Under autocast this is the output's dtype, since the arguments are still f32. Return "i8" for quantized tensors. If all tensors have
    integer dtypes, return "i8" if any of them has an 8-bit dtype, else "".
    """
    one_of = {spec.dtype: spec for spec in (*call.inputs(), *specs_in(dict(call.settings)), *specs_in(call.out))}
    dtypes = [dtype for dtype, spec in one_of.items() if not spec.is_integral]
    if not dtypes:
        return "i8" if torch.int8 in one_of or torch.uint8 in one_of else ""
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    if not (narrowest.is_floating_point or narrowest.is_complex):
        return "i8"
    letter = "c" if narrowest.is_complex else "bf" if narrowest is torch.bfloat16 else "f"
    return f"{letter}{8 * narrowest.itemsize}"


def _sum(specs: Iterable[Spec]) -> int:
    return sum(map(nbytes, specs))
