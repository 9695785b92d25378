"""Observe a run of the model itself: on its real tensors, or on the meta device, where no kernel computes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import FxflopsError, InputError, RunError
from ..meters.accelerator import accelerator_of
from ..meters.event_stopwatch import without_seconds
from ..meters.live_storages import Cap, LiveStorages, Named
from ..meters.stopwatch import StoppedStopwatch, Stopwatch
from ..model.hidden import hidden_from_modes
from ..model.modules import Called, class_name, parameters_of
from ..model.optimizer import (
    INSTEAD,
    OptimizerLike,
    StandIns,
    gradients_kept,
    gradients_of,
    made_optimizer,
    objects_of_optimizer,
    optimizer_in_hooks,
    states_of,
    zero_gradients,
)
from ..model.references import References
from ..ops import FormulaRegistry
from ..records import BACKWARD, specs_in
from ..records.tensors import spec_of
from ..torch_internals import is_on_fake
from ..trace.autograd_owners import AutogradOwners, Owners, backward_from, requires_gradient
from ..trace.call_log import FailedCall
from ..trace.changes import ChangeListener
from ..trace.dtypes import MixedDtypesError
from ..trace.forwards import is_hooked
from ..trace.graph_recorder import GraphListener, GraphRecorder
from ..trace.instruments import Instruments
from ..trace.memo import Memos
from ..trace.meta_mirror import MetaMirror
from ..trace.meta_results import WithoutKernels
from ..trace.meta_world import MetaWorld
from ..trace.observe import Observer
from ..trace.processes import is_sharded
from ..trace.source import line_that_raised
from ..trace.worlds import World
from .environment import environment_of
from .graph_run import run_error
from .out_of_memory import noting_live
from .outcome import Run, RunMemory
from .request import OwnBackwardError
from .subject import Subject, run_to_end
from .uncompiled import uncompiled

optimized_execution = torch.jit.optimized_execution  # type: ignore[attr-defined]
"""``optimized_execution(False)`` disables TorchScript's optimizer, since the optimizer runs extra computations in a module's first calls."""
ON_META, ON_FAKE, ON_REAL = "counted on the meta device", "counted on fake tensors", "counted on real tensors"

NEEDS_GRADIENTS = "does not require grad and does not have a grad_fn"
OWN_BACKWARD = f"{NEEDS_GRADIENTS}|backward through the graph a second time"
"""Errors that torch raises if a callable with its own backward pass runs without gradients, or if a second backward pass follows."""


def new_observer(
    subject: Subject,
    registry: FormulaRegistry,
    world: World | None = None,
    *,
    graph_listener: GraphListener | None = None,
    cap: Cap | None = None,
    must_read_masks: bool = False,
    new_stopwatch: Callable[[], Stopwatch] = Stopwatch,
) -> Observer:
    """Make the observer of a run of the subject, with its instruments. By default, the run is on the subject's real tensors.

    The subject releases the observer in the end, if the run has not been finished before.

    ``cap`` is the limit of live bytes. The other arguments are passed to the observer.
    """
    world = World() if world is None else world
    is_for_cpu = subject.counted_device.type == "cpu"
    storages = LiveStorages(
        _tensors_alive_throughout(subject),
        cap=cap,
        spec=world.tensors.spec,
        was_there=subject.snapshot.was_there,
        take_stand_in=world.tensors.take_stand_in,
        # The storages of fake tensors are on meta, whatever their device.
        counts_meta=world.is_meta or subject.device.type == "meta" or is_on_fake(subject.state),
        counts_random_states=is_for_cpu,
        notes_placeholders=subject.has_meta_tensors and not world.is_meta,
    )
    owners = AutogradOwners(keep=storages.add if is_for_cpu else None) if subject.request.backward else Owners()
    instruments = Instruments(
        world,
        storages,
        owners,
        graph_listener=graph_listener or GraphListener(),
        change_listener=StateSaver(subject, storages, world.is_meta),
    )
    observer = Observer(
        subject.inventory.path_of,
        registry,
        instruments,
        must_read_masks=must_read_masks,
        new_stopwatch=StoppedStopwatch if world.is_meta else new_stopwatch,
        code_that_calls=_forward_and_backward.__code__,  # Phases looks for the model's callers only up to this function
    )
    subject.observers.append(observer)
    return observer


def _tensors_alive_throughout(subject: Subject) -> dict[str, Named]:
    """Return the tensors that are alive before and after each run, by their category in memory."""
    inventory, known_ids = subject.inventory, set(map(id, subject.state))
    # Tensors in plain attributes, which are not registered as buffers, also live during the whole run.
    attributes = [("", tensor) for tensor in subject.snapshot.other_tensors() if id(tensor) not in known_ids]
    return {
        "params": [*inventory.params, *inventory.packed],
        "buffers": [*inventory.buffers, *inventory.constants, *attributes],
        "inputs": subject.named_tensors["inputs"],
    }


class StateSaver(ChangeListener):
    """Saves in the subject's snapshot what a run is about to change, so that it can be restored, and tracks optimizers' memory."""

    saves_writes = True

    def __init__(self, subject: Subject, storages: LiveStorages, is_on_meta: bool) -> None:
        self._snapshot = subject.snapshot
        self._storages = storages
        self._saves_leaves = subject.request.backward
        # On meta, tensors have no gradients yet when a hook steps an optimizer. After the callable's own backward pass, they have.
        self._lacks_gradients = is_on_meta and not subject.request.own_backward
        self._may_run_own_backward = _may_run_own_backward(subject)
        self.before_write = subject.snapshot.before_write  # type: ignore[method-assign]  # without one more Python call per write

    def uses_leaf(self, tensor: torch.Tensor) -> None:
        if self._saves_leaves:
            self._snapshot.meet_leaf(tensor)

    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Save the state of an optimizer that steps within the run, e.g. from parameter hooks, and add its memory.

        Raises InputError if the optimizer would step real parameters in a run on meta, where these parameters have no gradients.
        """
        if not self.saves_optimizer_steps:
            return
        storages = self._storages
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if (self._may_run_own_backward or not self._lacks_gradients) and all(map(storages.was_made_by_call, stepped)):
            # The forward created these parameters for an inner loop. Do not save the parameters, because that would keep their memory in use.
            return
        # With gradients off, code that checks loss.requires_grad silently skips its backward pass. So run again with gradients on.
        if self._may_run_own_backward:
            raise OwnBackwardError
        if self._lacks_gradients and not all(parameter.is_meta for parameter in stepped):
            raise InputError(f"{type(optimizer).__name__} steps the model's real parameters inside the run")
        self._snapshot.before_optimizer_step(optimizer, objects_of_optimizer(optimizer))
        storages.add_existing(states_of(optimizer), "optimizer")


