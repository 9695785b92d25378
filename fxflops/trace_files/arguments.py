"""Infer arguments that are missing in traces of torch before 2.1, if the shapes in the rest of the trace are sufficient.

Such a trace shows the shapes and dtypes of tensors, but no numbers. The shape of a convolution's result is inferred from the
operators inside the convolution, its backward pass or the next operator. Stride, padding and dilation are any values that produce
this shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .reading import CONCRETE, SHAPES, Event

FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"
PLAIN, TRANSPOSED = "aten::conv", "aten::conv_transpose"
NODE = "autograd::engine::evaluate_function"
ON_RESULT = ("aten::as_strided_", "aten::resize_", "aten::add_")
"""Operators that a convolution calls on its result, to set the result's memory layout or to add the bias."""
SEQUENCE, FORWARD_THREAD, TYPES = "Sequence number", "Fwd thread id", "Input type"
LIST, NUMBER = "ScalarList", "Scalar"
Shape = Sequence[int]


class Geometry(NamedTuple):
    """Parameters of a convolution that produce the shape of its result from the shape of its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def shown(self) -> list[str]:
        """Return the parameters as texts, in the format of traces of torch 2.1 and later."""
        return [str(list(parameter)) if isinstance(parameter, tuple) else str(parameter) for parameter in self]


TYPES_OF_GEOMETRY = [LIST, LIST, LIST, NUMBER, LIST, NUMBER]


def shows_numbers(events: Iterable[Event]) -> bool:
    """Return whether a trace shows the numbers that its operators take as arguments."""
    return any(CONCRETE in event.args for event in events if event.is_operator)


def with_convolutions(threads: Mapping[Any, list[Event]]) -> dict[Any, list[Event]]:
    """Return the events of each thread. Add the missing arguments to a convolution if the shape of its result can be inferred."""
    forwards: dict[Any, tuple[Event, str]] = {}
    grads: dict[Any, Shape] = {}
    for events in threads.values():
        for i, event in enumerate(events):
            if event.name == FORWARD and SEQUENCE in event.args:
                forwards[event.args[SEQUENCE]] = event, _caller(events, i)
            elif event.name == BACKWARD:
                grads[_sequence(_node_of(events, i))] = event.args[SHAPES][0]
    return {thread: list(_completed(events, forwards, grads)) for thread, events in threads.items()}


def _completed(
    events: list[Event], forwards: Mapping[Any, tuple[Event, str]], grads: Mapping[Any, Shape]
) -> Iterable[Event]:
    for i, event in enumerate(events):
        numbers = None
        if event.name == FORWARD:
            numbers = _forward(events, i, grads.get(event.args.get(SEQUENCE)))
        elif event.name == BACKWARD:
            numbers = _backward(events, i, forwards)
        if numbers is None:
            yield event
            continue
        types, texts = numbers
        missing = len(event.args[TYPES]) - len(types)
        filled = {TYPES: [*event.args[TYPES][:missing], *types], CONCRETE: [*[""] * missing, *texts]}
        yield event._replace(args={**event.args, **filled})


def _forward(events: list[Event], i: int, grad: Shape | None) -> tuple[list[str], list[str]] | None:
    """Return the types and texts of a convolution's numbers; None if no shape in the trace can be the shape of its result."""
    event = events[i]
    input, weight, *_ = event.args[SHAPES]
    caller = _caller(events, i)
    last = max((other.end for other in _around(events, i)), default=event.end)
    inside = (other for other in events[i + 1 :] if other.start < event.end and other.name in ON_RESULT)
    after = next((other for other in events[i + 1 :] if other.start >= last and other.is_operator), None)
    # The first shapes in this list are certainly shapes of the result. The last is the shape of the next operator's input, a guess.
    shapes = [*([] if grad is None else [grad]), *(shape for other in inside for shape in _tensors(other)[:1])]
    if after is not None:
        shapes += _tensors(after)[:1]
        if after.name.startswith(PLAIN) and shapes[-1:] == [input]:  # a parallel branch
            shapes.pop()
    for shape in shapes:
        geometry = _geometry(input, weight, shape, caller)
        if geometry is not None:
            return TYPES_OF_GEOMETRY, geometry.shown()
    return None


