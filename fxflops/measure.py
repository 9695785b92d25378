"""The passes over a model and its graph: calls, memory, the model's own peak, the clock; each from the same state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import fx, nn

from .errors import InputError, TraceError
from .kernels import KernelMeter
from .meter import CudaMemory, StorageMemory
from .ops import Table
from .own_run import Measured, Subject, Watch, observed_run
from .per_node import Spans, backward_positions, node_of, timed
from .records import Call, Kernel
from .run import CallCollector, Times, run_back, run_graph, time_nodes, uncompiled
from .trace import TRACERS
from .trace.record import Recorder
from .trace.source import is_library
from .trace.symbolic import constants_of, symbolic
from .trace.tape import BACKWARD, FORWARD, RECOMPUTE, Tape, backward_from, roots_of


@dataclass(frozen=True, slots=True)
class Traced:
    """A model's graph, how it was made, and why not symbolically. ``watched`` is the run that was recorded."""

    graph: fx.GraphModule
    how: str
    why: str = ""
    watched: Watch | None = None


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
    return Traced(recorder.graph(), "recorded", why, watched)


def measure(
    subject: Subject,
    trace: Traced,
    table: Table,
    repeats: int | str,
    tick: Callable[[], None],
    kernels: bool = False,
) -> Measured:
    """Run the graph node by node, and the model itself, as often as it takes to read everything; ``kernels`` once more,
    under torch.profiler.

    Raises RunError where the model raises.
    """
    tick()
    graph, back = trace.graph, subject.backward
    watch = subject.watch(table)
    observer, ledger = watch.observer, watch.ledger
    collector = CallCollector(observer, graph.graph)
    storages, storages_back = StorageMemory(ledger), StorageMemory(ledger)
    tape = Tape() if back else None
    inputs = subject.bound()
    with uncompiled(), observer:
        out = run_graph(graph, inputs, collector, storages, tape=tape)
        if tape is not None:
            observer.backward(out, lambda roots, ones: run_back(roots, ones, tape, storages_back))
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
    ran = _kernels(subject, graph) if kernels else {}
    nodes = tuple(node_of(n, collector.ranges[n.name], times, bytes_of, ran) for n in graph.graph.nodes)
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
    is_same = Counter(map(_likeness, back)) == Counter(map(_likeness, own))
    return [*(back if is_same else _with_nodes(own, back)), *again]


def _with_nodes(own_calls: list[Call], graph_calls: list[Call]) -> list[Call]:
    """The model's calls with the nodes of the graph whose whole backward is alike: all but what the graph lacks, such as the
    ``backward`` of an autograd.Function, which it does by its operations' own."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for call in reversed(graph_calls):
        nodes.setdefault((call.path, _likeness(call)), []).append(call.node)
    found = [(nodes.get((call.path, _likeness(call))) or [""]).pop() for call in own_calls]
    whole = Counter(call.node for call in graph_calls)
    seen = Counter(found)
    kept = [node if seen[node] == whole[node] else "" for node in found]
    return [call._replace(node=node) for call, node in zip(own_calls, kept, strict=True)]


def _folded(graph_calls: list[Call], own_calls: list[Call]) -> Iterator[Call]:
    """The calls of the model's own run that the graph lacks: symbolic tracing runs what depends on no input, once.

    ``self.scale ** 2`` of a buffer is a constant in the graph, but the model computes it each time.
    """
    unseen = Counter(map(_likeness, own_calls)) - Counter(map(_likeness, graph_calls))
    for call in own_calls:
        if unseen[_likeness(call)] > 0:
            unseen[_likeness(call)] -= 1
            yield call._replace(seconds=None)


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


def _kernels(subject: Subject, graph: fx.GraphModule) -> dict[str, tuple[Kernel, ...]]:
    """What ran on the device for each node of the graph."""
    inputs = subject.bound()
    meter = KernelMeter(subject.device)
    try:
        run_graph(graph, inputs, meter)
    finally:
        meter.stop()
    return meter.kernels


def _cuda_memory(subject: Subject, graph: fx.GraphModule) -> tuple[tuple[Spans, Spans], int]:
    """Bytes per node of the graph's run, forward and backward, and at the peak of the model's own, from the allocator."""
    call = subject.call()
    torch.cuda.reset_peak_memory_stats(subject.device)
    out = call()
    if subject.backward:
        backward_from(*roots_of(out))
    del out
    peak = torch.cuda.max_memory_allocated(subject.device)
    meter, meter_back, tape = (
        CudaMemory(subject.device),
        CudaMemory(subject.device),
        Tape() if subject.backward else None,
    )
    out = run_graph(graph, subject.bound(), meter, tape=tape)
    if tape is not None:
        run_back(*roots_of(out), tape, meter_back)
    return (meter.bytes, meter_back.bytes), peak
