"""Stand-ins for module calls, so that an observer can skip a forward if a shape rule gives the result."""

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
"""The attribute that a module calls, if set, instead of its hooks and its forward. Copies of a module lack it."""


class ObservedModule:
    """An observer's knowledge of one module in one run.

    ``formula`` counts its calls as a whole: None if the module is not a leaf, UNKNOWN until it is looked up. ``initial``
    are the settings at the start of the run, if they matter. ``settings`` are those that :class:`~.leaves.Settings` read last, and
    ``settings_key`` is what they depend on. ``compiled_call`` is the call that :meth:`torch.nn.Module.compile` had set.

    It is also the module's stand-in: once attached, the module calls it instead of its hooks and its forward.
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
        """Make calls of the module call ``call(observed, *args, **kwargs)``. Calling ``module.forward`` directly bypasses it.

        Only for modules whose call runs nothing but their forward: see :func:`has_plain_call`, :func:`is_hooked`.
        """
        attributes = self.module.__dict__
        self.call, self.compiled_call = call, attributes.get(CALL_ATTRIBUTE)
        attributes[CALL_ATTRIBUTE] = self

    def leave(self) -> None:
        """Remove the stand-in; restore the call that :meth:`torch.nn.Module.compile` had set."""
        attributes = self.module.__dict__
        if attributes.get(CALL_ATTRIBUTE) is self:
            del attributes[CALL_ATTRIBUTE]
            if self.compiled_call is not None:
                attributes[CALL_ATTRIBUTE] = self.compiled_call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # Code that copies a module's attributes one by one (higher does) copies this stand-in, too. So read from the caller,
        # torch's _wrapped_call_impl, which module is called.
        module = self.module
        called = sys._getframe(1).f_locals.get("self", module)
        return self.call(self, *args, **kwargs) if called is module else called._call_impl(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the module's attributes has no stand-in."""


UNKNOWN = object()
"""Marks a formula that has not been looked up yet."""


def _not_attached(observed: ObservedModule, *args: Any, **kwargs: Any) -> Any:
    return observed.module._call_impl(*args, **kwargs)


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module (not a scripted one) has hooks around its forward."""
    attributes = module.__dict__
    return bool(attributes["_forward_hooks"] or attributes["_forward_pre_hooks"] or AFTER_ALL or BEFORE_ALL)


def has_plain_call(cls: type[nn.Module]) -> bool:
    """Return whether a module class uses torch's own call, is not scripted, and has a Python forward."""
    plain = cls._call_impl is call_impl and not issubclass(cls, ScriptModule)
    return plain and type(cls.forward) is FunctionType


def hidden_kernels(module: nn.Module) -> list[str]:
    """Return the operators of a module that no observer sees.

    In TorchScript these are oneDNN's, inserted by torch.jit.optimize_for_inference. Replaying a CUDA graph runs kernels
    without operators: a module that has a graph may replay it.
    """
    if not isinstance(module, ScriptModule):
        return [GRAPH] if has_graph(module) else []
    graph = getattr(module, "inlined_graph", None)
    # Printing the graph would be shorter, but printing a constant runs operators, which would reach our modes.
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
    """Return whether a module class's forward is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")


def is_missed_by_hooks(module: nn.Module, callers: Sequence[OpenCall]) -> bool:
    """Return whether module hooks miss a call of this module, because TorchScript or a flat program made it."""
    if isinstance(module, Part):
        return True
    return isinstance(module, ScriptModule) and bool(callers) and isinstance(callers[-1].module, ScriptModule)