def _may_run_own_backward(subject: Subject) -> bool:
    """Return whether the model is a callable that may run a backward pass itself, which is not known yet."""
    return isinstance(subject.model, Called) and not subject.request.own_backward


def run_with_observer(subject: Subject, observer: Observer) -> Observer:
    """Run the model, and its backward pass and optimizer step if requested, and return the observer."""
    world, storages = observer.instruments.world, observer.instruments.storages
    with noting_live(storages, observer.calls, subject.named_tensors["params"]):
        out = _forward_and_backward(subject, observer)  # stays alive until the step is over, as in a training loop
    world.tensors.note_missed_calls(out)
    storages.memory_log.move_met_to_beginning()  # tensors that existed before the run, but were first seen during it
    # Move DDP's buckets. In a user's block, autograd may also add to older gradients, so Block.finished always does this.
    if subject.request.backward and any(
        type(module) is nn.parallel.DistributedDataParallel for module in subject.inventory.modules
    ):
        storages.move_written_to_beginning(observer.calls)
    if subject.request.backward:
        _label_gradients(subject, observer)
        if subject.request.optimizer is not None:
            _optimizer_step(subject, subject.request.optimizer, observer)
    observer.instruments.graph_listener.returned(out)
    return observer


@hidden_from_modes
def _label_gradients(subject: Subject, observer: Observer) -> None:
    params = [
        (name, observer.instruments.world.tensors.of(parameter)) for name, parameter in subject.named_tensors["params"]
    ]
    observer.instruments.storages.label(gradients_of(params), "gradients")


