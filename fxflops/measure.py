"""The passes over a model and its graph: calls, memory, the model's own peak, the clock; each from the same state."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from .errors import FxflopsError, InputError, RunError, TraceError
from .inputs import bind
from .ledger import History, Ledger, Named
from .meter import CudaMemory, StorageMemory
from .ops import Table
from .per_node import Spans, backward_positions, node_of, timed
from .records import Call, Node, Scope, Timing, spec_of
from .run import CallCollector, Times, run_back, run_graph, time_nodes, uncompiled
from .state import Snapshot
from .structure import tensors_in
from .trace import TRACERS
from .trace.meta import Twins
from .trace.observe import Observer
from .trace.placement import Placement
from .trace.record import Recorder
from .trace.source import is_library
from .trace.symbolic import constants_of, symbolic
from .trace.tape import BACKWARD, FORWARD, RECOMPUTE, Tape, roots_of


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
    history: History
    source: str
    steps: tuple[tuple[str, range], ...] = ()
    backward_latency: Timing | None = None

    def untimed(self) -> Measured:
        """The same, with no times: what an observer's clock read beside its own work is none."""
        return replace(self, calls=tuple(replace(call, seconds=None) for call in self.calls))

    def with_sites(self, places: Mapping[str, str]) -> Measured:
        """The same, where calls without a formula stand at the line of their node."""
        calls = tuple(replace(c, site=places.get(c.node, c.site)) if c.site else c for c in self.calls)
        return replace(self, calls=calls)


class Subject:
    """A model with its inputs, to be run again and again from the same state."""

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        snapshot: Snapshot,
        backward: bool = False,
    ) -> None:
        self.model = model
        self.snapshot = snapshot
        self.backward = backward
        self._args = args
        self._kwargs = kwargs
        self.paths = {module: path for path, module in model.named_modules()}
        self.held: dict[str, list[tuple[str, torch.Tensor]]] = {
            "params": [*model.named_parameters()],
            "buffers": [*model.named_buffers()],
            "inputs": [("", tensor) for tensor in tensors_in((args, kwargs))],
        }
        self.state = [tensor for named in self.held.values() for _, tensor in named]
        self.device = self.state[0].device if self.state else torch.device("cpu")

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs, everything rewound to how it was at first."""
        self.snapshot.rewind()
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
class Traced:
    """A model's graph, how it was made, and why not symbolically. ``watched`` is the run that was recorded."""

    graph: fx.GraphModule
    how: str
    why: str = ""
    watched: Watched | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """The model's own run, seen by an observer, and the storages alive in it."""

    observer: Observer
    history: History
    out: Any


def traced(subject: Subject, table: Table, how: str, why: str = "") -> Traced:
    """The model's graph by the tracer ``how``: "symbolic", "record", or "auto": the first of these that succeeds.

    ``why`` is the reason to record, where it is known.

    Raises TraceError where symbolic tracing was asked for and cannot be, RunError where the model itself raises.
    """
    if how not in TRACERS:
        raise InputError(f"unknown tracer {how!r}: trace is one of {', '.join(map(repr, TRACERS))}")
    if how != "record":
        try:
            return Traced(symbolic(subject.model, table, constants_of(subject.model, subject.bound())), "symbolic")
        except TraceError as error:
            if how == "symbolic":
                raise
            why = str(error).partition("\nfxflops.")[0]
    recorder = Recorder(subject.model, subject.bound())
    watched = observed_run(subject, table, recorder)
    return Traced(recorder.graph(watched.out), "recorded", why, watched)


