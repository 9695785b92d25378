"""The model's own run, watched: on its real tensors, or on the meta device, where no kernel computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .errors import FxflopsError, RunError
from .inputs import bind
from .inventory import Inventory
from .ledger import History, Ledger, Named, Remembered
from .ops import Table
from .optimizing import OptimizerLike, stand_in
from .records import Call, Node, Scope, Timing, spec_of
from .run import uncompiled
from .state import Snapshot
from .structure import tensors_in
from .trace.blocks import Learned
from .trace.fast import FastObserver
from .trace.forwards import has_hooks, has_own_code, is_hooked
from .trace.meta import Twins
from .trace.observe import Observer
from .trace.placement import Placement
from .trace.plans import plans_of
from .trace.record import Recorder
from .trace.source import is_library
from .trace.tape import Tape, backward_from
from .trace.tokens import Numbers
from .trace.whole import Whole, key_of


@dataclass(frozen=True, slots=True)
class Measured:
    """What the passes found. ``peak`` in bytes, with the state (parameters, buffers, inputs) in it; ``history`` is of the
    storages alive in the model's own run. ``steps`` are the model's calls by name, where it was called several times.
    """

    calls: tuple[Call, ...]
    scopes: tuple[Scope, ...]
    nodes: tuple[Node, ...]
    latency: Timing | None
    peak: int
    history: History | Remembered
    source: str
    steps: tuple[tuple[str, range], ...] = ()
    backward_latency: Timing | None = None

    def untimed(self) -> Measured:
        """The same, with no times: what an observer's clock read beside its own work is none."""
        timed = any(call.seconds is not None for call in self.calls)
        return replace(self, calls=tuple(c._replace(seconds=None) for c in self.calls)) if timed else self

    def with_sites(self, places: Mapping[str, str]) -> Measured:
        """The same, where calls without a formula stand at the line of their node."""
        calls = tuple(c._replace(site=places.get(c.node, c.site)) if c.site else c for c in self.calls)
        return replace(self, calls=calls)


