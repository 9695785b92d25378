"""Analyze a model in several passes: calls, memory, peak, times, kernels. Every pass starts from the same state of the model.

================================  ==========================================  ==================  ========================================
pass                              what runs                                   in                  gives
================================  ==========================================  ==================  ========================================
graph, if it is recorded          the model                                   ``traced_graph``    the graph
calls of the graph                the graph, on meta or on its own device     ``_matching_runs``  the calls and the bytes of each node
calls of the model                the model                                   ``_matching_runs``  the record's calls; whether they match
memory, if all tensors are meta   the model, with the device's kernels        ``run_model``       the predicted memory
peak, with allocator statistics   the graph                                   ``_allocated``      the peak, and the bytes of each node
times                             the model, the compiled model, the graph    ``_timed``          latencies, and the time of each node
kernels, if requested             the graph, under torch.profiler             ``_kernels``        the kernels of each node
================================  ==========================================  ==================  ========================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from ..errors import FxflopsError, InputError, OutOfMemoryError, RunError, TraceError
from ..meters.accelerator import Accelerator, accelerator_of
from ..meters.event_stopwatch import captured_calls, with_seconds
from ..meters.kernels import KernelMeter
from ..meters.meter import MemoryMeter
from ..meters.nodes import Kernel
from ..meters.queue_stopwatch import observed_stopwatch_maker
from ..model.modules import Called, state_tensors
from ..ops import FormulaRegistry
from ..records import FORWARD, PARTS, Call, Spec, specs_in, typed
from ..trace.autograd_owners import backward_from, roots_of
from ..trace.graph_recorder import GraphRecorder
from ..trace.memo import Memos
from ..trace.observe import Observer
from ..trace.source import is_library
from ..trace.symbolic import constants_of, symbolic
from .compiled import first_runs, with_times
from .compiled_kernels import compiled_kernels
from .graph_run import CallCollector, Times, expected, run_graph, time_nodes
from .model_run import (
    finished_run,
    has_loaded_weights,
    meta_world_of,
    new_observer,
    observe_on_own_tensors,
    optimized_execution,
    run_model,
)
from .out_of_memory import noting_live
from .outcome import Compiled, Run
from .per_node import NodeBytes, node_of, with_nodes
from .progress import Progress
from .subject import Subject
from .uncompiled import once_loaded, uncompiled

TRACERS = ("auto", "symbolic", "record")
SYMBOLIC, RECORDED, NO_GRAPH = "symbolic", "recorded", "no"
"""How a graph was made. With the word "trace", these are the words of a report: "no trace"."""


class MatchedRun(NamedTuple):
    """An observed run of the model itself. ``call_ranges`` maps the name of each graph node to the range of the node's calls in this run."""

    observer: Observer
    call_ranges: Mapping[str, range]