def observe_on_own_tensors(
    subject: Subject,
    registry: FormulaRegistry,
    graph_listener: GraphRecorder | None = None,
    *,
    cap: Cap | None = None,
    new_stopwatch: Callable[[], Stopwatch] = Stopwatch,
) -> Observer:
    """Observe a run of the model on its real tensors. Raises InputError if the live tensors exceed the ``cap``."""
    return run_with_observer(
        subject, new_observer(subject, registry, graph_listener=graph_listener, cap=cap, new_stopwatch=new_stopwatch)
    )


@hidden_from_modes
def finished_run(
    subject: Subject, observer: Observer, *, memory_source: str, recorded_as: str, recorded_why: str = ""
) -> Run:
    """Return the record of a finished run, and release the observer. The device of a run on meta is the subject's ``counted_device``.

    The calls of the record have no times.
    """
    device = subject.counted_device if observer.instruments.world.is_meta else subject.device
    if has_loaded_weights(subject, observer):  # the weights on meta were only placeholders
        observer.instruments.storages.leave_out_placeholders()
        device = observer.ran_on or device
    # Name this machine's hardware only if it holds the tensors: the count of a model on meta applies to any CPU.
    environment = environment_of(device, subject.mode, subject.compiled, subject.device.type == device.type)
    history = observer.instruments.storages.history(observer.calls)
    modules, params = subject.inventory.contents
    run = Run(
        model=class_name(subject.model),
        inputs=" ".join(map(repr, specs_in(spec_of((subject.args, subject.kwargs))))),
        calls=without_seconds(observer.calls_with_mask_shares),
        scopes=without_seconds(observer.scopes),
        modules=modules,
        params=params,
        aliases=subject.inventory.aliases,
        memory=RunMemory(history.peak, history, memory_source),
        environment=environment,
        recorded_as=recorded_as,
        recorded_why=recorded_why,
    )
    observer.release()
    return run


def run_model(
    subject: Subject, registry: FormulaRegistry, *, must_read_masks: bool = False, memos: Memos | None
) -> Run:
    """Run the model on the meta device, where no kernel computes and nothing is allocated.

    A model that needs values runs on its real tensors instead, and the record has the reason. If such a model is itself on
    meta, all tensors that it creates are on meta, too. A model on fake tensors, or in a FakeTensorMode, runs on the fake tensors.

    With ``must_read_masks``, attention masks without values on meta also cause a run on real tensors. ``memos`` has what earlier
    runs of the model for this device have learned, and gets what this run learns. If it is None, results of repeated calls are not
    reused: every call runs a meta kernel. Raises InputError if real tensors exceed the cap, RunError if the model raises on real
    tensors, too.
    """
    if is_on_fake(subject.state):
        _check_own_device(subject, "its tensors are fake tensors, whose device is fixed")
        observer = observe_on_own_tensors(subject, registry)
        return finished_run(subject, observer, memory_source="predicted", recorded_as=ON_FAKE)
    if why := _reason_for_real_tensors(subject):
        return _on_real(subject, registry, why)
    if (run := _run_of_loaded_weights(subject, registry)) is not None:
        return run
    if subject.has_meta_tensors:
        return _run_of_model_with_meta_tensors(subject, registry, must_read_masks, memos)
    run, why = _run_on_stand_ins(subject, registry, must_read_masks, memos)
    return _on_real(subject, registry, why) if run is None else run


def _run_on_stand_ins(
    subject: Subject, registry: FormulaRegistry, must_read_masks: bool, memos: Memos | None
) -> tuple[Run | None, str]:
    """Run a model with real tensors on meta tensors that stand in for them. If this needs real tensors, return None and the reason.

    Whatever error the forward raises on meta counts as a need for real tensors: if it is the model's own, the run on these raises it again.
    """
    try:
        world, observer = _meta_run_that_sees_all(subject, registry, must_read_masks, memos)
    except (RunError, InputError, NotImplementedError) as error:
        return None, error.problem if isinstance(error, FxflopsError) else str(error)
    # meta_error is also set if the model caught the error, and then took a path that it would not take on real tensors.
    if why := world.mirror.meta_error:
        return None, why
    return finished_run(subject, observer, memory_source="predicted", recorded_as=ON_META), ""


