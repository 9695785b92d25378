"""The records that a run leaves behind, call by call: tensors as specs, operations, calls and their costs."""

from .calls import (
    EMPTY_MAPPING,
    PARTS,
    PHASES,
    Call,
    Cost,
    Count,
    Counted,
    FormulaFunction,
    Operation,
    Scope,
    Step,
    per_operation,
    prefixes,
)
from .specs import DTYPE_NAMES, ORDINARY, QUANTIZED, SPARSE, Spec, is_dense, spec_of, specs_in, typed

__all__ = [
    "DTYPE_NAMES",
    "EMPTY_MAPPING",
    "ORDINARY",
    "PARTS",
    "PHASES",
    "QUANTIZED",
    "SPARSE",
    "Call",
    "Cost",
    "Count",
    "Counted",
    "FormulaFunction",
    "Operation",
    "Scope",
    "Spec",
    "Step",
    "is_dense",
    "per_operation",
    "prefixes",
    "spec_of",
    "specs_in",
    "typed",
]