class GraphRun(NamedTuple):
    """An observed run of a graph: the calls of each node, the bytes of each node in forward and backward, and whether the backward ran."""

    calls_by_node: Mapping[str, list[Call]]
    node_bytes: NodeBytes
    ran_backward: bool


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A model's graph.

    ``how`` is SYMBOLIC, RECORDED, or NO_GRAPH for an empty graph. ``why`` is the reason why the graph is not symbolic, or why it is
    empty. ``model_run`` is the run that was recorded; None for a symbolic graph.
    """

    graph_module: fx.GraphModule
    how: str
    why: str = ""
    model_run: MatchedRun | None = None


def traced_run(
    subject: Subject,
    registry: FormulaRegistry,
    *,
    tracer: str,
    repeats: int | str,
    tick: Progress,
    with_kernels: bool = False,
) -> tuple[Run, TracedGraph]:
    """Trace the model with the tracer and measure the model's graph; return the record and the graph.

    If a symbolic graph cannot be measured, e.g. because it differs from the model or lacks gradients, the model is recorded instead.
    If a recorded graph cannot be measured, e.g. because the model calls ``backward()``, the model runs without a graph. If the model
    raises, the line of the call in the author's code is added to the error.
    """
    traced = traced_graph(subject, registry, tracer)
    try:
        while True:
            try:
                run = measure(subject, traced, registry, repeats=repeats, tick=tick, with_kernels=with_kernels)
                return run, traced
            except (TraceError, InputError) as error:
                if tracer == "symbolic" or traced.how == NO_GRAPH:
                    raise
                traced = graph_instead(subject, registry, traced, error)
    except (RunError, OutOfMemoryError) as error:
        place = author_lines(subject, registry, traced).get(error.node) if error.node else None
        if place:
            error.add(f"\n  at {place}")
        raise


def traced_graph(subject: Subject, registry: FormulaRegistry, tracer: str, why: str = "") -> TracedGraph:
    """Trace the model with the tracer "symbolic", "record", or "auto", which tries "symbolic", then "record".

    If the run cannot be recorded, the graph is empty. ``why`` is the reason for recording, if known. Raises TraceError if the
    tracer "symbolic" fails, RunError if the model itself raises, InputError for an unknown tracer.
    """
    if tracer not in TRACERS:
        raise InputError(f"unknown tracer trace={tracer!r}; expected one of {', '.join(map(repr, TRACERS))}")
    if subject.request.own_backward:
        return without_graph(subject, registry, f"{type(subject.model).__name__} runs a backward pass itself")
    if tracer != "record" and not (tracer == "auto" and subject.request.backward and isinstance(subject.model, Called)):
        try:
            return TracedGraph(_symbolic(subject, registry), SYMBOLIC)
        except TraceError as error:
            if tracer == "symbolic":
                raise
            why = str(error).partition("\nfxflops.")[0]
    try:
        return once_loaded(lambda: _recorded(subject, registry, why))
    except Exception as error:
        if isinstance(error, FxflopsError) and not isinstance(error, RunError):
            raise
        # If the model itself raised this error, the run below raises the error again. If not, the recorder raised the error.
        why = f"the model cannot be recorded: {_cause(error)}"
    return without_graph(subject, registry, why)


def _recorded(subject: Subject, registry: FormulaRegistry, why: str) -> TracedGraph:
    recorder = GraphRecorder(subject.model, subject.rewound_inputs_by_name())
    observer = observe_on_own_tensors(
        subject, registry, recorder, new_stopwatch=observed_stopwatch_maker(subject.device)
    )
    if has_loaded_weights(subject, observer):
        observer.release()
        return without_graph(subject, registry, "a recorded graph would keep the weights that the model's calls load")
    return TracedGraph(recorder.graph(), RECORDED, why, MatchedRun(observer, recorder.call_ranges))


def without_graph(subject: Subject, registry: FormulaRegistry, why: str) -> TracedGraph:
    """Observe a run of the model; return the run with an empty graph. Raises RunError if the model itself raises."""
    observer = observe_on_own_tensors(subject, registry, new_stopwatch=observed_stopwatch_maker(subject.device))
    return TracedGraph(fx.GraphModule({}, fx.Graph()), NO_GRAPH, why, MatchedRun(observer, {}))


def graph_instead(
    subject: Subject, registry: FormulaRegistry, traced: TracedGraph, error: TraceError | InputError
) -> TracedGraph:
    """If a symbolic graph failed, record the model instead. If a recorded graph failed, observe a run without a graph.

    If the model itself raises, raise the model's error. If the graph raised the same error, raise the graph's error instead, since it
    names the node.
    """
    if traced.how == RECORDED:
        at = f" at {error.node!r}" if isinstance(error, RunError) else ""
        return without_graph(subject, registry, f"the model's recorded graph cannot be run{at}: {_cause(error)}")
    try:
        return traced_graph(subject, registry, "record", str(error).partition("\n")[0])
    except RunError as own_error:
        is_same = (type(own_error.__cause__), str(own_error.__cause__)) == (type(error.__cause__), str(error.__cause__))
        shown_error = error if is_same else own_error
        raise shown_error from shown_error.__cause__


def _cause(error: Exception) -> str:
    """Return the type and the first line of the original error."""
    original = error.__cause__ or error
    return f"{type(original).__name__}: {original}".partition("\n")[0]


def _symbolic(subject: Subject, registry: FormulaRegistry, stack_traces: bool = False) -> fx.GraphModule:
    constants = constants_of(subject.model, subject.rewound_inputs_by_name())
    return symbolic(subject.model, registry, constants, subject.snapshot.before_write, stack_traces)


def measure(
    subject: Subject,
    traced: TracedGraph,
    registry: FormulaRegistry,
    *,
    repeats: int | str,
    tick: Progress,
    with_kernels: bool = False,
) -> Run:
    """Run the model itself, and its graph node by node, separately for each quantity; ``with_kernels`` also under torch.profiler.

    The record has the model's own calls. A run of the graph shows to which node each call belongs.

    Raises RunError if the model raises, TraceError if the calls of a symbolic graph differ from the model's calls.
    """
    graph = traced.graph_module
    graph_run, (observer, call_ranges) = _matching_runs(subject, traced, registry, tick)
    # Read the calls' times, and the forward call of each backward call, now: finished_run() removes them.
    calls, owner_of = observer.calls_with_mask_shares, observer.instruments.owners.owner_of
    observed, captured = with_seconds(calls), captured_calls(calls)
    is_timed = subject.device.type != "meta"
    if is_timed:
        observed_seconds = sum(call.seconds or 0.0 for call in observed)
        # Each repeat runs the model and the graph's nodes. On an accelerator, it also times the nodes on the host. A compiled model runs, too.
        runs_per_repeat = 2 + (accelerator_of(subject.device) is not None) + subject.compiled
        tick.expect(expected(observed_seconds, repeats, runs_per_repeat))
    # Make the record before the other passes, because they change the model's tensors. The record must not contain these changes.
    run = finished_run(
        subject,
        observer,
        memory_source="storages" if is_timed else "predicted",
        recorded_as=f"{traced.how} trace",
        recorded_why=traced.why,
    )
    memory, environment = run.memory, run.environment
    if subject.is_all_on_meta():  # all tensors: then the observed run was a run on meta
        # A run on meta uses kernels that no device uses (plain products for attention). run_model() predicts a device's kernels.
        predicted = run_model(subject, registry, memos=Memos())
        memory, environment = replace(predicted.memory, source=memory.source), predicted.environment
    node_bytes, accelerator = graph_run.node_bytes, accelerator_of(subject.device)
    if accelerator is not None and accelerator.has_statistics:
        tick()
        node_bytes, peak = _allocated(accelerator, subject, graph, graph_run.ran_backward)
        memory = replace(memory, peak=peak, source="allocator")
    times, compiled = Times(), None
    if is_timed and repeats != 0:
        times, compiled = _timed(
            subject,
            graph,
            repeats=repeats,
            tick=tick,
            with_nodes_backward=graph_run.ran_backward,
            with_kernels=with_kernels,
        )
    kernels_of = _kernels(subject, graph) if with_kernels else {}
    nodes = tuple(
        node_of(n, call_ranges.get(n.name, range(0)), times, node_bytes, kernels_of) for n in graph.graph.nodes
    )
    return replace(
        run,
        calls=with_nodes(observed, nodes, owner_of) if nodes else observed,
        memory=memory,
        environment=environment,
        nodes=nodes,
        latency=times.latency,
        backward_latency=times.backward_latency,
        compiled=compiled,
        captured_calls=captured,
    )


def _matching_runs(
    subject: Subject, traced: TracedGraph, registry: FormulaRegistry, tick: Progress
) -> tuple[GraphRun, MatchedRun]:
    """Run the graph, on meta if possible. If the graph was not recorded, also run the model itself. The calls of the two runs match.

    The graph's run only shows each node's calls and bytes. The report has the model's own calls.
    """
    tick()
    on_meta = _graph_on_meta(subject, traced.graph_module, registry)
    graph_run = on_meta or _graph_on_real(subject, traced.graph_module, registry, subject.request.adds_backward)
    tick()
    if traced.model_run is not None:
        return graph_run, traced.model_run
    try:
        return graph_run, _matched(subject, registry, graph_run, compares_facts=on_meta is None)
    except (TraceError, RunError, OutOfMemoryError):
        if on_meta is None:
            raise
    # On real tensors the graph may match the model after all. If the graph raises an error, the error names the node.
    # This code is outside the handler, because the error's traceback would keep memory in use.
    graph_run = _graph_on_real(subject, traced.graph_module, registry, subject.request.adds_backward)
    return graph_run, _matched(subject, registry, graph_run, compares_facts=True)


def _timed(
    subject: Subject,
    graph: fx.GraphModule,
    *,
    repeats: int | str,
    tick: Progress,
    with_nodes_backward: bool,
    with_kernels: bool,
) -> tuple[Times, Compiled | None]:
    """Time the model, its graph's nodes, and the compiled model, if there is one; ``with_kernels`` also times the compiled kernels."""
    compiled: Compiled | None = None
    if subject.compiled_model is not None:
        tick()
        compiled = first_runs(partial(_with_backward, subject))
    fresh_compiled_call = None if compiled is None or compiled.missing else partial(subject.rewound_call, compiled=True)
    times = time_nodes(
        graph,
        fresh_inputs=subject.rewound_inputs_by_name,
        fresh_call=subject.rewound_call,
        fresh_compiled_call=fresh_compiled_call,
        device=subject.device,
        repeats=repeats,
        tick=tick,
        with_backward=subject.request.adds_backward,
        with_nodes_backward=with_nodes_backward,
    )
    if compiled is not None:
        compiled = with_times(compiled, times)
        if with_kernels and not compiled.missing:
            tick()
            compiled = _with_kernels(compiled, subject)
    return times, compiled


