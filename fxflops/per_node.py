"""What the meters read, by node and by call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import fx

from .records import Call, Kernel, Node, Timing
from .run import Times
from .trace.symbolic import stack_of
from .trace.tape import BACKWARD

Spans = Mapping[str, tuple[int, int, int]]
"""Bytes before, after and at the peak of nodes by their names."""


def node_of(
    node: fx.Node,
    calls: range,
    times: Times,
    bytes_of: tuple[Spans, Spans],
    kernels: Mapping[str, tuple[Kernel, ...]],
) -> Node:
    path, cls = stack_of(node)
    target = str(node.target)
    for address in (" at 0x", " of type object"):
        if address in target:
            target = target.partition(address)[0] + ">"
    module = cls.__name__ if cls is not None else ""
    function = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    timing, back = times.nodes.get(node.name), times.backward_nodes.get(node.name)
    here, after = bytes_of[0][node.name], bytes_of[1].get(node.name, (None, None, None))
    host, ran = times.host_nodes.get(node.name), kernels.get(node.name, ())
    return Node(
        node.name, node.op, target, function, path, module, calls, timing, *here, back, after[1], after[2], host, ran
    )


def timed(calls: list[Call], timings: Iterable[tuple[list[int], Timing | None]]) -> tuple[Call, ...]:
    """The calls with the time of their node, of which the positions of its calls are given; where a node made several, it
    is split as the observer's own clock saw them."""
    result = [call._replace(seconds=None) for call in calls]
    for positions, timing in timings:
        if timing is None:
            continue
        seen = sum(calls[i].seconds or 0.0 for i in positions)
        for i in positions:
            share = (calls[i].seconds or 0.0) / seen if seen else 1 / len(positions)
            result[i] = calls[i]._replace(seconds=timing.median * share)
    return tuple(result)


def backward_positions(calls: list[Call], nodes: tuple[Node, ...]) -> Iterator[tuple[list[int], Timing | None]]:
    """For each node the positions of its calls in the backward pass, which know their node by name, and its time there."""
    of_node: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        if call.phase == BACKWARD:
            of_node.setdefault(call.node, []).append(i)
    for node in nodes:
        yield of_node.get(node.name, []), node.backward_timing
