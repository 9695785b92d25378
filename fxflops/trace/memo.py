"""The memo of earlier calls: how to record another call like an earlier one and, on meta, how to make its result.

A call is like an earlier one if their keys (:func:`call_key`) are equal. For each key, the memo keeps a :class:`Recipe`.
``count``, ``profile`` and simulated ranks all use these keys and recipes. The part of a key that stands for a tensor is the
tensor's *form*; each world decides what a form is. The head of a key is what was called, and what else the record depends on:

=====================  ==========================================  ========================================================================
world, call            head                                        what else the record could depend on
=====================  ==========================================  ========================================================================
meta, function         target, torch's settings for it             gradients and the dispatch mode: ``memo_of_functions_and_leaves`` then
                                                                   allows no memo; each default dtype has its own memo
meta, leaf             class, settings of the module               the same; settings include the types of all attributes
meta, operator         operator                                    each default dtype has its own memo
profile, function      target, grad mode, torch's settings         the call runs: if its result is unlike the recipe's, the call is recorded
                                                                   anew (:func:`is_like`), e.g. with another default dtype
profile, leaf          class, settings, which tensors require      the same
                       gradients, torch's settings
simulated, operator    see ``fake_results.py``                     functions and leaves are observed each time
=====================  ==========================================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

import torch

from ..meters.memory_log import MemoryMark
from ..ops import Formula
from ..records import EMPTY_MAPPING, Operation, Spec, typed
from ..records.tensors import ORDINARY, spec_of
from .attention_pairs import may_have_mask
from .forms import OWN, REAL, Form

NEW, FIRST_ARGUMENT, VIEWS, NOTHING = "new tensors", "the first argument", "views", "nothing"
"""What a call returns. Only new tensors have memory of their own. In a profile, where the call runs, NEW only says that its result is tracked."""
RECORD_ONLY = NOTHING
"""For a recipe that only says how to record a call, such as the call of a module whose children are recorded, too."""
TYPED = frozenset({bool, float, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, type(...)})
"""Types of plain values that go into a key together with their type, since True == 1 == 1.0."""
BOUNDS = frozenset({int, type(None)})
LONGEST = 256
"""The most items that a list in a key may have: a longer list is data."""
KEYWORDS = object()
"""Marks the beginning of the keyword arguments in a key."""
Transients = tuple[tuple[Spec, int], ...]
"""The storages at the peak of a call, if it is above the bytes that the call leaves: each with its spec, and with its change in bytes since
the call began. So a result that is alive at the peak is included, and a storage that the call has freed by then has negative bytes."""


class Unknown(Exception):
    """Raised for a call whose result depends on more than metadata."""


def unknown() -> NoReturn:
    """Raise Unknown."""
    raise Unknown


class Recipe:
    """The memo's entry for a key: how to record another call with this key and, on meta, how to make its result.

    ``operation`` is recorded for each call. ``is_part``: the recipe was made from an operator inside another call, where
    operators are not recorded, so its operation lacks the facts that :meth:`.Recording.result_spec` adds. ``returns`` is NEW,
    FIRST_ARGUMENT, VIEWS or NOTHING. ``transients`` are the storages at a call's peak; None if a call leaves more memory behind than its
    result, so that its operators must be observed.

    The other attributes are for making a result on meta. ``forms`` has the forms of the returned tensors. ``sequence`` is the
    class of a result that has several tensors: tuple, list, or one of ``torch.return_types``. (In ``fake_results.py``, ``forms`` has a
    ``Result`` for each tensor, and ``operation`` is a placeholder.) ``needs_stand_ins``: some arguments
    are real tensors, and must be replaced by meta stand-ins. ``names_device``: an argument may be a device.
    """

    __slots__ = (
        "forms",
        "is_part",
        "leaves_only_its_result",
        "may_have_mask",
        "names_device",
        "needs_stand_ins",
        "operation",
        "returns",
        "sequence",
        "transients",
    )

    def __init__(
        self,
        operation: Operation,
        returns: str,
        transients: Transients | None = (),
        *,
        forms: Sequence[Any] = (),
        sequence: Any = None,
        argument_forms: Iterable[Form] = (),
        is_part: bool = False,
        names_device: bool = False,
    ) -> None:
        self.operation = operation
        self.returns = returns
        self.transients = transients
        # Whether a call leaves no memory behind but its result, so that its operators need not be observed.
        self.leaves_only_its_result = transients is not None
        self.may_have_mask = may_have_mask(operation)
        self.forms = forms
        self.sequence = sequence
        self.is_part = is_part
        places = {form.place for form in argument_forms}
        # Running the call makes a view, and a view of a real argument would be a real tensor. New tensors are made without the arguments.
        self.needs_stand_ins = (REAL in places and len(places) > 1) or (returns is VIEWS and OWN in places)
        self.names_device = names_device


Memo = dict[Any, Recipe]
"""Recipes by the keys of calls."""


class Memos:
    """The memos of one model for one device. They are kept between runs, since a closed form needs counts at many sizes.

    Keys contain forms and module settings. Equal forms must be the same object in all runs, and so must equal settings.
    ``shared_form`` makes and caches forms, and ``setting_readers`` caches settings.
    """

    def __init__(self) -> None:
        self.shared_form = cache(Form)
        self.setting_readers: dict[Any, Any] = {}
        self._memos: dict[tuple[bool, torch.dtype], Memo] = {}

    def memo(self, observe_dispatch: bool) -> Memo:
        """Return the memo for runs with (or without) the dispatch mode, and for the current default dtype.

        The results of factories and of type promotion depend on the default dtype. With the dispatch mode, the memo has operators, otherwise
        functions and leaves: ``torch.ops.aten.mm(x, y)`` has the same key as both, but other recipes.
        """
        return self._memos.setdefault((observe_dispatch, torch.get_default_dtype()), {})


class NewCall(NamedTuple):
    """A call that has no recipe yet, and how to record it.

    ``target`` is recorded in place of ``func``: the operator ``+`` rather than ``Tensor.add``, if that is what the model's code says.
    For a call of a leaf module, both are the module's class, and ``settings`` are the module's settings.
    """

    key: Any
    formula: Formula
    target: Any
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    settings: Mapping[str, Any] = EMPTY_MAPPING

    def argument_specs(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the positional and the keyword arguments, with a spec in place of each tensor. Both are read from the key."""
        if not self.kwargs:
            return _specs_of(self.key[len(self.key) - len(self.args) :]), EMPTY_MAPPING
        # At the end of a key are a mark, the names of the keyword arguments, and the values of the keyword arguments.
        end = len(self.key) - 2 * len(self.kwargs) - 1
        values = _specs_of(self.key[-len(self.kwargs) :])
        return _specs_of(self.key[end - len(self.args) : end]), dict(zip(self.kwargs, values, strict=True))


