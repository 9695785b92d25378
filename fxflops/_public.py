"""The public names, each imported from the module that defines it; ``fxflops`` shows these and no others."""

from .api import analyze, count, read_trace, summary
from .calibrating import calibrate
from .conventions import list_conventions
from .errors import (
    ClosedFormError,
    DistributedError,
    FormulaError,
    FxflopsError,
    InputError,
    MissingFormulaError,
    OutOfMemoryError,
    RunError,
    TraceError,
)
from .model.files import load_model
from .notebook import TorchFLOPsByFX
from .ops import formula
from .ops.mappings import FUNCTION_FLOPs_MAPPING, METHOD_FLOPs_MAPPING, MODULE_FLOPs_MAPPING
from .profiling import profile
from .records import Cost
from .report.comparison import compare
from .report.report import Report
from .symbolic.fitting import closed_form
from .symbolic.inference import serving
from .what_fits import largest_batch, plan_checkpoints

__all__ = [
    "ClosedFormError",
    "Cost",
    "DistributedError",
    "FUNCTION_FLOPs_MAPPING",
    "FormulaError",
    "FxflopsError",
    "InputError",
    "METHOD_FLOPs_MAPPING",
    "MODULE_FLOPs_MAPPING",
    "MissingFormulaError",
    "OutOfMemoryError",
    "Report",
    "RunError",
    "TorchFLOPsByFX",
    "TraceError",
    "analyze",
    "calibrate",
    "closed_form",
    "compare",
    "count",
    "formula",
    "largest_batch",
    "list_conventions",
    "load_model",
    "plan_checkpoints",
    "profile",
    "read_trace",
    "serving",
    "summary",
]
