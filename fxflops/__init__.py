"""fxflops: FLOPs, time and memory of any PyTorch model, operation by operation."""

TYPE_CHECKING = False  # typing's, without importing it: the command cannot handle Ctrl-C until this package is imported

if TYPE_CHECKING:
    from ._public import *  # noqa: F403

    __version__: str
else:
    # The public names are imported at their first use, and torch with them: `fxflops --help` and shell completion need neither.

    def __getattr__(name):
        import gc
        from importlib import import_module
        from importlib.util import find_spec

        if name == "__version__":
            globals()[name] = import_module("._version", __name__).version()
        if not name.startswith("__") and find_spec(f"{__name__}.{name}"):
            return import_module(f".{name}", __name__)
        if name == "__all__" or not name.startswith("__"):
            # Imported objects stay alive: garbage collection would scan all of torch and free nothing.
            collects = gc.isenabled()
            gc.disable()
            try:
                public = import_module("._public", __name__)
            finally:
                if collects:
                    gc.enable()
            globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name in globals():
            return globals()[name]
        tools = {
            "FlopCounterMode": "flop_counter",
            "FlopCountAnalysis": "fvcore",
            "FlopsProfiler": "deepspeed",
            "clever_format": "thop",
            "flop_count": "fvcore",
            "flop_count_str": "fvcore",
            "flop_count_table": "fvcore",
            "parameter_count": "fvcore",
            "parameter_count_table": "fvcore",
            "get_model_complexity_info": "ptflops",
            "get_model_profile": "deepspeed",
        }
        ours = {
            "load": "Report.load('report.json') reads a saved report",
            "load_report": "Report.load('report.json') reads a saved report",
            "diff": "report.diff(other) compares two reports, fxflops.compare([...]) several",
            "check": "the command fxflops check compares a model with budgets, or with a saved report",
            "flops": "count(model, args).total_flops",
            "macs": "count(model, args).total_macs",
        }
        if name in tools:
            advice = f": {__name__}.adapters.{tools[name]} has it"
        elif name in ours:
            advice = f": {ours[name]}"
        else:
            advice = import_module(".errors", __name__).did_you_mean(name, __getattr__("__all__"))
            if not advice and not name.startswith("_") and hasattr(__getattr__("Report"), name):
                advice = f": it belongs to a report, e.g. count(model, args).{name}"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")

    def __dir__():
        return sorted({*__getattr__("__all__"), "__version__", *globals()})