class BeforeCall(NamedTuple):
    """The state of a run before a call that the memo may remember.

    ``calls`` and ``scopes`` are the numbers recorded so far; ``mark`` is the state of the memory.
    """

    calls: int
    scopes: int
    mark: MemoryMark


class MemoryEffect(NamedTuple):
    """A call's effect on memory: the bytes that it left behind, and the storages at its peak.

    ``storage_count`` is the number of storages tracked before the call began.
    """

    bytes_left: int
    transients: Transients
    storage_count: int


class LeafLookup(NamedTuple):
    """The memo lookup at the beginning of a leaf module's call: its ``key``, and the memo's ``recipe`` (None if the key is new).

    ``params`` has the specs of the module's parameters. ``before`` is the run's state before the call if the key is new, else None.
    """

    recipe: Recipe | None
    key: Any
    params: Mapping[str, Any]
    before: BeforeCall | None


FormOf = Callable[[Any], Any]


def key_of(value: Any, form_of: FormOf, tensors: Collection[type] = ORDINARY) -> Any:
    """Return the key of one argument, with forms in place of tensors. Raises Unknown if the argument contains any other value."""
    kind = type(value)
    if kind in tensors:
        return form_of(value) or unknown()
    if kind is int or value is None or kind is str:
        return value
    if kind in TYPED:
        return kind, value
    if (kind is tuple or kind is list) and len(value) <= LONGEST:
        return kind, *[key_of(item, form_of, tensors) for item in value]
    if kind is slice:
        bounds = value.start, value.stop, value.step
        if BOUNDS.issuperset(map(type, bounds)):  # if a bound is a tensor, the result depends on its value
            return slice, *bounds
    raise Unknown


def call_key(
    head: tuple[Any, ...],
    args: Any,
    kwargs: Mapping[str, Any],
    form_of: FormOf,
    tensors: Collection[type] = ORDINARY,
) -> tuple[Any, ...]:
    """Return the key of a call: everything that its result and its record depend on.

    The key begins with ``head``: what is called, and the settings on which the call depends besides its arguments. After the head come the
    positional arguments, then :data:`KEYWORDS`, the names and the values of the keyword arguments. ``NewCall.argument_specs`` counts
    from the end of the key, and :func:`forms_in` returns the forms anywhere in it. So nothing may be appended, and no form put into the head.

    ``form_of(tensor)`` returns the form of a tensor whose class is in ``tensors``; None if metadata is not enough.
    Raises Unknown if there is no key.
    """
    key = [*head]
    for value in args:
        key.append((form_of(value) or unknown()) if type(value) in tensors else key_of(value, form_of, tensors))
    if kwargs:
        key += KEYWORDS, *kwargs, *[key_of(value, form_of, tensors) for value in kwargs.values()]
    return tuple(key)


def _specs_of(parts: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([part.spec if type(part) is Form else _value_of(part) for part in parts])


def _value_of(part: Any) -> Any:
    if type(part) is not tuple:
        return part
    kind, *items = part
    if kind is tuple or kind is list:
        return _specs_of(items)
    if kind is slice:
        return slice(*items)
    return tuple(items[0]) if kind is torch.Size else items[0]


def without_strides(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key without strides, so that keys whose tensors have equal specs are equal."""
    parts = []
    for part in key:
        if type(part) is Form:
            parts.append(part.without_strides)
        elif type(part) is tuple:
            parts.append(without_strides(part))
        else:
            parts.append(part)
    return tuple(parts)


def forms_in(key: tuple[Any, ...]) -> list[Form]:
    """Return the forms in a key, in order."""
    forms = []
    for part in key:
        if type(part) is Form:
            forms.append(part)
        elif type(part) is tuple:
            forms += forms_in(part)
    return forms


def is_like(value: Any, expected: Any) -> bool:
    """Return whether the specs of a result are equal to ``expected``."""
    kind = type(value)
    if kind in ORDINARY:
        return (
            type(expected) is Spec
            and value.layout is torch.strided
            and not value.is_nested
            and value.shape == expected
            and value.dtype is expected.dtype
        )
    if value is None:
        return expected is None
    if kind is tuple or kind is list:
        return type(expected) is tuple and len(expected) == len(value) and all(map(is_like, value, expected))
    return bool(typed(spec_of(value)) == typed(expected))
