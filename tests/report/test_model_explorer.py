"""Model Explorer's files, compared with the fields of its own dataclasses (ai-edge-model-explorer 0.1.34)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import InputError, Report, analyze, count

GRAPH = {"id", "nodes", "groupNodeAttributes"}
NODE = {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata"}
"""The fields that we write, from ``graph_builder.py``; below, those from ``node_data_builder.py``."""
NODE_DATA = {"name", "results", "gradient"}
OWN = {"provenance"}
"""A key of our own, which the viewer ignores."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))

    def forward(self, x: torch.Tensor, unused: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x.reshape(x.shape[0], -1))
        return x


@pytest.fixture(scope="module", params=["symbolic", "record"])
def report(request: pytest.FixtureRequest) -> Report:
    return analyze(Net(), torch.ones(4, 8), repeats=1, trace=request.param)


def graph_of(report: Report) -> dict[str, Any]:
    collection = json.loads(str(report.to_model_explorer()))
    assert set(collection) == {"label", "graphs"}
    [graph] = collection["graphs"]
    assert set(graph) == GRAPH
    return graph  # type: ignore[no-any-return]


def test_nodes_have_the_fields_of_the_schema(report: Report) -> None:
    nodes = graph_of(report)["nodes"]
    for node in nodes:
        assert set(node) == NODE
        assert all(set(each) == {"key", "value"} and isinstance(each["value"], str) for each in node["attrs"])
        assert all(set(edge) == {"sourceNodeId", "targetNodeInputId"} for edge in node["incomingEdges"])
        assert all(set(each) == {"id", "attrs"} for each in node["outputsMetadata"])


def test_edges_come_from_earlier_nodes(report: Report) -> None:
    seen: set[str] = set()
    for node in graph_of(report)["nodes"]:
        assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= seen
        assert node["id"] not in seen
        seen.add(node["id"])


def test_layers_are_modules_and_sizes_are_left_out(report: Report) -> None:
    graph = graph_of(report)
    shown = [(node["label"], node["namespace"]) for node in graph["nodes"] if node["label"] != "output"]
    block = [("reshape", ""), ("0: Linear", "blocks/{}"), ("1: ReLU", "blocks/{}"), ("add", "")]
    assert shown == [("input x", ""), *((name, space.format(i)) for i in range(2) for name, space in block)]
    assert graph["groupNodeAttributes"]["blocks/1"] | {"time": ""} == {
        "class": "Sequential", "FLOPs": "544", "MACs": "256", "params": "72", "time": "",
    }  # fmt: skip
    assert graph["groupNodeAttributes"][""]["provenance"] == report.provenance  # shown while no node is selected
    shapes = {node["label"]: node["outputsMetadata"] for node in graph["nodes"]}
    assert shapes["0: Linear"] == [{"id": "0", "attrs": [{"key": "tensor_shape", "value": "f32[4,8]"}]}]
    assert shapes["input x"] == [{"id": "0", "attrs": [{"key": "tensor_shape", "value": report.inputs}]}]


def test_node_data_are_the_reports_numbers(report: Report) -> None:
    ids = {node["id"] for node in graph_of(report)["nodes"]}
    for by, total in (("flops", report.total_flops), ("macs", report.total_macs)):
        [(graph, data)] = json.loads(str(report.to_model_explorer(by=by))).items()
        assert graph == "Net"
        assert set(data) == NODE_DATA | OWN
        assert data["provenance"] == report.provenance
        assert set(data["results"]) <= ids
        assert sum(result["value"] for result in data["results"].values()) == total
        assert [stop["stop"] for stop in data["gradient"]] == [0, 1]
    assert all(json.loads(str(report.to_model_explorer(by=by)))["Net"]["results"] for by in ("time", "memory"))


def test_a_report_read_from_a_file_has_its_graph(report: Report) -> None:
    again = Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again.to_model_explorer() == report.to_model_explorer()


def test_errors() -> None:
    with pytest.raises(InputError, match=r"analyze\(model, args, repeats=0\)"):
        count(Net(), torch.ones(4, 8)).to_model_explorer()
    untimed = analyze(Net(), torch.ones(4, 8), repeats=0)
    with pytest.raises(InputError, match="by='time': this run did not measure"):
        untimed.to_model_explorer(by="time")
    with pytest.raises(InputError, match="one of 'flops', 'macs', 'time', 'memory'"):
        untimed.to_model_explorer(by="cost")