def _backward(
    events: list[Event], i: int, forwards: Mapping[Any, tuple[Event, str]]
) -> tuple[list[str], list[str]] | None:
    """Return the types and texts of the numbers of a convolution's backward pass, including the mask of the gradients to compute."""
    grad, input, weight, *_ = events[i].args[SHAPES]
    node = _node_of(events, i)
    forward, caller = forwards.get(_sequence(node), (None, ""))
    geometry = _geometry(input, weight, grad, caller)
    if node is None or forward is None or geometry is None:
        return None
    shapes_taken = _taken_later(events, node)
    has_bias = bool(forward.args[SHAPES][2])
    mask = [list(input) in shapes_taken, list(weight) in shapes_taken, has_bias and [grad[1]] in shapes_taken]
    bias = f"[{grad[1] if has_bias else 0}]"
    return [LIST, *TYPES_OF_GEOMETRY, LIST], [bias, *geometry.shown(), str(mask)]


def _geometry(input: Shape, weight: Shape, out: Shape, caller: str) -> Geometry | None:
    """Return convolution parameters that produce a result of shape ``out``.

    Return None if no parameters do, or if both a plain and a transposed convolution could produce this shape.
    """
    if len(out) != len(input) or len(weight) != len(input) or out[0] != input[0]:
        return None
    plain = input[1] % weight[1] == 0 and out[1] == weight[0]
    transposed = input[1] == weight[0] and out[1] % weight[1] == 0
    if caller.startswith(TRANSPOSED):
        plain = False
    elif caller.startswith(PLAIN):
        transposed = False
    if plain == transposed:
        return None
    sizes = zip(*((out, input) if transposed else (input, out)), weight, strict=True)
    windows = [_window(*sizes_of_dim, transposed) for sizes_of_dim in itertools.islice(sizes, 2, None)]
    if None in windows:
        return None
    stride, padding, dilation, output_padding = zip(*windows, strict=True)
    groups = out[1] // weight[1] if transposed else input[1] // weight[1]
    return Geometry(stride, padding, dilation, transposed, output_padding, groups)


def _window(large: int, small: int, kernel: int, transposed: bool) -> tuple[int, int, int, int] | None:
    """Return stride, padding, dilation and output padding for which a window has ``small`` positions on ``large`` elements."""
    for dilation, stride in itertools.product(range(1, large + 1), repeat=2):
        width = dilation * (kernel - 1) + 1
        for padding in range(width):
            remainder = large + 2 * padding - width - (small - 1) * stride
            if 0 <= remainder < stride:
                return stride, padding, dilation, remainder * transposed
        if kernel == 1 and dilation > 1:
            return None
    return None


def _tensors(event: Event) -> list[Shape]:
    return [shape for shape in event.args.get(SHAPES) or () if shape and not isinstance(shape[0], list)]


def _around(events: list[Event], i: int) -> list[Event]:
    """Return the convolution functions that call an event: their events begin before it and end after it."""
    around = []
    for earlier in reversed(events[:i]):
        if earlier.end >= events[i].end and earlier.name.startswith(PLAIN):
            around.append(earlier)
        elif earlier.is_operator and earlier.end <= events[i].start:
            break
    return around


def _caller(events: list[Event], i: int) -> str:
    """Return the name of the function that called a convolution, e.g. ``aten::conv2d`` or ``aten::conv_transpose2d``."""
    return next((function.name for function in _around(events, i) if function.name != FORWARD), "")


def _node_of(events: list[Event], i: int) -> Event | None:
    """Return the autograd node in which an operator runs, or None."""
    nodes = (earlier for earlier in reversed(events[:i]) if earlier.name.startswith(NODE))
    node = next(nodes, None)
    return node if node is not None and node.end >= events[i].end else None


def _sequence(node: Event | None) -> Any:
    return None if node is None else node.args.get(SEQUENCE)


def _taken_later(events: list[Event], node: Event) -> list[list[int]]:
    """Return the input shapes of later nodes of the same backward pass.

    A backward pass runs its nodes in descending order of sequence number, except for AccumulateGrad.
    """
    taken: list[list[int]] = []
    own = _sequence(node)
    is_inside = False
    for later in events:
        if later.start < node.end:
            continue
        if later.name.startswith(NODE):
            if "AccumulateGrad" not in later.name and (_sequence(later) is None or _sequence(later) >= own):
                break
            is_inside = True
        elif is_inside:  # the event of the node itself, which precedes the operators that it calls
            taken += [list(shape) for shape in _tensors(later)]
            is_inside = False
    return taken
