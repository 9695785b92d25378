"""The model's own run, watched: on its real tensors, or on the meta device, where no kernel computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import FxflopsError, InputError, RunError
from ..meters.live_storages import History, LiveStorages, Named
from ..model.inputs import bind
from ..model.inventory import Inventory
from ..model.optimizer import OptimizerLike, stand_in
from ..model.pytree import fill, template_of, tensors_in
from ..model.snapshot import Snapshot
from ..ops import FormulaRegistry
from ..records import spec_of, specs_in
from ..torch_internals import in_fake_mode, is_fake
from ..trace.autograd_owners import AutogradOwners, backward_from
from ..trace.device_mirror import DeviceMirror
from ..trace.fast import FastObserver
from ..trace.meta_mirror import MetaMirror
from ..trace.observe import Observer
from ..trace.record import Recorder
from ..trace.source import is_library
from .graph_run import uncompiled
from .outcome import Environment, Run, environment_of

ON_META, ON_FAKE = "observed on meta", "observed on fake tensors"


class Subject:
    """A model with its inputs, to be run again and again from the same state. ``mode`` is the one that its modules are in, and
    ``compiled`` tells that torch.compile would run it, or a part of it, otherwise."""

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
    ) -> None:
        self.model = model
        self.mode = mode
        self.compiled = compiled
        self._lazy = lazy
        self.backward = backward
        if backward:
            args, kwargs = _apart((args, kwargs))
        self.optimizer: OptimizerLike | None = None
        self._args = args
        self._kwargs = kwargs
        self._ran = False
        self.inventory = inventory
        self.paths = self.inventory.paths
        self.held: dict[str, list[tuple[str, torch.Tensor]]] = {
            "params": self.inventory.params,
            "buffers": self.inventory.buffers,
            "inputs": [("", tensor) for tensor in tensors_in((args, kwargs))],
        }
        self.state = [tensor for named in self.held.values() for _, tensor in named]
        self.device = self.state[0].device if self.state else torch.device("cpu")
        if backward or not lazy:
            self.keep()

    @cached_property
    def snapshot(self) -> Snapshot:
        """How everything was at first: taken when it is first asked for."""
        return Snapshot(self.paths, (self._args, self._kwargs), self._lazy)

    def keep(self) -> None:
        """Take the snapshot, if it is not taken yet: something is about to run."""
        _ = self.snapshot

    def rewind(self) -> None:
        """Bring everything back to how it was at first, if a snapshot was taken."""
        if "snapshot" in vars(self):
            self.snapshot.rewind()

    def watch(self, registry: FormulaRegistry, **settings: Any) -> Watch:
        """What watches a run of it, not yet begun; ``settings`` as of :class:`Watch`."""
        written = lambda value: self.snapshot.before_write(value)  # noqa: E731  the snapshot is taken when the run begins
        held = {**self.held, "params": [*self.inventory.params, *self.inventory.packed]}
        return Watch(self.paths, registry, held, backward=self.backward, before_write=written, **settings)

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs, everything rewound to how it was at first."""
        if self._ran:
            self.rewind()
        self._ran = True
        if self.backward:
            for tensor in self.state:
                tensor.grad = None
        return self._args, dict(self._kwargs)

    def bound(self) -> dict[str, Any]:
        """The same by the names of forward's parameters."""
        args, kwargs = self.inputs()
        return bind(self.model, args, kwargs)

    def call(self) -> Callable[[], Any]:
        """The model's own run, ready to be started."""
        args, kwargs = self.inputs()
        return lambda: run_to_end(self.model(*args, **kwargs))

    def ran(self, watch: Watch, source: str, trace: str, why: str = "") -> Run:
        """The record of its run that was watched, and is over."""
        inputs = " ".join(map(repr, specs_in(spec_of((self._args, self._kwargs)))))
        environment = environment_of(self.device, self.mode, self.compiled)
        run = watch.run(type(self.model).__name__, inputs, self.inventory, environment, source, trace, why)
        held = vars(watch.observer)  # who holds on to himself is only found by the garbage collector
        for name in held.keys() - {"_thread", "_threads"}:  # which another thread that calls a stand-in still asks for
            del held[name]
        return run


