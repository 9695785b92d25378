"""The door for the files of ops: specs and costs, the spellings of an op, and the decorators that register it."""

from __future__ import annotations

from ..records import Cost, FormulaFunction, Spec, specs_in
from ..records.tensors import QUANTIZED, SPARSE
from ._cost import added_up, contraction, first, reduced, rows_of, summed, times, when
from ._registry import ESCAPE, formula, zero
from ._rules import (
    ANY,
    EVEN,
    FIRST,
    FORMAT,
    KEPT,
    ORDERED,
    POINTWISE,
    WHOLE,
    Passing,
    Placed,
    Result,
    shape,
    spelled,
    stores,
    unwatched,
)
from ._spellings import named
from .shapes import (
    LAST,
    Sizes,
    Strided,
    broadcast,
    contiguous,
    each,
    fits,
    in_format,
    in_order,
    is_contiguous,
    is_odd,
    is_one,
    lies_in,
    like,
    placed,
    pointwise,
    viewed,
)

__all__ = [
    "ANY", "ESCAPE", "EVEN", "FIRST", "FORMAT", "KEPT", "LAST", "ORDERED", "POINTWISE", "QUANTIZED", "SPARSE", "WHOLE", "Cost",
    "FormulaFunction", "Passing", "Placed", "Result", "Sizes", "Spec", "Strided", "added_up", "broadcast", "contiguous",
    "contraction", "each", "first", "fits", "formula", "in_format", "in_order", "is_contiguous", "is_odd", "is_one", "lies_in", "like", "named",
    "placed", "pointwise", "reduced", "rows_of", "shape", "specs_in", "spelled", "stores", "summed", "times", "unwatched", "viewed", "when", "zero",
]  # fmt: skip
