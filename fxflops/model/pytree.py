"""Walk through nested values that contain tensors: tuples, lists, mappings, dataclasses, and plain objects such as a KV cache."""

from __future__ import annotations

import copy
import enum
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter, methodcaller
from threading import local
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..records.containers import MAPPINGS, SEQUENCES, items_of, pairs_of
from ..records.tensors import ORDINARY, is_wrapper, parts_of_sparse
from ..torch_internals import C_MODULE, class_of_script_object

Access = tuple[str, Any]
"""How to access a part from its container: ``("item", key)`` or ``("attr", name)``."""


class Hole(NamedTuple):
    """A placeholder in a template for the tensor with this number."""

    number: int


class Filling(NamedTuple):
    """A placeholder in a template for a mapping that accepts only tensors (a TensorDict). ``parts`` are the templates of its parts."""

    value: Any
    parts: list[tuple[Access, Any]]


HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE marks classes of class statements; their member descriptors are their slots
Place = MemberDescriptorType | GetSetDescriptorType
NOTHING = object()
"""The result of :func:`value_at` for a slot or cell that is not set."""
OPAQUE = torch.Tensor, nn.Module, ModuleType, type, enum.Enum


def parts(value: Any) -> list[tuple[Access, Any]]:
    """Return the parts of a container or object, each with its key or attribute. Return [] for a tensor, plain value, module, class or function.

    Python's own containers and their subclasses are read with Python's own methods. The parts of any other object are its attributes
    and slots. No code of the object's class runs, because the code of a third-party mapping may raise, or may load a file for each item.
    """
    kind = type(value)
    if issubclass(kind, SEQUENCES):
        return [(("item", i), part) for i, part in enumerate(items_of(value))]
    if issubclass(kind, MAPPINGS):
        return [(("item", key), part) for key, part in pairs_of(value)]
    attributes = [*vars_of(value).items()] if is_object(value) else []
    if not (issubclass(kind, OPAQUE) or callable(value)):
        attributes += [
            (slot.__name__, part) for slot in slots_in(kind) if (part := value_at(slot, value)) is not NOTHING
        ]
    return [(("attr", name), part) for name, part in attributes]


def slots_in(kind: type) -> list[MemberDescriptorType]:
    """Return the slots of a class and its bases. Classes defined in C are skipped."""
    classes = [cls for cls in kind.__mro__ if cls.__flags__ & HEAP_TYPE and "__slots__" in vars(cls)]
    return [place for cls in classes for place in vars(cls).values() if type(place) is MemberDescriptorType]


def value_at(place: Place, owner: Any) -> Any:
    """Return the value in an object's slot or a closure's cell; :data:`NOTHING` if the slot or cell is not set."""
    try:
        return place.__get__(owner)
    except (AttributeError, ValueError):
        return NOTHING


def vars_of(value: Any) -> dict[str, Any]:
    """Return the ``__dict__`` of an object without running code of its class. The object must have a ``__dict__``."""
    attributes = attributes_in(value)
    assert attributes is not None
    return attributes


def attributes_in(value: Any) -> dict[str, Any] | None:
    """Return the ``__dict__`` of an object without running code of its class; None if the object has no ``__dict__``."""
    for base in type(value).__mro__:
        descriptor = vars(base).get("__dict__")
        if type(descriptor) in (GetSetDescriptorType, MemberDescriptorType):  # a member descriptor in SimpleNamespace
            return descriptor.__get__(value)  # type: ignore[no-any-return, union-attr]
    if issubclass(type(value), local):  # its dict, another in each thread, has no descriptor
        attributes: dict[str, Any] = local.__getattribute__(value, "__dict__")
        return attributes
    return None


def is_object(value: Any) -> bool:
    """Return whether a value is a user's object that may have tensors as attributes."""
    cls = type(value)
    if issubclass(cls, OPAQUE) or callable(value):
        return False
    return attributes_in(value) is not None and not str(cls.__module__).startswith(C_MODULE)


def walk(value: Any, depth: int = 1000) -> Iterator[tuple[tuple[Access, ...], Any]]:
    """Yield the value and all its nested parts, at most ``depth`` levels deep. Each part comes with the keys and attributes that lead to it.

    The value itself comes first. An object that occurs several times is yielded once.
    """
    seen: set[int] = set()
    stack: list[tuple[tuple[Access, ...], Any]] = [((), value)]
    while stack:
        path, part = stack.pop()
        if issubclass(type(part), (str, bytes, int, float, type(None))) or id(part) in seen:
            continue
        seen.add(id(part))
        yield path, part
        if len(path) < depth:
            stack.extend(((*path, step), inner) for step, inner in reversed(parts(part)))


VALUES = methodcaller("values")
Reader = Callable[[dict[str, Any]], tuple[Any, ...]]


def reader_of(names: Sequence[str]) -> Reader:
    """Return a function that returns the values of these keys from a dict."""
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda attributes: (attributes[names[0]],)) if names else lambda attributes: ()


def is_training(module: nn.Module) -> bool:
    """Return whether a module is in train mode; False for a frozen TorchScript module, which has no ``training`` flag."""
    return bool(getattr(module, "training", False))


