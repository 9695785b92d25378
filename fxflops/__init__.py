"""fxflops: FLOPs, time and memory of any PyTorch model, operation by operation."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "Cost",
    "FUNCTION_FLOPs_MAPPING",
    "FormulaError",
    "FxflopsError",
    "InputError",
    "METHOD_FLOPs_MAPPING",
    "MODULE_FLOPs_MAPPING",
    "MissingFormulaError",
    "Report",
    "RunError",
    "TorchFLOPsByFX",
    "TraceError",
    "analyze",
    "count",
    "formula",
    "list_conventions",
    "profile",
]

if TYPE_CHECKING:
    from ._public import (
        Cost,
        FormulaError,
        FUNCTION_FLOPs_MAPPING,
        FxflopsError,
        InputError,
        METHOD_FLOPs_MAPPING,
        MissingFormulaError,
        MODULE_FLOPs_MAPPING,
        Report,
        RunError,
        TorchFLOPsByFX,
        TraceError,
        analyze,
        count,
        formula,
        list_conventions,
        profile,
    )
else:
    # The public names are imported at their first use, and torch with them: `fxflops --help` and shell completion need neither.

    def __getattr__(name):
        from importlib import import_module
        from importlib.util import find_spec

        if name in __all__:
            public = import_module("._public", __name__)
            globals().update({each: getattr(public, each) for each in __all__})
            return globals()[name]
        if not name.startswith("__") and find_spec(f"{__name__}.{name}"):
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
