"""What tells modules apart in what they do: one number for all that the forward of a module can read of it.

Two modules of the same number run the same code, with the same settings, on parameters and buffers of the same form;
and so do their submodules. What cannot be told (an object of a library, a tensor that is no buffer) has no number.
"""

from __future__ import annotations

import enum
import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ..state import ATOMS, CONTAINED, OWN
from ..structure import is_object
from .attributes import NUMBERS, is_heard
from .forwards import has_hooks, has_own_code, is_torchs, own_forward, speaks

DEEPEST = 8
LARGEST = 2**22
MOST_COPIES = 16
"""Bytes of the largest tensor of which the values are read, to tell it from others; how many of one form are kept."""
PLAIN_TYPES = (torch.layout, torch.memory_format, enum.Enum, type(...))
TENSORS = (torch.Tensor, nn.Parameter)


class Unknown(Exception):
    """What is done follows from more than can be told."""


class Numbers:
    """The numbers that were given, to modules by all that tells them apart, and to values by copies of them."""

    def __init__(self) -> None:
        self.modules: dict[Any, int] = {}
        self._values: dict[Any, list[torch.Tensor]] = {}

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's values: among those of its form."""
        copies = self._values.setdefault((tensor.shape, tensor.dtype), [])
        tensor = tensor.detach().to("cpu", copy=True)
        for number, copy in enumerate(copies):
            if torch.equal(copy, tensor):
                return number
        if len(copies) == MOST_COPIES:
            raise Unknown
        copies.append(tensor)
        return len(copies) - 1


