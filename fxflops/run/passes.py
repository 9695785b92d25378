"""The passes over a model and its graph: calls, memory, the model's own peak, the clock; each from the same state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..errors import InputError, TraceError
from ..meters.kernels import KernelMeter
from ..meters.meter import CudaMemory, StorageMemory
from ..meters.nodes import Kernel
from ..ops import FormulaRegistry
from ..records import PARTS, PHASES, Call, typed
from ..trace import TRACERS
from ..trace.autograd_owners import AutogradOwners, backward_from, learns, roots_of
from ..trace.record import Recorder
from ..trace.source import is_library
from ..trace.symbolic import constants_of, symbolic
from .graph_run import CallCollector, Times, run_back, run_graph, time_nodes, uncompiled
from .model_run import Subject, Watch, observed_run
from .outcome import Run
from .per_node import Spans, node_of, with_nodes


@dataclass(frozen=True, slots=True)
class Traced:
    """A model's graph, how it was made, and why not symbolically. ``recorded`` is the run that was recorded, and the
    positions of its nodes' calls in it."""

    graph: fx.GraphModule
    how: str
    why: str = ""
    recorded: tuple[Watch, Mapping[str, range]] | None = None


def traced(subject: Subject, registry: FormulaRegistry, how: str, why: str = "") -> Traced:
    """The model's graph by the tracer ``how``: "symbolic", "record", or "auto": the first of these that succeeds.

    ``why`` is the reason to record, where it is known.

    Raises TraceError where symbolic tracing was asked for and cannot be, RunError where the model itself raises.
    """
    if how not in TRACERS:
        raise InputError(f"unknown tracer {how!r}: trace is one of {', '.join(map(repr, TRACERS))}")
    if how != "record":
        try:
            return Traced(_symbolic(subject, registry), "symbolic")
        except TraceError as error:
            if how == "symbolic":
                raise
            why = str(error).partition("\nfxflops.")[0]
    recorder = Recorder(subject.model, subject.bound())
    watched = observed_run(subject, registry, recorder)
    return Traced(recorder.graph(), "recorded", why, (watched, recorder.calls_of))


def _symbolic(subject: Subject, registry: FormulaRegistry, stack_traces: bool = False) -> fx.GraphModule:
    constants = constants_of(subject.model, subject.bound())
    return symbolic(subject.model, registry, constants, subject.snapshot.before_write, stack_traces)


def measure(
    subject: Subject,
    trace: Traced,
    registry: FormulaRegistry,
    repeats: int | str,
    tick: Callable[[], None],
    kernels: bool = False,
) -> Run:
    """Run the graph node by node, and the model itself, as often as it takes to read everything; ``kernels`` once more,
    under torch.profiler.

    Raises RunError where the model raises, TraceError where a symbolic graph does not do what the model does.
    """
    tick()
    graph = trace.graph
    made, bytes_of = _watched_graph(subject, graph, registry)
    tick()
    watched, calls_of = trace.recorded or _matched(subject, registry, made)
    source = "predicted" if subject.device.type == "meta" else "storages"
    run = subject.ran(watched, source, f"{trace.how} trace", trace.why)
    if subject.device.type == "cuda":
        tick()
        bytes_of, peak = _cuda_memory(subject, graph)
        run = replace(run, peak=peak, source="allocator")
    times = Times()
    if subject.device.type != "meta" and repeats != 0:
        times = time_nodes(graph, subject.bound, subject.call, subject.device, repeats, tick, subject.backward)
    ran = _kernels(subject, graph) if kernels else {}
    nodes = tuple(node_of(n, calls_of.get(n.name, range(0)), times, bytes_of, ran) for n in graph.graph.nodes)
    owner_of = {} if watched.owners is None else watched.owners.owner_of
    calls = with_nodes(run.calls, nodes, owner_of)
    return replace(run, calls=calls, nodes=nodes, latency=times.latency, backward_latency=times.backward_latency)


def _watched_graph(
    subject: Subject, graph: fx.GraphModule, registry: FormulaRegistry
) -> tuple[Mapping[str, list[Call]], tuple[Spans, Spans]]:
    """The calls that each node of the graph makes, and its bytes, forward and backward, by live storages."""
    watch = subject.watch(registry)
    collector = CallCollector(watch.observer, graph.graph)
    memory, memory_back = StorageMemory(watch.storages), StorageMemory(watch.storages)
    owners = AutogradOwners(follows=True) if subject.backward else None
    inputs = subject.bound()
    with uncompiled(), watch.observer:
        out = run_graph(graph, inputs, collector, memory, owners=owners)
        if owners is not None and learns(out):
            watch.observer.backward(out, lambda roots, ones: run_back(roots, ones, owners, memory_back))
    return collector.calls_of, (memory.bytes, memory_back.bytes)


def _matched(
    subject: Subject, registry: FormulaRegistry, made: Mapping[str, list[Call]]
) -> tuple[Watch, dict[str, range]]:
    """The model's own run, watched, and for each node of a symbolic graph the positions in it of the calls that it made.

    Between them may be others, which torch.fx ran once: what depends on no input, ``self.scale ** 2`` of a buffer, is a
    constant in the graph, but the model computes it each time. Raises TraceError where the graph makes other calls than the
    model, or in another order.
    """
    watched = observed_run(subject, registry)
    own = [_likeness(call) for call in watched.observer.calls if call.phase in PARTS[PHASES[0]]]
    found: dict[str, range] = {}
    end = 0
    for name, calls in made.items():
        wanted = [_likeness(call) for call in calls]
        begun = next((i for i in range(end, len(own)) if own[i : i + len(wanted)] == wanted), -1) if wanted else end
        if begun < 0:
            raise TraceError(
                f"the symbolic graph of {type(subject.model).__name__} does not do what the model does: it calls "
                f"{calls[0].op} on {', '.join(map(repr, calls[0].inputs()))} in {calls[0].path or 'the root'}, which the "
                'model does not do there\nfxflops.analyze(model, args, trace="record") records a run of the model'
            )
        end = begun + len(wanted)
        found[name] = range(begun, end)
    return watched, found


def _likeness(call: Call) -> tuple[Any, ...]:
    return call.op, call.path, typed(tuple(call.inputs())), typed(call.out)


def author_lines(subject: Subject, registry: FormulaRegistry, trace: Traced) -> dict[str, str]:
    """For each node of a graph the model author's innermost ``file:line``; a symbolic one is traced anew for it."""
    graph = trace.graph
    if trace.how == "symbolic":
        graph = _symbolic(subject, registry, stack_traces=True)
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
    with closing(KernelMeter(subject.device)) as meter:
        run_graph(graph, inputs, meter)
    return meter.kernels


def _cuda_memory(subject: Subject, graph: fx.GraphModule) -> tuple[tuple[Spans, Spans], int]:
    """Bytes per node of the graph's run, forward and backward, and at the peak of the model's own, from the allocator."""
    call = subject.call()
    torch.cuda.reset_peak_memory_stats(subject.device)
    with uncompiled():
        out = call()
    if subject.backward:
        backward_from(*roots_of(out))
    del out
    peak = torch.cuda.max_memory_allocated(subject.device)
    meter, meter_back, owners = (
        CudaMemory(subject.device),
        CudaMemory(subject.device),
        AutogradOwners(follows=True) if subject.backward else None,
    )
    out = run_graph(graph, subject.bound(), meter, owners=owners)
    if owners is not None and learns(out):
        run_back(*roots_of(out), owners, meter_back)
    return (meter.bytes, meter_back.bytes), peak
