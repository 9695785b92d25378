"""The passes over a model and its graph: calls, memory, the model's own peak, the clock; each from the same state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from .errors import FxflopsError, RunError
from .inputs import bind, tensors_in
from .meter import CudaMemory, Ledger, StorageMemory
from .ops import Table
from .records import Call, Node, Scope, Timing, spec_of
from .run import CallCollector, run_graph, time_nodes
from .state import Snapshot, fresh
from .trace.meta import twin_of
from .trace.observe import Observer, is_library
from .trace.symbolic import stack_of, symbolic


@dataclass(frozen=True, slots=True)
class Measured:
    """What the passes found. ``peak`` in bytes, with the state (parameters, buffers, inputs) in it."""

    calls: tuple[Call, ...]
    scopes: tuple[Scope, ...]
    nodes: tuple[Node, ...]
    latency: Timing | None
    peak: int
    peak_at: str
    source: str

    def with_sites(self, places: Mapping[str, str]) -> Measured:
        """The same, where calls without a formula stand at the line of their node."""
        calls = tuple(replace(c, site=places.get(c.node, c.site)) if c.site else c for c in self.calls)
        return replace(self, calls=calls)


class Subject:
    """A model with its inputs, to be run again and again from the same state."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], snapshot: Snapshot) -> None:
        self.model = model
        self.snapshot = snapshot
        self._args = args
        self._kwargs = kwargs
        self.paths = {module: path for path, module in model.named_modules()}
        self.state = [*model.parameters(), *model.buffers(), *tensors_in((args, kwargs))]
        self.device = self.state[0].device if self.state else torch.device("cpu")

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs, everything rewound to how it was at first."""
        self.snapshot.rewind()
        return fresh(self._args), fresh(self._kwargs)

    def bound(self) -> dict[str, Any]:
        """The same by the names of forward's parameters."""
        args, kwargs = self.inputs()
        return bind(self.model, args, kwargs)

    def call(self) -> Callable[[], Any]:
        """The model's own run, ready to be started."""
        args, kwargs = self.inputs()
        return lambda: self.model(*args, **kwargs)


def measure(
    subject: Subject, graph: fx.GraphModule, table: Table, repeats: int | str, tick: Callable[[], None]
) -> Measured:
    """Run the graph node by node, and the model itself, as often as it takes to read everything.

    Raises RunError where the model raises.
    """
    tick()
    ledger = Ledger(subject.state)
    observer = Observer(subject.paths, table, ledger=ledger, before_write=subject.snapshot.before_write)
    collector, storages = CallCollector(observer, graph.graph), StorageMemory(ledger)
    inputs = subject.bound()
    with observer:
        run_graph(graph, inputs, collector, storages)
    del inputs
    node_bytes, source = storages.bytes, "predicted" if subject.device.type == "meta" else "storages"
    tick()
    watcher, peak = observed_run(subject, table)
    if subject.device.type == "cuda":
        tick()
        node_bytes, peak, source = *_cuda_memory(subject, graph), "allocator"
    timings: dict[str, Timing] = {}
    latency = None
    if subject.device.type != "meta" and repeats != 0:
        timings, latency = time_nodes(graph, subject.bound, subject.call, subject.device, repeats, tick)
    nodes = tuple(_node(n, collector.ranges[n.name], timings, node_bytes) for n in graph.graph.nodes)
    calls = (*_timed(observer.calls, nodes), *_folded(observer.calls, watcher.calls))
    return Measured(calls, tuple(watcher.scopes), nodes, latency, peak, watcher.peak_at, source)


def observed_run(subject: Subject, table: Table) -> tuple[Observer, int]:
    """The model's own run, watched: the observer with its calls and scopes, and the peak bytes of live storages."""
    ledger = Ledger(subject.state)
    observer = Observer(subject.paths, table, ledger=ledger, before_write=subject.snapshot.before_write)
    args, kwargs = subject.inputs()
    _watch(subject.model, observer, args, kwargs)
    return observer, ledger.peak


