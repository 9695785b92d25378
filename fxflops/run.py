"""Running a graph node by node on the real tensors, with a meter that reads one quantity around each node."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from .errors import RunError
from .meter import Clock, CudaClock, Meter
from .records import Timing, spec_of
from .trace.observe import Observer
from .trace.record import AUTOCAST_DEVICES, UNCOUNTED
from .trace.symbolic import stack_of

SECONDS_CAP = 2.0
STABLE = 0.05


@contextmanager
def uncompiled() -> Iterator[None]:
    """Functions and submodules under ``torch.compile`` run as they are written: that is what is counted."""
    if "torch._dynamo" not in sys.modules:
        yield
    else:
        with torch.compiler.set_stance("force_eager"):
            yield


class NodeRunner(fx.Interpreter):
    """torch.fx's interpreter with a meter around each node; a node that raises is named, with module and shapes.

    run
    +-- run_node
        +-- meter.before
        +-- placeholder | get_attr | call_function | call_method | call_module | output
        +-- meter.after
    """

    def __init__(self, graph: fx.GraphModule, inputs: Mapping[str, Any], meters: Sequence[Meter]) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._inputs = inputs
        self._meters = meters

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        for meter in self._meters:
            meter.before(n.name)
        try:
            value = getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            raise _run_error(n, args, kwargs, error) from error
        for meter in reversed(self._meters):
            meter.after(n.name, value)
        return value

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._inputs[str(target).lstrip("*")]


class CallCollector:
    """Tells the observer which node runs, and keeps which of its calls each node made."""

    def __init__(self, observer: Observer, graph: fx.Graph) -> None:
        self.observer = observer
        self.ranges: dict[str, range] = {}
        self._places = {node.name: (stack_of(node)[0], node.target) for node in graph.nodes}
        self._uncounted = {node.name for node in graph.nodes if UNCOUNTED in node.meta}

    def before(self, name: str) -> None:
        self._first = len(self.observer.calls)
        self.observer.node = name
        self.observer.path, self.observer.target = self._places[name]

    def after(self, name: str, value: Any) -> None:
        if name in self._uncounted:
            del self.observer.calls[self._first :]
        self.ranges[name] = range(self._first, len(self.observer.calls))

    def finish(self) -> None:
        self.observer.node, self.observer.target = "", None


def run_graph(graph: fx.GraphModule, inputs: Mapping[str, Any], *meters: Meter) -> Any:
    """The graph's output on ``inputs`` (by the names of forward's parameters); the meters have read each node.

    Raises RunError naming the node that raised.
    """
    with _autocast_kept():
        output = NodeRunner(graph, inputs, meters).run()
    for meter in meters:
        meter.finish()
    return output


@contextmanager
def _autocast_kept() -> Iterator[None]:
    """A recorded graph switches autocast as its model did; where it raises in between, that is undone."""
    before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
    try:
        yield
    finally:
        for device, enabled, dtype in before:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def time_nodes(
    graph: fx.GraphModule,
    inputs: Callable[[], Mapping[str, Any]],
    model: Callable[[], Callable[[], Any]],
    device: torch.device,
    repeats: int | str,
    tick: Callable[[], None],
) -> tuple[dict[str, Timing], Timing]:
    """Timings of each node, and of the model itself run un-instrumented in turn with the graph.

    ``repeats="auto"``: at least 3, until the model's times are stable (interquartile range under 5% of the median) or
    2 s have passed. ``inputs`` gives the graph's inputs anew, ``model`` the model's own run ready to be started;
    ``tick`` is called before each pass.
    """
    nodes: dict[str, list[float]] = {}
    latencies: list[float] = []
    begin = time.perf_counter()
    while not _enough(latencies, repeats, time.perf_counter() - begin):
        tick()
        latencies.append(_latency(model(), device))
        tick()
        clock = CudaClock(device) if device.type == "cuda" else Clock()
        run_graph(graph, inputs(), clock)
        for name, seconds in clock.seconds.items():
            nodes.setdefault(name, []).append(seconds)
    return {name: _timing(values) for name, values in nodes.items()}, _timing(latencies)


def _latency(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _enough(seconds: list[float], repeats: int | str, elapsed: float) -> bool:
    if isinstance(repeats, int):
        return len(seconds) >= repeats
    if len(seconds) < 3:
        return bool(seconds) and elapsed > SECONDS_CAP
    low, median, high = statistics.quantiles(seconds, n=4)
    return elapsed > SECONDS_CAP or high - low < STABLE * median


def _timing(seconds: list[float]) -> Timing:
    return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds))


def _run_error(node: fx.Node, args: Any, kwargs: Any, error: Exception) -> RunError:
    path, cls = stack_of(node)
    given = [repr(spec_of(arg)) for arg in args] + [f"{name}={spec_of(value)!r}" for name, value in kwargs.items()]
    where = f"module {path!r} ({cls.__name__})" if path and cls is not None else "the model's own forward"
    return RunError(
        f"the model raised at node {node.name!r} ({node.op} {node.target}) in {where}\n"
        f"  given {', '.join(given) or 'nothing'}\n  {type(error).__name__}: {error}",
        node.name,
    )
