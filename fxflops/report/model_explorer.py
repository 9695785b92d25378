"""Write a report's graph and the costs of its nodes for Google's Model Explorer.

The formats are defined in ``graph_builder.py`` and ``node_data_builder.py`` of the package ``ai-edge-model-explorer``.
"""

from __future__ import annotations

from typing import Any

from .. import units
from ..counting.counted_run import CountedRun
from ..records import FORWARD
from ..render.data import GraphNode
from ..render.text import plain
from .graph import COSTS, costed_nodes, graph_nodes

GRADIENT = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e8590c"})


def graph(counted_run: CountedRun) -> dict[str, Any]:
    """Return a graph collection with one graph. The graph has a node for each call and a layer for each module."""
    modules = counted_run.modules(FORWARD)
    nodes = graph_nodes(counted_run)
    groups = {
        _layer(path): {"class": row.cls, "FLOPs": units.count(row.total.flops), "MACs": units.count(row.total.macs)}
        | ({} if row.params is None else {"params": units.count(row.params)})
        | ({} if row.total.seconds is None else {"time": units.seconds(row.total.seconds)})
        for path, row in modules.items()
    }
    groups.setdefault("", {})["provenance"] = plain(counted_run.provenance)  # "" stands for the whole graph
    name = plain(counted_run.run.model)
    data = [_node(node, modules[node.path].cls if node.path in modules else "") for node in nodes]
    return {"label": name, "graphs": [{"id": name, "nodes": data, "groupNodeAttributes": groups}]}


def node_data(counted_run: CountedRun, by: str) -> dict[str, Any]:
    """Return the cost of each node in the quantity ``by``. Also return the colours, from the lowest to the highest cost. Raises InputError
    if the cost was not measured."""
    values = {node.name: node.costs[by] for node in costed_nodes(counted_run, by) if by in node.costs}
    results = {name: {"value": value} for name, value in values.items()}
    data = {"name": COSTS[by][0], "results": results, "gradient": list(GRADIENT)}
    # "provenance" is fxflops's own key; the viewer ignores unknown keys.
    return {plain(counted_run.run.model): {**data, "provenance": counted_run.provenance}}


def _node(node: GraphNode, cls: str) -> dict[str, Any]:
    parent, _, leaf = node.path.rpartition(".")
    labels = {"module": f"{leaf}: {cls}", "function": node.op or node.name}
    shown = {"op": node.op, "module": node.path}
    shown |= {COSTS[name][0]: COSTS[name][1](value) for name, value in node.costs.items()}
    return {
        "id": node.name,
        "label": labels.get(node.kind) or " ".join(dict.fromkeys([node.kind, node.name])),
        "namespace": _layer(parent if node.kind == "module" else node.path),
        "attrs": [{"key": key, "value": plain(value)} for key, value in shown.items()],
        "incomingEdges": [
            {"sourceNodeId": source, "targetNodeInputId": str(i)} for i, source in enumerate(node.inputs)
        ],
        "outputsMetadata": [{"id": "0", "attrs": [{"key": "tensor_shape", "value": node.out}]}] if node.out else [],
    }


def _layer(path: str) -> str:
    """Return the path of a module in the form of a Model Explorer namespace, with ``/`` between names."""
    return plain(path).replace("/", "∕").replace(".", "/")
