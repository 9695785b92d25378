"""Stand-ins for the calls of modules, so that an observer need not run a forward where a shape rule knows the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptModule

from ..torch_internals import GLOBAL_HOOKS, call_impl

GLOBAL = AFTER_ALL, BEFORE_ALL = GLOBAL_HOOKS["_forward_hooks"], GLOBAL_HOOKS["_forward_pre_hooks"]
GRAPH = "torch.cuda.CUDAGraph"
"""The op of what a replayed graph computes."""
GRAPHED = "torch.cuda.graphs"
"""The Python module of the forward that torch.cuda.make_graphed_callables puts into a module."""
ONEDNN = "prim::mkldnn"
"""The beginning of the names of oneDNN's operators in a graph of TorchScript; some are written in capitals."""
CALLED = "_compiled_call_impl"
"""The attribute that a module calls, if it has it, instead of its hooks and its forward. Copies of a module lack it."""


class StandIn(partial[Any]):
    """What a module calls instead of its hooks and its forward: a function of an observer, given the module first."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # Whoever copies a module's attributes one by one (higher does) copies this, too. So ask the caller, torch's
        # _wrapped_call_impl, which module is called.
        called = sys._getframe(1).f_locals.get("self", self.args[0])
        return super().__call__(*args, **kwargs) if called is self.args[0] else called._call_impl(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the module's attributes has no stand-in."""


class StandIns:
    """The stand-ins of a run, from :meth:`attach` until :meth:`leave`."""

    def __init__(self) -> None:
        self._attached: list[tuple[dict[str, Any], Any]] = []
        self._is_plain = cache(has_plain_call)

    def attach(self, module: nn.Module, run: Callable[..., Any]) -> bool:
        """Let calls of the module be calls of ``run(module, *args, **kwargs)``; a direct call of its forward is none.

        Return False, and leave it as it is, if a call of the module runs more than its forward.
        """
        cls: Any = type(module)
        if not self._is_plain(cls) or is_hooked(module):
            return False
        held = module.__dict__
        self._attached.append((held, held.get(CALLED)))
        held[CALLED] = StandIn(run, module)
        return True

    def leave(self) -> None:
        """Remove the stand-ins; put back what :meth:`torch.nn.Module.compile` had put there."""
        for held, before in self._attached:
            if type(held.get(CALLED)) is StandIn:
                del held[CALLED]
                if before is not None:
                    held[CALLED] = before


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module, which is not scripted, has hooks around its forward."""
    held = module.__dict__
    return bool(held["_forward_hooks"] or held["_forward_pre_hooks"] or AFTER_ALL or BEFORE_ALL)


def has_plain_call(cls: type[nn.Module]) -> bool:
    """Return whether the modules of a class are called as torch's are, not scripted, and have a forward in Python."""
    plain = cls._call_impl is call_impl and not issubclass(cls, ScriptModule)
    return plain and type(cls.forward) is FunctionType


def hidden_kernels(module: nn.Module) -> list[str]:
    """Return the operators of a module that no observer sees.

    In TorchScript they are oneDNN's, by torch.jit.optimize_for_inference. The replay of a CUDA graph runs kernels that call
    no operator: a module that has a graph may replay it.
    """
    if not isinstance(module, ScriptModule):
        return [GRAPH] if has_graph(module) else []
    graph = getattr(module, "inlined_graph", None)
    # Printing the graph would be shorter, but to print a constant runs operators, and those would reach our modes.
    return [] if graph is None else [kind for kind in kinds_of_nodes(graph) if kind.lower().startswith(ONEDNN)]


def kinds_of_nodes(block: Any) -> Iterator[str]:
    """Yield the operators of a TorchScript graph, or of one of its blocks, with those of the blocks inside."""
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from kinds_of_nodes(inner)


def has_graph(module: nn.Module) -> bool:
    """Return whether a module has CUDA graphs, or runs them since torch.cuda.make_graphed_callables replaced its forward."""
    held = module.__dict__
    if "forward" in held and getattr(held["forward"], "__module__", "") == GRAPHED:
        return True
    return torch.cuda.is_initialized() and any(isinstance(value, torch.cuda.CUDAGraph) for value in [*held.values()])


def is_torchs(cls: Any) -> bool:
    """Return whether the forward of a module class is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")
