"""The names of DeepSpeed's flops profiler over fxflops: FLOPs, MACs and time of a model module by module.

They are those of ``deepspeed.profiling.flops_profiler``, without DeepSpeed; the counts are of ``convention="deepspeed"``
and ``"deepspeed_macs"``. Unlike the original it replaces no function of torch and leaves no attribute or hook on the model,
puts the model's mode and state back, times RNNs too, and counts where the original raises. It counts each call before it
runs, which an engine's own timer of the forward has in it. What users of the original catch they catch here: wrong inputs
are an AssertionError, figures asked for before ``start_profile`` an AttributeError, and what the model raises comes as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import nn

from ..errors import InputError
from ..model.inputs import checked_model
from ..model.snapshot import holding
from . import _deepspeed_text as text
from ._deepspeed_recording import Recording
from ._deepspeed_text import (
    DEFAULT_PRECISION,
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from .ptflops import filled
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


class WrongInputError(InputError, AssertionError):
    """No model, no input or no shape where one belongs, which the originals assert."""


class NotStartedError(InputError, AttributeError):
    """Figures are asked for, and there are none; the originals look for them on the model."""


class FlopsProfiler:
    """Profiles the runs of a model between ``start_profile`` and ``stop_profile``, in one's own loop.

    >>> prof = FlopsProfiler(model)                    # doctest: +SKIP
    >>> prof.start_profile()                           # doctest: +SKIP
    >>> loss = model(batch)                            # doctest: +SKIP
    >>> prof.stop_profile()                            # doctest: +SKIP
    >>> prof.print_model_profile(profile_step=5)       # doctest: +SKIP
    >>> prof.end_profile()                             # doctest: +SKIP
    >>> loss.backward()                                # doctest: +SKIP

    ``ds_engine`` is a DeepSpeed engine, whose sizes and timers are printed with the profile; by its timers the backward's
    FLOPs per second are taken to be of twice the forward's FLOPs, and ``recompute_fwd_factor`` forwards more.
    """

    _recorder: ClassVar[type[Recording]] = Recording
    _units: ClassVar[text.Units] = text.UNITS

    def __init__(self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0) -> None:
        self.model = asserted_model(model)
        self.ds_engine = ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self.started = False
        self._recording: Recording | None = None

    def start_profile(self, ignore_list: Sequence[type] | None = None) -> None:
        """Profile from now on. What modules of the classes in ``ignore_list`` call is charged to those around them."""
        if not self._is_counted():
            self.end_profile()
            self._recording = self._recorder(self.model, ignore_list or ())
            self.started = True

    def stop_profile(self) -> None:
        """Stop profiling; the results stay until ``end_profile``."""
        if self._recording is not None and not self._is_counted():
            self._recording.stop()

    def reset_profile(self) -> None:
        """Forget what was profiled so far."""
        if self._recording is not None and not self._is_counted():
            self._recording.reset()

    def end_profile(self) -> None:
        """Stop profiling and forget the results."""
        if not self._is_counted():
            self.stop_profile()
            self._recording = None
            self.started = False

    def get_total_flops(self, as_string: bool = False) -> int | str:
        """FLOPs of the forwards profiled."""
        return shown(self._profiled().total(self.model).flops, as_string, self._units.number)

    def get_total_macs(self, as_string: bool = False) -> int | str:
        """Multiply-accumulates of the forwards profiled."""
        return shown(self._profiled().total(self.model).macs, as_string, self._units.macs)

    def get_total_duration(self, as_string: bool = False) -> float | str:
        """Seconds of the forwards profiled."""
        return shown(self._profiled().total(self.model).duration, as_string, self._units.duration)

    def get_total_params(self, as_string: bool = False) -> int | str:
        """Parameters of the model, on this rank."""
        return shown(text.params_of(self._profiled().model), as_string, self._units.params)

    def is_expert_tensor_parallelism_enabled(self) -> bool:
        """Whether DeepSpeed's first mixture of experts in the model shares each of its experts among ranks."""
        return text.is_tensor_parallel(self.model)

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
        page = self._page(profile_step, module_depth, top_modules, detailed)
        if not output_file:
            print(page)
            return
        path = Path(output_file).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{page}\n", encoding="utf8")

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Print the ``top_modules`` classes of modules by each figure at the first ``module_depth`` depths."""
        print(self._aggregated(module_depth, top_modules) if self._recording else text.UNSTARTED)

    def _page(self, step: int, depths: int, top: int, detailed: bool) -> str:
        recording, engine, recomputed = self._profiled(), self.ds_engine, self.recompute_fwd_factor
        return text.page(recording, step, engine, recomputed, depths, top, detailed)

    def _aggregated(self, depths: int, top: int) -> str:
        return text.aggregated(self._profiled(), depths, top)

    def _is_counted(self) -> bool:
        """Whether a hook of the model calls us before the model runs, as it is counted."""
        return self._recording is not None and self._recording.counting

    def _profiled(self) -> Recording:
        if self._recording is None:
            raise NotStartedError("nothing is profiled: call start_profile(), then run the model")
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
    """Profile a run of the model in eval mode: ``(flops, macs, params)``, as strings or as numbers.

    Args:
        input_shape: the shape of the only positional input; or else
        args, kwargs: the inputs.
        print_profile: print the profile; see ``FlopsProfiler.print_model_profile`` for ``detailed``, ``module_depth``,
            ``top_modules`` and ``output_file``.
        warm_up: how many runs come before the one that is timed.
        as_string: ``("22.36 G", "11.17 GMACs", "109.48 M")`` rather than numbers.
        ignore_modules: classes of modules whose calls are charged to the modules around them.
        mode: "forward", or "generate", the method of transformers' models.

    Raises an InputError, which is an AssertionError too, where the model or its inputs do not fit.
    """
    if mode not in ("forward", "generate"):
        raise WrongInputError(f"mode must be 'forward' or 'generate', not {mode!r}")
    profiler = FlopsProfiler(model)
    inputs = inputs_of(profiler.model, input_shape, args, kwargs)
    profile_run(profiler, mode, inputs, warm_up, ignore_modules)
    total, params = profiler._profiled().total(profiler.model), text.params_of(profiler.model)
    if print_profile:
        profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    profiler.end_profile()
    if not as_string:
        return total.flops, total.macs, params
    return number_to_string(total.flops), macs_to_string(total.macs), params_to_string(params)


N = TypeVar("N", int, float)


def shown(number: N, as_string: bool, text_of: Callable[[float], str]) -> N | str:
    return text_of(number) if as_string else number


def asserted_model(model: Any) -> nn.Module:
    """The model; an error that the originals' users catch for anything that is none."""
    return checked_model(model, AssertionError, AttributeError)


def profile_run(
    profiler: FlopsProfiler,
    name: str,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    warm_up: int,
    ignored: Sequence[type] | None,
) -> None:
    """Profile a run of a method, after so many others, in eval mode; what the runs changed is put back."""
    model = profiler.model
    with holding(model.modules(), "eval", reentrant=True):  # to count it, as it runs
        method = model if name == "forward" else getattr(model, name)
        start = partial(profiler.start_profile, ignored)
        run_again(model, method, inputs, warm_up, start, profiler.stop_profile)


def inputs_of(
    model: nn.Module, shape: tuple[int, ...] | None, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if shape is None and not args and not kwargs:
        raise WrongInputError(
            "give input_shape, the shape of the only input, or the inputs as args=[...], kwargs={...}"
        )
    if shape is None:
        return tuple(args or ()), dict(kwargs or {})
    if not isinstance(shape, tuple) or not shape:
        raise WrongInputError(f"input_shape must be a tuple, a shape such as (1, 3, 224, 224), not {shape!r}")
    return (filled(model, shape, 1),), dict(kwargs or {})