def _run_of_model_with_meta_tensors(
    subject: Subject, registry: FormulaRegistry, must_read_masks: bool, memos: Memos | None
) -> Run:
    """Run a model that has tensors on meta itself, at first in a MetaWorld, as for any other model.

    If this run raises, try once more in the base World, where every call runs torch's own meta kernel. If that run raises, too, raise
    the first run's error. The mirror's ``meta_error`` is not read: it asks for a run on real tensors, and the model has none.
    """
    try:
        _, observer = _meta_run_that_sees_all(subject, registry, must_read_masks, memos)
    except (RunError, InputError, NotImplementedError) as error:
        # Without a MetaWorld, all devices and dtypes are those of meta: autocast does not apply, and mixed dtypes are accepted.
        has_autocast = subject.request.autocast is not None
        if subject.is_for_another_device or has_autocast or isinstance(error.__cause__, MixedDtypesError):
            raise
        try:
            observer = observe_on_own_tensors(subject, registry)
        except RunError:
            raise error from error.__cause__
    return finished_run(subject, observer, memory_source="predicted", recorded_as=ON_META)


def _reason_for_real_tensors(subject: Subject) -> str:
    """Return why the model can only run on its real tensors; "" if it may run on meta."""
    trains = subject.request.backward
    is_replicated = trains and nn.parallel.DistributedDataParallel in {*map(type, subject.inventory.modules)}
    if is_replicated or is_sharded(subject.state):
        return "its parameters are distributed over several processes"
    # On meta, a hook gets a meta tensor instead of its parameter. So a hook that looks up the parameter's optimizer would not find it.
    optimizer = optimizer_in_hooks(parameters_of(subject.model)) if trains and not subject.has_meta_tensors else None
    return "" if optimizer is None else f"hooks on its parameters use an optimizer ({type(optimizer).__name__})"


def _meta_run_that_sees_all(
    subject: Subject, registry: FormulaRegistry, must_read_masks: bool, memos: Memos | None
) -> tuple[MetaWorld, Observer]:
    """Observe a run on meta; repeat the run with the dispatch mode on if the function mode alone did not see all calls."""
    run = partial(meta_run, subject, registry, memos, must_read_masks=must_read_masks)
    # A callable may step an optimizer, and only dispatch modes observe such a step.
    needs_dispatch = subject.request.backward or isinstance(subject.model, Called)
    if needs_dispatch or any(issubclass(type(module), torch.jit.ScriptModule) for module in subject.inventory.modules):
        return run(observe_dispatch=True)
    try:
        world, observer = run(observe_dispatch=False)
    except (RunError, NotImplementedError):
        # A backward pass inside the forward may fail without a dispatch mode, because torch's meta kernels are written in Python.
        # The function mode then mistakes a kernel's calls for the model's own calls, and the kernel's new_empty() may return a CPU tensor.
        # Only a count for another device tries again on meta. Any other count runs on the real tensors.
        if not subject.is_for_another_device:
            raise
        return run(observe_dispatch=True)
    return run(observe_dispatch=True) if world.mirror.missed_calls else (world, observer)


def _on_real(subject: Subject, registry: FormulaRegistry, why: str) -> Run:
    _check_own_device(subject, why)
    subject.snapshot.keep_all()
    observer = observe_on_own_tensors(subject, registry, cap=Cap(cap_of(subject.device), why))
    return finished_run(subject, observer, memory_source="storages", recorded_as=ON_REAL, recorded_why=why)


def has_loaded_weights(subject: Subject, observer: Observer) -> bool:
    """Return whether a run on real tensors loaded weights that were on meta: if it did, its result is not on meta."""
    ran_on = observer.ran_on
    return (
        subject.has_meta_tensors
        and not observer.instruments.world.is_meta
        and ran_on is not None
        and ran_on.type != "meta"
    )