def measure(subject: Subject, trace: Traced, table: Table, repeats: int | str, tick: Callable[[], None]) -> Measured:
    """Run the graph node by node, and the model itself, as often as it takes to read everything.

    Raises RunError where the model raises.
    """
    tick()
    graph, back = trace.graph, subject.backward
    ledger = Ledger(subject.held)
    observer = Observer(
        subject.paths,
        table,
        ledger=ledger,
        before_write=subject.snapshot.before_write,
        tape=Tape() if back else None,
    )
    collector = CallCollector(observer, graph.graph)
    storages, storages_back = StorageMemory(ledger), StorageMemory(ledger)
    tape = Tape() if back else None
    inputs = subject.bound()
    with uncompiled(), observer:
        out = run_graph(graph, inputs, collector, storages, tape=tape)
        if tape is not None:
            observer.backward(partial(run_back, out, tape, storages_back))
    del inputs, out
    bytes_of: tuple[Spans, Spans] = storages.bytes, storages_back.bytes
    source = "predicted" if subject.device.type == "meta" else "storages"
    tick()
    watched = trace.watched or observed_run(subject, table)
    watcher, peak = watched.observer, watched.history.peak
    if subject.device.type == "cuda":
        tick()
        bytes_of, peak, source = *_cuda_memory(subject, graph), "allocator"
    times = Times()
    if subject.device.type != "meta" and repeats != 0:
        times = time_nodes(graph, subject.bound, subject.call, subject.device, repeats, tick, back)
    nodes = tuple(node_of(n, collector.ranges[n.name], times, bytes_of) for n in graph.graph.nodes)
    forward = [call for call in observer.calls if call.phase == FORWARD]
    own = [call for call in watcher.calls if call.phase == FORWARD]
    calls = (*timed(forward, ((list(node.calls), node.timing) for node in nodes)), *_folded(forward, own))
    if len(calls) > len(own):
        raise TraceError(_unfaithful(subject.model, trace, forward, own))
    if back:
        again = _backward_calls(observer.calls, watcher.calls)
        calls = (*calls, *timed(again, backward_positions(again, nodes)))
    return Measured(
        calls, tuple(watcher.scopes), nodes, times.latency, peak, watched.history, source,
        backward_latency=times.backward_latency,
    )  # fmt: skip


def _backward_calls(graph_calls: list[Call], own_calls: list[Call]) -> list[Call]:
    """The backward pass: of the graph, whose calls know their nodes, where it is the model's own; else the model's.

    Recomputation is no part of a graph.
    """
    back, own = ([call for call in calls if call.phase == BACKWARD] for calls in (graph_calls, own_calls))
    again = [call for call in own_calls if call.phase == RECOMPUTE]
    return [*(back if Counter(map(_likeness, back)) == Counter(map(_likeness, own)) else own), *again]


def observed_run(subject: Subject, table: Table, recorder: Recorder | None = None, cap: int | None = None) -> Watched:
    """The model's own run, watched; InputError when its live tensors pass ``cap`` bytes."""
    args, kwargs = subject.inputs()
    ledger = Ledger(subject.held, cap)
    observer = Observer(
        subject.paths,
        table,
        ledger=ledger,
        before_write=subject.snapshot.before_write,
        recorder=recorder,
        tape=Tape() if subject.backward else None,
    )
    out = _watch(subject, observer, args, kwargs)
    ledger.label(gradients_of(subject.held["params"]), "gradients")
    return Watched(observer, ledger.history(observer.calls), out)


def _folded(graph_calls: list[Call], own_calls: list[Call]) -> Iterator[Call]:
    """The calls of the model's own run that the graph lacks: symbolic tracing runs what depends on no input, once.

    ``self.scale ** 2`` of a buffer is a constant in the graph, but the model computes it each time.
    """
    unseen = Counter(map(_likeness, own_calls)) - Counter(map(_likeness, graph_calls))
    for call in own_calls:
        if unseen[_likeness(call)] > 0:
            unseen[_likeness(call)] -= 1
            yield replace(call, seconds=None)


def _unfaithful(model: nn.Module, trace: Traced, graph_calls: list[Call], own_calls: list[Call]) -> str:
    own = Counter(map(_likeness, own_calls))
    extra = next(call for call in graph_calls if (own.subtract([_likeness(call)]), own[_likeness(call)] < 0)[1])
    return (
        f"the {trace.how} graph of {type(model).__name__} does not do what the model does: it calls {extra.op} on "
        f"{', '.join(map(repr, extra.inputs()))} in {extra.path or 'the root'}, which the model never did\n"
        'fxflops.analyze(model, args, trace="record") records a run of the model'
    )