def _graph_on_meta(subject: Subject, graph: fx.GraphModule, registry: FormulaRegistry) -> GraphRun | None:
    """Run the graph like :func:`_graph_on_real`, but on meta, where nothing is computed: the live storages are the same there.

    Return None if a real run is necessary: for a backward pass, a graph that needs values, or tensors of unknown origin.
    """
    if subject.request.backward or subject.is_all_on_meta():
        return None
    constants = [value for value in vars(graph).values() if isinstance(value, torch.Tensor)]
    state = {id(tensor): tensor for tensor in (*subject.state, *state_tensors(graph), *constants)}
    try:
        world = meta_world_of(subject, state.values(), registry, Memos(), observe_dispatch=False)
    except NotImplementedError:  # shapes that depend on values
        return None
    observer = new_observer(subject, registry, world)
    collector = CallCollector(observer, graph.graph)
    memory, inputs = MemoryMeter(observer.instruments.storages), subject.rewound_inputs_by_name()
    try:
        with uncompiled(), optimized_execution(False), observer:
            run_graph(graph, inputs, collector, memory)
    except (RunError, InputError, NotImplementedError, OutOfMemoryError):
        return None
    finally:
        observer.release()
    if world.mirror.meta_error or world.mirror.missed_calls:
        return None
    return GraphRun(collector.calls_of, NodeBytes(memory.bytes, {}), ran_backward=False)


