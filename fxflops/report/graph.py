"""Convert the nodes of a report's graph to plain data with costs, for renderers and exports."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from .. import units
from ..counting.counted_run import CountedRun
from ..errors import InputError
from ..meters.nodes import Node
from ..records import Spec, specs_in
from ..render.data import GraphNode

COSTS = {
    "flops": ("FLOPs", units.count), "macs": ("MACs", units.count), "time": ("time", units.seconds),
    "memory": ("memory at the peak", units.size),
}  # fmt: skip
"""Maps each cost of a node to its display name and the function that formats the cost."""
KINDS = {"placeholder": "input", "call_module": "module", "output": "output"}


def graph_nodes(counted_run: CountedRun) -> list[GraphNode]:
    """Return the nodes of the graph in run order, without constants, size queries and unused inputs. Raises InputError without a
    graph."""
    nodes = counted_run.run.nodes
    if not nodes:
        raise InputError(
            "this report has no graph: use fxflops.analyze(model, args), or analyze(model, args, repeats=0) to skip the timing"
        )
    used = {name for node in nodes for name in node.inputs}
    left_out = {node.name for node in nodes if node.opcode == "placeholder" and node.name not in used}
    shown: list[GraphNode] = []
    for node in nodes:
        if node.opcode == "get_attr" or node.name in left_out or _is_query(node, left_out):
            left_out.add(node.name)
        else:
            shown.append(_graph_node(counted_run, node, left_out))
    inputs = [i for i, node in enumerate(shown) if node.kind == "input"]
    if len(inputs) == 1:
        shown[inputs[0]] = shown[inputs[0]]._replace(out=counted_run.run.inputs)
    return shown


def costed_nodes(counted_run: CountedRun, by: str) -> list[GraphNode]:
    """Return the result of :func:`graph_nodes`. Raises InputError if the cost ``by`` is unknown or was not measured."""
    if by not in COSTS:
        raise InputError(f"unknown by={by!r}; expected one of {', '.join(map(repr, COSTS))}")
    nodes = graph_nodes(counted_run)
    if not any(by in node.costs for node in nodes):
        raise InputError(f"by={by!r}: this run did not measure this cost")
    return nodes


def _is_query(node: Node, queries: set[str]) -> bool:
    """Return whether a node only works with metadata of tensors, such as the size: it reads the metadata, or computes with metadata that
    other nodes have read."""
    if node.calls or node.opcode in KINDS:
        return False
    return node.opcode == "call_method" or node.function == "getattr" or queries.issuperset(node.inputs)


def _graph_node(counted_run: CountedRun, node: Node, left_out: set[str]) -> GraphNode:
    counted = counted_run.counted[node.calls.start : node.calls.stop]
    costs = {
        "flops": sum(each.flops for each in counted),
        "macs": sum(each.macs for each in counted),
        "time": None if node.timing is None else node.timing.median,
        "memory": node.bytes_peak,
    }
    return GraphNode(
        node.name,
        node.path,
        KINDS.get(node.opcode, "function"),
        ", ".join(dict.fromkeys(each.call.op for each in counted)),
        _tensors(specs_in(counted[-1].call.out)) if counted else "",
        tuple(name for name in node.inputs if name not in left_out),
        {name: value for name, value in costs.items() if value is not None},
    )


def _tensors(specs: Iterable[Spec]) -> str:
    """Return text such as ``3 x f32[1,12,64], i64[1]``, with equal consecutive tensors combined."""
    groups = ((name, len([*same])) for name, same in groupby(map(repr, specs)))
    return ", ".join(name if times == 1 else f"{times} x {name}" for name, times in groups)