def _likeness(call: Call) -> str:
    return f"{call.op} {list(call.inputs())} {call.out}"


def counted_run(subject: Subject, table: Table, facts: bool = False) -> tuple[Measured, str]:
    """The model's own run, watched, and "" where the meta device sufficed: no kernel computed, nothing was allocated.

    With ``facts`` what masks leave is read. Where it needs values it is run on the real tensors, and the reason is returned. Raises InputError where those
    pass the cap, RunError where the model raises there too, or has no real tensors.
    """
    try:
        strays = subject.backward or any(map(_is_scripted, subject.paths))
        watched, twins = _on_meta(subject, table, facts, strays)
        if twins.stranger and not strays:
            watched, _ = _on_meta(subject, table, facts, strays=True)
        why = ""
    except (RunError, NotImplementedError) as error:
        if any(tensor.device.type == "meta" for tensor in subject.state):
            raise
        why = str(error)
        watched = observed_run(subject, table, cap=cap_of(subject.device))
    return measured_as_it_ran(watched, "storages" if why else "predicted"), why


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


def _on_meta(subject: Subject, table: Table, facts: bool, strays: bool) -> tuple[Watched, Twins]:
    args, kwargs = subject.inputs()
    twins = Twins(subject.state)
    held = {category: [(name, twins.of(t)) for name, t in named] for category, named in subject.held.items()}
    ledger = Ledger(held)
    observer = Observer(
        subject.paths,
        table,
        ledger=ledger,
        before_write=subject.snapshot.before_write,
        twins=twins,
        placement=Placement(subject.device) if subject.device.type != "meta" else None,
        strays=strays,
        facts=facts,
        tape=Tape() if subject.backward else None,
    )
    out = _watch(subject, observer, args, kwargs)
    twins.meet(out)
    ledger.label(gradients_of(held["params"]), "gradients")
    return Watched(observer, ledger.history(observer.calls), None), twins


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def author_lines(subject: Subject, table: Table, trace: Traced) -> dict[str, str]:
    """For each node of a graph the model author's innermost ``file:line``; a symbolic one is traced anew for it."""
    graph = trace.graph
    if trace.how == "symbolic":
        graph = symbolic(subject.model, table, constants_of(subject.model, subject.bound()), stack_traces=True)
    places = {}
    for node in graph.graph.nodes:
        files = re.findall(r'File "(.+)", line (\d+)', node.stack_trace or "")
        own = [f"{file}:{line}" for file, line in files if not is_library(file)]
        if own:
            places[node.name] = own[-1]
    return places


def _watch(subject: Subject, observer: Observer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        with uncompiled(), observer:
            out = subject.model(*args, **kwargs)
            if subject.backward:
                observer.backward(lambda: torch.autograd.backward(*roots_of(out)))
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
    if "meta tensor" not in str(error) and "'Meta'" not in str(error):
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


def _cuda_memory(subject: Subject, graph: fx.GraphModule) -> tuple[tuple[Spans, Spans], int]:
    """Bytes per node of the graph's run, forward and backward, and at the peak of the model's own, from the allocator."""
    call = subject.call()
    torch.cuda.reset_peak_memory_stats(subject.device)
    out = call()
    if subject.backward:
        torch.autograd.backward(*roots_of(out))
    del out
    peak = torch.cuda.max_memory_allocated(subject.device)
    meter, meter_back, tape = (
        CudaMemory(subject.device),
        CudaMemory(subject.device),
        Tape() if subject.backward else None,
    )
    out = run_graph(graph, subject.bound(), meter, tape=tape)
    if tape is not None:
        run_back(out, tape, meter_back)
    return (meter.bytes, meter_back.bytes), peak
