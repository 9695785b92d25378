"""The GraphModule of a graph, also of one whose code Python cannot read."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import fx, nn

from ..errors import RunError


def graph_module(root: nn.Module | dict[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """The GraphModule of this graph, on the modules and tensors of ``root``, under the class name ``name``.

    torch.fx writes the names of modules into its code as they are. Where one of them breaks it (a quote, the end of a line),
    the nodes can still be run one by one.
    """
    try:
        return fx.GraphModule(root, graph, name)
    except SyntaxError:
        return _Codeless(root, graph, name)


class _Codeless(fx.GraphModule):
    """A GraphModule that only an interpreter can run."""

    def recompile(self) -> Any:
        self._code = "# a module's name breaks the code that torch.fx writes"

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RunError("a module's name breaks the code that torch.fx writes: run it by torch.fx.Interpreter(graph)")
