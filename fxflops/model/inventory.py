"""Collect a model's modules with their paths, and its parameters and buffers by name, in one walk."""

from __future__ import annotations

import sys
from functools import cached_property
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.jit import ScriptModule
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from ..errors import InputError
from ..records import Module, Params
from ..records.tensors import ORDINARY, is_dense
from ..torch_internals import graphs_of, packed_in_script
from .hidden import hidden_from_modes
from .modules import ByIdentity, class_name, modules_of
from .pytree import stored, unpacked

FUNCTIONS = frozenset({FunctionType, BuiltinFunctionType})
LOOKED_INTO = FUNCTIONS | {torch.ScriptObject}
"""The types of attributes that are functions or may contain packed weights."""
NO_FUNCTIONS: frozenset[Any] = frozenset()
UNQUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
"""Quantized dtypes, mapped to the plain dtype of the same width."""


class Inventory:
    """The modules of a model, and its parameters and buffers by their full names, without duplicates.

    ``path_of`` maps each module to its path. If a module has several paths, ``aliases`` maps each of the other paths to the first. Other paths of its submodules are not listed.

    ``packed`` are meta tensors for two kinds of weights: weights in packed-parameter objects of quantized layers, and weights that
    TorchScript stores as graph constants, e.g. after ``torch.jit.freeze``. ``constants`` are TorchScript's other constants.

    If a module has functions among its attributes, ``functions_of`` maps the module to these functions. For a callable
    (:class:`~fxflops.model.modules.Called`), the modules are those that are reachable from the callable.

    ``shapeless`` are lazy modules whose parameters have no shape yet. Raises InputError if there are lazy modules, unless ``lazy``.
    """

    @hidden_from_modes
    def __init__(self, model: nn.Module, lazy: bool = False) -> None:
        self.path_of, self.aliases = modules_of(model)
        self.modules = tuple(self.path_of)  # in the order of their paths in the model
        self._name = type(model).__name__
        self.params: list[tuple[str, torch.Tensor]] = []
        self.buffers: list[tuple[str, torch.Tensor]] = []
        self.packed: list[tuple[str, torch.Tensor]] = []
        self.constants: list[tuple[str, torch.Tensor]] = []
        self.functions_of = ByIdentity[frozenset[Any]]()
        self._first_params: list[int] = []  # the index in params of each module's first own parameter, then len(params)
        seen_ids, constant_storages = set[int](), set[int]()
        for module, path in self.path_of.items():
            attributes = [*module.__dict__.values()]  # copied, since other threads may set attributes meanwhile
            if not LOOKED_INTO.isdisjoint(map(type, attributes)):
                self.functions_of[module] = frozenset(value for value in attributes if type(value) in FUNCTIONS)
                self.packed += [(path, weight) for value in attributes for weight in _packed(value)]
            if isinstance(module, ScriptModule):
                self.packed += [(path, weight) for value in packed_in_script(module) for weight in _packed(value)]
                for name, constant, is_weight in constants_of(module, path):
                    if (storage := constant.untyped_storage()._cdata) in constant_storages:
                        continue  # the constants of an inlined graph are also in the outer graph
                    constant_storages.add(storage)
                    (self.packed if is_weight else self.constants).append((name, constant))
            self._first_params.append(len(self.params))
            registries = (module._parameters, self.params), (module._buffers, self.buffers)
            for registry, named_tensors in registries if registries[0][0] or registries[1][0] else ():
                for name, tensor in registry.items():
                    if tensor is not None and id(tensor) not in seen_ids:
                        seen_ids.add(id(tensor))
                        named_tensors.append((f"{path}.{name}" if path else name, tensor))
        self._first_params.append(len(self.params))
        self.shapeless: list[nn.Module] = []
        classes = {type(tensor) for _, tensor in (*self.params, *self.buffers)}
        if any(issubclass(cls, UninitializedTensorMixin) for cls in classes):
            self.shapeless = [
                module
                for module in self.path_of
                if any(map(_is_shapeless, (*module._parameters.values(), *module._buffers.values())))
            ]
            if not lazy:
                names = [name for name, tensor in self.params if _is_shapeless(tensor)]
                name = [*names, "a buffer"][0].rpartition(".")[2]
                raise InputError(
                    f"{type(model).__name__} has parameters that have no shape yet ({name}): run the model once on an input"
                )

    @cached_property
    @hidden_from_modes
    def contents(self) -> tuple[tuple[Module, ...], Params]:
        """The modules and the parameter totals that a report shows."""
        sizes = [_local_numel(parameter) for _, parameter in self.params]
        trained = [size if p.requires_grad else 0 for size, (_, p) in zip(sizes, self.params, strict=True)]
        modules = self._root()
        make_tuple = tuple.__new__  # skips NamedTuple's __new__: a large model has thousands of modules
        functions_in, has_functions = self.functions_of.get, bool(self.functions_of)
        for (module, path), (first, last) in zip(self.path_of.items(), pairwise(self._first_params), strict=True):
            own = sum(sizes[first:last]) if first < last else 0
            frozen = own - sum(trained[first:last]) if own else 0
            functions = (
                frozenset(filter(_is_global, functions_in(module, NO_FUNCTIONS))) if has_functions else NO_FUNCTIONS
            )
            modules.append(make_tuple(Module, (path, class_name(module), own, functions, frozen)))
        packed = sum([weight.numel() for _, weight in self.packed])
        total, buffers = sum(sizes) + packed, sum([buffer.numel() for _, buffer in self.buffers])
        parts = [part for _, parameter in [*self.params, *self.packed] for part in stored(parameter)]
        storages = {s._cdata: s for part in parts if is_dense(part) for s in [part.untyped_storage()]}  # each once
        nbytes = sum([storage.nbytes() for storage in storages.values()])
        sharded = sum([size for size, (_, p) in zip(sizes, self.params, strict=True) if size < p.numel()])
        return tuple(modules), Params(total, sum(trained), total - sum(trained), buffers, nbytes, sharded)

    def _root(self) -> list[Module]:
        """If the root is a callable, return a list with the root's record. If the root is a module, return an empty list."""
        return [] if "" in self.path_of.values() else [Module("", self._name)]


