"""The results of operators on fake tensors: those of equal calls are found once, and made again without the operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ..model.pytree import tensors_given
from ..ops._registry import BASE
from ..torch_internals import DisableTorchDispatch, fake_mode, fake_tensors, make_subclass, warn_of_address
from .dtypes import check_dtypes

PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
"""The types of arguments, beside tensors and lists, that say all of themselves."""
OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
"""Tags of operators whose results depend on values, or that change a given tensor's shape."""
KNOWN = frozenset({"aten", "_c10d_functional", "fsdp"})
"""The namespaces of operators that do nothing but return their results, as far as fake tensors tell."""
NEW, SHARED = -1, -2
"""In place of a given tensor: a result has memory of its own, or shares it with another result."""
MOST = 50_000
"""So many kinds of calls are remembered at most."""
_REMEMBERED: dict[tuple[Any, ...], Any] = {}


class Result(NamedTuple):
    """A tensor that an operator returned: one that it was given, a view of that, or a new one.

    ``of`` is the place of the given tensor among all, :data:`NEW` for none. ``held`` are the attributes of a fake tensor but for
    its mode; None for the given tensor itself, of which nothing else is kept.
    """

    of: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    held: dict[str, Any] | None = None


class FakeResults:
    """The results of operators under a FakeTensorMode.

    The result of an operator on fake tensors depends on their shapes, strides and dtypes, and on its other arguments: the
    FakeTensorMode, which takes 100 us and more, finds it once, for all modes alike.
    """

    def __init__(self, mode: Any) -> None:
        self.mode, self.fake = mode, fake_tensors()[0]

    def key_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any]) -> Any:
        """Return a key of all that a call's results depend on, and add its tensors to ``given``; None if there is none."""
        if func.namespace not in KNOWN or fake_mode() is not self.mode:
            return None
        call = [func, torch.get_default_dtype(), *kwargs]
        if not self._describe(args, call, given) or (kwargs and not self._describe(kwargs.values(), call, given)):
            return None
        return tuple(call)

    def knows(self, key: Any) -> bool:
        """Return whether the results of calls with this key can be made."""
        return _REMEMBERED.get(key) is not None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call returns, made as before if it is known."""
        given = list[Any]()
        key = self.key_of(func, args, kwargs, given)
        return _checked(func, args, kwargs) if key is None else self.of(key, func, args, kwargs, given)

    def of(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any]) -> Any:
        """Return what a call with this key returns: made as before, or by the operator."""
        results = _REMEMBERED.get(key, self)
        if results is self:
            out = _checked(func, args, kwargs)
            if len(_REMEMBERED) >= MOST:
                _REMEMBERED.clear()
            results = _REMEMBERED[key] = None if OF_VALUES.intersection(func.tags) else self._results(out, given)
            if results is None:
                return out  # else it is made again: weak references to this one keep a module from converting its parameters
        if results is None:
            return func(*args, **kwargs)
        several, each = results
        with DisableTorchDispatch():
            if several is None:
                return self._make(each, given, {})
            views = dict[int, torch.Tensor]()
            return several([self._make(one, given, views) for one in each])

    def _describe(self, values: Iterable[Any], call: list[Any], given: list[Any]) -> bool:
        """Add to ``call`` what an operator's result depends on, to ``given`` its tensors; return whether that is all."""
        fake, mode = self.fake, self.mode
        for value in values:
            kind = type(value)
            if kind is fake:
                held = value.__dict__
                plain = held["fake_mode"] is mode and held["constant"] is None and held.get("dispatch_keys") is None
                if not plain or value.is_sparse or value.is_conj() or value.is_neg() or value.is_inference():
                    return False
                call += (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device)
                given.append(value)
            elif kind in PLAIN:
                call += (kind, value)
            elif kind is list or kind is tuple:
                call.append(len(value))
                if not self._describe(value, call, given):
                    return False
            else:
                return False
        return True

    def _results(self, out: Any, given: list[Any]) -> Any:
        """Return how to make what an operator returned; None if it is to be run each time."""
        kind = type(out) if type(out) in (list, tuple) else None
        storages = {tensor.untyped_storage()._cdata: i for i, tensor in enumerate(given)}
        found = [self._result(each, given, storages) for each in (out if kind else [out])]
        return None if NotImplemented in found else (kind, found if kind else found[0])

    def _result(self, out: Any, given: list[Any], storages: dict[int, int]) -> Any:
        if out is None:
            return None
        for i, tensor in enumerate(given):
            if tensor is out:
                return Result(i)
        if type(out) is not self.fake or not self._describe([out], [], []):
            return NotImplemented
        storage = out.untyped_storage()
        of = storages.setdefault(storage._cdata, NEW)
        held = {name: value for name, value in vars(out).items() if name != "fake_mode"}
        result = Result(of, out.shape, out.stride(), out.storage_offset(), out.dtype, out.fake_device, held)
        if of == NEW:
            storages[storage._cdata] = SHARED
            with DisableTorchDispatch():
                whole = storage.nbytes() == self._make(result, given, {}).untyped_storage().nbytes()
            return result if whole and not result.offset else NotImplemented
        return result if of != SHARED and given[of].dtype is out.dtype else NotImplemented

    def _make(self, result: Result | None, given: list[Any], views: dict[int, torch.Tensor]) -> Any:
        """Return a tensor as the operator did; ``views`` are on meta, of the given tensors that it has views of already."""
        if result is None:
            return None
        of, shape, strides, offset, dtype, device, held = result
        if held is None:
            return given[of]
        if of == NEW:
            meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        elif of in views:
            meta = views[of].as_strided(shape, strides, offset)
        else:
            views[of] = meta = torch.empty((), dtype=dtype, device="meta")
            meta.set_(given[of].untyped_storage(), offset, shape, strides)
        fake = make_subclass(self.fake, meta, False, dispatch_device=True, device_for_backend_keys=device)
        warn_of_address(fake)
        attributes = vars(fake)
        attributes.update(held)
        attributes["fake_mode"] = self.mode
        return fake


def _checked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an operator returns; raise MixedDtypesError where only fake tensors take tensors of such dtypes."""
    tensors = tensors_given((args, kwargs))
    dtypes = [tensor.dtype for tensor in tensors]
    if len({*dtypes}) > 1:
        check_dtypes(func, dtypes, BASE, tensors[0].device.type)
    return func(*args, **kwargs)
