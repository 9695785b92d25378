"""DeepSpeed's flops profiler based on fxflops: FLOPs, MACs and time of a model, module by module.

This module has the API of ``deepspeed.profiling.flops_profiler`` and does not need DeepSpeed. The counts follow
``convention="deepspeed"`` and ``"deepspeed_macs"``. Unlike the original, this profiler replaces no torch function,
leaves no attributes or hooks on the model, and restores the model's mode and state. This profiler also times RNNs, counts calls for which
the original raises an error, and warns about operations that it could not count. Each call is counted before it runs, so the time that an
engine itself measures for the forward includes the counting.

Errors have the types that users of the original catch: an AssertionError for wrong inputs, and an AttributeError if
results are requested before ``start_profile``. Errors of the model itself are raised unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from torch import nn

from ..errors import InputError, of_kind, warn
from ..model.inputs import checked_model
from ..model.locks import locked_in_mode, threads_counting
from ..model.modules import all_modules
from ..report.report import Report
from ..run.uncompiled import uncompiled
from . import _deepspeed_text
from ._arguments import RECIPE, checked_shape, classes_in, filled, refuse_scripts
from ._deepspeed_recording import Recording, Usage
from ._deepspeed_text import (
    DEFAULT_PRECISION,
    UNSTARTED,
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from ._module_text import params_of
from .pytorch_profiler import run_again

__all__ = [
    "DEFAULT_PRECISION",
    "FlopsProfiler",
    "bytes_to_string",
    "duration_to_string",
    "flops_to_string",
    "get_model_profile",
    "macs_to_string",
    "number_to_string",
    "params_to_string",
]


class FlopsProfiler:
    """Profile the runs of a model between ``start_profile`` and ``stop_profile``, in your own loop.

    >>> prof = FlopsProfiler(model)                    # doctest: +SKIP
    >>> prof.start_profile()                           # doctest: +SKIP
    >>> loss = model(batch)                            # doctest: +SKIP
    >>> prof.stop_profile()                            # doctest: +SKIP
    >>> prof.print_model_profile(profile_step=5)       # doctest: +SKIP
    >>> prof.end_profile()                             # doctest: +SKIP
    >>> loss.backward()                                # doctest: +SKIP

    ``ds_engine`` is a DeepSpeed engine, whose sizes and timers are printed with the profile. With an engine, the printed profile assumes
    that the backward has 2 + ``recompute_fwd_factor`` times the FLOPs of the forward.
    """

    _recorder: ClassVar[type[Recording]] = Recording
    _text: ClassVar[ModuleType] = _deepspeed_text
    _recording: Recording | None = None

    def __init__(self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0) -> None:
        self.model = checked_model(model, AssertionError, AttributeError)
        self.ds_engine = ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self.started = False

    def __del__(self) -> None:
        if self._recording is not None:  # the hooks are still on the model
            self._recording.stop()

    def start_profile(self, ignore_list: Sequence[type] | None = None) -> None:
        """Start profiling. Calls in modules of the classes in ``ignore_list`` are charged to the modules around them."""
        if not self._is_counted():
            self.end_profile()
            refuse_scripts("the profiler", self.model.modules(), RuntimeError, AssertionError, AttributeError)
            self._recording = self._recorder(self.model, classes_in(ignore_list))
            self.started = True

    def stop_profile(self) -> None:
        """Stop profiling; the results stay until ``end_profile``. Warn about operations that could not be counted."""
        if self._recording is not None and not self._is_counted():
            self._recording.stop()
            if missing := ", ".join(sorted(self._recording.missing)):
                hint = "" if self._recording.unseen >= self._recording.missing else f"; {RECIPE}"
                self._recording.missing.clear()
                warn(f"the profile is a lower bound: it does not include {missing}{hint}")

    def reset_profile(self) -> None:
        """Discard the results so far."""
        if self._recording is not None and not self._is_counted():
            self._recording.reset()

    def end_profile(self) -> None:
        """Stop profiling and discard the results."""
        if not self._is_counted():
            self.stop_profile()
            self._recording = None
            self.started = False

    @property
    def report(self) -> Report:
        """The fxflops report of the last profiled call of the model. The report has tables, file exports, and the list of uncounted operations."""
        report = self._profiled().report
        if report is None:
            raise of_kind(
                InputError("the model has not run since start_profile(): run the model first"), AttributeError
            )
        return report

    def get_total_flops(self, as_string: bool = False) -> int | str:
        """Return the FLOPs of the profiled forwards."""
        return self._text.num_to_string(self._total().flops) if as_string else self._total().flops

    def get_total_macs(self, as_string: bool = False) -> int | str:
        """Return the multiply-accumulates of the profiled forwards."""
        return self._text.macs_to_string(self._total().macs) if as_string else self._total().macs

    def get_total_duration(self, as_string: bool = False) -> float | str:
        """Return the seconds of the profiled forwards."""
        return self._text.duration_to_string(self._total().duration) if as_string else self._total().duration

    def get_total_params(self, as_string: bool = False) -> int | str:
        """Return the model's number of parameters on this rank."""
        params = params_of(self._profiled().model)
        return self._text.params_to_string(params) if as_string else params

    def is_expert_tensor_parallelism_enabled(self) -> bool:
        """Return True if the model's first DeepSpeed mixture of experts splits each expert among ranks."""
        return _deepspeed_text.is_tensor_parallel(self.model)

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
    ) -> None:
        """Print the summary, the ``top_modules`` classes at each depth and, if ``detailed``, the model with all results.

        ``profile_step`` is the number of the step that the summary shows. ``module_depth`` is the number of depths to show
        (-1: all but the innermost). If ``output_file`` is a path, the text is written to this file instead. Before
        ``start_profile``, nothing is printed.
        """
        recording = self._recording
        if recording is None:
            return
        total = recording.total(self.model)
        self.flops, self.macs, self.params = total.flops, total.macs, params_of(self.model)
        page = self._page(recording, profile_step, module_depth, top_modules, detailed)
        if not output_file:
            print(page)
            return
        path = Path(output_file).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{page}\n", encoding="utf8")

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Print, for each of the first ``module_depth`` depths, the ``top_modules`` classes with the most parameters, MACs and time."""
        recording = self._recording
        print(self._text.aggregated(recording, module_depth, top_modules) if recording else UNSTARTED)

    def _page(self, recording: Any, step: int, depths: int, top: int, detailed: bool) -> str:
        engine, recomputed = self.ds_engine, self.recompute_fwd_factor
        return _deepspeed_text.page(recording, step, engine, recomputed, depths, top, detailed)

    def _is_counted(self) -> bool:
        """Return True while a call is being counted. If a profiler method is called meanwhile, a hook of the model has called it, and the
        call must be ignored."""
        return bool(threads_counting(self.model)) if self._recording is None else self._recording.is_counted(self.model)

    def _finished(self, as_string: bool, shown: bool, *given: Any) -> tuple[int, int, int] | tuple[str, str, str]:
        """End the profile; return FLOPs, MACs and parameters. If ``shown``, first print the profile with ``print_model_profile(*given)``."""
        total, params, text = self._total(), params_of(self.model), self._text
        if shown:
            self.print_model_profile(*given)
        self.end_profile()
        if not as_string:
            return total.flops, total.macs, params
        return text.number_to_string(total.flops), text.macs_to_string(total.macs), text.params_to_string(params)

    def _total(self) -> Usage:
        return self._profiled().total(self.model)

    def _profiled(self) -> Recording:
        if self._recording is None:
            raise of_kind(InputError("there is no profile: call start_profile(), then run the model"), AttributeError)
        return self._recording


def get_model_profile(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] = [],
    kwargs: Mapping[str, Any] = {},
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Sequence[type] | None = None,
    mode: str = "forward",
) -> tuple[int, int, int] | tuple[str, str, str]:
    """Profile a run of the model in eval mode; return ``(flops, macs, params)`` as strings or as numbers.

    Args:
        input_shape: the shape of the input, if the model has a single input.
        args, kwargs: the inputs themselves, instead of ``input_shape``.
        print_profile: print the profile; see ``FlopsProfiler.print_model_profile`` for ``detailed``, ``module_depth``,
            ``top_modules`` and ``output_file``.
        warm_up: the number of runs before the timed run.
        as_string: return ``("22.36 G", "11.17 GMACs", "109.48 M")`` rather than numbers.
        ignore_modules: classes of modules whose calls are charged to the modules around them.
        mode: "forward", or "generate" for transformers models.

    Raises an InputError, which is also an AssertionError, if the model or its inputs do not fit.
    """
    if mode not in ("forward", "generate"):
        raise of_kind(InputError(f"mode must be 'forward' or 'generate', not {mode!r}"), AssertionError)
    profiler = FlopsProfiler(model)
    profile_run(profiler, mode, inputs_of(profiler.model, input_shape, args, kwargs), warm_up, ignore_modules)
    return profiler._finished(as_string, print_profile, warm_up, module_depth, top_modules, detailed, output_file)


def profile_run(
    profiler: FlopsProfiler,
    name: str,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    warm_up: int,
    ignored: Sequence[type] | None,
) -> None:
    """Call the method ``name`` of the model ``warm_up`` times and profile one more call, in eval mode; restore the model's state."""
    model = profiler.model
    # Run uncompiled, because compiled code would include the profiler's hooks.
    # reentrant=True, because the profiler enters locked_in_mode() again when it counts the model inside this block.
    with uncompiled(), locked_in_mode(all_modules(model), "eval", reentrant=True):
        method = model if name == "forward" else getattr(model, name)
        run_again(model, method, inputs, warm_up, partial(profiler.start_profile, ignored), profiler.stop_profile)


def inputs_of(
    model: nn.Module, shape: tuple[int, ...] | None, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs as args and kwargs. With a ``shape``, args is a tuple with one tensor of ones of this shape."""
    if shape is not None:
        checked_shape(shape, "input_shape must be a tuple with the shape of the input, such as (1, 3, 224, 224)")
        args = (filled(model, shape, 1),)
    if not isinstance(args, (list, tuple, type(None))) or not isinstance(kwargs, (Mapping, type(None))):
        wrong = "args must be a list or tuple, such as [tensor], and kwargs a mapping, such as {'name': tensor}"
        raise of_kind(InputError(f"{wrong}; got {type(args).__name__} and {type(kwargs).__name__}"), AssertionError)
    if not args and not kwargs:
        wrong = (
            "no inputs: give input_shape, the shape of a single input, or give the inputs as args=[...], kwargs={...}"
        )
        raise of_kind(InputError(wrong), AssertionError)
    return tuple(args or ()), dict(kwargs or {})