def _run_of_loaded_weights(subject: Subject, registry: FormulaRegistry) -> Run | None:
    """Run a model whose weights stay on meta until its calls load them, e.g. an offloaded model, and return the run on real tensors.

    On meta, loaded weights look like their stand-ins. So try only a model that has real inputs, and hooks or a replaced forward on
    a module with weights on meta. Return None if the model's result is on meta, or if the model raises.
    """
    if not _awaits_weights(subject):
        return None
    why = "its weights stay on meta until its calls load them"
    subject.snapshot.keep_all()
    try:
        observer = observe_on_own_tensors(subject, registry, cap=Cap(cap_of(subject.counted_device), why))
    except (RunError, InputError, NotImplementedError):
        return None  # the run on meta reports the reason
    if not has_loaded_weights(subject, observer):
        observer.release()
        return None
    return finished_run(subject, observer, memory_source="storages", recorded_as=ON_REAL, recorded_why=why)


@hidden_from_modes
def _awaits_weights(subject: Subject) -> bool:
    """Return whether the inputs are real, and a hook or a replaced forward may load weights that are on meta."""
    if (
        not subject.has_meta_tensors
        or subject.is_for_another_device
        or any(tensor.is_meta for _, tensor in subject.named_tensors["inputs"])
    ):
        return False
    waiting = [
        module
        for module in subject.inventory.modules
        if not isinstance(module, torch.jit.ScriptModule)
        and any(weight is not None and weight.is_meta for weight in module._parameters.values())
    ]
    return any("forward" in vars(module) or is_hooked(module) for module in waiting)


def _check_own_device(subject: Subject, why: str) -> None:
    """Raise InputError if the model must run on its own device, but another device was requested."""
    if subject.is_for_another_device:
        own_type, requested = subject.device.type, subject.counted_device.type
        raise InputError(
            f"the model must run on its real tensors, which are on {own_type}, so it cannot be counted for {requested}: {why}\n"
            f"  pass a model on {requested}, or omit device= to count for {own_type}"
        )


def _optimizer_step(subject: Subject, requested: OptimizerLike, observer: Observer) -> None:
    """Observe an optimizer step on stand-ins for the optimizer's tensors. The subject's snapshot restores everything that changes.

    An optimizer without state first steps once without being observed, since the first step creates the state. Tensors that the
    optimizer creates are on the CPU, even if the default device is meta, since optimizers such as Adam read their step count.

    If some state remains after a step followed by ``zero_grad``, it is in memory from the beginning of the observed step. All other memory of the
    step is temporary, e.g. per-example gradients stored on the parameters, or state that replaces the previous state.
    """
    storages, world = observer.instruments.storages, observer.instruments.world
    optimizer_name = getattr(requested, "__name__", type(requested).__name__)
    observer.instruments.change_listener.saves_optimizer_steps = False  # this optimizer has already been saved
    parameters = parameters_of(subject.model)
    pairs = [(tensor, world.tensors.of(tensor)) for tensor in subject.state]
    model_state = [stand_in for _, stand_in in pairs]
    try:
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext(), torch.no_grad():
            stand_ins = StandIns(pairs, world.is_meta, subject.device, storages)
            stand_ins.put_into(subject.optimizer_objects)
            del stand_ins  # would keep the state that the step replaces
            stepped = [world.tensors.of(parameter) for parameter in parameters]
            optimizer = made_optimizer(requested, stepped)
            states = states_of(optimizer, model_state)
            if not any(state.ndim and not storages.was_made_by_call(state) for _, state in states):
                # The optimizer's step may change the parameters through references that fxflops does not know.
                subject.snapshot.before_write(parameters)
                with gradients_kept(stepped), WithoutKernels():
                    optimizer.step()
                    zero_gradients(optimizer, stepped)
                states = states_of(optimizer, model_state)
            storages.add_existing(states, "optimizer")
            names_before = Counter(name for name, _ in states)
            del states  # would keep the state that the step replaces
            with observer:
                optimizer.step()
            states_after = states_of(optimizer, model_state)
            storages.label(states_after, "optimizer")
            with gradients_kept(stepped):
                zero_gradients(optimizer, stepped)
                states_left = states_of(optimizer, model_state)
    except FxflopsError:
        raise
    except Exception as error:
        raise RunError(
            f"{optimizer_name}.step() raised an error\n  {type(error).__name__}: {error}\n  {INSTEAD}"
        ) from error
    # If no earlier step had gradients for all parameters, the observed step adds state.
    # In training, an earlier step would have added this state. So count the state in memory from the beginning.
    added_names = Counter(name for name, _ in states_left) - names_before
    storages.keep_to_end(states_after, [state for name, state in states_left if name in added_names])