def _folded(graph_calls: list[Call], own_calls: list[Call]) -> Iterator[Call]:
    """The calls of the model's own run that the graph lacks: symbolic tracing runs what depends on no input, once.

    ``self.scale ** 2`` of a buffer is a constant in the graph, but the model computes it each time.
    """
    unseen = Counter(map(_likeness, own_calls)) - Counter(map(_likeness, graph_calls))
    for call in own_calls:
        if unseen[_likeness(call)] > 0:
            unseen[_likeness(call)] -= 1
            yield replace(call, seconds=None)


def _likeness(call: Call) -> str:
    return f"{call.op} {list(call.inputs())} {call.out}"


def meta_run(subject: Subject, table: Table) -> Measured:
    """The model's own run on the meta device, watched: no kernel computes, no activation is allocated."""
    twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    ledger = Ledger(twin_of(tensor, twins) for tensor in subject.state)
    observer = Observer(subject.paths, table, ledger=ledger, before_write=subject.snapshot.before_write, twins=twins)
    args, kwargs = subject.inputs()
    _watch(subject.model, observer, args, kwargs)
    calls = tuple(replace(call, seconds=None) for call in observer.calls)
    return Measured(calls, tuple(observer.scopes), (), None, ledger.peak, observer.peak_at, "predicted")


def author_lines(model: nn.Module, table: Table, constants: Mapping[str, Any]) -> dict[str, str]:
    """For each node of the symbolic graph the model author's innermost ``file:line``: traced anew, keeping the stacks."""
    places = {}
    for node in symbolic(model, table, constants, stack_traces=True).graph.nodes:
        files = re.findall(r'File "(.+)", line (\d+)', node.stack_trace or "")
        own = [f"{file}:{line}" for file, line in files if not is_library(file)]
        if own:
            places[node.name] = own[-1]
    return places


def _watch(model: nn.Module, observer: Observer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        with observer:
            model(*args, **kwargs)
    except FxflopsError:
        raise
    except Exception as error:
        op, path, (given, named) = observer.failed or (type(model).__name__, "", (spec_of(args), spec_of(kwargs)))
        shapes = ", ".join([*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())])
        raise RunError(
            f"the model raised at {op} in " + (f"module {path!r}" if path else "the model's own forward") + "\n"
            f"  given {shapes or 'nothing'}\n  {type(error).__name__}: {error}{_line_of(error)}{_advice(error)}"
        ) from error


def _advice(error: Exception) -> str:
    if "meta tensor" not in str(error) and "'Meta'" not in str(error):
        return ""
    return "\n  it needs values, which the meta device does not have: fxflops.analyze(model, args) runs on the real tensors"


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


def _cuda_memory(subject: Subject, graph: fx.GraphModule) -> tuple[dict[str, tuple[int, int, int]], int]:
    """Bytes per node of the graph's run, and at the peak of the model's own, from the allocator."""
    call = subject.call()
    torch.cuda.reset_peak_memory_stats(subject.device)
    call()
    peak = torch.cuda.max_memory_allocated(subject.device)
    meter = CudaMemory(subject.device)
    run_graph(graph, subject.bound(), meter)
    return meter.bytes, peak


def _node(
    node: fx.Node, calls: range, timings: Mapping[str, Timing], node_bytes: Mapping[str, tuple[int, int, int]]
) -> Node:
    path, cls = stack_of(node)
    target = str(node.target)
    for address in (" at 0x", " of type object"):
        if address in target:
            target = target.partition(address)[0] + ">"
    module = cls.__name__ if cls is not None else ""
    function = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    timing = timings.get(node.name)
    return Node(node.name, node.op, target, function, path, module, calls, timing, *node_bytes[node.name])


def _timed(calls: list[Call], nodes: tuple[Node, ...]) -> tuple[Call, ...]:
    """The calls with their node's time; where a node made several, it is split as the observer's own clock saw them."""
    timed = [replace(call, seconds=None) for call in calls]
    for node in nodes:
        if node.timing is None:
            continue
        seen = sum(calls[i].seconds or 0.0 for i in node.calls)
        for i in node.calls:
            share = (calls[i].seconds or 0.0) / seen if seen else 1 / len(node.calls)
            timed[i] = replace(calls[i], seconds=node.timing.median * share)
    return tuple(timed)
