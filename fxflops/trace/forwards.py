"""Replacements for module calls, so that an observer can skip a forward if a shape rule gives the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptModule

from ..model.programs import Part
from ..torch_internals import GLOBAL_HOOKS, call_impl
from .stack import OpenCall

GLOBAL = AFTER_ALL, BEFORE_ALL = GLOBAL_HOOKS["_forward_hooks"], GLOBAL_HOOKS["_forward_pre_hooks"]
GRAPH = "torch.cuda.CUDAGraph"
"""The op recorded for a replayed graph."""
GRAPHED = "torch.cuda.graphs"
"""The ``__module__`` of a forward made by torch.cuda.make_graphed_callables."""
ONEDNN = "prim::mkldnn"
"""The prefix of oneDNN's operators in a TorchScript graph; some are written in capitals."""
CALL_ATTRIBUTE = "_compiled_call_impl"
"""The attribute that a module calls, if it is set, instead of its hooks and its forward. Copies of a module do not have it."""


class ObservedModule:
    """A module in a run, with what the observer knows about the module, and a replacement for its calls.

    ``formula`` counts a call of the module as a whole: None if the module is not a leaf, UNKNOWN until the formula is looked up.
    ``initial`` has the module's settings at the start of the run, if the run is recorded as a graph. ``settings`` has the settings that
    :class:`~.leaves.Settings` read last; they are valid while ``settings_key`` is unchanged. ``compiled_call`` is the call that
    :meth:`torch.nn.Module.compile` had set.

    Once this object is attached, the module calls this object instead of its hooks and its forward.
    """

    __slots__ = ("call", "compiled_call", "formula", "initial", "module", "path", "settings", "settings_key")

    def __init__(self, module: nn.Module, path: str) -> None:
        self.module = module
        self.path = path
        self.formula: Any = UNKNOWN
        self.initial: Any = None
        self.settings_key: tuple[Any, ...] = ()
        self.settings: Any = None
        self.compiled_call: Any = None
        self.call: Callable[..., Any] = _not_attached

    def attach(self, call: Callable[..., Any]) -> None:
        """Make each call of the module run ``call(observed, *args, **kwargs)``. A direct call of ``module.forward`` does not run it.

        Attach only to a module whose call runs nothing but its forward: see :func:`uses_torchs_call` and :func:`is_hooked`.
        """
        attributes = self.module.__dict__
        self.call, self.compiled_call = call, attributes.get(CALL_ATTRIBUTE)
        attributes[CALL_ATTRIBUTE] = self

    def detach(self) -> None:
        """Remove the replacement; restore the call that :meth:`torch.nn.Module.compile` had set."""
        attributes = self.module.__dict__
        if attributes.get(CALL_ATTRIBUTE) is self:
            del attributes[CALL_ATTRIBUTE]
            if self.compiled_call is not None:
                attributes[CALL_ATTRIBUTE] = self.compiled_call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # Code that copies a module's attributes one by one, as the library higher does, also copies this object to the other module.
        # So find the called module among the local variables of the caller, torch's _wrapped_call_impl.
        module = self.module
        called = sys._getframe(1).f_locals.get("self", module)
        return self.call(self, *args, **kwargs) if called is module else called._call_impl(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the module's attributes has no replaced call."""


UNKNOWN = object()
"""Marks a formula that has not been looked up yet."""


def _not_attached(observed: ObservedModule, *args: Any, **kwargs: Any) -> Any:
    return observed.module._call_impl(*args, **kwargs)


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module (not a scripted one) has hooks around its forward."""
    attributes = module.__dict__
    return bool(attributes["_forward_hooks"] or attributes["_forward_pre_hooks"] or AFTER_ALL or BEFORE_ALL)


def uses_torchs_call(cls: type[nn.Module]) -> bool:
    """Return whether a module class uses torch's own call, is not scripted, and has a Python forward."""
    plain = cls._call_impl is call_impl and not issubclass(cls, ScriptModule)
    return plain and type(cls.forward) is FunctionType


def hidden_kernels(module: nn.Module) -> list[str]:
    """Return the operators of a module that no observer sees.

    In TorchScript these are oneDNN's operators, which torch.jit.optimize_for_inference inserts. A module with a CUDA graph may replay
    the graph, which runs kernels without operators.
    """
    if not isinstance(module, ScriptModule):
        return [GRAPH] if has_graph(module) else []
    graph = getattr(module, "inlined_graph", None)
    # Do not print the graph to find its operators: printing a constant runs operators, and fxflops would observe these operators.
    return [] if graph is None else [kind for kind in kinds_of_nodes(graph) if kind.lower().startswith(ONEDNN)]


def kinds_of_nodes(block: Any) -> Iterator[str]:
    """Yield the operators of a TorchScript graph or block, including nested blocks."""
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from kinds_of_nodes(inner)


def has_graph(module: nn.Module) -> bool:
    """Return whether a module has CUDA graphs, or a forward that torch.cuda.make_graphed_callables made."""
    attributes = module.__dict__
    if "forward" in attributes and getattr(attributes["forward"], "__module__", "") == GRAPHED:
        return True
    return torch.cuda.is_initialized() and any(
        isinstance(value, torch.cuda.CUDAGraph) for value in [*attributes.values()]
    )


def is_torch_module(cls: Any) -> bool:
    """Return whether the forward of a module class is defined in torch itself."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")


def is_missed_by_hooks(module: nn.Module, callers: Sequence[OpenCall]) -> bool:
    """Return whether module hooks miss a call of this module, because TorchScript or a program without modules calls it."""
    if isinstance(module, Part):
        return True
    return isinstance(module, ScriptModule) and bool(callers) and isinstance(callers[-1].module, ScriptModule)