def _graph_on_real(subject: Subject, graph: fx.GraphModule, registry: FormulaRegistry, with_backward: bool) -> GraphRun:
    """Run the graph, and measure the bytes of its nodes by the live storages.

    A graph has no gradient checkpointing. So if the model overwrites a result that its own backward pass recomputes, the graph's
    backward pass raises. The nodes then have no backward times and bytes.
    """
    observer = new_observer(subject, registry)
    collector = CallCollector(observer, graph.graph)
    storages = observer.instruments.storages
    memory, backward_memory = MemoryMeter(storages), MemoryMeter(storages)
    inputs, backward_meter = subject.rewound_inputs_by_name(), backward_memory if with_backward else None
    try:
        noting = noting_live(storages, observer.calls, subject.named_tensors["params"])
        with noting, uncompiled(), optimized_execution(False), observer:
            run_graph(graph, inputs, collector, memory, backward_meter=backward_meter, observer=observer)
    except RunError:
        if not with_backward:
            raise
        return _graph_on_real(subject, graph, registry, False)
    observer.release()
    return GraphRun(collector.calls_of, NodeBytes(memory.bytes, backward_memory.bytes), with_backward)


def _matched(subject: Subject, registry: FormulaRegistry, graph_run: GraphRun, compares_facts: bool) -> MatchedRun:
    """Observe a run of the model, and match its calls to the calls of a symbolic graph.

    The model may make more calls than the graph, since a call that depends on no input, such as ``self.scale ** 2`` for a buffer, is
    a constant in the graph. Facts about values, e.g. the number of pairs that a mask keeps, are compared only with
    ``compares_facts``, since some facts are unknown on meta. Raises TraceError if the graph makes calls that the model does not make,
    or makes the model's calls in another order, or lacks a leaf module's call.
    """
    observer = observe_on_own_tensors(subject, registry, new_stopwatch=observed_stopwatch_maker(subject.device))
    forward_calls = [call for call in observer.calls if call.phase in PARTS[FORWARD]]
    own_calls = [_comparable(call, compares_facts) for call in forward_calls]
    call_ranges: dict[str, range] = {}
    end = 0
    for name, calls in graph_run.calls_by_node.items():
        wanted = [_comparable(call, compares_facts) for call in calls]
        # Find the next place where the model makes all calls of this node, one right after the other. A node without calls fits anywhere.
        starts = (i for i in range(end, len(own_calls)) if own_calls[i : i + len(wanted)] == wanted)
        first = next(starts, None) if wanted else end
        if first is None:
            raise TraceError(
                f"the symbolic graph of {type(subject.model).__name__} differs from the model: only the graph calls "
                f"{calls[0].op} on {', '.join(map(repr, calls[0].inputs()))} in {calls[0].path or 'the root'}",
                advice="record",
            )
        end = first + len(wanted)
        call_ranges[name] = range(first, end)
    # A symbolic graph has a node for each call of a leaf module, even on constants.
    in_graph = {i for calls in call_ranges.values() for i in calls}
    for i, call in enumerate(forward_calls):
        if i not in in_graph and isinstance(call.target, type) and issubclass(call.target, nn.Module):
            raise TraceError(
                f"the symbolic graph of {type(subject.model).__name__} differs from the model: only the model calls "
                f"{call.target.__name__} {call.path!r}",
                advice="record",
            )
    return MatchedRun(observer, call_ranges)


