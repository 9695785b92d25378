"""Observe a block of code under ``profile``, timed by the clock of its models' device."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..meters.code_lines import by_time, lines_sampled
from ..meters.event_stopwatch import (
    EventStopwatch,
    captured_calls,
    seconds_of,
    stopwatch_maker,
    with_seconds,
    without_seconds,
)
from ..meters.history import LiveTensor
from ..meters.live_storages import LiveStorages
from ..meters.queue_stopwatch import observed_stopwatch_maker
from ..meters.stopwatch import StoppedStopwatch, Stopwatch
from ..meters.timing import Usage
from ..model.inventory import Inventory
from ..model.modules import ByIdentity, children_of, named_buffers, named_parameters
from ..model.optimizer import gradients_of, states_of
from ..model.pytree import is_training
from ..model.snapshot import attribute_tensors
from ..ops import FormulaRegistry
from ..records import OUTSIDE, Scope, Step
from ..torch_internals import is_on_fake
from ..trace.autograd_owners import AutogradOwners
from ..trace.call_log import FailedCall
from ..trace.changes import ChangeListener
from ..trace.data_loaders import data_loaders_watched
from ..trace.fake_world import FakeWorld, results_on
from ..trace.instruments import Instruments
from ..trace.module_times import ModuleTimes
from ..trace.observe import Observer
from ..trace.profiled_world import ProfiledWorld
from .entry_costs import is_timed, measured_entry_costs
from .environment import environment_of
from .generate_calls import generate_replaced
from .outcome import BlockFacts, Environment, Run, RunMemory
from .uncompiled import uncompiled

OPERATIONS, MODULES, STEPS = DETAILS = ("operations", "modules", "steps")
"""Levels of detail of a block's profile, from most to least."""


class Models(nn.ModuleDict):
    """Several models that are profiled together, by name. A report shows this class as their common root."""


def single_models(model: nn.Module) -> list[nn.Module]:
    """Return the models that are profiled together, or the one model."""
    return children_of(model) if isinstance(model, Models) else [model]


class OptimizerMemory(ChangeListener):
    """Labels gradients and optimizer states in a block's memory when optimizers step.

    ``optimizers`` are the optimizers that the user passed. ``met_optimizers`` are weak references to other optimizers that have stepped.
    """

    def __init__(
        self,
        model: nn.Module,
        storages: LiveStorages,
        optimizers: Sequence[Optimizer],
        met_optimizers: list[weakref.ref[Any]],
    ) -> None:
        self._model = model
        self._storages = storages
        self._optimizers = optimizers
        self._met_optimizers = met_optimizers
        self._labelled = weakref.WeakSet[Any]()

    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.label_gradients()  # now, since the next zero_grad() frees them
        if all(optimizer is not other for other in self._all_optimizers()):
            # Keep no reference to this optimizer or its state: an optimizer of an inner loop must be freed when the loop ends.
            self._met_optimizers.append(weakref.ref(optimizer))
            self._storages.add_existing(states_of(optimizer), "optimizer")

    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        """Label the state that an optimizer's first step has created: at the end of the block the optimizer may no longer exist."""
        if optimizer not in self._labelled:
            self._labelled.add(optimizer)
            self._storages.label(states_of(optimizer), "optimizer")

    def label_gradients(self) -> None:
        self._storages.label(gradients_of(named_parameters(self._model)), "gradients")

    def states(self) -> list[tuple[str, torch.Tensor]]:
        """Return the named states of all optimizers that still exist."""
        return [state for optimizer in self._all_optimizers() for state in states_of(optimizer)]

    def _all_optimizers(self) -> list[Any]:
        met = [optimizer for reference in self._met_optimizers if (optimizer := reference()) is not None]
        return [*self._optimizers, *met]


