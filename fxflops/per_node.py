"""What the meters read, by node and by call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import fx

from .records import Call, Node, Timing
from .run import Times
from .trace.symbolic import stack_of
from .trace.tape import BACKWARD

Spans = Mapping[str, tuple[int, int, int]]
"""Bytes before, after and at the peak of nodes by their names."""


def node_of(node: fx.Node, calls: range, times: Times, bytes_of: tuple[Spans, Spans]) -> Node:
    path, cls = stack_of(node)
    target = str(node.target)
    for address in (" at 0x", " of type object"):
        if address in target:
            target = target.partition(address)[0] + ">"
    module = cls.__name__ if cls is not None else ""
    function = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    timing, back = times.nodes.get(node.name), times.backward_nodes.get(node.name)
    here, after = bytes_of[0][node.name], bytes_of[1].get(node.name, (None, None, None))
    return Node(node.name, node.op, target, function, path, module, calls, timing, *here, back, *after[1:])


def timed(calls: list[Call], nodes: tuple[Node, ...]) -> tuple[Call, ...]:
    """The calls with their node's time; where a node made several, it is split as the observer's own clock saw them."""
    result = [replace(call, seconds=None) for call in calls]
    for node in nodes:
        for i, seconds in _shares(calls, list(node.calls), node.timing):
            result[i] = replace(calls[i], seconds=seconds)
    return tuple(result)


def timed_back(calls: list[Call], nodes: tuple[Node, ...]) -> tuple[Call, ...]:
    """The same for the calls of the backward pass, which know their node by name."""
    result = [replace(call, seconds=None) for call in calls]
    of_node: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        if call.phase == BACKWARD:
            of_node.setdefault(call.node, []).append(i)
    for node in nodes:
        for i, seconds in _shares(calls, of_node.get(node.name, []), node.backward_timing):
            result[i] = replace(calls[i], seconds=seconds)
    return tuple(result)


def _shares(calls: list[Call], positions: list[int], timing: Timing | None) -> Iterator[tuple[int, float]]:
    """What of a node's time falls to each of its calls."""
    seen = sum(calls[i].seconds or 0.0 for i in positions)
    for i in positions if timing is not None else ():
        share = (calls[i].seconds or 0.0) / seen if seen else 1 / len(positions)
        yield i, timing.median * share  # type: ignore[union-attr]
