"""flops-profiler's names over fxflops: DeepSpeed's flops profiler, FLOPs, MACs and time of a model module by module.

The counts are of ``convention="deepspeed"`` and ``"deepspeed_macs"``, and of a module that stands under two others, as
there, once for each. Unlike the original it replaces no function of torch and leaves no attribute or hook on the model,
works again on the same model, prints models with RNNs, and counts where the original raises. What the original calls
the backward's FLOPs, twice the forward's, is not text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..errors import InputError
from ..inputs import checked_model
from ..state import holding
from . import _flops_profiler_text as text
from ._flops_profiler_recording import Recording
from ._flops_profiler_text import (
    duration_to_string,
    flops_to_string,
    macs_to_string,
    num_to_string,
    number_to_string,
    params_to_string,
)
from .ptflops import filled
from .pytorch_profiler import run_again

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


class FlopsProfiler:
    """Profiles the runs of a model between ``start_profile`` and ``stop_profile``, in one's own loop.

    >>> prof = FlopsProfiler(model)                    # doctest: +SKIP
    >>> prof.start_profile()                           # doctest: +SKIP
    >>> loss = model(batch)                            # doctest: +SKIP
    >>> prof.stop_profile()                            # doctest: +SKIP
    >>> prof.print_model_profile(profile_step=5)       # doctest: +SKIP
    >>> prof.end_profile()                             # doctest: +SKIP
    >>> loss.backward()                                # doctest: +SKIP

    ``ds_engine`` is a DeepSpeed engine, whose sizes and timers are printed with the profile.
    """

    def __init__(self, model: nn.Module, ds_engine: Any = None) -> None:
        self.model = checked_model(model)
        self.ds_engine = ds_engine
        self.started = False
        self._recording: Recording | None = None

    def start_profile(self, ignore_list: Sequence[type] | None = None) -> None:
        """Profile from now on. What modules of the classes in ``ignore_list`` call is charged to those around them."""
        self.end_profile()
        self._recording = Recording(self.model, ignore_list or ())
        self.started = True

    def stop_profile(self) -> None:
        """Stop profiling; the results stay until ``end_profile``."""
        if self._recording is not None:
            self._recording.stop()

    def reset_profile(self) -> None:
        """Forget what was profiled so far."""
        if self._recording is not None:
            self._recording.reset()

    def end_profile(self) -> None:
        """Stop profiling and forget the results."""
        self.stop_profile()
        self._recording = None
        self.started = False

    def get_total_flops(self, as_string: bool = False) -> int | str:
        """FLOPs of the forwards profiled."""
        return _shown(self._profiled().total(self.model).flops, as_string, num_to_string)

    def get_total_macs(self, as_string: bool = False) -> int | str:
        """Multiply-accumulates of the forwards profiled."""
        return _shown(self._profiled().total(self.model).macs, as_string, macs_to_string)

    def get_total_duration(self, as_string: bool = False) -> float | str:
        """Seconds of the forwards profiled."""
        return _shown(self._profiled().total(self.model).duration, as_string, duration_to_string)

    def get_total_functional_duration(self, as_string: bool = False) -> float | str:
        """Seconds of those of their functions that are charged."""
        seconds = sum(usage.duration for usage in self._profiled().functions(self.model).values())
        return _shown(seconds, as_string, duration_to_string)

    def get_total_params(self, as_string: bool = False) -> int | str:
        """Parameters of the model."""
        return _shown(text.params_of(self.model), as_string, params_to_string)

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
    ) -> None:
        """Print the summary, the ``top_modules`` classes at each depth, and if ``detailed`` the model with all figures.

        ``profile_step`` is what the summary names; ``module_depth`` how many depths are shown, all but the innermost by
        default; ``output_file`` a path to write to in place of printing. Nothing is printed when nothing was started.
        """
        recording = self._recording
        if recording is None:
            return
        total = recording.total(self.model)
        self.flops, self.macs, self.params = total.flops, total.macs, text.params_of(self.model)
        parts = [
            text.summary(recording, profile_step, self.ds_engine),
            text.AGGREGATED,
            text.aggregated(recording, module_depth, top_modules),
            *([text.DETAILED, text.detailed(recording)] if detailed else []),
            text.END,
        ]
        if not output_file:
            print("\n".join(parts))
            return
        path = Path(output_file).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*parts, ""]), encoding="utf8")

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Print the ``top_modules`` classes of modules by each figure at the first ``module_depth`` depths."""
        recording = self._recording
        print(text.aggregated(recording, module_depth, top_modules) if recording else text.UNSTARTED)

    def _profiled(self) -> Recording:
        if self._recording is None:
            raise InputError("nothing is profiled: call start_profile(), then run the model")
        return self._recording


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

    The original calls ``model.forward``, and so loses the functions that the outermost forward calls itself (not those
    of the modules in it); the counts here are the same. :class:`FlopsProfiler` around ``model(x)`` has them all.

    Args:
        input_shape: the shape of the only positional input; or else
        args, kwargs: the inputs.
        print_profile: print the profile; see ``FlopsProfiler.print_model_profile`` for ``detailed``, ``module_depth``,
            ``top_modules`` and ``output_file``.
        warm_up: how many runs come before the one that is timed.
        as_string: ``("22.36 G", "11.17 GMACs", "109.48 M")`` rather than numbers.
        ignore_modules: classes of modules whose calls are charged to the modules around them.
        func_name: the method to run: "forward", or "generate" of a model of transformers.

    Raises InputError where the model or its inputs do not fit.
    """
    profiler = FlopsProfiler(model)
    inputs = _inputs_of(model, input_shape, args, kwargs)
    with holding(model.modules(), "eval", reentrant=True):  # to count it, as it runs
        method = profiler.model if func_name == "forward" else getattr(profiler.model, func_name)
        start = partial(profiler.start_profile, ignore_modules)
        run_again(profiler.model, method, inputs, warm_up, start, profiler.stop_profile)
    if func_name == "forward":
        profiler._profiled().lose_outermost()
    total, params = profiler._profiled().total(model), text.params_of(model)
    if print_profile:
        profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    profiler.end_profile()
    if not as_string:
        return total.flops, total.macs, params
    return number_to_string(total.flops), macs_to_string(total.macs), params_to_string(params)


N = TypeVar("N", int, float)


def _shown(number: N, as_string: bool, text_of: Callable[[N], str]) -> N | str:
    return text_of(number) if as_string else number


def _inputs_of(
    model: nn.Module, shape: tuple[int, ...] | None, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if shape is None and not args and not kwargs:
        raise InputError("give input_shape, the shape of the only input, or the inputs as args=[...], kwargs={...}")
    if shape is None:
        return tuple(args or ()), dict(kwargs or {})
    if not isinstance(shape, tuple) or not shape:
        raise InputError(f"input_shape must be a tuple, a shape such as (1, 3, 224, 224), not {shape!r}")
    return (filled(model, shape, 1),), dict(kwargs or {})