def run_to_end(out: Any) -> Any:
    """What a forward returned; of a generator, whose body runs as it is asked for them, all its items. InputError for a
    coroutine."""
    if isinstance(out, Coroutine):
        out.close()
        raise InputError("forward is a coroutine, which runs when it is awaited: put fxflops.profile around that")
    return list(out) if isinstance(out, Iterator) else out


class Watch:
    """One run, watched: the only place where an observer, the live storages and the owners of autograd's graph are wired.

    ``held`` are the tensors that are there before and after, ``cap`` the bytes that the live ones may take. With ``mirror`` it
    is a run on meta of a model on ``device``. With ``backward`` the gradients' calls are told from the forward's.
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
    ) -> None:
        self.storages = LiveStorages(held, cap, spec_of if mirror is None else mirror.spec)
        self.owners, self.recorder = AutogradOwners() if backward else None, recorder
        self.mirror = mirror
        if mirror is not None:
            mirror.moved = self.storages.move
        self.observer = (Observer if mirror is None else FastObserver)(
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
        )
        if recorder is not None:
            recorder.calls = self.observer.calls

    @property
    def history(self) -> History:
        """What became of the storages."""
        return self.storages.history(self.observer.calls)

    def of(self, subject: Subject) -> Watch:
        """Watch the model's own run, with the backward pass and the optimizer's step that belong to it."""
        args, kwargs = subject.inputs()
        subject.keep()
        out = _watch(subject, self.observer, args, kwargs)  # alive until the step is over, as it is in a loop
        if self.mirror is not None:
            self.mirror.meet(out)
        if self.owners is not None:
            params = [(name, self._twin_of(p)) for name, p in subject.held["params"]]
            self.storages.label(gradients_of(params), "gradients")
            _step(subject, self.observer, self.storages, self._twin_of)
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
    ) -> Run:
        """The record of what was watched, of the model that consists of this: without a graph, and without times, for what
        an observer's clock reads beside its own work is none."""
        calls = tuple([call if call.seconds is None else call._replace(seconds=None) for call in self.observer.calls])
        scopes, history = tuple(self.observer.scopes), self.history
        return Run(
            model, inputs, calls, scopes, history.peak, history, source, *inventory.contents, environment, trace, why
        )

    def _twin_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.mirror is None else self.mirror.of(tensor)


def observed_run(
    subject: Subject, registry: FormulaRegistry, recorder: Recorder | None = None, cap: int | None = None
) -> Watch:
    """The model's own run, watched; InputError when its live tensors pass ``cap`` bytes."""
    return subject.watch(registry, recorder=recorder, cap=cap).of(subject)


def counted_run(subject: Subject, registry: FormulaRegistry, facts: bool = False) -> Run:
    """The model's own run on the meta device, where that suffices: no kernel computes, nothing is allocated.

    With ``facts`` what masks leave is read.
    Where it needs values it is run on the real tensors, and the reason is told; a model on meta, with all that it makes
    on meta too; one of fake tensors, or in a FakeTensorMode, as it is. Raises InputError where the real tensors pass the cap, RunError where the model raises there too.
    """
    if in_fake_mode() or any(map(is_fake, {*map(type, subject.state)})):
        return subject.ran(observed_run(subject, registry), "predicted", ON_FAKE)
    observe_dispatch = subject.backward or any(
        issubclass(cls, torch.jit.ScriptModule) for cls in {*map(type, subject.paths)}
    )
    on_meta = any(tensor.device.type == "meta" for tensor in subject.state)
    failed: Exception | None = None
    try:
        watch = _on_meta(subject, registry, facts, observe_dispatch)
        if watch.mirror is not None and watch.mirror.stranger and not observe_dispatch:
            watch = _on_meta(subject, registry, facts, observe_dispatch=True)
        why = "" if watch.mirror is None else watch.mirror.needs_values  # raised, and caught by the model
        if on_meta or not why:
            return subject.ran(watch, "predicted", ON_META)
    except (RunError, InputError, NotImplementedError) as error:
        failed, why = error, str(error)
    # Not within that handler: what the model raises on its own tensors is not to be shown below what it raised on meta.
    if failed is not None and on_meta:
        try:
            watch = observed_run(subject, registry)
        except RunError:
            raise failed from failed.__cause__
        return subject.ran(watch, "predicted", ON_META)
    subject.snapshot.keep_all()
    watch = observed_run(subject, registry, cap=cap_of(subject.device))
    return subject.ran(watch, "storages", "observed on real tensors", why)


