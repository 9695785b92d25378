"""Run a graph node by node on real tensors, with meters that measure time or memory for each node."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import fx, nn

from ..errors import OutOfMemoryError, RunError
from ..meters.accelerator import accelerator_of, waiter
from ..meters.full_queue import FullQueue
from ..meters.meter import AcceleratorClock, Clock, Meter
from ..meters.timing import Timing, Usage, timing, warm_up
from ..records import Call
from ..records.tensors import spec_of
from ..torch_internals import (
    DisableTorchFunction,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    python_kernel,
)
from ..trace.autocast import autocast_state
from ..trace.autograd_owners import AutogradOwners, backward_from, requires_gradient, roots_of
from ..trace.observe import Observer
from ..trace.processes import processes
from ..trace.source import error_for
from ..trace.symbolic import stack_of
from .uncompiled import ran_compiled, uncompiled

Roots = Sequence[torch.Tensor]
Samples = defaultdict[str, list[float]]
"""For each node name, the seconds of the node in each run."""
SECONDS_CAP = 2.0
STABLE = 0.05
LEAST = 5
"""The rule for ``repeats="auto"``: stop after SECONDS_CAP seconds, or after at least LEAST runs if the relative spread is below STABLE."""
LONG, LEAST_LONG = 0.1, 3
"""If a run takes at least LONG seconds, LEAST_LONG runs are enough, since disturbances hardly affect long runs."""


class NodeRunner(fx.Interpreter):
    """An fx interpreter with meters around each node. Its errors name the node that raised, the node's module and the input shapes.

    run
    +-- run_node
        +-- meter.before
        +-- placeholder | get_attr | call_function | call_method | call_module | output
        +-- meter.after, of memory
        +-- values that no later node uses are freed, as in the model
        +-- meter.after, of time
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: Mapping[str, Any],
        meters: Sequence[Meter],
        owners: AutogradOwners | None = None,
    ) -> None:
        # With the real module, the base class would call named_modules(), which users may override.
        super().__init__(nn.Module(), graph=graph.graph)
        self.module = graph
        self.garbage_collect_values = False  # torch.fx frees values between nodes, outside the meters
        self.extra_traceback = False
        self._inputs = inputs
        self._meters = meters
        self._before_freeing = [meter for meter in reversed(meters) if not meter.frees]
        self._after_freeing = [meter for meter in reversed(meters) if meter.frees]
        self._owners = owners

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        work, name, dead_nodes = self._work(n), n.name, self.user_to_last_uses.get(n, ())
        for meter in self._meters:
            meter.before(name)
        try:
            value = work(*args, **kwargs)
        except Exception as error:
            path, cls = stack_of(n)
            module = f"module {path!r} ({cls.__name__})" if path and cls is not None else ""
            call = f"node {n.name!r} ({n.op} {n.target})"
            with DisableTorchFunction():
                args_specs, kwargs_specs = spec_of(args), spec_of(kwargs)
            raise run_error(
                error, call=call, module=module, args=args_specs, kwargs=kwargs_specs, node=n.name
            ) from error
        for meter in self._before_freeing:
            meter.after(name, value)
        # Clocks are read after freeing, since the model also frees values while it runs.
        del args, kwargs, work
        for dead_node in dead_nodes:
            del self.env[dead_node]
        for meter in self._after_freeing:
            meter.after(name, value)
        if self._owners is not None:
            self._owners.own(n.name, value)
        return value

    def _work(self, n: fx.Node) -> Callable[..., Any]:
        """Return the function that a node calls. This lookup is outside the measurement, since the model itself has no such lookup."""
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
                # Under the observer's modes, a control flow operator runs its Python kernel anyway. Without modes, call this kernel directly.
                is_observed = len_torch_dispatch_stack() > 0 or len_torch_function_stack() > 0
                return cast("Callable[..., Any]", n.target if is_observed else python_kernel(n.target))


class CallCollector(Meter):
    """A meter that collects the calls of each node. It sets the observer's current module to the module of the node."""

    def __init__(self, observer: Observer, graph: fx.Graph) -> None:
        self.calls_of: dict[str, list[Call]] = {}
        self._observer = observer
        self._paths = {node.name: stack_of(node)[0] for node in graph.nodes}

    def before(self, name: str) -> None:
        self._first = len(self._observer.calls)
        self._observer.be_at(self._paths[name])

    def after(self, name: str, value: Any) -> None:
        self.calls_of[name] = self._observer.calls[self._first :]


