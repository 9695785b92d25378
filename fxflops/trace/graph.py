"""Build a GraphModule, even if a module's name would break the Python code that torch.fx generates."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import reduce
from typing import Any, NoReturn

from torch import fx, nn

from ..errors import RunError, TraceError
from ..model.pytree import is_training

APART = "_fxflops."
"""The prefix of targets whose names clash with a GraphModule's own attributes."""


def graph_module(root: nn.Module | dict[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """Return the GraphModule of ``graph`` on the modules and tensors of ``root``, with the class name ``name``.

    torch.fx writes module names into its code unescaped. If a name breaks that code, e.g. by a quote or a line break, the nodes can
    still be run one by one. A module named like an attribute of GraphModule, e.g. "code" or "graph", is moved into a
    submodule ``_fxflops``.
    """
    named = [node for node in graph.nodes if node.op in ("call_module", "get_attr")]
    if any(_is_taken(node.target) for node in named):
        training = is_training(root) if isinstance(root, nn.Module) else True
        if isinstance(root, nn.Module):
            root = {node.target: reduce(getattr, node.target.split("."), root) for node in named}
        for node in named:
            node.target = APART * _is_taken(node.target) + node.target
        root = {APART * _is_taken(target) + target: value for target, value in root.items()}
        named_apart = graph_module(root, graph, name)
        named_apart.training = training
        return named_apart
    try:
        return fx.GraphModule(root, graph, name)
    except SyntaxError:
        return _Codeless(root, graph, name)


def leaf_graph(model: nn.Module, constants: Mapping[str, Any]) -> fx.GraphModule:
    """Return the graph of a model that is itself a leaf. The graph has one module call, under the name of the model's class.

    ``constants`` has the values of the non-tensor parameters of ``forward``. Raises TraceError for ``*args``.
    """
    name = type(model).__name__
    graph = fx.Graph()
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise TraceError(
                f"cannot trace {name} itself, since its forward takes {parameter}: wrap {name} in a module of your own"
            )
        default = () if parameter.default is inspect.Parameter.empty else (parameter.default,)
        value: Any = graph.create_node("placeholder", parameter.name, default)
        value = constants.get(parameter.name, value)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    node = graph.call_module(name, tuple(args), kwargs)
    node.meta["nn_module_stack"] = {"": ("", type(model))}
    graph.output(node)
    return graph_module({name: model}, graph, name)


def _is_taken(target: str) -> bool:
    return hasattr(fx.GraphModule, target.partition(".")[0])


class _Codeless(fx.GraphModule):
    """A GraphModule that only an interpreter can run."""

    def recompile(self) -> Any:
        self._code = "# a module's name breaks the code that torch.fx generates"

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RunError(
            "cannot call this graph: a module's name breaks the code that torch.fx generates; run torch.fx.Interpreter(graph) instead"
        )
