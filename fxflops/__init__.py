"""fxflops: FLOPs, time and memory of any PyTorch model, operation by operation."""

from .api import analyze, count
from .conventions import list_conventions
from .errors import FormulaError, FxflopsError, InputError, MissingFormulaError, RunError, TraceError
from .ops import formula
from .records import Cost
from .report import Report

__version__ = "0.1.0"
__all__ = [
    "Cost",
    "FormulaError",
    "FxflopsError",
    "InputError",
    "MissingFormulaError",
    "Report",
    "RunError",
    "TraceError",
    "analyze",
    "count",
    "formula",
    "list_conventions",
]
