"""Stand-ins for the calls of modules, so that an observer need not run a forward where a shape rule knows the result."""

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
from .stack import Running

GLOBAL = AFTER_ALL, BEFORE_ALL = GLOBAL_HOOKS["_forward_hooks"], GLOBAL_HOOKS["_forward_pre_hooks"]
GRAPH = "torch.cuda.CUDAGraph"
"""The op of what a replayed graph computes."""
GRAPHED = "torch.cuda.graphs"
"""The Python module of the forward that torch.cuda.make_graphed_callables puts into a module."""
ONEDNN = "prim::mkldnn"
"""The beginning of the names of oneDNN's operators in a graph of TorchScript; some are written in capitals."""
CALLED = "_compiled_call_impl"
"""The attribute that a module calls, if it has it, instead of its hooks and its forward. Copies of a module lack it."""


class ModuleRecord:
    """A module of the model in one run: all that an observer keeps of it.

    ``formula`` is that which counts its calls as a whole, None if it is no leaf, and UNKNOWN until somebody asks. ``initial``
    are the settings that it had when the run began, if they matter. The rest is what :class:`~.leaves.Settings` has read last.

    It is also the module's stand-in: what the module calls instead of its hooks and its forward, once it is attached.
    """

    __slots__ = ("before", "call", "formula", "initial", "module", "path", "seen", "settings")

    def __init__(self, module: nn.Module, path: str) -> None:
        self.module = module
        self.path = path
        self.formula: Any = UNKNOWN
        self.initial: Any = None
        self.seen: tuple[Any, ...] = ()
        self.settings: Any = None
        self.before: Any = None
        self.call: Callable[..., Any] = _not_attached

    def attach(self, call: Callable[..., Any]) -> None:
        """Let calls of the module be calls of ``call(record, *args, **kwargs)``; a direct call of its forward is none.

        So it may be where a call of the module runs no more than its forward: see :func:`has_plain_call`, :func:`is_hooked`.
        """
        held = self.module.__dict__
        self.call, self.before = call, held.get(CALLED)
        held[CALLED] = self

    def leave(self) -> None:
        """Remove the stand-in; put back what :meth:`torch.nn.Module.compile` had put there."""
        held = self.module.__dict__
        if held.get(CALLED) is self:
            del held[CALLED]
            if self.before is not None:
                held[CALLED] = self.before

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # Whoever copies a module's attributes one by one (higher does) copies this, too. So ask the caller, torch's
        # _wrapped_call_impl, which module is called.
        module = self.module
        called = sys._getframe(1).f_locals.get("self", module)
        return self.call(self, *args, **kwargs) if called is module else called._call_impl(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the module's attributes has no stand-in."""


UNKNOWN = object()
"""In place of a formula that nobody has looked for yet."""


def _not_attached(record: ModuleRecord, *args: Any, **kwargs: Any) -> Any:
    return record.module._call_impl(*args, **kwargs)


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


def is_unhooked(module: nn.Module, callers: Sequence[Running]) -> bool:
    """Return whether tools never see a call of this module by their hooks: TorchScript, or a flat program, made it."""
    if isinstance(module, Part):
        return True
    return isinstance(module, ScriptModule) and bool(callers) and isinstance(callers[-1].module, ScriptModule)