def _is_global(function: Any) -> bool:
    """Return whether a function belongs to a Python module or to a class. A function of a Python module or class outlives the model.

    A report must not keep a reference to any other function. A closure may keep the model alive, and a bound method keeps its object alive.
    """
    if isinstance(function, BuiltinFunctionType):
        return isinstance(function.__self__, ModuleType | type | None)
    owner = sys.modules.get(function.__module__)
    return owner is not None and vars(owner).get(function.__name__) is function


def _local_numel(parameter: torch.Tensor) -> int:
    """Return how many elements of a parameter are stored in this process. For a DTensor, this is the size of the local shard."""
    if type(parameter) in ORDINARY or not hasattr(parameter, "device_mesh"):
        return parameter.numel()
    return sum(part.numel() for part in stored(parameter))


def _is_shapeless(tensor: torch.Tensor | None) -> bool:
    return isinstance(tensor, UninitializedTensorMixin)


def constants_of(module: ScriptModule, path: str) -> list[tuple[str, torch.Tensor, bool]]:
    """Return the constant tensors in the graphs of a scripted module's methods, with their names and whether they are weights.

    A weight is a floating-point tensor that a node uses. Skips 0-d tensors, since tracing turns plain numbers into 0-d tensors.
    """
    constants = dict[int, tuple[str, torch.Tensor, bool]]()
    for graph in graphs_of(module):
        blocks: list[Any] = [graph]
        for block in blocks:
            for node in block.nodes():
                blocks += node.blocks()
                if node.kind() != "prim::Constant" or not node.hasAttribute("value") or node.kindOf("value") != "t":
                    continue
                tensor, out = node.t("value"), node.output()
                if tensor.ndim:
                    dense = (
                        tensor
                        if tensor.layout is torch.strided
                        else torch.empty_like(tensor, layout=torch.strided, device="meta")
                    )
                    is_weight = tensor.is_floating_point() and bool(out.uses())
                    constants[dense.untyped_storage()._cdata] = (
                        f"{path}.{out.debugName()}".lstrip("."),
                        dense,
                        is_weight,
                    )
    return [*constants.values()]


def _packed(value: Any) -> list[torch.Tensor]:
    """Return meta tensors with the shapes of the weights in a quantized layer's packed-parameter object."""
    with torch.no_grad():
        return [torch.empty(w.shape, dtype=UNQUANTIZED.get(w.dtype, w.dtype), device="meta") for w in unpacked(value)]
