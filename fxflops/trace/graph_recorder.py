"""The recorder: it writes the calls of one observed run as an ``fx.Graph`` that replays them.

Leaf modules become ``call_module`` nodes, functions become ``call_function`` nodes, and methods become ``call_method`` nodes.
Parameters, buffers and captured tensors become ``get_attr`` nodes. Control flow is unrolled; values read from tensors become
constants.
"""

from __future__ import annotations

import copy
import enum
import inspect
import operator
import weakref
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from ..model.inputs import signature_of
from ..model.modules import named_buffers, named_modules, named_parameters, submodule
from ..model.pytree import Access, fill, is_training, template_of, tensors_in, walk
from ..ops._registry import is_method
from ..records import Call
from ..records.tensors import is_dense
from ..torch_internals import (
    DisableTorchFunction,
    OpOverload,
    disable_current_modes,
    get_qualified_name,
    is_traceable_wrapper_subclass,
    set_grad_enabled,
)
from .autocast import autocast_state
from .graph import graph_module
from .source import author_line, in_function

CONSTANTS = (
    bool, int, float, complex, str, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
OPERATORS = {"__getitem__": operator.getitem, "__setitem__": operator.setitem, "__deepcopy__": copy.deepcopy}
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
NodeArguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Origin(NamedTuple):
    """The origin of a tensor: a node, and the path of items and attributes that leads from the node's value to the tensor."""

    tensor: weakref.ref[torch.Tensor]
    node: fx.Node
    access_path: tuple[Access, ...]


class GraphListener:
    """Gets the calls of a run that a graph needs. This class writes no graph; :class:`GraphRecorder` does."""

    writes_graph = False

    def begin(self, calls: Sequence[Call]) -> None:
        """Begin a run whose calls the observer appends to ``calls``."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeArguments | None:
        """Return the arguments of the next call, with nodes in place of tensors; None if no node is to be added."""
        return None

    def function(self, func: Any, node_args: NodeArguments, out: Any, stack: dict[str, tuple[str, type]]) -> None:
        """Add a node for a call of a function, method or operator."""

    def module(self, path: str, node_args: NodeArguments, out: Any, stack: dict[str, tuple[str, type]]) -> None:
        """Add a node for a call of a leaf module."""

    def plain(self, func: Any, node_args: NodeArguments, out: Any, stack: dict[str, tuple[str, type]]) -> None:
        """Add a node if a tensor-valued property was read or set, or a call of a class returned tensors."""

    def returned(self, out: Any) -> None:
        """Add the output node: the graph returns what the model returned."""


class GraphRecorder(GraphListener):
    """Adds a node for each call when it is made; :meth:`graph` returns the graph.

    ``call_ranges`` maps a node's name to the range of the node's calls. The range is empty
    for a node that the graph needs although the model made no such call. Tensors are identified by ``id`` and a weak reference, so
    that recording does not keep tensors alive.
    """

    writes_graph = True

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self._calls: Sequence[Call] = ()
        self.call_ranges: dict[str, range] = {}
        self._calls_assigned = 0
        self._model = model
        self._graph = fx.Graph()
        self._objects: dict[str, Any] = {}
        self._last_numbers: dict[str, int] = {}
        self._origins: dict[int, _Origin] = {}
        self._state_by_id = {id(tensor): (tensor, name) for name, tensor in _named_state(model)}
        self._autocast = autocast_state()
        self._was_grad_enabled = self._grad_enabled = torch.is_grad_enabled()
        for name, parameter in signature_of(model).parameters.items():
            if name not in inputs:
                continue
            star = STARS.get(parameter.kind, "")
            default: tuple[Any, ...] = (parameter.default,) if isinstance(parameter.default, CONSTANTS) else ()
            node = self._graph.create_node("placeholder", f"{star}{name}", () if star else default)
            self._remember(inputs[name], node)

    # Called by the observer

    def begin(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeArguments:
        with DisableTorchFunction():
            return tuple(map(self._argument, args)), {name: self._argument(value) for name, value in kwargs.items()}

    def function(self, func: Any, node_args: NodeArguments, out: Any, stack: dict[str, tuple[str, type]]) -> None:
        args, kwargs = node_args
        name = getattr(func, "__name__", "")
        if func is set_grad_enabled:
            return  # _follow_modes adds this call before the next call
        if name == "new" and is_method(func) and len(args) == 2 and args[1] == tuple(out.shape):
            # x.new(torch.Size) makes a tensor of that shape, x.new(tuple) a tensor of those values.
            args = args[0], *args[1]
        if name in OPERATORS and is_method(func):
            args = args[:1] if name == "__deepcopy__" else args  # without deepcopy's memo, which belongs to this run
            self._call("call_function", OPERATORS[name], args, kwargs, out, stack)
        elif is_method(func) and args and getattr(torch.Tensor, name, None) is func:
            self._call("call_method", name, args, kwargs, out, stack)
        elif _has_name(func):
            self._call("call_function", func, args, kwargs, out, stack)
        else:
            self._call("call_method", "__call__", (self._constant("function", func), *args), kwargs, out, stack)

    def module(self, path: str, node_args: NodeArguments, out: Any, stack: dict[str, tuple[str, type]]) -> None:
        self._objects[path] = submodule(self._model, path)
        self._call("call_module", path, *node_args, out, stack)

    def plain(self, func: Any, node_args: NodeArguments, out: Any, stack: dict[str, tuple[str, type]]) -> None:
        args = node_args[0]
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        if getattr(func, "__name__", "") == "__get__":
            if isinstance(out, torch.Tensor):
                self._call("call_function", getattr, (args[0], name), {}, out, stack)
        elif getattr(func, "__name__", "") == "__set__":
            if any(isinstance(arg, fx.Node) for arg in args[1:]):
                self._call("call_function", setattr, (args[0], name, *args[1:]), {}, out, stack)
        elif tensors_in(out):
            self.function(func, node_args, out, stack)

    def returned(self, out: Any) -> None:
        with DisableTorchFunction():
            returned = self._argument(out)
            self._follow_modes()
            self._graph.output(returned)

    def graph(self) -> fx.GraphModule:
        """Return the GraphModule of the recorded calls."""
        modules = {str(node.target) for node in self._graph.nodes if node.op == "call_module"}
        for node in self._graph.nodes:
            # GraphModule would set an attribute with this name on the user's module, so rename it.
            if node.op == "get_attr" and any(node.target.startswith(f"{path}.") for path in modules):
                name = f"_{node.target.replace('.', '_')}"
                self._objects[name] = self._objects[node.target]
                node.target = name
        used = {str(node.target) for node in self._graph.nodes if node.op in ("call_module", "get_attr")}
        graph = graph_module({name: self._objects[name] for name in used}, self._graph, type(self._model).__name__)
        graph.training = is_training(self._model)
        return graph

    # Nodes

    def _call(
        self, opcode: str, target: Any, args: Any, kwargs: Any, out: Any, stack: dict[str, tuple[str, type]]
    ) -> None:
        with DisableTorchFunction():
            self._follow_modes(returned=target == "view_as" and args[0] is args[1])
            node = self._graph.create_node(opcode, target, args, kwargs)
            self.call_ranges[node.name] = range(self._calls_assigned, len(self._calls))
            self._calls_assigned = len(self._calls)
            if stack:
                node.meta["nn_module_stack"] = stack
            file, _, line = author_line().rpartition(":")
            if file:
                node.stack_trace = f'File "{file}", line {line}'
            self._remember(out, node)

    def _remember(self, value: Any, node: fx.Node) -> None:
        for access_path, part in walk(value):
            if issubclass(type(part), torch.Tensor):
                self._origins[id(part)] = _Origin(weakref.ref(part), node, access_path)

    def _argument(self, value: Any) -> Any:
        """Return a value as an argument of a node."""
        if issubclass(type(value), torch.Tensor):
            return self._node_of(value)
        if type(value) in CONSTANTS:
            return value
        if type(value) in (tuple, torch.Size):
            return tuple(map(self._argument, value))
        if type(value) is list:
            return list(map(self._argument, value))
        if type(value) is dict:
            return {key: self._argument(item) for key, item in value.items()}
        if type(value) is slice:
            return slice(*map(self._argument, (value.start, value.stop, value.step)))
        # Generated code needs a plain number, not an instance of a subclass, such as numpy.float64.
        if isinstance(value, (bool, int, float)) and not isinstance(value, enum.Enum):
            return value.item() if hasattr(value, "item") else type(value).__mro__[-2](value)
        template, tensors = template_of(value)
        if tensors:
            nodes = [self._node_of(tensor) for tensor in tensors]
            return self._graph.call_function(fill, (self._constant("structure", template), *nodes))
        return self._constant("constant", value)

    def _node_of(self, tensor: torch.Tensor) -> fx.Node:
        origin = self._origins.get(id(tensor))
        if origin is None or origin.tensor() is not tensor:
            origin = _Origin(weakref.ref(tensor), self._node_of_unseen(tensor), ())
        node = origin.node
        for kind, key in origin.access_path:
            node = self._graph.call_function(
                operator.getitem if kind == "item" else getattr, (node, self._argument(key))
            )
            node.meta.update({k: v for k, v in origin.node.meta.items() if k == "nn_module_stack"})
        # Store this last node as the tensor's origin, so that the tensor is unpacked only once.
        self._origins[id(tensor)] = _Origin(weakref.ref(tensor), node, ())
        return node

    def _node_of_unseen(self, tensor: torch.Tensor) -> fx.Node:
        """Return a node for a tensor that no recorded call returned: a model's tensor, a view of a recorded tensor, or a constant."""
        _, name = self._state_by_id.get(id(tensor), (None, ""))
        if name:
            self._objects[name] = tensor
            return self._graph.get_attr(name)
        base = self._base_of(tensor)
        if base is not None:
            view = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
            return self._graph.call_function(torch.as_strided, (self._node_of(base), *view))
        with torch.no_grad(), disable_current_modes():
            has_storage = is_dense(tensor) and not is_traceable_wrapper_subclass(tensor)
            constant = _with_storage(tensor) if has_storage else tensor.clone()
        return self._constant(
            "tensor_constant", constant.requires_grad_(self._was_grad_enabled and tensor.requires_grad)
        )

    def _base_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not is_dense(tensor):
            return None
        storage = tensor.untyped_storage()._cdata
        recorded = [other for origin in self._origins.values() if (other := origin.tensor()) is not None]
        for other in (*recorded, *(state_tensor for state_tensor, _ in self._state_by_id.values())):
            may_be_base = is_dense(other) and other.dtype is tensor.dtype
            if may_be_base and other.untyped_storage()._cdata == storage:
                return other
        return None

    def _constant(self, kind: str, value: Any) -> fx.Node:
        number = self._last_numbers[kind] = self._last_numbers.get(kind, -1) + 1
        name = f"_{kind}{number}"
        self._objects[name] = value
        return self._graph.get_attr(name)

    def _follow_modes(self, returned: bool = False) -> None:
        """Add nodes that switch autocast and gradients as the model did.

        Gradients are off in the forward of an ``autograd.Function``. In the graph they must be on, because there the calls in that
        forward replace the function. The same holds for the view that torch makes if the function returns one of its inputs.
        """
        autocast = autocast_state()
        for device, (enabled, dtype) in autocast.items():
            if self._autocast[device] != (enabled, dtype):
                self._graph.call_function(torch.set_autocast_enabled, (device, enabled))
                self._graph.call_function(torch.set_autocast_dtype, (device, dtype))
        self._autocast = autocast
        grad_enabled = torch.is_grad_enabled() or (self._was_grad_enabled and (returned or in_function()))
        if grad_enabled != self._grad_enabled:
            self._graph.call_function(set_grad_enabled, (grad_enabled,))
        self._grad_enabled = grad_enabled


def _with_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor with its whole storage, since other views of that storage may be recorded later."""
    storage = tensor.untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _named_state(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return all parameters, buffers, and tensors in plain attributes of modules, with their names."""
    named = [*named_parameters(model, each_once=False), *named_buffers(model, each_once=False)]
    for path, module in named_modules(model):
        for name, value in vars(module).items():
            if issubclass(type(value), torch.Tensor):
                named.append((f"{path}.{name}".lstrip("."), value))
    return named


def _has_name(func: Any) -> bool:
    """Return whether the code that torch.fx generates can name a function."""
    if isinstance(func, FunctionType) and not func.__name__.isidentifier():
        return False
    try:
        package, _, path = get_qualified_name(func).partition(".")
        # Generated code looks up torch's functions by name, and gets all other functions as globals.
        return package != "torch" or operator.attrgetter(path)(torch) is func or isinstance(func, OpOverload)
    except (RuntimeError, AttributeError):
        return False