def _step(
    subject: Subject,
    observer: Observer,
    storages: LiveStorages,
    twin_of: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """A step of the optimizer, if there is one, on the mirrored parameters: as all are but the first, which makes the
    state that is there from then on."""
    if subject.optimizer is None:
        return
    optimizer = stand_in(subject.optimizer, subject.model.parameters(), twin_of)
    try:
        with torch.no_grad():
            if not optimizer.state:
                subject.snapshot.before_write([*subject.model.parameters()])
                optimizer.step()
            storages.add_all([tensor for _, tensor in states_of(optimizer)])
            storages.label(states_of(optimizer), "optimizer")
            with observer:
                optimizer.step()
    except FxflopsError:
        raise
    except Exception as error:
        raise RunError(f"{type(optimizer).__name__} raised in its step\n  {type(error).__name__}: {error}") from error
    storages.label(states_of(optimizer), "optimizer")
    storages.throughout("optimizer")


def _apart(inputs: Any) -> Any:
    """The inputs with a leaf on the same memory for each tensor that was computed, or is a view: a backward pass ends there, and
    what is written to it changes no graph of the user's."""
    if all(tensor.is_leaf and not tensor._is_view() for tensor in tensors_in(inputs)):
        return inputs
    template, tensors = template_of(inputs)
    return fill(template, *(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors))


def states_of(optimizer: Optimizer) -> list[tuple[str, torch.Tensor]]:
    """The tensors that an optimizer keeps."""
    return [("", tensor) for tensor in tensors_in([*optimizer.state.values()])]


def gradients_of(parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """The gradients that parameters have, by the parameters' names."""
    return [(name, p.grad) for name, p in parameters if p.grad is not None]


def cap_of(device: torch.device) -> int:
    """Bytes of live tensors that ``count()`` allows itself on real tensors: half of the memory there is."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _on_meta(subject: Subject, registry: FormulaRegistry, facts: bool, observe_dispatch: bool) -> Watch:
    """The model's own run on meta."""
    holds = lambda tensor: subject.snapshot.holds(tensor)  # noqa: E731  the snapshot is taken when the run begins
    mirror = MetaMirror(subject.state, holds, lambda value: subject.snapshot.before_write(value))
    return subject.watch(
        registry, mirror=mirror, device=subject.device, observe_dispatch=observe_dispatch, facts=facts
    ).of(subject)


def _watch(subject: Subject, observer: Observer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        with uncompiled(), observer:
            out = run_to_end(subject.model(*args, **kwargs))
            if subject.backward:
                observer.backward(out, backward_from)
            return out
    except FxflopsError:
        raise
    except Exception as error:
        op, path, (given, named) = observer.failed or (
            type(subject.model).__name__,
            "",
            (spec_of(args), spec_of(kwargs)),
        )
        shapes = ", ".join([*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())])
        raise RunError(
            f"the model raised at {op} in " + (f"module {path!r}" if path else "the model's own forward") + "\n"
            f"  given {shapes or 'nothing'}\n  {type(error).__name__}: {error}{_line_of(error)}{_advice(error)}"
        ) from error


def _advice(error: Exception) -> str:
    if "'indices' to have one of the following scalar types" in str(error):
        return "\n  it is given numbers of words: give integers, of dtype torch.long"
    if "meta tensor" not in str(error).lower() and "'Meta'" not in str(error):
        return ""
    return "\n  it needs values, which the meta device does not have: give a model with real tensors"


def _line_of(error: BaseException) -> str:
    """The innermost line of the model author's in an exception's traceback."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_library(code.co_filename):
            place = f"\n  at {code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return place