def cap_of(device: torch.device) -> int:
    """Return the limit of live bytes when ``count()`` runs on real tensors: half of the device's memory."""
    accelerator = accelerator_of(device)
    if accelerator is not None and accelerator.has_statistics:
        return accelerator.total_memory // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def meta_world_of(
    subject: Subject,
    state: Iterable[torch.Tensor],
    registry: FormulaRegistry,
    memos: Memos | None,
    observe_dispatch: bool,
) -> MetaWorld:
    """Return the world of a run on meta tensors, which stand in for the tensors in ``state``.

    Raises NotImplementedError if the shapes of a tensor in ``state`` depend on values.
    """
    shared_form = None if memos is None else memos.shared_form
    mirror = MetaMirror(state, subject.snapshot, shared_form)
    return MetaWorld(mirror, subject.counted_device, registry, memos, observe_dispatch=observe_dispatch)


def meta_run(
    subject: Subject,
    registry: FormulaRegistry,
    memos: Memos | None,
    *,
    observe_dispatch: bool,
    must_read_masks: bool = False,
) -> tuple[MetaWorld, Observer]:
    """Observe a run of the model on meta. Return the run's world, whose mirror records why the run may not count, and the observer."""
    world = meta_world_of(subject, subject.state, registry, memos, observe_dispatch)
    observer = new_observer(subject, registry, world, must_read_masks=must_read_masks)
    return world, run_with_observer(subject, observer)


def _forward_and_backward(subject: Subject, observer: Observer) -> Any:
    """Observe a run of the model, and its backward pass if requested; return the output."""
    args, kwargs = subject.rewound_inputs()
    not_parameters = subject.snapshot.other_tensors()
    tensors = *subject.state, *not_parameters
    references = References(subject.inventory.modules, (*args, *kwargs.values()), tensors, not_parameters)
    observer.instruments.storages.follow_replaced(references)
    # Remember these layouts before the references to the tensors are counted, because remembering adds references.
    subject.snapshot.remember_layouts(references.replaceable())
    references.begin()
    try:
        with uncompiled(), optimized_execution(False), observer:
            with subject.autocast_region():
                out = run_to_end(subject.model(*args, **kwargs))
            if _may_run_own_backward(subject) and _ran_own_backward(observer, out, subject):
                raise OwnBackwardError
            if subject.request.adds_backward:
                observer.backward(out, backward_from)
            return out
    except (FxflopsError, OwnBackwardError):
        raise
    except Exception as error:
        if _may_run_own_backward(subject) and re.search(OWN_BACKWARD, str(error)):
            raise OwnBackwardError from error
        name = type(subject.model).__name__
        failed = observer.failed or FailedCall(name, "", (spec_of(args), spec_of(kwargs)))
        args_specs, kwargs_specs = failed.arguments
        what_is_missing = _what_meta_lacks(error)
        advice = "real tensors" if what_is_missing else ""
        if NEEDS_GRADIENTS in str(error) and not subject.request.backward:
            advice = "gradients"
        raise run_error(
            error,
            call=failed.name,
            module=f"module {failed.path!r}" if failed.path else "",
            args=args_specs,
            kwargs=kwargs_specs,
            details=line_that_raised(error) + what_is_missing,
            advice=advice,
        ) from error


def _ran_own_backward(observer: Observer, out: Any, subject: Subject) -> bool:
    """Return whether the callable ran the backward pass itself.

    Return True if it called ``loss.backward()``, or if it computed gradients and its output does not require a gradient.
    """
    if observer.phases.called_backward:
        return True
    has_backward_calls = any(call.phase == BACKWARD for call in observer.calls)
    return subject.request.backward and has_backward_calls and not requires_gradient(out)


def _what_meta_lacks(error: Exception) -> str:
    if "'Meta'" in str(error) or "no fake impl" in str(error):
        return "\n  this operation has no kernel on the meta device: add a kernel with torch.library.register_fake"
    needs_values = "meta tensor" in str(error).lower() or "meta_nonzero" in str(error)
    return "\n  this operation needs values, which tensors on the meta device do not have" if needs_values else ""
