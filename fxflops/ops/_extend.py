"""The door for the files of ops: specs and costs, the spellings of an op, and the decorators that register it."""

from __future__ import annotations

from ..records import Cost, FormulaFunction, Spec, specs_in
from ..records.tensors import QUANTIZED, SPARSE
from ._cost import added_up, contraction, first, reduced, rows_of, summed, times, when
from ._registry import ESCAPE, formula, zero
from ._rules import ANY, EVEN, FIRST, FORMAT, KEPT, ORDERED, POINTWISE, Passing, shape, spelled, stores, unwatched
from ._spellings import named
from .shapes import Lying, Sizes, broadcast, contiguous, each, fits, is_one, lies_in

__all__ = [
    "ANY", "ESCAPE", "EVEN", "FIRST", "FORMAT", "KEPT", "ORDERED", "POINTWISE", "QUANTIZED", "SPARSE", "Cost",
    "FormulaFunction", "Lying", "Passing", "Sizes", "Spec", "added_up", "broadcast", "contiguous", "contraction", "each", "first", "fits",
    "formula", "is_one", "lies_in", "named", "reduced", "rows_of", "shape", "specs_in", "spelled", "stores", "summed",
    "times", "unwatched", "when", "zero",
]  # fmt: skip
