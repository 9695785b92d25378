"""Find the operators in a trace, each with its phase, module and kernels.

These are the operators that a dispatch mode would see. An operator inside another operator is part of the outer operator. But an
operator that only calls other operators (``aten::linear``) is replaced by the operators that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..records import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, RECOMPUTE, grouped
from ..torch_internals import GRAPH_CALL
from .reading import Event, TraceFile

NODE, STEP, MODULE = "autograd::engine::evaluate_function", "Optimizer.step#", "nn.Module: "
CHECKPOINT_NODE, CHECKPOINT_FILE = "Checkpoint", "torch/utils/checkpoint.py"
SEQUENCE, FORWARD_THREAD, CORRELATION = "Sequence number", "Fwd thread id", "correlation"
SAVE = "aten::detach"
"""The operator by which checkpoint's hooks save a tensor."""

Sees = Callable[[Event], "bool | None"]
"""A function that returns True to count an operator, False to count the operators that it calls, None to count it if it calls none."""


@dataclass(slots=True, eq=False)
class TraceOperator:
    """An operator in a trace, or a kernel that no operator launched.

    ``inner`` is the number of operators inside this operator, except operators that saved-tensor hooks call.
    """

    event: Event
    phase: str
    path: str
    kernels: list[Event] = field(default_factory=list)
    inner: int = 0


@dataclass(slots=True, eq=False)
class Open:
    """An event that has begun but not ended, with the state of the walk inside this event.

    ``counted`` is the enclosing operator that is counted. ``inside`` is an enclosing operator that is replaced by the operators that
    it calls. ``waiting`` is an operator that is counted only if it calls no other operator; it is None after such a call. ``tracked``
    is True if autograd recorded an enclosing operator. ``node`` is the running autograd node.
    """

    end: int
    phase: str = FORWARD
    path: str = ""
    counted: TraceOperator | None = None
    inside: TraceOperator | None = None
    waiting: TraceOperator | None = None
    tracked: bool = False
    node: _Node | None = None


@dataclass(slots=True, eq=False)
class _Node:
    """A running autograd node. ``recorded`` are the operators in the node that autograd recorded. ``ends_recorded`` is True if
    autograd recorded the last operator so far, None before the first operator."""

    recorded: list[TraceOperator] = field(default_factory=list)
    ends_recorded: bool | None = None


