"""Combine the meters' readings by node, and distribute them over calls."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from ..meters.nodes import Kernel, Node
from ..records import PARTS, Call, Operation, grouped
from ..trace.phases import FORWARD, RECOMPUTE
from ..trace.symbolic import stack_of
from .graph_run import Times

Spans = Mapping[str, tuple[int, int, int]]
"""Bytes before a node, after it and at its peak, by the node's name."""


def node_of(
    node: fx.Node, calls: range, times: Times, bytes_of: tuple[Spans, Spans], kernels: Mapping[str, tuple[Kernel, ...]]
) -> Node:
    """Return the record of a graph's node, with all its measurements."""
    path, cls = stack_of(node)
    before, after, peak = bytes_of[0][node.name]
    _, backward_after, backward_peak = bytes_of[1].get(node.name, (None, None, None))
    return Node(
        name=node.name,
        opcode=node.op,
        target=re.sub(" (at 0x|of type object).*", ">", str(node.target), flags=re.DOTALL),  # without addresses
        function=getattr(node.target, "__name__", "") if node.op == "call_function" else "",
        path=path,
        module="" if cls is None else cls.__name__,
        calls=calls,
        timing=times.nodes.get(node.name),
        bytes_before=before,
        bytes_after=after,
        bytes_peak=peak,
        backward_timing=times.backward_nodes.get(node.name),
        backward_bytes_after=backward_after,
        backward_bytes_peak=backward_peak,
        host_timing=times.host_nodes.get(node.name),
        kernels=kernels.get(node.name, ()),
        inputs=tuple(each.name for each in node.all_input_nodes),
    )


def with_nodes(calls: Sequence[Call], nodes: Iterable[Node], owner_of: Mapping[int, int]) -> tuple[Call, ...]:
    """Return the calls with the name of their node and their seconds.

    The time of a node with several calls is split in proportion to the observer's times of the calls. A backward call
    belongs to the node of its owner.
    """
    result = [call._replace(seconds=None) for call in calls]
    first = _first_made(calls)
    owned = grouped((first.get(owner, owner), i) for i, owner in owner_of.items())
    for node in nodes:
        back = [i for owner in node.calls for i in owned.get(owner, ())]
        for positions, timing in ((node.calls, node.timing), (back, node.backward_timing)):
            seen = sum(calls[i].seconds or 0.0 for i in positions)
            for i in positions:
                share = (calls[i].seconds or 0.0) / seen if seen else 1 / len(positions)
                seconds = None if timing is None else timing.median * share
                result[i] = calls[i]._replace(node=node.name, seconds=seconds)
    return tuple(result)


def _first_made(calls: Sequence[Call]) -> dict[int, int]:
    """Map the index of each recomputed call to that of the equal forward call; several equal calls are matched in turn."""
    made = defaultdict[tuple[Operation, str], deque[int]](deque)
    found = {}
    for i, call in enumerate(calls):
        alike = made[call.operation, call.path]
        if call.phase in PARTS[FORWARD]:
            alike.append(i)
        elif call.phase == RECOMPUTE and alike:
            found[i] = alike[0]
            alike.rotate(-1)
    return found