class Subject:
    """A model with its inputs, to be run again and again from the same state."""

    def __init__(
        self,
        model: nn.Module,
        inventory: Inventory,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        backward: bool = False,
        lazy: bool = False,
    ) -> None:
        self.model = model
        self._lazy = lazy
        self.backward = backward
        self.optimizer: OptimizerLike | None = None
        self._args = args
        self._kwargs = kwargs
        if backward or not lazy:
            self.keep()
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

    def key(self, numbers: Numbers) -> Any:
        """All that a run on meta depends on; None where that is more than can be told."""
        return key_of(self.model, self.inventory, self._args, self._kwargs, self.device, numbers)

    @cached_property
    def snapshot(self) -> Snapshot:
        """How everything was at first: taken when it is first asked for."""
        return Snapshot(self.model, (self._args, self._kwargs), self._lazy)

    def keep(self) -> None:
        """Take the snapshot, if it is not taken yet: something is about to run."""
        _ = self.snapshot

    def writes(self) -> int:
        """How often a call has announced that it writes to the model or the inputs."""
        return self.snapshot.writes

    def rewind(self) -> None:
        """Bring everything back to how it was at first, if anything has run."""
        if self.has_run:
            self.snapshot.rewind()

    @property
    def has_run(self) -> bool:
        """Whether anything of the model's has run, which is not so where all was made again from memory."""
        return "snapshot" in vars(self)

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
        return lambda: self.model(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Watched:
    """The model's own run, seen by an observer, and the storages alive in it."""

    observer: Observer
    history: History


def observed_run(subject: Subject, table: Table, recorder: Recorder | None = None, cap: int | None = None) -> Watched:
    """The model's own run, watched; InputError when its live tensors pass ``cap`` bytes."""
    args, kwargs = subject.inputs()
    ledger, tape = Ledger(subject.held, cap), Tape() if subject.backward else None
    observer = Observer(
        subject.paths,
        table,
        ledger=ledger,
        before_write=subject.snapshot.before_write,
        recorder=recorder,
        tape=tape,
    )
    out = _watch(subject, observer, args, kwargs)
    ledger.label(gradients_of(subject.held["params"]), "gradients")
    _step(subject, observer, ledger, tape, lambda tensor: tensor)
    if recorder is not None:
        recorder.returned(out)
    return Watched(observer, ledger.history(observer.calls))


def counted_run(subject: Subject, table: Table, facts: bool = False, reuse: bool = True) -> tuple[Measured, str]:
    """The model's own run, watched, and "" where the meta device sufficed: no kernel computed, nothing was allocated.

    With ``facts`` what masks leave is read; with ``reuse`` calls made before are made again from memory, whole runs too.
    Where it needs values it is run on the real tensors, and the reason is returned; a model on meta, with all that it makes
    on meta too. Raises InputError where the real tensors pass the cap, RunError where the model raises there too.
    """
    plans = plans_of(table)
    strays = subject.backward or any(issubclass(cls, torch.jit.ScriptModule) for cls in {*map(type, subject.paths)})
    key = subject.key(plans.numbers) if reuse and not (strays or facts or table.python_functions) else None
    known = plans.wholes.get(key)
    if known is not None:
        measured, subject.inventory.contents = known
        return measured, ""
    try:
        if not strays:
            fast = reuse and _can_be_fast(subject, table)
            watched, twins = (_fast_on_meta if fast else _on_meta)(subject, table, facts)
            strays = twins.stranger
        if strays:
            watched, _ = _on_meta(subject, table, facts, strays=True)
        measured = measured_as_it_ran(watched, "predicted")
        if key is not None and not (strays or subject.snapshot.has_drawn()):
            plans.keep_whole(key, Whole(measured, subject.inventory.contents))
        return measured, ""
    except (RunError, NotImplementedError) as error:
        failed = error
    # Not within that handler: what the model raises on its own tensors is not to be shown below what it raised on meta.
    if any(tensor.device.type == "meta" for tensor in subject.state):
        try:
            watched = observed_run(subject, table)
        except RunError:
            raise failed from failed.__cause__
        return measured_as_it_ran(watched, "predicted"), ""
    subject.snapshot.keep_all()
    watched = observed_run(subject, table, cap=cap_of(subject.device))
    return measured_as_it_ran(watched, "storages"), str(failed)


def _step(
    subject: Subject,
    observer: Observer,
    ledger: Ledger,
    tape: Tape | None,
    twin_of: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """A step of the optimizer, if there is one, on the twins of its parameters: as all are but the first, which makes the
    state that is there from then on."""
    if subject.optimizer is None or tape is None:
        return
    optimizer = stand_in(subject.optimizer, subject.model.parameters(), twin_of)
    try:
        with torch.no_grad():
            if not optimizer.state:
                subject.snapshot.before_write([*subject.model.parameters()])
                optimizer.step()
            ledger.add_all([tensor for _, tensor in states_of(optimizer)])
            ledger.label(states_of(optimizer), "optimizer")
            with tape.stepping(), observer:
                optimizer.step()
    except FxflopsError:
        raise
    except Exception as error:
        raise RunError(f"{type(optimizer).__name__} raised in its step\n  {type(error).__name__}: {error}") from error
    ledger.label(states_of(optimizer), "optimizer")
    ledger.throughout("optimizer")


def states_of(optimizer: Optimizer) -> list[tuple[str, torch.Tensor]]:
    """The tensors that an optimizer keeps."""
    return [("", tensor) for tensor in tensors_in([*optimizer.state.values()])]


def gradients_of(parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """The gradients that parameters have, by the parameters' names."""
    return [(name, p.grad) for name, p in parameters if p.grad is not None]


def measured_as_it_ran(watched: Watched, source: str, steps: tuple[tuple[str, range], ...] = ()) -> Measured:
    """What one run says, without a graph and without times."""
    calls, scopes = tuple(watched.observer.calls), tuple(watched.observer.scopes)
    return Measured(calls, scopes, (), None, watched.history.peak, watched.history, source, steps).untimed()


def cap_of(device: torch.device) -> int:
    """Bytes of live tensors that ``count()`` allows itself on real tensors: half of the memory there is."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _fast_on_meta(subject: Subject, table: Table, facts: bool) -> tuple[Watched, Twins]:
    """The model's own run on meta, calls and blocks made again from memory where they can be.

    Where something changes that no module tells of (a list of a module's), blocks made again may be wrong: then it runs
    once more without them. What follows from a random generator is not remembered.
    """
    learned = Learned(subject.writes)
    watched, twins = _on_meta(subject, table, facts, learned=learned)
    if subject.has_run and not twins.stranger and not facts:
        strayed = subject.snapshot.has_strayed(modules=not learned.told)
        if strayed and learned.replayed:
            learned = Learned(subject.writes, blocks=False)
            watched, twins = _on_meta(subject, table, facts, learned=learned)
        if not subject.snapshot.has_drawn():
            plans_of(table).keep_blocks({} if strayed else learned.found)
    return watched, twins


def _on_meta(
    subject: Subject, table: Table, facts: bool, strays: bool = False, learned: Learned | None = None
) -> tuple[Watched, Twins]:
    """The model's own run on meta; with ``learned`` by the fast observer."""
    args, kwargs = subject.inputs()
    twins = Twins(subject.state, lambda tensor: subject.snapshot.holds(tensor))
    ledger, tape = Ledger(subject.held), Tape() if subject.backward else None
    twins.moved = ledger.move
    make: Callable[..., Observer] = Observer
    if learned is not None:
        make = partial(FastObserver, learned)
    observer = make(
        subject.paths,
        table,
        ledger=ledger,
        before_write=lambda value: subject.snapshot.before_write(value),
        twins=twins,
        placement=Placement(subject.device),
        strays=strays,
        facts=facts,
        tape=tape,
    )
    subject.keep()
    out = _watch(subject, observer, args, kwargs)  # alive until the step is over, as it is in a loop
    twins.meet(out)
    if tape is not None:
        ledger.label(gradients_of([(name, twins.of(p)) for name, p in subject.held["params"]]), "gradients")
    _step(subject, observer, ledger, tape, twins.of)
    return Watched(observer, ledger.history(observer.calls)), twins


def _can_be_fast(subject: Subject, table: Table) -> bool:
    """Whether calls may be made again from memory: nothing is learnt of the backward pass, of operators that nobody
    announces, of plain functions, of what a forward replaced on an instance or a hook does."""
    replaced = any(not has_own_code(module) or has_hooks(module) for module in subject.paths)
    return not (replaced or is_hooked() or table.python_functions)


def _watch(subject: Subject, observer: Observer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        with uncompiled(), observer:
            out = subject.model(*args, **kwargs)
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