class TraceWalk:
    """A walk through the threads of a trace. ``operators`` are the trace's operators in order; ``modules`` maps paths to class names."""

    def __init__(self, trace: TraceFile, sees: Sees) -> None:
        self.modules: dict[str, str] = {}
        self.entered: list[str] = []
        """The path of each module call."""
        self.copies: list[Event] = []
        """Copies and fills of the device's memory that no operator launched."""
        self.earlier: list[Event] = []
        """The device's events for work launched before the trace began."""
        self._sees, self._has_device = sees, bool(trace.on_device)
        self._paths: dict[str, str] = {}
        self._forwards: dict[int, str] = {}
        self._operators_so_far: list[TraceOperator] = []
        self._launched = grouped((event.args.get(CORRELATION), event) for event in trace.on_device)
        # Merge the threads by time, so that a forward comes before its backward.
        # The sort is stable: if several events of a thread start at the same time, the outermost event remains first.
        hosts = sorted((event for events in trace.threads.values() for event in events), key=lambda event: event.start)
        # Correlation ids increase, so ids smaller than the first id belong to work that was launched before the trace.
        first = min((event.args[CORRELATION] for event in hosts if CORRELATION in event.args), default=0)
        stacks: dict[tuple[object, object], list[Open]] = {thread: [Open(1 << 63)] for thread in trace.threads}
        for event in hosts:
            self._meet(event, stacks[event.thread])
        for stack in stacks.values():
            self._close(stack, 1 << 62)
        for event in (event for events in self._launched.values() for event in events):
            if event.args.get(CORRELATION, 0) < first:
                self.earlier.append(event)
            else:
                self._unknown(event, Open(0))
        self.operators = sorted(self._operators_so_far, key=lambda operator: operator.event.start)

    def _meet(self, event: Event, stack: list[Open]) -> None:
        self._close(stack, event.start)
        top = stack[-1]
        inner = Open(event.end, top.phase, top.path, top.counted, top.inside, None, top.tracked, top.node)
        if event.name.startswith(MODULE):
            self._enter(event.name.removeprefix(MODULE), inner)
        elif event.name.startswith(NODE):
            in_module = top.phase in (FORWARD, GRADIENT) and top.path
            inner.phase, inner.tracked, inner.node = GRADIENT if in_module else BACKWARD, False, _Node()
            inner.path = self._forwards.get(event.args.get(SEQUENCE, -1), "")
        elif top.phase == BACKWARD and _is_checkpoint(event):
            inner.phase = RECOMPUTE
        elif event.name.startswith(GRAPH_CALL) and not self._has_device:
            # On a CPU, a trace shows the operators in a compiled graph but not its fused kernels.
            self._operators_so_far.append(TraceOperator(event, top.phase, top.path))
        elif event.name.startswith(STEP):
            inner.phase, inner.path = OPTIMIZER, ""
        elif event.is_operator and top.counted is not None:
            top.counted.inner += event.name != SAVE
        elif event.is_operator:
            self._operator(event, inner, stack)
        elif CORRELATION in event.args:
            self._launch(self._launched.pop(event.args[CORRELATION], ()), top)
        stack.append(inner)

    def _enter(self, name: str, inner: Open) -> None:
        """Begin a module call. The trace names the module by class and number; its path is the place of its first call."""
        path = self._paths.setdefault(name, f"{inner.path}.{name}" if inner.path else name)
        self.modules.setdefault(path, name.rpartition("_")[0])
        self.entered.append(path)
        inner.path = path
        if inner.phase == OPTIMIZER:  # a forward in the step's closure
            inner.phase = FORWARD

    def _operator(self, event: Event, inner: Open, stack: list[Open]) -> None:
        sequence = event.args.get(SEQUENCE)
        if sequence is not None and not event.args.get(FORWARD_THREAD):
            inner.tracked = True
            self._forwards[sequence] = inner.path
        if inner.phase == OPTIMIZER and inner.tracked:  # a step runs under no_grad, except its closure
            inner.phase = FORWARD
        for outer in stack:  # the enclosing operators now have called another operator
            outer.waiting = None
        is_counted, operator = self._sees(event), TraceOperator(event, inner.phase, inner.path)
        if is_counted:
            inner.counted = operator
            self._add(operator, inner)
        else:
            inner.inside, inner.waiting = operator, operator if is_counted is None else None

    def _add(self, operator: TraceOperator, place: Open) -> None:
        self._operators_so_far.append(operator)
        if place.node is not None:
            place.node.ends_recorded = place.tracked
            if place.tracked and operator.phase == BACKWARD:
                place.node.recorded.append(operator)

    def _close(self, stack: list[Open], now: int) -> None:
        """Close the events that have ended."""
        while stack[-1].end <= now and len(stack) > 1:
            ended = stack.pop()
            if ended.waiting is not None:
                self._add(ended.waiting, ended)
            # In a backward pass, autograd records the operators that checkpoint recomputes, but not the node's own later operators.
            # If autograd also records the later operators, the gradient itself will be differentiated (create_graph=True).
            outer = stack[-1].node
            if ended.node is None or ended.node is outer or ended.node.ends_recorded:
                continue
            for operator in ended.node.recorded:
                operator.phase = RECOMPUTE
            # The node of a reentrant checkpoint recomputes its forward, then runs its own backward pass, and often does nothing else.
            if outer is not None and ended.node.ends_recorded is False:
                outer.ends_recorded = False

    def _launch(self, kernels: Iterable[Event], place: Open) -> None:
        """Assign kernels to the operator that launched them. A composite operator that launches a kernel is itself counted."""
        for kernel in kernels:
            if place.counted is None and place.inside is not None:
                place.counted, place.waiting = place.inside, None
                if not place.counted.kernels:
                    self._add(place.counted, place)
            if place.counted is None:
                self._unknown(kernel, place)
            else:
                place.counted.kernels.append(kernel)

    def _unknown(self, kernel: Event, place: Open) -> None:
        if kernel.category == "kernel":
            self._operators_so_far.append(TraceOperator(kernel, place.phase, place.path, [kernel]))
        else:
            self.copies.append(kernel)


def events_of(operators: Iterable[TraceOperator], has_device: bool) -> list[Event]:
    """Return the events whose time is the time of these operators: their kernels on a device, the operators themselves on a CPU."""
    return [event for operator in operators for event in (operator.kernels if has_device else [operator.event])]


def busy(events: Iterable[Event]) -> float:
    """Return the seconds in which at least one of the events was running."""
    total = reached = 0
    for event in sorted(events, key=lambda event: event.start):
        total += max(0, event.end - max(event.start, reached))
        reached = max(reached, event.end)
    return total / 1e9


def _is_checkpoint(event: Event) -> bool:
    is_file = event.category == "python_function" and CHECKPOINT_FILE in event.name
    return is_file or event.name.startswith(CHECKPOINT_NODE)
