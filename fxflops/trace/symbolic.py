"""Symbolic tracing by torch.fx: the model's Python code runs once on proxies."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

from ..errors import TraceError
from ..model.inputs import signature_of
from ..model.locks import locked
from ..model.modules import Called
from ..ops import FormulaRegistry
from .graph import graph_module, leaf_graph
from .leaves import leaf_formula
from .source import line_that_raised
from .uninitialized_reads import BeforeWriteMode


class SymbolicTracer(fx.Tracer):
    """torch.fx's tracer with fxflops's leaf modules. ``constants`` has values for parameters of ``forward``, by name.

    While torch.fx traces, it replaces methods of ``nn.Module`` for all threads. With this tracer, modules called in other threads
    still run as usual.
    """

    def __init__(
        self,
        registry: FormulaRegistry | None = None,
        constants: Mapping[str, Any] | None = None,
        called: Callable[..., Any] | None = None,
    ) -> None:
        """``called`` is the function or method to trace, unless the model's forward is to be traced."""
        super().__init__(autowrap_functions=tuple(registry.python_functions.values()) if registry else ())
        self._called = called
        self._registry = registry
        self._constants = constants or {}
        self._thread = threading.get_ident()
        self.before_write: Callable[[Any], None] = lambda value: None
        # The error of a proxy that was used as a condition, or was iterated. If the model catches the error, it takes another path than usual.
        self.proxy_error: fx.proxy.TraceError | None = None

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self._noting_error(super().to_bool, obj))

    def iter(self, obj: fx.Proxy) -> Any:
        return self._noting_error(super().iter, obj)

    def _noting_error(self, convert: Callable[[fx.Proxy], Any], proxy: fx.Proxy) -> Any:
        try:
            return convert(proxy)
        except fx.proxy.TraceError as error:
            self.proxy_error = error.with_traceback(None)
            raise

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self._is_tracing():
            return super().call_module(m, forward, args, kwargs)
        is_of_this_model = any(
            isinstance(value, fx.Proxy) and value.tracer is self for value in (*args, *kwargs.values())
        )
        # Another thread that runs this model may write to the model's tensors.
        with BeforeWriteMode(self.before_write) if is_of_this_model else nullcontext():
            return forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return super().getattr(attr, attr_val, parameter_proxy_cache) if self._is_tracing() else attr_val

    def _is_tracing(self) -> bool:
        return threading.get_ident() == self._thread

    def restore_attributes(self) -> None:
        """Restore the tensors that were in the model's plain attributes before the trace.

        ``self.mean = self.mean * 0.9 + x.mean()`` leaves a proxy in the attribute, which the graph then reads. If the graph ran with
        the proxy, it would add nodes after its own output.
        """
        for tensor, target in self.tensor_attrs.items():
            path, _, name = target.rpartition(".")
            attributes = vars(self.root.get_submodule(path))
            if name in attributes and attributes[name] is not tensor:
                attributes[name] = tensor

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self._registry is not None and leaf_formula(m, self._registry) is not None:
            return True
        customised = hasattr(m, "parametrizations") or m._forward_hooks or m._forward_pre_hooks
        return not customised and super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        if self._called is not None:
            return self._args_of_callable(self._called, concrete_args)
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        return function, self._with_constants(root_fn, args)

    def _args_of_callable(self, called: Any, concrete_args: Any) -> tuple[Any, list[Any]]:
        """Return the function to trace instead of the root's forward, and the function's arguments.

        Raises TypeError if ``called`` is not a function or method written in Python.
        """
        function = getattr(called, "__func__", called)
        if type(function) is not FunctionType:
            raise TypeError(f"{type(called).__name__} is not a function written in Python")
        is_method = function is not called
        root_function, args = super().create_args_for_root(function, is_method, concrete_args)
        args = self._with_constants(function, args)
        return root_function, [called.__self__, *args[1:]] if is_method else args

    def _with_constants(self, function: Any, args: list[Any]) -> list[Any]:
        code = inspect.unwrap(function).__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for position, name in enumerate(names):
            if name in self._constants:
                args[position] = self._constants[name]
        return args


def symbolic(
    model: nn.Module,
    registry: FormulaRegistry,
    constants: Mapping[str, Any],
    before_write: Callable[[Any], None],
    stack_traces: bool = False,
) -> fx.GraphModule:
    """Return the model as a GraphModule whose nodes carry ``nn_module_stack``.

    ``constants`` has the values of the non-tensor parameters of ``forward``, which decide the branches that depend on these parameters.
    ``before_write(value)`` is called before the model's code may write to a tensor. Raises TraceError,
    with the author's line, if the code cannot run on proxies.
    """
    if leaf_formula(model, registry) is not None:
        return leaf_graph(model, constants)
    called = model.forward if isinstance(model, Called) else None
    tracer = SymbolicTracer(registry, constants, called)
    tracer.record_stack_traces, tracer.before_write = stack_traces, before_write
    try:
        # Let only one tracer run at a time. Of two tracers, each would restore methods that the other tracer has replaced.
        with locked([fx.Tracer]), BeforeWriteMode(before_write):
            graph = tracer.trace(model.roots.get("", model) if isinstance(model, Called) else model)
            tracer.restore_attributes()
        if tracer.proxy_error is not None:
            raise tracer.proxy_error  # the model caught it
        graph.lint()  # raises if a proxy was deep-copied, since the copy has its own graph
        return graph_module(tracer.root, graph, type(model).__name__)
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        raise TraceError(
            f"torch.fx cannot trace {type(model).__name__} symbolically: {type(error).__name__}: {message}"
            f"{line_that_raised(error)}",
            advice="record",
        ) from error
    finally:
        # torch.fx leaves a tracer in reference cycles, so delete the tracer's attributes, except for ``_thread`` and ``before_write``.
        # Another thread may still read these two attributes, in a call that began while nn.Module's methods were replaced.
        for name in vars(tracer).keys() - {"_thread", "before_write"}:
            delattr(tracer, name)
        tracer.before_write = lambda value: None
        tracer._autowrap_function_ids = set()


def stack_of(node: fx.Node) -> tuple[str, type | None]:
    """Return path and class of the innermost module of a node; ("", None) for a node of the root."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", None
    path, cls = next(reversed(stack.values()))
    return path, cls if isinstance(cls, type) else None


def constants_of(model: nn.Module, bound: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the non-tensor arguments of ``forward``, which are constants in a graph.

    ``bound`` has the passed arguments by name; all other parameters have their defaults.
    """
    arguments = {name: p.default for name, p in signature_of(model).parameters.items()} | dict(bound or {})
    constant_types = (bool, int, float, str, type(None), torch.dtype)
    return {name: value for name, value in arguments.items() if isinstance(value, constant_types)}
