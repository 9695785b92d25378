"""flops-profiler's names over fxflops: DeepSpeed's flops profiler as it was in 2023; for today's see :mod:`.deepspeed`.

The counts are those of ``convention="flops_profiler"`` and ``"flops_profiler_macs"``; as in the original, a module with two
parents is counted under each. Unlike the original this replaces no function of torch, leaves no attribute or hook on the
model, can profile the same model again, prints models with RNNs, and counts where the original raises. The original also
prints FLOPs of the backward, which are only twice the forward's; they are left out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from . import _flops_profiler_text as text
from . import deepspeed
from ._deepspeed_recording import Recording
from ._deepspeed_text import params_of
from ._flops_profiler_recording import FunctionRecording
from ._flops_profiler_text import (
    duration_to_string,
    flops_to_string,
    macs_to_string,
    num_to_string,
    number_to_string,
    params_to_string,
)
from .deepspeed import inputs_of, profile_run, shown

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
    _units = text.UNITS

    def __init__(self, model: nn.Module, ds_engine: Any = None) -> None:
        super().__init__(model, ds_engine)

    def get_total_functional_duration(self, as_string: bool = False) -> float | str:
        """Return the seconds of the functions that are charged, over the profiled forwards."""
        seconds = sum(usage.duration for usage in self._profiled().functions(self.model).values())
        return shown(seconds, as_string, duration_to_string)

    def _page(self, step: int, depths: int, top: int, detailed: bool) -> str:
        return text.page(self._profiled(), step, self.ds_engine, depths, top, detailed)

    def _aggregated(self, depths: int, top: int) -> str:
        return text.aggregated(self._profiled(), depths, top)

    def _profiled(self) -> FunctionRecording:
        recording = super()._profiled()
        assert isinstance(recording, FunctionRecording)
        return recording


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
    """Profile a run of the model in eval mode: ``(flops, macs, params)``, as numbers or as strings.

    The original calls ``model.forward``, past the hooks, and so misses the functions that the model's own forward calls (but
    not those of the modules in it); the counts here are the same. :class:`FlopsProfiler` around ``model(x)`` has them all.

    Args:
        input_shape: the shape of the only positional input.
        args, kwargs: the inputs, if no ``input_shape`` is given.
        print_profile: print the profile; see ``FlopsProfiler.print_model_profile`` for ``detailed``, ``module_depth``,
            ``top_modules`` and ``output_file``.
        warm_up: the number of runs before the one that is timed.
        as_string: ``("22.36 G", "11.17 GMACs", "109.48 M")`` rather than numbers.
        ignore_modules: classes of modules whose calls are charged to the modules around them.
        func_name: the method to run: "forward", or "generate" of a model of transformers.

    Raises an InputError, which is also an AssertionError, if the model or its inputs do not fit.
    """
    profiler = FlopsProfiler(model)
    profile_run(profiler, func_name, inputs_of(profiler.model, input_shape, args, kwargs), warm_up, ignore_modules)
    if func_name == "forward":
        profiler._profiled().discard_own_functions()
    total, params = profiler._profiled().total(profiler.model), params_of(profiler.model)
    if print_profile:
        profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    profiler.end_profile()
    if not as_string:
        return total.flops, total.macs, params
    return number_to_string(total.flops), macs_to_string(total.macs), params_to_string(params)
