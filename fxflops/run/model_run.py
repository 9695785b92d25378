"""An observed run of the model itself: on its real tensors, or on the meta device, where no kernel computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import FxflopsError, InputError, RunError
from ..meters.accelerator import accelerator_of
from ..meters.event_stopwatch import with_seconds
from ..meters.live_storages import LiveStorages, Named
from ..meters.stopwatch import StoppedStopwatch, Stopwatch
from ..model.inputs import as_leaves, bind
from ..model.inventory import Inventory
from ..model.modules import parameters_of
from ..model.optimizer import (
    INSTEAD,
    OptimizerLike,
    StandIns,
    gradients_kept,
    gradients_of,
    held_by_hooks,
    holders_in,
    made_optimizer,
    states_of,
)
from ..model.pytree import tensors_in
from ..model.snapshot import Snapshot
from ..ops import FormulaRegistry
from ..records import Call, specs_in
from ..records.tensors import spec_of
from ..torch_internals import in_fake_mode, is_fake
from ..trace.attention_pairs import with_shares
from ..trace.autograd_owners import AutogradOwners, backward_from
from ..trace.device_mirror import DeviceMirror
from ..trace.dtypes import MixedDtypesError
from ..trace.fast import FastObserver
from ..trace.live import LiveObserver
from ..trace.meta_mirror import MetaMirror
from ..trace.observe import Observer
from ..trace.processes import is_sharded
from ..trace.record import Recorder
from ..trace.simulated import SimulatedObserver, results_on
from ..trace.source import line_that_raised
from .environment import environment_of, modes_in
from .graph_run import run_error
from .out_of_memory import noting_live
from .outcome import Environment, Run
from .uncompiled import uncompiled

unoptimized = torch.jit.optimized_execution  # type: ignore[attr-defined]
"""TorchScript's optimizer computes, too, in the first calls of a module."""
GIVE = ": give a model with real tensors"
ON_META, ON_FAKE = "counted on the meta device", "counted on fake tensors"