def _comparable(call: Call, compares_facts: bool) -> tuple[Any, ...]:
    """Return the properties in which a call of the graph must match the model's call."""
    inputs, out = tuple(call.inputs()), call.out
    if compares_facts:
        return call.op, call.path, typed(inputs), typed(out)
    bare = [tuple([Spec(spec, spec.dtype, spec.layout) for spec in specs_in(each)]) for each in (inputs, out)]
    return call.op, call.path, *map(typed, bare)


def author_lines(subject: Subject, registry: FormulaRegistry, traced: TracedGraph) -> dict[str, str]:
    """Return the innermost ``file:line`` in the author's code for each node. If the graph is symbolic, the model is traced again."""
    graph = traced.graph_module
    if traced.how == SYMBOLIC:
        graph = _symbolic(subject, registry, stack_traces=True)
    places = {}
    for node in graph.graph.nodes:
        files = re.findall(r'File "(.+)", line (\d+)', node.stack_trace or "")
        own_lines = [f"{file}:{line}" for file, line in files if not is_library(file)]
        if own_lines:
            places[node.name] = own_lines[-1]
    return places


def _with_backward(subject: Subject) -> Callable[[], Any]:
    """Return a function that runs the compiled model once, with its backward pass if a backward pass was requested."""
    call = subject.rewound_call(compiled=True)
    return (lambda: backward_from(*roots_of(call()))) if subject.request.adds_backward else call


def _with_kernels(compiled: Compiled, subject: Subject) -> Compiled:
    """Return the record with the compiled model's kernels, or with the reason why they are unknown."""
    if subject.device.type != "cpu":
        return replace(
            compiled, kernels_missing=f"kernels are mapped to modules only on CPU, not on {subject.device.type}"
        )
    mapped_kernels, missing = compiled_kernels(partial(subject.rewound_call, compiled=True), subject.inventory.path_of)
    return replace(compiled, kernels=mapped_kernels, kernels_missing=missing)


def _kernels(subject: Subject, graph: fx.GraphModule) -> dict[str, tuple[Kernel, ...]]:
    """Run the graph under torch.profiler; return the kernels of each node."""
    inputs, meter = subject.rewound_inputs_by_name(), KernelMeter(subject.device)
    with meter.profile:
        run_graph(graph, inputs, meter)
    return meter.kernels


def _allocated(
    accelerator: Accelerator, subject: Subject, graph: fx.GraphModule, with_backward: bool
) -> tuple[NodeBytes, int]:
    """Return the bytes of each node in forward and backward, and the peak of the model itself, all from the allocator."""
    call = subject.rewound_call()
    accelerator.reset_peak()
    with uncompiled(graph):
        out = call()
    if subject.request.adds_backward:
        backward_from(*roots_of(out))
    del out
    peak = accelerator.peak
    meter, backward_meter = MemoryMeter(accelerator), MemoryMeter(accelerator)
    inputs = subject.rewound_inputs_by_name()
    run_graph(graph, inputs, meter, backward_meter=backward_meter if with_backward else None)
    return NodeBytes(meter.bytes, backward_meter.bytes), peak
