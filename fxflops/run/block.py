"""Observe a block of code under ``profile``, timed by the clock of its models' device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..meters.event_stopwatch import EventStopwatch, captured_calls, clock_of, seconds_of
from ..meters.history import Place, Remembered
from ..meters.queue_stopwatch import observed_clock_of
from ..meters.stopwatch import StoppedStopwatch
from ..meters.timing import Usage
from ..model.inventory import Inventory
from ..ops import FormulaRegistry
from ..records import Scope, Step
from ..torch_internals import in_fake_mode, is_fake
from ..trace.fake_world import FakeWorld, results_on
from ..trace.module_times import ModuleTimes
from ..trace.real_world import RealWorld
from .calibration import is_timed, measured_entry_costs
from .environment import environment_of
from .outcome import Run
from .watch import Watch, run_from_watch

OPERATIONS, MODULES, STEPS = DETAILS = ("operations", "modules", "steps")
"""Levels of detail of a block's profile, from most to least."""


class BlockWatch(Watch):
    """The instruments of a block. ``device`` is the device of the first model parameter, the CPU if the models have no parameters.

    A model whose parameters are all on meta may load them for each call, e.g. with accelerate's offloading. Only the results
    of the model's calls show its device; until the first call, the CPU's clock is used.

    ``detail`` is one of :data:`DETAILS`. With a detail other than "operations", storages are unknown, and only steps of
    ``optimizers`` are observed. ``paths`` maps the modules to observe to their paths.
    """

    observer: Any
    """An Observer if operations are observed, otherwise a ModuleTimes, which also has calls, scopes, steps, phases and a stopwatch."""

    def __init__(
        self,
        paths: Mapping[torch.nn.Module, str],
        registry: FormulaRegistry,
        parameter: torch.Tensor | None,
        detail: str = OPERATIONS,
        optimizers: Iterable[torch.optim.Optimizer] = (),
    ) -> None:
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self._is_on_meta = self.device.type == "meta"
        self._has_device = parameter is not None and not self._is_on_meta
        self._is_timed, self._detail = is_timed(None if self._is_on_meta else parameter), detail
        stopwatch_of = observed_clock_of if detail == OPERATIONS else clock_of
        new_stopwatch = stopwatch_of(self.device) if self._is_timed else StoppedStopwatch
        super().__init__(
            paths,
            registry,
            _world_of(self.device if self._has_device else None),
            backward=True,
            new_stopwatch=new_stopwatch,
        )
        stopwatch = self.observer.stopwatch
        if detail != OPERATIONS:
            self.release()
            self.observer = ModuleTimes(paths, optimizers, new_stopwatch)
        elif not (in_fake_mode() or (parameter is not None and is_fake(type(parameter)))):
            self.storages.note_placeholders()  # skipped for fake tensors, since all their storages are on meta
        # The costs are subtracted from times of the host's clock, which an EventStopwatch does not read.
        if detail == OPERATIONS and self._is_timed and not isinstance(stopwatch, EventStopwatch):
            stopwatch.costs, stopwatch.cold = measured_entry_costs(registry)  # runs about 50 calls
        self._usage_before = Usage.now()

    def finished(
        self,
        model: str,
        mode: str,
        compiled: bool,
        inventory: Inventory,
        name_steps: Callable[[Sequence[Step]], Iterable[Step]],
        raised: str = "",
        why: str = "",
    ) -> Run:
        """Return the record of the block. ``name_steps(steps)`` yields the steps with names.

        ``raised`` is the class name of the exception that ended the block, "" without an exception. ``why`` is the exception's text.
        """
        self._find_device()
        until = f" until it raised {raised}" if raised else ""
        source, trace, measured = "storages", f"profiled{until or ' as it ran'}", dict[str, Any]()
        if self._detail != OPERATIONS:
            source, trace = "unknown", f"{self._detail} profiled{until}, no operations"
            measured = {"peak": None, "history": Remembered(0, Place(), (), ())}
        steps = [*name_steps(self.observer.steps)]
        if self._is_timed:
            clock = self.observer.stopwatch
            measured |= {
                "steps": tuple([step._replace(parts=_known_seconds(step.parts)) for step in steps]),
                "captured": captured_calls(self.observer.calls),
                "interrupted": Usage.now().since(self._usage_before).interrupted,
                "instruments": clock.own,
                "device_busy": clock.busy,
            }
        else:
            measured["steps"] = tuple([Step(step.name, step.calls) for step in steps])
        return run_from_watch(
            self,
            inventory,
            environment_of(self.device, mode, compiled),
            model=model,
            inputs=inputs_of(self.observer.scopes),
            source=source,
            trace=trace,
            trace_reason=why,
            timed=self._is_timed,
            **measured,
        )

    def _find_device(self) -> None:
        """Set the device of models whose parameters are on meta from the results of their calls; drop placeholder storages."""
        if self._is_on_meta:
            ran_on = self.observer.ran_on
            self._has_device = ran_on is not None and ran_on.type != "meta"
            self.device = ran_on if self._has_device else self.device
            self._is_timed = self._is_timed and self.device.type == "cpu"
        if self._has_device:
            self.storages.leave_out_placeholders()


def _world_of(device: torch.device | None) -> RealWorld:
    """Return the world of a block whose models are on this device: a FakeWorld in a simulated rank, otherwise a RealWorld."""
    results = results_on()
    return RealWorld(device) if results is None else FakeWorld(device, results)


def _known_seconds(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase. Phases that were captured into a device graph have no time, and are skipped."""
    seconds_by_phase = {phase: seconds_of(reading) for phase, reading in parts.items()}
    return {phase: seconds for phase, seconds in seconds_by_phase.items() if seconds is not None}


def inputs_of(scopes: Iterable[Scope]) -> str:
    """Return the inputs of a model's first call as text. If other calls had other shapes, add the number of different shapes."""
    shapes = dict.fromkeys(" ".join(map(repr, scope.inputs())) for scope in scopes if not scope.path)
    first = next(iter(shapes), "")
    return first if len(shapes) < 2 else f"{first} (first of {len(shapes)} shapes)"