def attributes_of(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the values of all attributes of modules. No Python bytecode runs while a module is read, because other threads could set the
    module's attributes between two bytecodes."""
    return [*chain.from_iterable(map(VALUES, map(vars, modules)))]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in a value, in order, also those in objects. :func:`tensors_given` is faster, but searches only containers."""
    if issubclass(type(value), torch.Tensor):
        return [value]
    return [part for _, part in walk(value) if issubclass(type(part), torch.Tensor)]


def device_of(value: Any) -> torch.device | None:
    """Return the device of the first tensor in a value that is not on meta. Return meta if all tensors are on meta, None without
    tensors."""
    devices = [tensor.device for tensor in tensors_in(value)]
    return next((device for device in devices if device.type != "meta"), devices[0] if devices else None)


def caches_in(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of the KV caches in a model's output, each with its path in the cache, e.g. ``layers.0.keys``.

    A cache is an object whose class name ends with "Cache", e.g. transformers' ``DynamicCache``.
    """
    caches = [part for _, part in walk(value, depth=2) if type(part).__name__.endswith("Cache")]
    inside = [(path, part) for cache in caches for path, part in walk(cache)]
    return [
        (".".join(str(name) for _, name in path), part) for path, part in inside if issubclass(type(part), torch.Tensor)
    ]


def stored(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that store a tensor's data.

    For a sparse tensor, these are its indices and values. For a wrapper class (quantized, sharded, masked), they are the inner tensors. For
    any other tensor, it is the tensor itself.
    """
    if type(tensor) in ORDINARY:
        return [tensor] if tensor.layout is torch.strided else parts_of_sparse(tensor)
    if hasattr(tensor, "__tensor_flatten__"):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # with a DTensor's mesh
    elif is_wrapper(tensor):
        inner = [*vars(tensor).values()]
    else:
        return [tensor]
    return [part for each in inner if isinstance(each, torch.Tensor) for part in stored(each)]


def unpacked(value: Any) -> list[torch.Tensor]:
    """Return copies of the weights in a quantized layer's packed-parameter object, in the width in which they are stored. Return [] for any
    other object.

    A half-precision layer (``quantize_dynamic(..., dtype=torch.float16)``) stores an f16 weight but unpacks it to f32. The layer
    stores its bias as f32.
    """
    if not issubclass(type(value), torch.ScriptObject):
        return []
    read: Any = getattr(value, "unpack", None) or getattr(value, "__getstate__", tuple)
    parts = [part for _, part in walk(read())]
    inner = [
        weight for part in parts if part is not value for weight in unpacked(part)
    ]  # includes an RNN cell's biases
    if inner:
        return inner
    tensors = [part for part in parts if issubclass(type(part), torch.Tensor)]
    if (
        tensors
        and tensors[0].dtype is torch.float32
        and class_of_script_object(value).endswith(".LinearPackedParamsBase")
    ):
        tensors[0] = tensors[0].half()  # the weight comes first; an integer weight would unpack as quantized, not f32
    return tensors


def tensors_given(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    if issubclass(type(value), torch.Tensor):
        return [value]
    tensors: list[torch.Tensor] = []
    kind = type(value)
    if issubclass(kind, dict):
        value = value.values() if kind is dict else [item for _, item in pairs_of(value)]
    elif kind is not tuple and kind is not list:
        value = items_of(value) if issubclass(kind, (tuple, list)) else ()
    for item in value:
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            tensors.append(item)
        elif issubclass(kind, (tuple, list, dict)):
            tensors += tensors_given(item)
    return tensors


def template_of(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a copy of the value in which each tensor is replaced by a :class:`Hole`, and the list of the tensors. :func:`fill` is the inverse."""
    holes: dict[int, tuple[Hole, torch.Tensor]] = {}

    def hole(tensor: torch.Tensor) -> Hole:
        return holes.setdefault(id(tensor), (Hole(len(holes)), tensor))[0]

    template = replaced(value, lambda part: issubclass(type(part), torch.Tensor), hole, _templated)
    return template, [tensor for _, tensor in holes.values()]


def fill(template: Any, *tensors: Any) -> Any:
    """Return a copy of the template with its holes replaced by these tensors."""

    def filled(part: Any) -> Any:
        if isinstance(part, Hole):
            return tensors[part.number]
        return _copied(part.value, [(step, fill(inner, *tensors)) for step, inner in part.parts])

    return replaced(template, lambda part: isinstance(part, (Hole, Filling)), filled)


Changed = list[tuple[Access, Any]]


def _templated(value: Any, changed: Changed) -> Any:
    takes_all = isinstance(value, (dict, UserDict)) or not isinstance(value, Mapping)
    return _copied(value, changed) if takes_all else Filling(value, changed)


def _copied(value: Any, changed: Changed) -> Any:
    if issubclass(type(value), tuple):
        new_parts = {key: part for (_, key), part in changed}
        items = [new_parts.get(i, part) for i, part in enumerate(value)]
        is_structseq = hasattr(value, "n_sequence_fields")  # a class in torch.return_types
        return type(value)(items) if is_structseq else tuple.__new__(type(value), items)
    result = copy.copy(value)
    for (kind, key), part in changed:
        if kind == "item":
            result[key] = part
        else:
            object.__setattr__(result, key, part)
    return result


def replaced(
    value: Any,
    is_leaf: Callable[[Any], bool],
    replace: Callable[[Any], Any],
    copied: Callable[[Any, Changed], Any] = _copied,
    memo: dict[int, tuple[Any, Any]] | None = None,
) -> Any:
    """Return a copy of the value with its leaves replaced. Parts without leaves are not copied.

    ``copied(container, changed)`` returns a copy of a container with its changed parts. ``memo`` maps the ids of visited containers
    to the containers and their copies.
    """
    if is_leaf(value):
        return replace(value)
    memo = {} if memo is None else memo
    if id(value) not in memo:
        memo[id(value)] = (value, value)
        changed = [
            (step, new)
            for step, part in parts(value)
            if (new := replaced(part, is_leaf, replace, copied, memo)) is not part
        ]
        memo[id(value)] = (value, copied(value, changed) if changed else value)
    return memo[id(value)][1]