class Subject:
    """A model with its inputs, to be run several times from the same state, that of ``snapshot``.

    ``mode`` is the mode of its modules ("eval", "train", "as_is"); ``compiled`` tells whether a part of it is under
    ``torch.compile``; ``compiled_model`` is the model as given, if a call of that runs compiled; ``lazy`` is for its Snapshot.
    ``optimizer`` makes a step after the backward pass, ``holders`` are the objects that it leads to.
    ``count_for`` is the device that a count is for: the one asked for, else the model's own, and the CPU for a model on meta;
    ``is_for_another`` tells whether it is of another type than the device that the model would run on.
    ``bytes_before`` are the bytes that its device had allocated before any run, 0 where that is unknown.
    """

    def __init__(
        self,
        model: nn.Module,
        inventory: Inventory,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: str,
        backward: bool = False,
        lazy: bool = False,
        compiled: bool = False,
        compiled_model: nn.Module | None = None,
        optimizer: OptimizerLike | None = None,
        count_for: torch.device | None = None,
    ) -> None:
        self.model = model
        self.mode = modes_in(inventory.paths) if mode == "as_is" else mode
        self.compiled = compiled
        self.lazy = lazy
        self.compiled_model = compiled_model
        self.backward = backward
        if backward:
            args, kwargs = as_leaves((args, kwargs))
        self.optimizer = optimizer
        self.holders = holders_in(optimizer)
        self._args = args
        self._kwargs = kwargs
        self._ran = False
        self.inventory = inventory
        self.held: dict[str, list[tuple[str, torch.Tensor]]] = {
            "params": inventory.params,
            "buffers": inventory.buffers,
            "inputs": [("", tensor) for tensor in tensors_in((args, kwargs))],
        }
        self.state = [tensor for named in self.held.values() for _, tensor in named]
        self.device = self.state[0].device if self.state else torch.device("cpu")
        own = torch.device("cpu") if self.device.type == "meta" else self.device
        # A tensor made on "cuda" says that it is on "cuda:0", the current device.
        self.count_for = own if count_for is None else torch.device(count_for.type, count_for.index or 0)
        if self.count_for.type == "cpu":
            self.count_for = torch.device("cpu")
        self.is_for_another = self.count_for.type != own.type
        accelerator = accelerator_of(self.device)
        self.bytes_before = accelerator.live if accelerator is not None and accelerator.has_statistics else 0
        self.snapshot = Snapshot(inventory.paths, (args, kwargs), lazy, self.holders)

    def watch(self, registry: FormulaRegistry, **settings: Any) -> Watch:
        """Return a new Watch for a run of this model; ``settings`` are its other arguments."""
        known = set(map(id, self.state))
        attributes = [("", tensor) for tensor in self.snapshot.others() if id(tensor) not in known]
        held = {
            "params": [*self.inventory.params, *self.inventory.packed],
            "buffers": [*self.inventory.buffers, *self.inventory.constants],
            "inputs": self.held["inputs"],
        }
        held["buffers"] += attributes  # plain ones of the model's, no buffers by name, are there all the time, too
        settings |= {"backward": self.backward, "before_write": self.snapshot.before_write}
        watch = Watch(self.inventory.paths, registry, held, **settings)
        watch.observer.phases.on_step = partial(self._stepping, watch.storages, watch.mirror is not None)
        return watch

    def _stepping(self, storages: LiveStorages, is_on_meta: bool, optimizer: Optimizer) -> None:
        """Keep the state of an optimizer that steps within the run, as hooks of parameters let it, and enter its memory.

        Raises InputError if it would step real parameters in a run on meta: it finds no gradients there.
        """
        stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if is_on_meta and not all(parameter.is_meta for parameter in stepped):
            raise InputError(f"{type(optimizer).__name__} makes steps within the run, on the model's real parameters")
        self.snapshot.before_step(optimizer, holders_in(optimizer))
        storages.add_held(states_of(optimizer), "optimizer")

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs, after restoring the initial state."""
        if self._ran:
            self.snapshot.rewind()
        self._ran = True
        if self.backward:
            for tensor in self.state:
                tensor.grad = None
        return self._args, dict(self._kwargs)

    def bound(self) -> dict[str, Any]:
        """Return the inputs by the names of forward's parameters, after restoring the initial state."""
        return bind(self.model, *self.inputs())

    def call(self, compiled: bool = False) -> Callable[[], Any]:
        """Return a function that runs the model, or the compiled one, which there must be, once from the initial state."""
        args, kwargs = self.inputs()
        model: Any = self.compiled_model if compiled else self.model
        return lambda: run_to_end(model(*args, **kwargs))

    def record_of(self, watch: Watch, source: str, trace: str, why: str = "") -> Run:
        """Return the record of a finished run under ``watch``, which is for ``count_for`` if it has a mirror."""
        device = self.device if watch.mirror is None else self.count_for
        inputs = " ".join(map(repr, specs_in(spec_of((self._args, self._kwargs)))))
        # A model on meta is counted for any CPU; tensors that are here have this machine's cores.
        environment = environment_of(device, self.mode, self.compiled, self.device.type == device.type)
        run = watch.run(type(self.model).__name__, inputs, self.inventory, environment, source, trace, why)
        watch.release()
        return run


def run_to_end(out: Any) -> Any:
    """Return a forward's output; for a generator, whose body runs as it is iterated, the list of its items.

    Raises InputError for a coroutine.
    """
    if isinstance(out, Coroutine):
        out.close()
        raise InputError("forward is a coroutine, which runs when it is awaited: use fxflops.profile around the await")
    return list(out) if isinstance(out, Iterator) else out


