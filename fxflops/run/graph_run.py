"""Running a graph node by node on the real tensors, with a meter that reads one quantity around each node."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import fx

from ..errors import RunError
from ..meters.meter import Clock, CudaClock, Meter
from ..meters.nodes import Timing
from ..records import Call, spec_of
from ..torch_internals import COMPILER
from ..trace.autocast import AUTOCAST_DEVICES
from ..trace.autograd_owners import AutogradOwners, backward_from, learns, roots_of
from ..trace.observe import Observer
from ..trace.symbolic import stack_of

SECONDS_CAP = 2.0
STABLE = 0.05
LEAST = 5


@contextmanager
def uncompiled() -> Iterator[None]:
    """Functions and submodules under ``torch.compile`` run as they are written: that is what is counted.

    Torch has one stance for all threads: the first sets it, and who is the last to need it puts back what was there.
    """
    if COMPILER not in sys.modules:
        yield
        return
    with _SWITCHING:
        _STANCES.append(nullcontext() if _STANCES else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _SWITCHING:
            _STANCES.pop().__exit__(None, None, None)


_SWITCHING = threading.Lock()
_STANCES: list[AbstractContextManager[Any]] = []
"""One for each run under way, of which the first is the stance that is set."""


class NodeRunner(fx.Interpreter):
    """torch.fx's interpreter with a meter around each node; a node that raises is named, with module and shapes.

    run
    +-- run_node
        +-- meter.before
        +-- placeholder | get_attr | call_function | call_method | call_module | output
        +-- meter.after, of memory
        +-- what no later node uses is freed, as the model frees it
        +-- meter.after, of time
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: Mapping[str, Any],
        meters: Sequence[Meter],
        owners: AutogradOwners | None = None,
    ) -> None:
        super().__init__(graph)
        self.garbage_collect_values = False  # it would free between nodes, where nobody reads the clock
        self.extra_traceback = False
        self._inputs = inputs
        self._meters = meters
        self._before_freeing = [meter for meter in reversed(meters) if not meter.frees]
        self._after_freeing = [meter for meter in reversed(meters) if meter.frees]
        self._owners = owners

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        work, name, dead = self._work(n), n.name, self.user_to_last_uses.get(n, ())
        for meter in self._meters:
            meter.before(name)
        try:
            value = work(*args, **kwargs)
        except Exception as error:
            raise _run_error(n, args, kwargs, error) from error
        for meter in self._before_freeing:
            meter.after(name, value)
        del args, kwargs, work
        for each in dead:
            del self.env[each]
        for meter in self._after_freeing:
            meter.after(name, value)
        if self._owners is not None:
            self._owners.own(n.name, value)
        return value

    def _work(self, n: fx.Node) -> Callable[..., Any]:
        """What a node does, looked up before the meters begin: the model itself finds no module by its full name."""
        target = str(n.target)
        match n.op:
            case "placeholder":
                return lambda *_default: self._inputs[target.lstrip("*")]
            case "get_attr":
                owner, _, name = target.rpartition(".")
                return partial(getattr, self.module.get_submodule(owner), name)
            case "call_module":
                return self.module.get_submodule(target)
            case "call_method":
                return lambda owner, *args, **kwargs: getattr(owner, target)(*args, **kwargs)
            case "output":
                return lambda value: value
            case _:
                return cast("Callable[..., Any]", n.target)


class CallCollector(Meter):
    """Tells the observer in which module a node stands, and keeps the calls that each node made."""

    def __init__(self, observer: Observer, graph: fx.Graph) -> None:
        self.calls_of: dict[str, list[Call]] = {}
        self._observer = observer
        self._paths = {node.name: stack_of(node)[0] for node in graph.nodes}

    def before(self, name: str) -> None:
        self._first = len(self._observer.calls)
        self._observer.path = self._paths[name]

    def after(self, name: str, value: Any) -> None:
        self.calls_of[name] = self._observer.calls[self._first :]


def run_graph(
    graph: fx.GraphModule, inputs: Mapping[str, Any], *meters: Meter, owners: AutogradOwners | None = None
) -> Any:
    """The graph's output on ``inputs`` (by the names of forward's parameters); the meters have read each node, and the
    owners know which nodes of autograd's graph it made.

    Raises RunError naming the node that raised.
    """
    with _modes_kept():
        output = NodeRunner(graph, inputs, meters, owners).run()
    for meter in meters:
        meter.finish()
    return output


