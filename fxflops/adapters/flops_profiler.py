"""flops-profiler's API based on fxflops: DeepSpeed's flops profiler as of 2023. For the current profiler see :mod:`.deepspeed`.

The counts follow ``convention="flops_profiler"`` and ``"flops_profiler_macs"``. As in the original, a module with two
parents is counted once under each parent. Unlike the original, this profiler replaces no torch function, leaves no
attributes or hooks on the model, can profile the same model again, prints models with RNNs, and counts where the
original raises an error. The FLOPs of the backward are not shown; in the original, they are always twice the FLOPs of
the forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, cast

from torch import nn

from . import _flops_profiler_text, deepspeed
from ._deepspeed_recording import Recording
from ._flops_profiler_recording import FunctionRecording
from ._flops_profiler_text import (
    duration_to_string,
    flops_to_string,
    macs_to_string,
    num_to_string,
    number_to_string,
    params_to_string,
)
from .deepspeed import inputs_of, profile_run

__all__ = [
    "FlopsProfiler",
    "duration_to_string",
    "flops_to_string",
    "get_model_profile",
    "macs_to_string",
    "num_to_string",
    "number_to_string",
    "params_to_string",
]


class FlopsProfiler(deepspeed.FlopsProfiler):
    """Profile the runs of a model between ``start_profile`` and ``stop_profile``, in your own loop.

    ``ds_engine`` is a DeepSpeed engine, whose sizes and timers are printed with the profile.
    """

    _recorder: ClassVar[type[Recording]] = FunctionRecording
    _text: ClassVar[ModuleType] = _flops_profiler_text

    def __init__(self, model: nn.Module, ds_engine: Any = None) -> None:
        super().__init__(model, ds_engine)

    def get_total_functional_duration(self, as_string: bool = False) -> float | str:
        """Return the seconds spent in all functions with FLOPs or MACs in the profiled forwards."""
        seconds = sum(usage.duration for usage in self._profiled().functions(self.model).values())
        return duration_to_string(seconds) if as_string else seconds

    def _page(self, recording: Any, step: int, depths: int, top: int, detailed: bool) -> str:
        return _flops_profiler_text.page(recording, step, self.ds_engine, depths, top, detailed)

    def _profiled(self) -> FunctionRecording:
        return cast(FunctionRecording, super()._profiled())


def get_model_profile(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] | None = [],
    kwargs: Mapping[str, Any] | None = {},
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 10,
    warm_up: int = 3,
    as_string: bool = False,
    output_file: str | None = None,
    ignore_modules: Sequence[type] | None = None,
    func_name: str = "forward",
) -> tuple[int, int, int] | tuple[str, str, str]:
    """Profile a run of the model in eval mode; return ``(flops, macs, params)`` as numbers or as strings.

    The original calls ``model.forward``, which bypasses the hooks. So the original misses functions that the model's own forward calls
    directly. The original does count functions that submodules call. To match the original, the functions that the model's own forward
    calls are not counted here either. :class:`FlopsProfiler` around ``model(x)`` counts all functions.

    ``func_name`` is the method to run: "forward", or "generate" for a transformers model. The other arguments and the errors are
    the same as in :func:`.deepspeed.get_model_profile`.
    """
    profiler = FlopsProfiler(model)
    profile_run(profiler, func_name, inputs_of(profiler.model, input_shape, args, kwargs), warm_up, ignore_modules)
    if func_name == "forward":
        profiler._profiled().discard_own_functions()
    return profiler._finished(as_string, print_profile, warm_up, module_depth, top_modules, detailed, output_file)
