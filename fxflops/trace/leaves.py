"""Leaf modules: modules whose class has a formula that counts a call of the module as a whole."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from operator import is_
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from ..model.pytree import Reader, attributes_of, reader_of
from ..ops import Formula, FormulaRegistry
from ..ops.shapes import is_channels_last
from ..records import Spec
from ..records.tensors import is_dense, number_of, spec_of
from .forwards import GLOBAL, ObservedModule, is_hooked
from .hooks import Hooks


class Leaves:
    """The formulas that count modules as a whole, cached by class."""

    def __init__(self, registry: FormulaRegistry) -> None:
        self._formula_of_class = cache(partial(_formula_of_class, registry))

    def of(self, module: nn.Module) -> Formula | None:
        """Return the formula that counts a module as a whole; None for a module that is not a leaf."""
        cls: Any = type(module)
        formula, methods = self._formula_of_class(cls)
        if formula is None or not (module.__dict__.keys().isdisjoint(methods) and _runs_only_forward(module)):
            return None
        return formula


def _formula_of_class(registry: FormulaRegistry, cls: type) -> tuple[Formula | None, frozenset[str]]:
    """Return the formula for a class, and the names of the class's forward and of all methods that the forward calls.

    The formula is None for a subclass that overrides a method or attribute used by the forward of the class that has the formula.
    """
    base, formula = registry.find_class(cls)
    if base is None or formula is None:
        return None, NO_NAMES
    names = _read_by_forward(base)
    if formula.is_ours and is_patched(base, names):
        return None, NO_NAMES
    if cls is not base and any(
        getattr(cls, name, None) is not getattr(base, name, None) for name in (*names, *GETATTR)
    ):
        return None, NO_NAMES
    methods = [name for name in names if type(getattr(base, name, None)) is FunctionType]
    return formula, frozenset(["forward", *methods])


NO_NAMES: frozenset[str] = frozenset()
GETATTR = ("__getattr__", "__getattribute__")
"""Methods by which a class can change the value of any attribute."""


def _read_by_forward(cls: Any) -> set[str]:
    """Return all names in the code of a class's forward and of the methods that the forward calls."""
    names, codes = set[str](), [getattr(cls.forward, "__code__", None)]
    while codes:
        code = codes.pop()
        for name in () if code is None else code.co_names:
            if name not in names and name[:2] != "__":
                names.add(name)
                codes.append(getattr(getattr(cls, name, None), "__code__", None))
    return names


def is_patched(cls: type, names: Iterable[str]) -> bool:
    """Return whether the forward of a class, or a torch function that it calls by one of ``names``, was replaced by another library.

    A replaced function has code from outside its own library.
    """
    if not _is_from(cls.__module__, cls.forward):  # type: ignore[attr-defined]
        return True
    functions = [FUNCTIONAL[name] for name in names if type(FUNCTIONAL.get(name)) is FunctionType]
    return not all(_is_from("torch", function) for function in functions)


FUNCTIONAL = vars(F)


def _is_from(module: str, function: Any) -> bool:
    """Return whether a function's source is in the package that a module belongs to."""
    package, code = sys.modules.get(module.partition(".")[0]), getattr(function, "__code__", None)
    paths = getattr(package, "__path__", ())  # notebooks and scripts have no path
    return code is not None and (not paths or code.co_filename.startswith(tuple(paths)))


def leaf_formula(module: nn.Module, registry: FormulaRegistry) -> Formula | None:
    """Return the formula that counts a call of this module as a whole; None if the calls inside the module are counted instead.

    The class that defines the module's ``forward`` must have a formula, and a call must run only that forward. So the result is
    None if the forward is replaced on the instance, if a subclass overrides a name that the forward uses, or if weights are
    computed (by parametrizations, hooks, properties, or tensors assigned as plain attributes).
    """
    return None if has_tensor_attributes(module) else Leaves(registry).of(module)


def has_tensor_attributes(module: nn.Module) -> bool:
    """Return whether a module has tensors as plain attributes, such as weights computed by a hook."""
    values = attributes_of([module])
    return not USUAL.issuperset(map(type, values)) and any(
        issubclass(type(value), (torch.Tensor, fx.Proxy)) for value in values
    )


def _runs_only_forward(module: nn.Module) -> bool:
    """Return whether a call of this module runs no user hooks and computes none of its weights."""
    if "parametrizations" in module._modules:
        return False
    attributes = module.__dict__
    return not is_hooked(module) or all(
        isinstance(key, Hooks)
        for registered in (attributes["_forward_hooks"], attributes["_forward_pre_hooks"], *GLOBAL)
        for key in [*registered]  # another thread may add its own
    )


BASES = (bool, int, float, str, tuple, list, type(None))
PLAIN = frozenset(BASES)
NUMBERS = PLAIN - {tuple, list}
LASTING = PLAIN | {FunctionType}
USUAL = PLAIN | {dict, OrderedDict, set, FunctionType, ObservedModule}
"""Common classes of module attributes that are not tensors."""


def _is_setting(value: Any) -> bool:
    """Return whether an attribute is a plain value, or a number of another class, such as a numpy scalar."""
    return issubclass(type(value), BASES) or number_of(value) is not None


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in NUMBERS or (kind is tuple and NUMBERS.issuperset(map(type, value)))


@dataclass(slots=True, eq=False)
class ModuleSettings:
    """The settings of a module that a formula can read.

    ``by_name`` has the module's plain attributes and the specs of its own parameters and buffers (None if unset), by name.
    ``params`` has only the specs of the parameters. ``contiguous`` is True if all these parameters and buffers are dense and contiguous.
    """

    by_name: Mapping[str, Any]
    params: Mapping[str, Spec]
    contiguous: bool


