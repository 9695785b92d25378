"""The watch of a block of code under ``profile``, by the clock of the device that its models are on."""

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
"""What is observed of a block, each with what follows it."""


class BlockWatch(Watch):
    """The instruments of a block; ``device`` is that of its models' first parameter, the CPU for none.

    A model whose parameters are all on meta may load them for each call, as accelerate's offloading does. Only the results
    of its calls show where it runs; until then it is timed by the CPU's clock.

    ``detail`` is one of :data:`DETAILS`. Without operations, no storages are known either, and the observer is told of
    the steps of ``optimizers`` alone. ``paths`` are the modules to observe.
    """

    observer: Any
    """An Observer; ModuleTimes, which has the same calls, scopes, steps, phases and stopwatch, without operations."""

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
        self._timed, self._wanted = is_timed(None if self._is_on_meta else parameter), detail
        stopwatch_of = observed_clock_of if detail == OPERATIONS else clock_of
        new_stopwatch = stopwatch_of(self.device) if self._timed else StoppedStopwatch
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
            self.storages.note_placeholders()  # the storages of fake tensors are all on meta
        if (
            detail == OPERATIONS and self._timed and not isinstance(stopwatch, EventStopwatch)
        ):  # it has no clock of the host's
            stopwatch.costs, stopwatch.cold = measured_entry_costs(registry)  # by a run of its own, of some 50 calls
        self._begun = Usage.now()

    def finished(
        self,
        model: str,
        mode: str,
        compiled: bool,
        inventory: Inventory,
        named: Callable[[Sequence[Step]], Iterable[Step]],
        raised: str = "",
        why: str = "",
    ) -> Run:
        """Return the record of the block; ``named(steps)`` gives the steps their names.

        ``raised`` is the class of the exception that ended the block, "" for none, ``why`` its text.
        """
        self._find_device()
        until = f" until it raised {raised}" if raised else ""
        source, trace, measured = "storages", f"profiled{until or ' as it ran'}", dict[str, Any]()
        if self._wanted != OPERATIONS:
            source, trace = "unknown", f"{self._wanted} profiled{until}, no operations"
            measured = {"peak": None, "history": Remembered(0, Place(), (), ())}
        steps = [*named(self.observer.steps)]
        if self._timed:
            clock = self.observer.stopwatch
            measured |= {
                "steps": tuple([step._replace(parts=_known_seconds(step.parts)) for step in steps]),
                "captured": captured_calls(self.observer.calls),
                "interrupted": Usage.now().since(self._begun).interrupted,
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
            timed=self._timed,
            **measured,
        )

    def _find_device(self) -> None:
        """Find the device of models whose parameters are on meta, now that they have run; leave out what is a placeholder."""
        if self._is_on_meta:
            ran_on = self.observer.ran_on
            self._has_device = ran_on is not None and ran_on.type != "meta"
            self.device = ran_on if self._has_device else self.device
            self._timed = self._timed and self.device.type == "cpu"
        if self._has_device:
            self.storages.leave_out_placeholders()


def _world_of(device: torch.device | None) -> RealWorld:
    """Return the world of a block whose models are on this device: a simulated rank's, under its mode."""
    results = results_on()
    return RealWorld(device) if results is None else FakeWorld(device, results)


def _known_seconds(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase, without phases that have none because they were captured into a graph."""
    read = {phase: seconds_of(taken) for phase, taken in parts.items()}
    return {phase: seconds for phase, seconds in read.items() if seconds is not None}


def inputs_of(scopes: Iterable[Scope]) -> str:
    """Return the inputs of a model's first call in words, and in how many shapes it was called if there are several."""
    found = dict.fromkeys(" ".join(map(repr, scope.inputs())) for scope in scopes if not scope.path)
    first = next(iter(found), "")
    return first if len(found) < 2 else f"{first} (first of {len(found)} shapes)"