@contextmanager
def _modes_kept() -> Iterator[None]:
    """A recorded graph switches autocast and gradients as its model did; where it raises in between, that is undone."""
    before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            yield
        finally:
            for device, enabled, dtype in before:
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)


def run_back(
    roots: Sequence[torch.Tensor], ones: Sequence[torch.Tensor], owners: AutogradOwners, *meters: Meter
) -> None:
    """The backward pass of a graph's run, from the sum of its roots; the meters have read the part of each node."""
    running: list[str] = []

    def enter(name: str) -> None:
        if running == [name]:
            return
        leave()
        running.append(name)
        for meter in meters:
            meter.before(name)

    def leave() -> None:
        for name in running:
            for meter in reversed(meters):
                meter.after(name, None)
        running.clear()

    with owners.following(enter):
        backward_from(roots, ones)
        leave()
    for meter in meters:
        meter.finish()


@dataclass(frozen=True, slots=True)
class Times:
    """Timings of each node of the graph and of the model's own run; of starting each node's work, where a device does it;
    of the backward pass, where there was one."""

    nodes: Mapping[str, Timing] = field(default_factory=dict)
    latency: Timing | None = None
    host_nodes: Mapping[str, Timing] = field(default_factory=dict)
    backward_nodes: Mapping[str, Timing] = field(default_factory=dict)
    backward_latency: Timing | None = None


def time_nodes(
    graph: fx.GraphModule,
    inputs: Callable[[], Mapping[str, Any]],
    model: Callable[[], Callable[[], Any]],
    device: torch.device,
    repeats: int | str,
    tick: Callable[[], None],
    backward: bool = False,
) -> Times:
    """Timings of each node, and of the model itself run un-instrumented in turn with the graph.

    ``repeats="auto"``: at least 5, until the times of the model and of the nodes' sum are stable (interquartile range
    under 5% of the median), or until 2 s have passed. ``inputs`` gives the graph's inputs anew, ``model`` the model's own run ready to be started;
    ``tick`` is called before each pass.
    """
    own, own_back, sums = list[float](), list[float](), list[float]()
    nodes, nodes_host, nodes_back = (dict[str, list[float]]() for _ in range(3))
    begin = time.perf_counter()
    while not _enough([own, sums], repeats, time.perf_counter() - begin):
        tick()
        with uncompiled():
            out = _timed(model(), device, own)
        if backward:
            roots, ones = roots_of(out)
            _timed(partial(backward_from, roots, ones), device, own_back)
            del roots, ones
        del out
        tick()
        owners, clock = AutogradOwners(follows=True) if backward else None, _clock(device)
        output = run_graph(graph, inputs(), clock, owners=owners)
        _collect(clock, nodes)
        if isinstance(clock, CudaClock):
            _collect(clock.host, nodes_host)
        sums.append(sum(clock.seconds.values()))
        if owners is not None and learns(output):
            clock = _clock(device)
            run_back(*roots_of(output), owners, clock)
            _collect(clock, nodes_back)
        del output
    return Times(
        {name: _timing(values) for name, values in nodes.items()},
        _timing(own),
        {name: _timing(values) for name, values in nodes_host.items()},
        {name: _timing(values) for name, values in nodes_back.items()},
        _timing(own_back) if backward else None,
    )


def _clock(device: torch.device) -> Clock | CudaClock:
    return CudaClock(device) if device.type == "cuda" else Clock()


def _collect(clock: Clock | CudaClock, samples: dict[str, list[float]]) -> None:
    for name, seconds in clock.seconds.items():
        samples.setdefault(name, []).append(seconds)


def _timed(call: Callable[[], Any], device: torch.device, samples: list[float]) -> Any:
    """What the call returns; its seconds are put to the samples."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    out = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    samples.append(time.perf_counter() - start)
    return out


def _enough(samples: Sequence[list[float]], repeats: int | str, elapsed: float) -> bool:
    taken = len(samples[0])
    if isinstance(repeats, int):
        return taken >= repeats
    return (taken > 0 and elapsed > SECONDS_CAP) or (taken >= LEAST and all(map(_stable, samples)))


def _stable(seconds: list[float]) -> bool:
    low, median, high = statistics.quantiles(seconds, n=4)
    return high - low < STABLE * median


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