class Watch:
    """The instruments of one run: an observer, the live storages, and the owners of autograd nodes, wired together.

    ``held`` are tensors that live before and after the run, by category; ``cap`` is the limit of live bytes. With
    ``mirror`` the run is on meta, of a model on ``device``. With ``backward`` calls of the backward pass are assigned to
    the modules whose gradients they compute. The other arguments are those of :class:`~fxflops.trace.observe.Observer`.
    """

    def __init__(
        self,
        paths: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        held: Mapping[str, Named] | None = None,
        *,
        backward: bool = False,
        before_write: Callable[[Any], None] | None = None,
        recorder: Recorder | None = None,
        cap: int | None = None,
        mirror: MetaMirror | None = None,
        device: torch.device | None = None,
        observe_dispatch: bool = True,
        facts: bool = True,
        clock: Callable[[], Stopwatch] = Stopwatch,
    ) -> None:
        self.storages = LiveStorages(held, cap, spec_of if mirror is None else mirror.spec)
        self.owners, self.recorder = AutogradOwners() if backward else None, recorder
        self.mirror = mirror
        if mirror is not None:
            mirror.on_mirrored = self.storages.move
        is_left_alone, results = recorder is None and before_write is None, results_on()
        observer: Any = LiveObserver if results is None else partial(SimulatedObserver, results)
        self.observer: Observer = (FastObserver if mirror is not None else observer if is_left_alone else Observer)(
            paths,
            registry,
            storages=self.storages,
            before_write=before_write,
            mirror=mirror,
            device_mirror=None if device is None else DeviceMirror(device),
            recorder=recorder,
            observe_dispatch=observe_dispatch,
            facts=facts,
            owners=self.owners,
            clock=clock if mirror is None else StoppedStopwatch,
        )
        if recorder is not None:
            recorder.calls = self.observer.calls

    def observe(self, subject: Subject) -> Watch:
        """Observe a run of the model, with its backward pass and optimizer step if it has them; return this Watch."""
        with noting_live(self.storages, self.observer.calls, subject.held["params"]):
            out = _watch(subject, self.observer)  # alive until the step is over, as in a training loop
        if self.mirror is not None:
            self.mirror.check_origin(out)
        if self.owners is not None:
            params = [(name, self.mirror_of(p)) for name, p in subject.held["params"]]
            self.storages.label(gradients_of(params), "gradients")
            if subject.optimizer is not None:
                _step(subject, subject.optimizer, self)
        if self.recorder is not None:
            self.recorder.returned(out)
        return self

    def run(
        self,
        model: str,
        inputs: str,
        inventory: Inventory,
        environment: Environment,
        source: str,
        trace: str,
        why: str = "",
        timed: bool = False,
    ) -> Run:
        """Return the record of the run, without graph, and without the times of its calls unless it is ``timed``."""
        calls, scopes = with_seconds(self.calls, timed), with_seconds(self.observer.scopes, timed)
        history = self.storages.history(self.observer.calls)
        contents, aliases = inventory.contents, inventory.aliases
        return Run(
            model, inputs, calls, scopes, history.peak, history, source, *contents, environment, trace, why, aliases
        )

    def release(self) -> None:
        """Break the reference cycles of an observer that has done its work: only the garbage collector would free them."""
        held = vars(self.observer)
        for name in held.keys() - {"_thread", "_threads"}:  # another thread may still ask for these
            del held[name]

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of the run."""
        return self.observer.calls if self.owners is None else with_shares(self.observer.calls, self.owners.owner_of)

    def mirror_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that stands for this one in the run."""
        return tensor if self.mirror is None else self.mirror.of(tensor)


def observed_run(
    subject: Subject, registry: FormulaRegistry, recorder: Recorder | None = None, **settings: Any
) -> Watch:
    """Observe a run of the model on its real tensors; raise InputError when live tensors exceed ``cap``, a setting of Watch."""
    return subject.watch(registry, recorder=recorder, **settings).observe(subject)


def counted_run(subject: Subject, registry: FormulaRegistry, facts: bool = False) -> Run:
    """Run the model on the meta device, where no kernel computes and nothing is allocated.

    A model that needs values runs on its real tensors instead, and the record has the reason. A model that is itself on
    meta then runs with all its new tensors on meta too. Fake tensors, or a FakeTensorMode, are used as they are. With
    ``facts`` the pairs that attention masks leave are read. Raises InputError if real tensors exceed the cap, RunError
    if the model raises on them too.
    """
    if in_fake_mode() or any(map(is_fake, {*map(type, subject.state)})):
        _check_own_device(subject, "its tensors are fake, and have a device")
        return subject.record_of(observed_run(subject, registry), "predicted", ON_FAKE)
    classes = {*map(type, subject.inventory.paths)}
    if is_sharded(subject.state) or (subject.backward and nn.parallel.DistributedDataParallel in classes):
        return _on_real(subject, registry, "its parameters are shared with other processes")
    observe_dispatch = subject.backward or any(issubclass(cls, torch.jit.ScriptModule) for cls in classes)
    on_meta = any(tensor.device.type == "meta" for tensor in subject.state)
    # On meta, hooks are given stand-ins: one that asks which parameter it has would not step.
    if subject.backward and not on_meta and (stepped := held_by_hooks(parameters_of(subject.model))) is not None:
        return _on_real(subject, registry, f"hooks of its parameters hold an optimizer ({type(stepped).__name__})")
    failed: Exception | None = None
    try:
        watch = meta_run(subject, registry, facts, observe_dispatch)
        if watch.mirror is not None and watch.mirror.unknown_origin and not observe_dispatch:
            watch = meta_run(subject, registry, facts, observe_dispatch=True)
        why = "" if watch.mirror is None else watch.mirror.needs_values  # raised, and caught by the model
        if on_meta or not why:
            return subject.record_of(watch, "predicted", ON_META)
    except (RunError, InputError, NotImplementedError) as error:
        failed, why = error, str(error).replace(GIVE, "")
    # Outside that handler, so that an error on real tensors is not chained to the error on meta.
    if failed is None or not on_meta:
        failed = None  # the run on real tensors needs the memory that this error's traceback holds
        return _on_real(subject, registry, why)
    try:
        if subject.is_for_another or isinstance(failed.__cause__, MixedDtypesError):
            raise failed
        return subject.record_of(observed_run(subject, registry), "predicted", ON_META)
    except RunError:
        raise failed from failed.__cause__
    finally:
        del failed  # the traceback has this frame: each would keep the other alive, and the model's tensors


