"""pytorch-profiler's API based on fxflops: a model's multiply-adds, parameters and time, module by module.

The counts follow ``convention="pytorch_profiler"``. Time is measured while the model runs by itself, without counting.
Unlike the original, this profiler leaves training flags, attributes and hooks as they were. Also unlike the original, this profiler sums a
module's counts and times over all calls in the model's last run.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..api import count
from ..errors import InputError, of_kind
from ..meters.accelerator import waiter
from ..model.inputs import checked_model
from ..model.locks import locked_in_mode
from ..model.modules import ByIdentity, all_modules, named_modules, state_tensors
from ..model.snapshot import Snapshot
from ..report.report import Report
from ..trace.hooks import Hooks
from ._arguments import checked_shape, classes_in, filled
from ._module_text import largest_sums, levels_of, printed, scaled, trainable
from .ptflops import flops_to_string

CONVENTION = "pytorch_profiler"
DEFAULTS = {"pytorch_profiler": False, "profile_step": 5, "profile_depth": -1, "profile_top_num": 3}


def get_model_profile(
    model: nn.Module,
    input_res: tuple[Any, ...],
    input_constructor: Callable[[tuple[Any, ...]], Mapping[str, Any]] | None = None,
    print_profile: bool = True,
    print_aggregated_profile: bool = True,
    depth: int = -1,
    top_num: int = 3,
    warm_up: int = 10,
    as_strings: bool = True,
    ignore_modules: Collection[type] | None = None,
) -> tuple[str, str] | tuple[int, int]:
    """Profile a run of the model in eval mode; return ``(MACs, params)`` as strings or as numbers.

    Args:
        input_res: the shape of one input without its batch dimension, or the argument of ``input_constructor``.
        input_constructor: a function that takes ``input_res`` and returns the keyword inputs.
        print_profile: print the model with the count of each module.
        print_aggregated_profile: print the ``top_num`` module classes at ``depth`` (-1: the innermost depth).
        warm_up: the number of runs before the timed run.
        as_strings: return ``("429.25 KMac", "61.71 k")`` rather than ``(429248, 61706)``.
        ignore_modules: module classes to skip.
    """
    checked_model(model, AssertionError)
    checked_shape(input_res, "input_res must be a tuple with the shape of one input, such as (3, 224, 224)")
    args, kwargs = (
        ((), input_constructor(input_res)) if input_constructor else ((filled(model, (1, *input_res), 1),), {})
    )
    watch = Stopwatch(model)
    with torch.no_grad(), locked_in_mode(all_modules(model), "eval"):
        run_again(model, model, (args, kwargs), warm_up, watch.attach, watch.detach)
    profile = Profile(model, count(model, args, kwargs, convention=CONVENTION), watch.seconds, ignore_modules)
    if print_profile:
        print(profile.tree())
    if print_aggregated_profile:
        print(profile.aggregated(depth, top_num))
    flops, params = profile.flops(), trainable(model)
    return (flops_to_string(flops), params_to_string(params)) if as_strings else (flops, params)


def run_again(
    model: nn.Module,
    method: Callable[..., object],
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    warm_up: int,
    start: Callable[[], None],
    stop: Callable[[], None],
) -> None:
    """Call a method ``warm_up`` times, then once more between ``start()`` and ``stop()``. Each call begins with the same model state."""
    args, kwargs = inputs
    snapshot = Snapshot(all_modules(model), inputs)
    try:
        for _ in range(warm_up):
            method(*args, **kwargs)
            snapshot.rewind()
        start()
        method(*args, **kwargs)
    finally:
        try:
            stop()
        finally:
            snapshot.rewind()


def add_profile_methods(model: nn.Module) -> nn.Module:
    """Add profiling methods to the model and return the model. ``model.stop_profile()`` removes the methods.

    ``start_profile(ignore_list=None)`` and ``stop_profile()`` start and stop the profile. These methods describe the last run
    since the start: ``get_total_flops()``, ``get_total_duration()`` (in seconds), ``get_total_params()``,
    ``print_model_profile()`` and ``print_model_aggregated_profile(depth=-1, top_num=3)``. Each ``get_...`` method also has
    the name ``compute_...``.
    """
    session = Session(checked_model(model))
    for name in METHODS:
        setattr(model, name, getattr(session, name.replace("compute_", "get_")))
    return model


@contextmanager
def training_profile(model: nn.Module, config: Mapping[str, Any] | str | Path) -> Iterator[None]:
    """Profile and print the forward of one step of the training loop in this block.

    ``config`` is a DeepSpeed config, or the path of its JSON file. Four keys are read. Only ``"pytorch_profiler": true`` turns
    the profile on. ``profile_step`` is the step to profile (default 5; the first step is 0). ``profile_depth`` (default -1) and
    ``profile_top_num`` (default 3) select the module classes to print.
    """
    given = config if isinstance(config, Mapping) else json.loads(Path(config).read_text(encoding="utf8"))
    enabled, step, depth, top_num = ({**DEFAULTS, **given}[name] for name in DEFAULTS)
    if not isinstance(step, int) or step < 0:
        raise InputError(f"profile_step must be an int, 0 or greater; got {step!r}")
    session, hooks, steps = Session(checked_model(model)), Hooks(), itertools.count()

    def show() -> None:
        session.print_model_profile()
        session.print_model_aggregated_profile(depth, top_num)

    def begin_step(*_: Any) -> None:
        if next(steps) == step:
            session.start_profile(then=show)

    if enabled:
        hooks.attach([model], lambda *_: None, begin_step)
        begin_step()
    try:
        yield
    finally:
        session.end()
        hooks.detach()


class Stopwatch:
    """Hooks that record the ``seconds`` that each module takes in the model's last run, and the ``inputs`` of the last run.

    Accelerators are synchronized before and after each module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seconds = ByIdentity[float]()
        self._model = model
        self._hooks = Hooks()
        self._begun: list[float] = []

    def attach(self) -> None:
        self._begun.clear()
        self._now = clock_of(state_tensors(self._model))
        self._hooks.attach(all_modules(self._model), self._enter, self._leave)

    def detach(self) -> None:
        self._hooks.detach()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self._model:
            self.seconds, self.inputs = ByIdentity(), (args, kwargs)
        self._begun.append(self._now())

    def _leave(self, module: nn.Module, *_: Any) -> None:
        self.seconds[module] = self.seconds.get(module, 0.0) + self._now() - self._begun.pop()


