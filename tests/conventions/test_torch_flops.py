"""convention="torch_flops": the same number as torch_flops 0.4.1 for every node that its tables recognise.

The exceptions are the nodes in :data:`BUGS`, which ``fxflops/ops/README.md`` explains.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_flops
from torch import fx, nn

import fxflops
from tests.conventions.pool import POOL, copied, lent, of_torchvision

BUGS: dict[Any, str] = {
    nn.AvgPool2d: "an int is read as a window of 3, not 3 x 3",
    nn.AdaptiveAvgPool2d: "one guessed window size for all outputs",
    F.interpolate: "the size alone, without batch and channels",
    torch.conv2d: "adds too few with groups; a positional bias is not seen",
    torch.conv3d: "adds too few with groups; a positional bias is not seen",
}
NUMBERS = "arithmetic of Python numbers is 1 each"
CANNOT = {
    "mobilevit", "cells", "bert", "bert sdpa", "distilbert", "albert", "gpt2", "llama", "opt", "t5", "bart",
    "vit transformers", "wav2vec2", "nn.Transformer", "ssdlite", "faster r-cnn",
}  # fmt: skip
if not hasattr(F, "grouped_mm"):  # an older torch, whose attention refuses a proxy
    CANNOT |= {"vit", "deit distilled"}
MORE = (
    "resnet34", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x1_0", "efficientnet_b0",
)  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: lent(name) for name in POOL},
    **{f"torchvision {name}": of_torchvision(name) for name in MORE},
}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch_flops run on the CPU: it asks CUDA for memory on any device."""
    for name in ("reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)


def theirs(model: nn.Module, args: Any, kwargs: Any) -> tuple[fx.GraphModule, dict[str, int]]:
    """torch_flops's graph, and the FLOPs of each node that its tables recognise."""
    counter = torch_flops.TorchFLOPsByFX(copied(model)[0])
    with torch.no_grad(), redirect_stderr(io.StringIO()):
        counter.propagate(*args, **kwargs)
    rows = [dict(zip(counter.result_header, row, strict=True)) for row in counter.result_table]
    return counter.graph_model, {r["node_name"]: r["flops"] for r in rows if isinstance(r["flops"], int)}


def known_bug(graph: fx.GraphModule, node: fx.Node) -> str | None:
    """Why torch_flops is wrong on a node, or None if it must be right."""
    if node.op == "call_module":
        return BUGS.get(type(graph.get_submodule(str(node.target))))
    if node.target in BUGS:
        return BUGS[node.target]
    return NUMBERS if node.op == "call_function" and not node.meta.get("tensor_meta") else None


@pytest.mark.parametrize("name", [name for name in MODELS if name not in CANNOT])
def test_each_node(name: str) -> None:
    model, args, kwargs = MODELS[name]()
    graph, flops = theirs(model.eval(), args, kwargs)
    report = fxflops.analyze(model, args, kwargs, trace="symbolic", convention="torch_flops", repeats=0, progress=False)
    ours = {node.name: sum(report.counted[i].flops for i in node.calls) for node in report.nodes}
    nodes = {node.name: node for node in graph.graph.nodes}
    checked = [name for name in flops if name in ours and known_bug(graph, nodes[name]) is None]
    assert {name: ours[name] for name in checked} == {name: flops[name] for name in checked}
    # torch_flops traces into some modules that we treat as one: classes that inherit their forward from a leaf.
    assert all(known_bug(graph, nodes[name]) or not flops[name] for name in flops if name not in ours)
    assert sum(flops[name] for name in checked) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CANNOT))
def test_what_it_cannot_trace(name: str) -> None:
    model, args, kwargs = MODELS[name]()
    with pytest.raises((torch.fx.proxy.TraceError, TypeError, ValueError)):
        theirs(model, args, kwargs)
    assert fxflops.count(model, args, kwargs).complete


def test_asserted_comparisons_are_counted_once() -> None:
    model, args, kwargs = lent("vit unfused")
    _, flops = theirs(model, args, kwargs)
    report = fxflops.count(model, args, kwargs, convention="torch_flops")
    compared = sum(n for name, n in flops.items() if name.startswith(("eq", "_assert")))
    assert compared == report.by_operator()["_assert"].total.flops == 2