def run_graph(
    graph: fx.GraphModule,
    inputs: Mapping[str, Any],
    *meters: Meter,
    backward_meter: Meter | None = None,
    observer: Observer | None = None,
) -> Any:
    """Run the graph with the meters around each node, and return its output. ``inputs`` are by the names of forward's parameters.

    With ``backward_meter``, the backward pass also runs if the output requires a gradient, and ``backward_meter`` measures it for each
    forward node. If the run is observed, ``observer`` records this backward pass, too. Raises RunError with the name of the node if a
    node raises.
    """
    # By node name; the observer's own owners are by call index.
    owners = None if backward_meter is None else AutogradOwners(hooks_nodes=True)
    with uncompiled(), _modes_restored():
        output = NodeRunner(graph, inputs, meters, owners).run()
    for meter in meters:
        meter.finish()
    if backward_meter is not None and owners is not None and requires_gradient(output):
        run_backward = partial(_run_backward, owners, backward_meter)
        if observer is None:
            run_backward(*roots_of(output))
        else:
            observer.backward(output, run_backward)
        backward_meter.finish()
    return output


def _run_backward(owners: AutogradOwners, meter: Meter, roots: Roots, ones: Roots) -> None:
    """Run the backward pass of a graph from the sum of ``roots``. The meter measures the pass for each forward node."""
    open_nodes: list[str] = []

    def enter(name: str) -> None:
        if open_nodes != [name]:
            leave()
            open_nodes.append(name)
            meter.before(name)

    def leave() -> None:
        while open_nodes:
            meter.after(open_nodes.pop(), None)

    with owners.nodes_entered_by(enter):
        backward_from(roots, ones)
        leave()


@contextmanager
def _modes_restored() -> Iterator[None]:
    """Restore autocast and grad mode after the block, also after an error. A recorded graph switches these modes like its model."""
    before = autocast_state()
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            yield
        finally:
            for device, (enabled, dtype) in before.items():
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)


@dataclass(frozen=True, slots=True)
class Times:
    """Timings of each node of the graph and of the model itself.

    ``host_nodes`` are, on an accelerator, the host's times of each node. ``backward_*`` are times of a backward pass. ``compiled_latency``
    and ``compiled_backward_latency`` are times of the compiled model.
    """

    nodes: Mapping[str, Timing] = field(default_factory=dict)
    latency: Timing | None = None
    host_nodes: Mapping[str, Timing] = field(default_factory=dict)
    backward_nodes: Mapping[str, Timing] = field(default_factory=dict)
    backward_latency: Timing | None = None
    compiled_latency: Timing | None = None
    compiled_backward_latency: Timing | None = None


def time_nodes(
    graph: fx.GraphModule,
    *,
    fresh_inputs: Callable[[], Mapping[str, Any]],
    fresh_call: Callable[[], Callable[[], Any]],
    fresh_compiled_call: Callable[[], Callable[[], Any]] | None = None,
    device: torch.device,
    repeats: int | str,
    tick: Callable[[], None],
    with_backward: bool = False,
    with_nodes_backward: bool = False,
) -> Times:
    """Repeatedly time the model itself without instruments, then the compiled model, then each node of the graph.

    ``repeats="auto"`` runs 5 times if there are several processes. Otherwise it runs at least 5 times (3 times if a run takes
    0.1 s), until the time of the model and the sum of the nodes' times are stable, or until 2 s have passed. Times are stable if their
    interquartile range is below 5% of the median, without slower first runs.

    ``fresh_inputs()`` returns fresh inputs. ``fresh_call()`` and ``fresh_compiled_call()`` return a function that runs the model, or
    the compiled model, on fresh inputs. ``tick()`` is called before each run. ``with_backward`` also times the model's backward pass,
    ``with_nodes_backward`` the nodes' backward passes. The time of the compiled model is None if a run in another thread made it run
    eagerly.
    """
    own_runs, own_backward_runs, compiled_runs, compiled_backward_runs = (list[Usage]() for _ in range(4))
    node_sums, stayed_compiled = list[float](), fresh_compiled_call is not None
    nodes, host_nodes, backward_nodes, host_backward_nodes = (defaultdict[str, list[float]](list) for _ in range(4))
    accelerator = accelerator_of(device)
    queue = FullQueue.of(accelerator)

    def run_nodes(clock: Clock | AcceleratorClock, backward_clock: Clock | AcceleratorClock, *samples: Samples) -> None:
        tick()
        run_graph(graph, fresh_inputs(), clock, backward_meter=backward_clock if with_nodes_backward else None)
        for seconds_of, of_node in zip((clock.seconds, backward_clock.seconds), samples, strict=True):
            for name, seconds in seconds_of.items():
                of_node[name].append(seconds)
        node_sums.append(sum(clock.seconds.values()))

    def is_enough() -> bool:
        samples = [_seconds(own_runs), node_sums]
        if fresh_compiled_call is not None:
            samples.append(_seconds(compiled_runs))
        return _enough(samples, repeats, time.perf_counter() - begin)

    begin = time.perf_counter()
    while not is_enough():
        tick()
        with uncompiled(graph):
            _time_model(fresh_call(), device, own_runs, own_backward_runs if with_backward else None)
        if fresh_compiled_call is not None:
            tick()
            backward_runs = compiled_backward_runs if with_backward else None
            run = partial(_time_model, fresh_compiled_call(), device, compiled_runs, backward_runs)
            stayed_compiled &= ran_compiled(run)[1]
        if accelerator is None:
            run_nodes(Clock(), Clock(), nodes, backward_nodes)
            continue
        # Measure the host's times first: they determine how long to keep the device waiting before each node.
        run_nodes(Clock(), Clock(), host_nodes, host_backward_nodes)
        node_sums.pop()  # drop the sum of the host's times; the device's sum follows
        accelerator.synchronize()
        clock = AcceleratorClock(accelerator, queue, _least(host_nodes))
        run_nodes(clock, AcceleratorClock(accelerator, queue, _least(host_backward_nodes)), nodes, backward_nodes)
    return Times(
        nodes=_timings(nodes),
        latency=_timing(own_runs, device),
        host_nodes=_timings(host_nodes),
        backward_nodes=_timings(backward_nodes),
        backward_latency=_timing(own_backward_runs, device),
        compiled_latency=_timing(compiled_runs, device) if stayed_compiled else None,
        compiled_backward_latency=_timing(compiled_backward_runs, device) if stayed_compiled else None,
    )


