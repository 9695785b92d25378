"""What tells modules apart in what they do: one number for all that the forward of a module can read of it.

Two modules of the same number run the same code, with the same settings, on parameters and buffers of the same form;
and so do their submodules. What cannot be told (an object of a library, a tensor that is no buffer) has no number.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ..state import ATOMS, HOOKS, OWN
from ..structure import is_object

DEEPEST = 8
LARGEST = 2**24
"""Bytes of the largest tensor of which the values are read, to tell it from others."""
PLAIN_TYPES = (torch.layout, torch.memory_format, enum.Enum, type(...))
TENSORS = (torch.Tensor, nn.Parameter)


class Unknown(Exception):
    """What is done follows from more than can be told."""


class Tokens:
    """The numbers of a model's modules, each found when it is first asked for; ``known`` holds all that were ever given.

    ``modules`` are the model's, with their paths: a submodule that is at home elsewhere has no number here.
    """

    def __init__(self, known: dict[Any, int], modules: Mapping[nn.Module, str]) -> None:
        self._known = known
        self._modules = modules
        self._tokens: dict[nn.Module, int | None] = {}
        self._objects: dict[int, tuple[Any, Any]] = {}
        self._values: dict[int, tuple[weakref.ref[torch.Tensor], int, bytes]] = {}
        self.writes = 0

    def of(self, module: nn.Module) -> int | None:
        """The module's number; None where it has none."""
        if module not in self._tokens:
            try:
                with torch._C.DisableTorchFunction():
                    key = self._key(module)
                    self._tokens[module] = self._known.setdefault(key, len(self._known))
            except (Unknown, TypeError):  # TypeError: no hash
                self._tokens[module] = None
        return self._tokens[module]

    def forget(self) -> None:
        """An attribute of a module was written."""
        self.writes += 1
        self._tokens.clear()

    def _key(self, module: nn.Module) -> tuple[Any, ...]:
        cls: Any = type(module)
        held = vars(module)
        layout, values_of = _layout_of(held)
        values = values_of(held)
        kinds = tuple(map(type, values))
        about = [cls, layout, kinds, values]
        if not ATOMS.issuperset(kinds):
            about[3:] = self._all_frozen(values)
        for tensor in held["_parameters"].values():
            about.append(None if tensor is None else _form(tensor))
        if held["_buffers"]:
            unread = is_torchs(cls)  # torch's own modules read no values of their integers
            for tensor in held["_buffers"].values():
                about.append(None if tensor is None else _form(tensor))
                if not (unread or tensor is None or tensor.is_floating_point() or tensor.is_complex()):
                    about.append(self.values(tensor))
        about += *held["_parameters"], *held["_buffers"]
        if not held["_modules"]:
            return tuple(about)
        home = len(self._modules[module])
        for name, child in held["_modules"].items():
            if child is None:
                about += name, None
                continue
            token, path = self.of(child), self._modules.get(child, "")
            if token is None or not (path.startswith(self._modules[module]) and path[home:]):
                raise Unknown
            about += name, token, path[home:] if home else f".{path}"
        return tuple(about)

    def values(self, tensor: torch.Tensor) -> bytes:
        """A digest of a tensor's values. Raises Unknown where they are not at hand."""
        if tensor.numel() == 1 and tensor.device.type == "cpu":
            return repr(tensor.item()).encode()
        known = self._values.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        if tensor.device.type != "cpu" or tensor.untyped_storage().nbytes() > LARGEST:
            raise Unknown
        with _disable_current_modes():
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            digest = hashlib.blake2b(raw.tobytes(), digest_size=16).digest()
        self._values[id(tensor)] = weakref.ref(tensor), tensor._version, digest
        return digest

    def _all_frozen(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Values as ones that can be compared, by themselves where they are plain and tuples of these."""
        others = [value for value in values if type(value) not in ATOMS]
        if {*map(type, others)} == {tuple}:
            inner = tuple(map(type, itertools.chain.from_iterable(others)))
            if ATOMS.issuperset(inner):
                return values, inner
        return tuple(value if type(value) in ATOMS else self._frozen(value) for value in values)

    def _frozen(self, value: Any, depth: int = 0) -> Any:
        """The value as one that can be compared: equal where what it holds is. Raises Unknown where that cannot be told."""
        kind = type(value)
        if kind in ATOMS or isinstance(value, PLAIN_TYPES):
            return kind, value
        if depth > DEEPEST:
            raise Unknown
        if kind in (tuple, list):
            return kind, *(self._frozen(item, depth + 1) for item in value)
        if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
            return kind, *((key, self._frozen(item, depth + 1)) for key, item in value.items())
        if kind in (set, frozenset) and all(type(item) in ATOMS for item in value):
            return kind, frozenset(value)
        if kind is functools.partial:
            return kind, value.func, self._frozen(value.args, depth + 1), self._frozen(value.keywords, depth + 1)
        if isinstance(value, (tuple, list, dict, set, frozenset)) or not is_object(value):
            raise Unknown
        if id(value) not in self._objects:
            self._objects[id(value)] = value, (kind, self._frozen(vars(value), depth + 1))
        return self._objects[id(value)][1]


@functools.cache
def is_torchs(cls: Any) -> bool:
    """Whether the forward of a module class is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")


WRITING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"})
WRITERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals"})


@functools.cache
def may_write(cls: Any) -> bool:
    """Whether the forward of a class, or a method that it calls, has code that writes an attribute or a global name."""
    if is_torchs(cls):
        return False
    seen, waiting = set[CodeType](), [_code_of(vars(base).get("forward")) for base in cls.__mro__]
    while waiting:
        code = waiting.pop()
        if code is None or code in seen:
            continue
        seen.add(code)
        if any(step.opname in WRITING for step in dis.get_instructions(code)) or not WRITERS.isdisjoint(code.co_names):
            return True
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
        waiting += [_code_of(getattr(cls, name, None)) for name in code.co_names if not hasattr(nn.Module, name)]
    return False


def _code_of(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None


@contextmanager
def telling_of_writes(tell: Callable[[], None]) -> Iterator[None]:
    """Tell of every attribute of a module that is written or deleted meanwhile. To enter and leave it takes milliseconds: Python
    forgets what it knows of all classes of modules."""
    kept: Any = nn.Module.__setattr__, nn.Module.__delattr__

    def write(module: nn.Module, name: str, value: Any) -> None:
        tell()
        kept[0](module, name, value)

    def delete(module: nn.Module, name: str) -> None:
        tell()
        kept[1](module, name)

    patched: Any = nn.Module
    patched.__setattr__, patched.__delattr__ = write, delete
    try:
        yield
    finally:
        patched.__setattr__, patched.__delattr__ = kept


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    if type(tensor) not in TENSORS or tensor.layout is not torch.strided or tensor.is_nested:
        raise Unknown
    stride = None if tensor.is_contiguous() else tensor.stride()
    return tensor.shape, stride, tensor.dtype, tensor.requires_grad, tensor.device


def _layout_of(held: dict[str, Any]) -> tuple[int, Callable[[dict[str, Any]], tuple[Any, ...]]]:
    """What gives a module's attributes but its own tensors, modules and hooks, and the observer's forward; and its number."""
    key = tuple(held)
    found = _LAYOUTS.get(key)
    if found is None:
        names = tuple(name for name in key if name not in OWN and name not in HOOKS and name != "forward")
        number = _NUMBERS.setdefault(names, len(_NUMBERS))
        found = _LAYOUTS[key] = number, operator.itemgetter(*names, "training")  # twice, so that it gives a tuple
    return found


_LAYOUTS: dict[tuple[str, ...], tuple[int, Callable[[dict[str, Any]], tuple[Any, ...]]]] = {}
_NUMBERS: dict[tuple[str, ...], int] = {}