def _on_real(subject: Subject, registry: FormulaRegistry, why: str) -> Run:
    _check_own_device(subject, why)
    subject.snapshot.keep_all()
    watch = observed_run(subject, registry, cap=cap_of(subject.device))
    return subject.record_of(watch, "storages", "counted on real tensors", why)


def _check_own_device(subject: Subject, why: str) -> None:
    """Raise InputError if the model must run on its own device, but is counted for another."""
    if subject.is_for_another:
        own, asked = subject.device.type, subject.count_for.type
        raise InputError(
            f"the model runs on its real tensors, on {own}, and cannot be counted for {asked}: {why}\n"
            f"  give a model on {asked}, or leave device= out to count it for {own}"
        )


def _step(subject: Subject, given: OptimizerLike, watch: Watch) -> None:
    """Observe a step of the optimizer, with stand-ins for its tensors; the subject's snapshot has all that is changed for it.

    An optimizer without state steps once unobserved: its first step creates the state, and every later one finds it. What it
    makes for itself is on the CPU, not on a default device of meta: Adam reads how many steps it made."""
    storages, name = watch.storages, getattr(given, "__name__", type(given).__name__)
    watch.observer.phases.on_step = lambda optimizer: None  # this one is kept already
    own = parameters_of(subject.model)
    mirrors = [(tensor, watch.mirror_of(tensor)) for tensor in subject.state]
    stand_ins = StandIns(mirrors, watch.mirror is not None, subject.device)
    try:
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext(), torch.no_grad():
            stand_ins.put_into(subject.holders)
            optimizer = made_optimizer(given, [watch.mirror_of(parameter) for parameter in own])
            apart = [mirror for _, mirror in mirrors]
            if not any(state.ndim for _, state in states_of(optimizer, apart)):
                subject.snapshot.before_write(own)  # it may reach them where we do not look
                with gradients_kept([watch.mirror_of(parameter) for parameter in own]):
                    optimizer.step()
            storages.add_all([state for _, state in states_of(optimizer, apart)])
            storages.label(states_of(optimizer, apart), "optimizer")
            with watch.observer:
                optimizer.step()
    except FxflopsError:
        raise
    except Exception as error:
        said = f"{name} raised in its step\n  {type(error).__name__}: {error}\n  {INSTEAD}"
        raise RunError(said) from error
    storages.label(states_of(optimizer, apart), "optimizer")
    storages.make_permanent("optimizer")


def cap_of(device: torch.device) -> int:
    """Return the limit of live bytes when ``count()`` runs on real tensors: half of the device's memory."""
    accelerator = accelerator_of(device)
    if accelerator is not None and accelerator.has_statistics:
        return accelerator.total_memory // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def meta_run(subject: Subject, registry: FormulaRegistry, facts: bool, observe_dispatch: bool) -> Watch:
    """Observe a run of the model on meta."""
    mirror = MetaMirror(subject.state, subject.snapshot.holds, subject.snapshot.before_write)
    watch = subject.watch(
        registry, mirror=mirror, device=subject.count_for, observe_dispatch=observe_dispatch, facts=facts
    )
    return watch.observe(subject)


def _watch(subject: Subject, observer: Observer) -> Any:
    args, kwargs = subject.inputs()
    try:
        with uncompiled(), unoptimized(False), observer:
            out = run_to_end(subject.model(*args, **kwargs))
            if subject.backward:
                observer.backward(out, backward_from)
            return out
    except FxflopsError:
        raise
    except Exception as error:
        whole = type(subject.model).__name__, "", (spec_of(args), spec_of(kwargs))
        op, path, (given, named) = observer.failed or whole
        where, advice = f"module {path!r}" if path else "", line_that_raised(error) + _advice(error)
        raise run_error(op, where, given, named, error, advice) from error


def _advice(error: Exception) -> str:
    if "'Meta'" in str(error) or "no fake impl" in str(error):
        return f"\n  it has no kernel on the meta device (torch.library.register_fake gives it one){GIVE}"
    needs_values = "meta tensor" in str(error).lower() or "meta_nonzero" in str(error)
    return f"\n  it needs values, which the meta device does not have{GIVE}" if needs_values else ""