def _timings(samples: Samples) -> dict[str, Timing]:
    """Return the timing of each node."""
    return {name: timing(seconds) for name, seconds in samples.items()}


def _least(samples: Samples) -> dict[str, float]:
    """Return the shortest time of each node."""
    return {name: min(seconds) for name, seconds in samples.items()}


def _time_model(
    call: Callable[[], Any], device: torch.device, samples: list[Usage], backward: list[Usage] | None
) -> None:
    """Time a run of the model, and its backward pass unless ``backward`` is None. The model's output is freed on return."""
    out = _timed(call, device, samples)
    if backward is not None:
        roots, ones = roots_of(out)
        _timed(partial(backward_from, roots, ones), device, backward)


def _timed(call: Callable[[], Any], device: torch.device, samples: list[Usage]) -> Any:
    """Return the result of a call, and append the call's time to the samples."""
    finish = waiter(device)
    finish()
    start = Usage.now()
    out = call()
    finish()
    samples.append(Usage.now().since(start))
    return out


def _enough(samples: Sequence[list[float]], repeats: int | str, elapsed: float) -> bool:
    runs_done = len(samples[0])
    if processes() > 1 and repeats == "auto":  # collectives wait for all ranks, so all ranks must run equally often
        repeats = LEAST
    if isinstance(repeats, int):
        return runs_done >= repeats
    least_runs = _least_runs(samples[0])
    after_warm_up = (seconds[warm_up(seconds, least_runs) :] for seconds in samples)
    return (runs_done > 0 and elapsed > SECONDS_CAP) or (runs_done >= least_runs and all(map(_stable, after_warm_up)))


def _least_runs(seconds: Sequence[float]) -> int:
    """Return the smallest number of runs that gives reliable times, from the seconds of the runs so far."""
    return LEAST_LONG if seconds and statistics.median(seconds) >= LONG else LEAST


def expected(seconds: float, repeats: int | str, runs: int) -> float:
    """Return the expected duration of :func:`time_nodes` in seconds, if a run takes ``seconds`` and each repeat consists of ``runs`` runs."""
    if isinstance(repeats, int):
        return repeats * runs * seconds
    least_runs = _least_runs([seconds])
    return runs * seconds * min(least_runs, 1 + SECONDS_CAP // max(runs * seconds, 1e-9))


def _stable(seconds: list[float]) -> bool:
    low, median, high = statistics.quantiles(seconds, n=4)
    return high - low <= STABLE * median


def _seconds(samples: list[Usage]) -> list[float]:
    return [usage.seconds for usage in samples]


def _timing(samples: list[Usage], device: torch.device) -> Timing | None:
    """Return the timing of the model's own runs. On an accelerator, omit the usage of the host's processor, which is irrelevant there."""
    after_warm_up = samples[warm_up(_seconds(samples), _least_runs(_seconds(samples))) :]
    if not after_warm_up:
        return None
    return timing(_seconds(after_warm_up), after_warm_up if accelerator_of(device) is None else ())


def run_error(
    error: Exception,
    *,
    call: str,
    module: str,
    args: Any,
    kwargs: Any,
    details: str = "",
    node: str = "",
    advice: str = "",
) -> RunError | OutOfMemoryError:
    """Return the error for a call that raised. ``call`` and ``module`` are descriptions; ``args`` and ``kwargs`` are specs."""
    inputs_text = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
    module = module or "the model's own forward"
    return error_for(
        error,
        f"the model raised at {call} in {module}\n  given {inputs_text or 'nothing'}\n  {type(error).__name__}: {error}{details}",
        node,
        advice,
    )
