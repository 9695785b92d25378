"""Build a GraphModule, also where a module's name would break the Python code that torch.fx generates."""

from __future__ import annotations

from functools import reduce
from typing import Any, NoReturn

from torch import fx, nn

from ..errors import RunError

APART = "_fxflops."
"""The prefix of targets whose names a GraphModule uses itself."""


def graph_module(root: nn.Module | dict[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """Return the GraphModule of ``graph`` on the modules and tensors of ``root``, with the class name ``name``.

    torch.fx writes the names of modules into its code as they are. If one breaks that code (a quote, a line end), the
    nodes can still be run one by one. A module named like an attribute of GraphModule ("code", "graph") is put into a
    submodule ``_fxflops``.
    """
    named = [node for node in graph.nodes if node.op in ("call_module", "get_attr")]
    if any(_is_taken(node.target) for node in named):
        training = root.training if isinstance(root, nn.Module) else True
        if isinstance(root, nn.Module):
            root = {n.target: reduce(getattr, n.target.split("."), root) for n in named}
        for node in named:
            node.target = APART * _is_taken(node.target) + node.target
        root = {APART * _is_taken(target) + target: value for target, value in root.items()}
        made = graph_module(root, graph, name)
        made.training = training
        return made
    try:
        return fx.GraphModule(root, graph, name)
    except SyntaxError:
        return _Codeless(root, graph, name)


def _is_taken(target: str) -> bool:
    return hasattr(fx.GraphModule, target.partition(".")[0])


class _Codeless(fx.GraphModule):
    """A GraphModule that only an interpreter can run."""

    def recompile(self) -> Any:
        self._code = "# a module's name breaks the code that torch.fx writes"

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RunError("a module's name breaks the code that torch.fx writes: run it by torch.fx.Interpreter(graph)")