class Session(Stopwatch):
    """The methods of a profiled model, and the profile of the model's last run. The run is counted when a result is first requested."""

    _has_run = False
    _counted: Profile | None = None

    def start_profile(
        self, ignore_list: Collection[type] | None = None, then: Callable[[], None] | None = None
    ) -> None:
        """Start recording the model's runs. Modules of the classes in ``ignore_list`` count 0.

        ``then`` is called once after the next run. The hooks are detached before this call.
        """
        self.end()
        self._ignored, self._then = ignore_list, then
        self.attach()

    def stop_profile(self) -> None:
        """Stop recording and remove the methods from the model."""
        self.end()
        for name in METHODS:
            vars(self._model).pop(name, None)

    def end(self) -> None:
        self.detach()
        self._has_run, self._counted = False, None

    def get_total_flops(self) -> int:
        """Return the multiply-adds of the last run."""
        return self._profile().flops()

    def get_total_duration(self) -> float:
        """Return the seconds of the last run."""
        return self._profile().seconds(self._model)

    def get_total_params(self) -> int:
        """Return the number of trainable parameters."""
        self._profile()  # raises InputError if the model has not run
        return trainable(self._model)

    def print_model_profile(self) -> None:
        """Print the model with the count of each module."""
        print(self._profile().tree())

    def print_model_aggregated_profile(self, depth: int = -1, top_num: int = 3) -> None:
        """Print the ``top_num`` module classes at ``depth`` (-1: the innermost depth)."""
        print(self._profile().aggregated(depth, top_num))

    def _leave(self, module: nn.Module, *given: Any) -> None:
        super()._leave(module, *given)
        if module is self._model:
            self._has_run, self._counted = True, None
            if self._then is not None:
                self.detach()
                then, self._then = self._then, None
                then()

    def _profile(self) -> Profile:
        """Count the last run with its own inputs, and return the profile of this run."""
        if not self._has_run:
            raise of_kind(InputError("there is no profile: call start_profile(), then run the model"), AttributeError)
        if self._counted is None:
            self.detach()  # because the count runs the model too
            args, kwargs = self.inputs
            report = count(self._model, args, kwargs, mode="as_is", convention=CONVENTION)
            self._counted = Profile(self._model, report, ByIdentity(self.seconds.items()), self._ignored)
            self.attach()
        return self._counted


