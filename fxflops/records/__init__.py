"""The records that a run leaves behind, call by call: tensors as specs, operations, calls and their costs."""

from .calls import (
    COMMUNICATION,
    EMPTY_MAPPING,
    PARTS,
    PHASES,
    UNSEEN,
    Call,
    Cost,
    Count,
    Counted,
    FormulaFunction,
    Operation,
    Scope,
    Step,
    grouped,
    per_operation,
    prefixes,
)
from .modules import NO_PARAMS, Module, Params
from .specs import DTYPE_NAMES, Spec, specs_in, typed

__all__ = [
    "COMMUNICATION",
    "DTYPE_NAMES",
    "EMPTY_MAPPING",
    "NO_PARAMS",
    "PARTS",
    "PHASES",
    "UNSEEN",
    "Call",
    "Cost",
    "Count",
    "Counted",
    "FormulaFunction",
    "Module",
    "Operation",
    "Params",
    "Scope",
    "Spec",
    "Step",
    "grouped",
    "per_operation",
    "prefixes",
    "specs_in",
    "typed",
]