class Settings:
    """A cache of module settings. Equal settings are the same object, if they can be compared.

    ``forms(tensors)`` returns a key for each tensor's metadata, or None if the metadata cannot be compared.
    ``spec(tensor)`` returns a tensor's spec. ``setting_readers`` caches the settings of modules, by the names of the modules' attributes.
    """

    def __init__(
        self,
        forms: Callable[[Iterable[torch.Tensor | None]], tuple[Any, ...]],
        spec: Callable[[Any], Any],
        setting_readers: dict[Any, Any],
    ) -> None:
        self._forms = forms
        self._spec = spec
        self._setting_readers = setting_readers

    def of(self, observed: ObservedModule) -> ModuleSettings:
        """Return the current settings of a module."""
        module = observed.module
        attributes, parameters, buffers = module.__dict__, module._parameters, module._buffers
        of_tensors = (
            (*parameters.keys(), None, *buffers.keys()) if parameters or buffers else ()
        )  # scripted dicts have no iterator
        names_of_all = (*attributes, None, *of_tensors)
        reader = self._setting_readers.get(names_of_all)
        if reader is None:
            reader = self._setting_readers[names_of_all] = _reader_of(names_of_all)
        names, read, settings_by_key = reader
        values = read(attributes)
        forms = self._forms((*parameters.values(), *buffers.values())) if parameters or buffers else ()
        last_key = observed.settings_key
        if (
            last_key
            and last_key[0] is settings_by_key
            and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # it would trace the comparison
            and last_key[1] == forms
            and all(map(is_, values, last_key[2]))
        ):
            settings: ModuleSettings = observed.settings
            return settings
        settings, is_lasting = self._cached_settings(module, names, values, forms, settings_by_key)
        if is_lasting:
            observed.settings_key, observed.settings = (settings_by_key, forms, values), settings
        return settings

    def _cached_settings(
        self,
        module: nn.Module,
        names: list[str],
        values: tuple[Any, ...],
        forms: tuple[Any, ...],
        settings_by_key: dict[Any, ModuleSettings],
    ) -> tuple[ModuleSettings, bool]:
        """Return a module's settings, and whether they stay valid as long as the module's attributes are the same objects."""
        types = tuple(map(type, values))
        are_all_plain = PLAIN.issuperset(types)
        if not are_all_plain:  # ignore other objects
            if any(kind not in PLAIN and issubclass(kind, (tuple, list)) for kind in types):
                return self._read(module), False  # a subclass of a container may define any hash
            values = tuple([value if _is_setting(value) else None for value in values])
        key = types, values, forms  # types, since 1 == 1.0 == True
        try:
            settings = settings_by_key.get(key)
        except Exception:  # an attribute is a list, which is unhashable, or a tuple of objects whose hash raises
            return self._read(module), False
        if settings is None:
            if not NUMBERS.issuperset(types) and not all(map(_is_plain, values)):
                return self._read(module), False
            settings = self._read(module, dict(zip(names, values, strict=True)) if are_all_plain else None)
            if None not in forms:
                settings_by_key[key] = settings  # this keeps no object or tensor alive
        # The ObservedModule keeps these values alive, so they must not include objects whose lifetime matters to the model.
        return settings, None not in forms and LASTING.issuperset(types)

    def _read(self, module: nn.Module, plain: dict[str, Any] | None = None) -> ModuleSettings:
        by_name = settings_of(module, self._spec, plain)
        params = {name: by_name[name] for name, parameter in module._parameters.items() if parameter is not None}
        tensors = (*module._parameters.values(), *module._buffers.values())
        return ModuleSettings(by_name, params, all(tensor is None or _is_contiguous(tensor) for tensor in tensors))


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and contiguous, and not channels last, too.

    The weight of a 1x1 convolution may be both. Then the result of the convolution is channels last.
    """
    return is_dense(tensor) and tensor.is_contiguous() and not is_channels_last(tensor.shape, tensor.stride())


def _reader_of(names: tuple[str | None, ...]) -> tuple[list[str], Reader, dict[Any, ModuleSettings]]:
    """Return the names of a module's public attributes (without ``forward``), a function that reads these attributes, and a dict.

    The dict is for the settings of modules that have these attributes. ``names`` has the names of the attributes and, after None,
    the names of parameters and buffers.
    """
    public = [name for name in takewhile(bool, names) if name and name[0] != "_" and name != "forward"]
    return public, reader_of(public), {}


def metadata_of_real(tensors: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
    """Return the class, the shape, the dtype and the contiguity of each tensor. For real tensors, :class:`Settings` uses this as ``forms``."""
    return tuple(map(_form, tensors))


def _form(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return "absent"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return type(tensor), tensor.shape, tensor.dtype, tensor.is_contiguous()


def settings_of(
    module: nn.Module, spec: Callable[[Any], Any] = spec_of, plain: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a module's plain attributes, and the specs of its own parameters and buffers (None if unset).

    ``plain`` has the plain attributes if they have been read already; the specs are then added to ``plain``.
    """
    settings = plain or {
        name: value if type(value) in NUMBERS else spec_of(value)
        for name, value in [*module.__dict__.items()]
        if name[0] != "_" and (type(value) in PLAIN or _is_setting(value))
    }
    for own in (module._parameters, module._buffers):
        for name, tensor in own.items():
            settings[name] = spec(tensor)
    return settings