METHODS = (
    *("start_profile", "stop_profile", "print_model_profile", "print_model_aggregated_profile"),
    *("get_total_flops", "get_total_duration", "get_total_params"),
    *("compute_total_flops", "compute_total_duration", "compute_total_params"),
)


def clock_of(tensors: Iterable[torch.Tensor]) -> Callable[[], float]:
    """Return a clock that synchronizes the devices of these tensors before reading the time."""
    waiters = [waiter(device) for device in {tensor.device for tensor in tensors}]

    def now() -> float:
        for wait in waiters:
            wait()
        return time.perf_counter()

    return now


class Profile:
    """The count, the time and the trainable parameters of each module in a model."""

    def __init__(
        self, model: nn.Module, report: Report, seconds: Mapping[nn.Module, float], ignored: Collection[type] | None
    ) -> None:
        rows = report.by_module()
        self._model = model
        self._ignored = classes_in(ignored)
        self._seconds = seconds
        self._own = ByIdentity(
            (m, 0 if type(m) in self._ignored else rows[path].own.flops) for path, m in named_modules(model)
        )

    def flops(self, module: nn.Module | None = None) -> int:
        return sum(self._own[inner] for inner in all_modules(module or self._model))

    def seconds(self, module: nn.Module) -> float:
        return 0.0 if type(module) in self._ignored else self._seconds.get(module, 0.0)

    def tree(self) -> str:
        """Return the model's repr. The results of each module come before the module's settings."""
        return printed(self._model, lambda module, path: [self._line(module)])

    def aggregated(self, depth: int, top_num: int) -> str:
        """Return the ``top_num`` module classes at this depth (-1: the innermost depth) with the most FLOPs, parameters and time, as text."""
        levels = levels_of(self._model)
        depth = len(levels) - 1 if depth == -1 else min(depth, len(levels) - 1)
        tops = {
            "flops": largest_sums(levels[depth], self.flops, flops_to_string, top_num),
            "params": largest_sums(levels[depth], trainable, params_to_string, top_num),
            "time": largest_sums(levels[depth], self.seconds, duration_to_string, top_num),
        }
        return "\n".join(f"Top {len(top)} modules in {title} at depth {depth} are {top}" for title, top in tops.items())

    def _line(self, module: nn.Module) -> str:
        flops, params, seconds = self.flops(module), trainable(module), self.seconds(module)
        speed = f"{round(2 * flops / seconds / 1e12, 3)} TFLOPS" if seconds else "0"
        return (
            f"{params_to_string(params)}, {_share(params, trainable(self._model)):.3%} Params, "
            f"{flops_to_string(flops, precision=3)}, {_share(flops, self.flops()):.3%} MACs, "
            f"{duration_to_string(seconds, precision=3)}, {_share(seconds, self.seconds(self._model)):.2%} time, "
            f"{speed}, {module.extra_repr()}"
        )


def params_to_string(params_num: float, units: str | None = None, precision: int = 2) -> str:
    """Return a number of parameters in ``units``, by default in M or k: ``61706 -> '61.71 k'``."""
    return scaled(params_num, {"M": 10**6, "k": 10**3, "K": 10**3}, units, precision, "")


def duration_to_string(duration: float, units: str | None = None, precision: int = 2) -> str:
    """Return seconds in "s", "ms" or "us", by default in a suitable unit: ``0.001201 -> '1.2 ms'``."""
    scales = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = units or next((name for name, scale in scales.items() if duration > scale), "")
    return f"{round(duration / scales[unit], precision)} {unit}" if unit else str(duration)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