class Tokens:
    """The numbers of a model's modules, each found when it is first asked for; ``known`` holds all that were ever given.

    ``modules`` are the model's, with their paths: a submodule that is at home elsewhere has no number here.
    """

    def __init__(self, known: Numbers, modules: Mapping[nn.Module, str]) -> None:
        self._known = known
        self._modules = modules
        self._tokens: dict[nn.Module, int | None] = {}
        self._numbers: dict[nn.Module, tuple[Any, ...]] = {}
        self._heard: dict[type, bool] = {}
        self._objects: dict[int, tuple[Any, Any]] = {}
        self._own: dict[int, str] = {}
        self._values: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self.writes = 0
        self.reads = 0

    def of(self, module: nn.Module) -> int | None:
        """The module's number; None where it has none."""
        if module in self._tokens:
            return self._tokens[module]
        with torch._C.DisableTorchFunction():
            return self._of(module)

    def _of(self, module: nn.Module) -> int | None:
        if module not in self._tokens:
            try:
                key = self._key(module)
                self._tokens[module] = self._known.modules.setdefault(key, len(self._known.modules))
            except (Unknown, TypeError):  # TypeError: no hash
                self._tokens[module] = None
        return self._tokens[module]

    def forget(self) -> None:
        """An attribute of a module was written."""
        self.writes += 1
        self._tokens.clear()
        self._numbers.clear()

    def has_read(self) -> None:
        """A layer's number was read."""
        self.reads += 1

    def numbers_in(self, module: nn.Module) -> tuple[Any, ...]:
        """The numbers of layers in a module, itself one of them, that are no part of its token: what it does follows from
        them only if one is read."""
        return self._numbers.get(module, ())

    def _hears(self, cls: type) -> bool:
        if cls not in self._heard:
            self._heard[cls] = is_heard(cls)
        return self._heard[cls]

    def _key(self, module: nn.Module) -> tuple[Any, ...]:
        about, numbers = self._own_of(module)
        home = len(self._modules[module])
        for name, child in module._modules.items():
            if child is None:
                about += name, None
                continue
            token, path = self._of(child), self._modules.get(child, "")
            if token is None or not (path.startswith(self._modules[module]) and path[home:]):
                raise Unknown
            about += name, token, path[home:] if home else f".{path}"
            numbers += self._numbers.get(child, ())
        if numbers:
            self._numbers[module] = numbers
        return tuple(about)

    def whole(self) -> list[Any]:
        """All that tells a model of these modules from others, as it is now. Raises Unknown where that is more than can be
        told: where somebody's hook hears of a call, too."""
        about: list[Any] = []
        at = self._modules.get
        with torch._C.DisableTorchFunction():
            for module in self._modules:
                if has_hooks(module):
                    raise Unknown
                own, numbers = self._own_of(module)
                about += own
                about += numbers
                if children := module._modules:
                    about += children
                    about += map(at, children.values())  # type: ignore[arg-type]
        return about

    def _own_of(self, module: nn.Module) -> tuple[list[Any], tuple[Any, ...]]:
        """What tells a module from others, but for its submodules; and the numbers of layers that it keeps beside that."""
        cls: Any = type(module)
        held = module.__dict__
        own = own_forward(module) if "forward" in held else None
        if own is not None:
            if not has_own_code(module):
                raise Unknown
            own = own.__func__
        if speaks(cls, own):  # what it says it is to say each time
            raise Unknown
        layout = _layout_of(held)
        values = layout.values(held)
        numbers = tuple(held[name] for name in layout.numbers) if layout.numbers else ()
        if numbers and not (own is None and self._hears(cls) and {*map(type, numbers)} == {int}):
            values, numbers = values + numbers, ()
        kinds = tuple(map(type, values))
        parameters, buffers = held["_parameters"], held["_buffers"]
        about = [cls, layout.number, kinds, values, own, len(parameters), len(buffers)]
        if kinds not in layout.plain:
            if ATOMS.issuperset(kinds):
                layout.plain.add(kinds)
            else:
                self._own = {id(tensor): name for name, tensor in parameters.items()}
                about[3] = self._all_frozen(values)
        if parameters:
            about += parameters
            about += map(_form, parameters.values())
        if buffers:
            about += buffers
            about += map(_form, buffers.values())
            if not is_torchs(cls):  # torch's own modules read no values of their integers
                about += [self.values(b) for b in buffers.values() if not (b is None or _is_floating(b))]
        return about, numbers

    def values(self, tensor: torch.Tensor) -> Any:
        """What tells a tensor's values from others; on meta it has none. Raises Unknown where there are too many."""
        if tensor.is_meta:
            return None
        if tensor.nbytes > LARGEST:
            raise Unknown
        if tensor.numel() == 1:
            return repr(tensor.item())
        known = self._values.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            with _disable_current_modes():
                number = self._known.number_of(tensor)
            known = self._values[id(tensor)] = weakref.ref(tensor), tensor._version, number
        return known[2]

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
        # An RNN keeps lists of its parameters. What an object holds, deeper, is known for other modules too.
        if kind in TENSORS and depth < 2 and id(value) in self._own:
            return nn.Parameter, self._own[id(value)]
        if kind is weakref.ref:
            return kind, self._frozen(value(), depth)
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


def _form(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    if type(tensor) not in TENSORS or tensor.layout is not torch.strided or tensor.is_nested:
        raise Unknown
    stride = None if tensor.is_contiguous() else tensor.stride()
    return tensor.shape, stride, tensor.dtype, tensor.requires_grad, tensor.device


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _Layout(NamedTuple):
    """The attributes of modules that have them under the same names: but for their own tensors, modules and hooks, and the
    observer's forward. ``number`` is the layout's, ``values`` gives them, ``numbers`` are the names of layers' numbers;
    ``plain`` are types of values that can be compared as they are."""

    number: int
    values: Callable[[dict[str, Any]], tuple[Any, ...]]
    numbers: tuple[str, ...]
    plain: set[tuple[type, ...]]


def _layout_of(held: dict[str, Any]) -> _Layout:
    key = tuple(held)
    found = _LAYOUTS.get(key)
    if found is None:
        names = tuple(name for name in key if name not in OWN and name not in CONTAINED and name != "forward")
        number = _KNOWN.setdefault(names, len(_KNOWN))
        others = (name for name in names if name not in NUMBERS)
        values = operator.itemgetter(*others, "training")  # twice, so that it gives a tuple
        found = _LAYOUTS[key] = _Layout(number, values, tuple(name for name in names if name in NUMBERS), set())
    return found


_LAYOUTS: dict[tuple[str, ...], _Layout] = {}
_KNOWN: dict[tuple[str, ...], int] = {}
