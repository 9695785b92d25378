"""Combine the meters' readings for each node, and distribute times over the node's calls."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import fx

from ..meters.nodes import Kernel, Node
from ..records import FORWARD, PARTS, RECOMPUTE, Call, grouped, typed
from ..trace.symbolic import stack_of
from .graph_run import Times

Spans = Mapping[str, tuple[int, int, int]]
"""For each node name, the bytes before the node, after the node and at the node's peak."""


class NodeBytes(NamedTuple):
    """The bytes around each node of a graph, in the forward and in the backward pass."""

    forward: Spans
    backward: Spans


def node_of(
    node: fx.Node, calls: range, times: Times, node_bytes: NodeBytes, kernels: Mapping[str, tuple[Kernel, ...]]
) -> Node:
    """Return the record of a graph node, with all measurements of the node."""
    path, cls = stack_of(node)
    before, after, peak = node_bytes.forward[node.name]
    _, backward_after, backward_peak = node_bytes.backward.get(node.name, (None, None, None))
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
        inputs=tuple(input_node.name for input_node in node.all_input_nodes),
    )


def with_nodes(calls: Sequence[Call], nodes: Iterable[Node], owner_of: Mapping[int, int]) -> tuple[Call, ...]:
    """Return the calls, each with the name of its node and its seconds.

    If a node has several calls, its time is split in proportion to the times that the observer measured for these calls. A backward
    call belongs to the node of the forward call that owns it.
    """
    calls_with_nodes = [call._replace(seconds=None) for call in calls]
    forward_of = _forward_of_recomputed(calls)
    backward_calls = grouped((forward_of.get(owner, owner), i) for i, owner in owner_of.items())
    for node in nodes:
        backward_positions = [i for owner in node.calls for i in backward_calls.get(owner, ())]
        for positions, timing in ((node.calls, node.timing), (backward_positions, node.backward_timing)):
            observed_seconds = sum(calls[i].seconds or 0.0 for i in positions)
            for i in positions:
                share = (calls[i].seconds or 0.0) / observed_seconds if observed_seconds else 1 / len(positions)
                seconds = None if timing is None else timing.median * share
                calls_with_nodes[i] = calls[i]._replace(node=node.name, seconds=seconds)
    return tuple(calls_with_nodes)


def _forward_of_recomputed(calls: Sequence[Call]) -> dict[int, int]:
    """Map the index of each recomputed call to the index of the equal forward call. Several equal calls are matched in order."""
    forward_calls = defaultdict[Any, deque[int]](deque)
    forward_of = {}
    for i, call in enumerate(calls):
        equal_calls = forward_calls[_key_of(call)]
        if call.phase in PARTS[FORWARD]:
            equal_calls.append(i)
        elif call.phase == RECOMPUTE and equal_calls:
            forward_of[i] = equal_calls[0]
            equal_calls.rotate(-1)
    return forward_of


def _key_of(call: Call) -> Any:
    """Return a key that is equal for calls of equal operations at the same path. (Operations themselves are compared by identity.)"""
    fields = call.op, call.target, call.path
    key = *fields, *map(typed, (call.args, call.kwargs, call.out))
    try:
        hash(key)
    except TypeError:  # an argument is an unhashable object
        return fields
    return key