class Block:
    """One ``with`` block under ``profile``: its instruments, and what it notes about iterations, DataLoaders and ``generate``.

    ``device`` is the device of the first parameter that is not on meta, or the CPU if the models have no parameters. If all
    parameters are on meta, a model may load them for each call, e.g. with accelerate's offloading. Then only the results of the
    calls show the device: the block is timed by the CPU's clock, and these times are dropped if the device is not the CPU.

    ``detail`` is one of :data:`DETAILS`. With a detail other than "operations", operations and storages
    are not observed. With ``samples_lines``, the lines of the user's code are sampled while the block is observed.
    """

    def __init__(
        self,
        model: nn.Module,
        registry: FormulaRegistry,
        *,
        detail: str,
        optimizers: Sequence[Optimizer],
        met_optimizers: list[weakref.ref[Any]],
        samples_lines: bool,
    ) -> None:
        inventory, params = Inventory(model), [*named_parameters(model)]
        # The device of this parameter decides which clock times the block.
        # Skip parameters on meta, because they are loaded only when needed.
        loaded = [param for _, param in params if param.device.type != "meta"]
        parameter = next(iter(loaded), params[0][1] if params else None)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self._is_on_meta = self.device.type == "meta"
        self._has_device = parameter is not None and not self._is_on_meta
        self._is_timed = is_timed(None if self._is_on_meta else parameter)
        self._detail = detail
        self._model = model
        self._packed = inventory.packed  # kept alive, since these meta tensors represent packed weights
        self._samples_lines = samples_lines
        self._seconds_of_lines: dict[tuple[str, str], float] = {}
        self._numbers_of_workers: set[int] = set()
        self._while_on: ExitStack | None = None
        # For each recorded iteration of the user's loop: the number of steps when it began, and the iteration's number.
        self._iterations: dict[int, int] = {}
        # For each call of a module's generate: the module's path, and the range of its steps.
        self._generated: list[tuple[str, range]] = []

        world = _world_of(self.device if self._has_device else None)
        self._storages = storages = LiveStorages(
            spec=world.tensors.spec,
            take_stand_in=world.tensors.take_stand_in,
            notes_placeholders=not is_on_fake([parameter]),  # for fake tensors, all storages are on meta
        )
        self._optimizer_memory = OptimizerMemory(model, storages, optimizers, met_optimizers)
        paths = ByIdentity((m, path) for m, path in inventory.path_of.items() if not isinstance(m, Models))
        self._observer: Observer | ModuleTimes
        if detail == OPERATIONS:
            instruments = Instruments(world, storages, AutogradOwners(), change_listener=self._optimizer_memory)
            self._observer = self._new_observer(paths, registry, instruments)
        else:
            self._observer = self._new_module_times(paths)
        self._usage_before = Usage.now()
        for category, tensors in {
            "params": [*params, *self._packed],
            "buffers": [*named_buffers(model)],
            "gradients": gradients_of(params),
            "optimizer": self._optimizer_memory.states(),
        }.items():
            storages.add_existing(tensors, category)
        storages.add_given(attribute_tensors(inventory.modules), "buffers")
        with ExitStack() as until_end:  # undone here if it raises
            for module, path in paths.items():
                if callable(getattr(type(module), "generate", None)):
                    until_end.enter_context(generate_replaced(module, partial(self._noting_generate, path)))
            self._until_end = until_end.pop_all()

    def _new_observer(
        self, paths: Mapping[nn.Module, str], registry: FormulaRegistry, instruments: Instruments
    ) -> Observer:
        observer = Observer(paths, registry, instruments, new_stopwatch=self._stopwatch_by(observed_stopwatch_maker))
        # The costs are subtracted from times of the host's clock, which an EventStopwatch does not read.
        if self._is_timed and not isinstance(observer.stopwatch, EventStopwatch):
            observer.stopwatch.deduct(*measured_entry_costs(registry))  # runs a few hundred short calls
        return observer

    def _new_module_times(self, paths: Mapping[nn.Module, str]) -> ModuleTimes:
        model_ids = {*map(id, single_models(self._model))}
        observed = ByIdentity((m, path) for m, path in paths.items() if self._detail == MODULES or id(m) in model_ids)
        return ModuleTimes(observed, self._stopwatch_by(stopwatch_maker))

    def _stopwatch_by(self, stopwatch_of: Callable[[torch.device], Callable[[], Stopwatch]]) -> Callable[[], Stopwatch]:
        return stopwatch_of(self.device) if self._is_timed else StoppedStopwatch

    # While the block runs

    def begin_iteration(self, number: int) -> None:
        """Record the iteration of the user's loop with this number, from now on. The first call turns the observer on, also without a loop."""
        observer = self._observer
        if self._while_on is None:
            self._turn_on()
        steps = observer.steps
        self._iterations[len(steps)] = number
        first_call = len(observer.calls)
        observer.times.settle()
        steps.append(Step("", range(first_call, first_call), observer.times.next_step()))

    def _turn_on(self) -> None:
        self._while_on = ExitStack()
        self._while_on.enter_context(uncompiled(load=True))
        self._while_on.enter_context(self._observer)
        if self._samples_lines:
            self._while_on.enter_context(lines_sampled(self._seconds_of_lines))
        self._while_on.enter_context(data_loaders_watched(self._observer.times, self._numbers_of_workers))
        self._observer.times.resume()

    def turn_off(self, *error: Any) -> None:
        """Record nothing from now on, until the next :meth:`begin_iteration`."""
        if self._while_on is not None:
            self._observer.times.settle()
            self._while_on.__exit__(*(error or (None, None, None)))
            self._while_on = None

    def end(self, *error: Any) -> None:
        """Turn the instruments off, and restore the models' own ``generate``."""
        self.turn_off(*error)
        self._until_end.__exit__(*error)

    @contextmanager
    def _noting_generate(self, path: str) -> Iterator[None]:
        """Note which model calls are made by one call of ``generate``."""
        first_step = len(self._observer.steps)
        try:
            yield
        finally:
            self._generated.append((path, range(first_step, len(self._observer.steps))))

    # Properties and methods for use after the block has ended

    @property
    def first_iteration(self) -> int | None:
        """The number of the first recorded iteration; None if no iteration was recorded."""
        return min(self._iterations.values(), default=None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded. With a detail other than "operations", the calls are only placeholders."""
        return not (self._observer.scopes or (self._detail == OPERATIONS and self._observer.calls))

    @property
    def failed(self) -> FailedCall | None:
        """The first operation that raised; None if none raised, or operations were not observed."""
        return self._observer.failed

    def live_tensors(self) -> Sequence[LiveTensor]:
        """Return the tensors that are alive now."""
        self._optimizer_memory.label_gradients()
        return self._storages.history(self._observer.calls).at_end

    def finished(self, name: str, *, compiled: bool, iterations: int, raised: str = "", why: str = "") -> Run:
        """Return the record of the block. ``iterations`` is how often the user's loop has called ``step``.

        ``raised`` is the class name of the exception that ended the block, "" without an exception. ``why`` is the exception's text.
        """
        storages, observer = self._storages, self._observer
        self._optimizer_memory.label_gradients()
        storages.label(self._optimizer_memory.states(), "optimizer")
        storages.move_written_to_beginning(observer.calls)
        storages.memory_log.move_met_to_beginning()  # tensors that existed before the block, but were first seen in it
        self._find_device()
        until = f" until it raised {raised}" if raised else ""
        if self._detail == OPERATIONS:
            history = storages.history(observer.calls)
            memory = RunMemory(history.peak, history, "storages")
            is_simulated = isinstance(observer, Observer) and isinstance(observer.instruments.world, FakeWorld)
            recorded_as = (
                f"{'simulated' if is_simulated else 'profiled'}{until or ('' if is_simulated else ' as it ran')}"
            )
        else:
            memory, recorded_as = RunMemory.unknown(), f"{self._detail} profiled{until}, no operations"
        is_timed = self._is_timed
        steps = tuple(
            [
                step._replace(parts=_known_seconds(step.parts) if is_timed else {})
                for step in self._named_steps(iterations)
            ]
        )
        captured = captured_calls(observer.calls) if is_timed else 0
        facts = self._facts()  # before the work below, which is not part of the block
        inventory = Inventory(self._model)  # anew: the block may have changed the model
        modules, params = inventory.contents
        seconds_as_shown = with_seconds if is_timed else without_seconds
        return Run(
            model=name,
            inputs=inputs_of(observer.scopes),
            calls=seconds_as_shown(observer.calls_with_mask_shares),
            scopes=seconds_as_shown(observer.scopes),
            modules=modules,
            params=params,
            aliases=inventory.aliases,
            memory=memory,
            environment=self._environment(compiled),
            recorded_as=recorded_as,
            recorded_why=why,
            steps=steps,
            captured_calls=captured,
            block=facts,
        )

    def _facts(self) -> BlockFacts:
        facts = BlockFacts(
            workers=tuple(sorted(self._numbers_of_workers)),
            lines=by_time(self._seconds_of_lines) if self._samples_lines else None,
        )
        if not self._is_timed:
            return facts
        clock = self._observer.stopwatch
        return facts._replace(
            instrument_seconds=clock.overhead,
            device_seconds=clock.busy,
            interrupted=Usage.now().since(self._usage_before).interrupted,
        )

    def release(self) -> None:
        """Drop the instruments: they would keep the run's tensors alive."""
        self._observer.release()

    def _mode(self) -> str:
        """Return the mode of the models: "train", "eval", or "train and eval" for a loop that ends with an evaluation."""
        if not single_models(self._model):
            return ""
        has_trained = any("optimizer" in step.parts for step in self._observer.steps)  # its time may be measured as 0
        return "train" if is_training(self._model) else "train and eval" if has_trained else "eval"

    def _environment(self, compiled: bool) -> Environment:
        """Return the environment of the block. The grad mode is "" if it is unknown.

        The block's code may change the grad mode for its calls, e.g. in a ``generate``. The mode at the end of the block does not show this,
        but a backward pass shows that it was "grad".
        """
        environment = environment_of(self.device, self._mode(), compiled)
        if any("backward" in step.parts for step in self._observer.steps):
            return environment._replace(grad="grad")
        return environment if environment.grad == "no_grad" else environment._replace(grad="")

    def _find_device(self) -> None:
        """Set the device of models whose parameters are on meta from the results of their calls; drop placeholder storages."""
        if self._is_on_meta:
            ran_on = self._observer.ran_on
            self._has_device = ran_on is not None and ran_on.type != "meta"
            if ran_on is not None and self._has_device:
                self.device = ran_on
            self._is_timed = self._is_timed and self.device.type == "cpu"
        if self._has_device:
            self._storages.leave_out_placeholders()

    def _named_steps(self, iterations: int) -> Iterator[Step]:
        """Yield the steps with their names.

        In a loop that calls ``step``, each iteration is "step n". Otherwise, the model calls in a ``generate`` are "prefill" and
        "decode n". In a second ``generate`` they are "generate 2 prefill" and "generate 2 decode n". All other model calls are "step n".
        """
        steps = self._observer.steps
        in_loop, iteration = iterations > 0, 0
        generated = reversed([*enumerate(self._generated)])  # a nested generate ends first, and overrides the outer one
        generation_of: dict[int, int] = {}
        for call_of_generate, (path, model_calls) in generated:
            generation_of |= {i: call_of_generate for i in model_calls if steps[i].name == path}
        numbers, generations = Counter[Any](), dict[str, list[int]]()
        for i, step in enumerate(steps):
            path = step.name
            iteration = self._iterations.get(i, iteration)
            if in_loop or i in self._iterations:
                is_over = i == len(steps) - 1 and i in self._iterations
                yield step._replace(name=f"step {iteration + 1}" if in_loop and not is_over else OUTSIDE)
                continue
            generation = generation_of.get(i)
            number = numbers[path, generation]
            numbers[path, generation] += 1
            name = f"step {number + 1}"
            if generation is not None:
                path_generations = generations.setdefault(path, [])
                if generation not in path_generations:
                    path_generations.append(generation)
                order = path_generations.index(generation)
                again = f"generate {order + 1} " if order else ""
                name = again + (f"decode {number}" if number else "prefill")
            yield step._replace(name=f"{path} {name}".lstrip())


def _world_of(device: torch.device | None) -> ProfiledWorld:
    """Return the world of a block whose models are on this device: a FakeWorld in a simulated rank, otherwise a ProfiledWorld."""
    results = results_on()
    return ProfiledWorld(device) if results is None else FakeWorld(device, results)


def _known_seconds(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase. Phases that were captured into a device graph have no time, and are skipped."""
    seconds_by_phase = {phase: seconds_of(reading) for phase, reading in parts.items()}
    return {phase: seconds for phase, seconds in seconds_by_phase.items() if seconds is not None}


def inputs_of(scopes: Iterable[Scope]) -> str:
    """Return the inputs of a model's first call as text. If other calls had other shapes, add the number of different shapes."""
    shapes = dict.fromkeys(" ".join(map(repr, scope.inputs())) for scope in scopes if not scope.path)
    first = next(iter(shapes), "")
    return first if len(shapes) < 2 else f"{first} (first of {len(shapes)} shapes)"
