"""Cache the results of operators on fake tensors, so that only the first of several equal calls runs the operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..model.pytree import tensors_given
from ..ops._registry import BASE
from ..records import EMPTY_MAPPING, Operation
from ..torch_internals import DisableTorchDispatch, fake_mode, fake_tensors, make_subclass, warn_of_address
from .dtypes import check_dtypes
from .memo import Recipe, Unknown, call_key

OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
"""Tags of operators whose results depend on values, or that change an argument's shape."""
KNOWN = frozenset({"aten", "_c10d_functional", "fsdp"})
"""The namespaces of operators that have no effect on fake tensors besides their results."""
NEW_MEMORY, MEMORY_OF_RESULT = -1, -2
"""Used in place of an argument's index: the result has its own memory, or shares memory with an earlier result."""
MOST = 50_000
"""The most keys of calls that are remembered."""
FAKE = "fake tensors"
"""The ``returns`` of a recipe whose result is rebuilt for each FakeTensorMode."""
UNRECORDED = Operation("", None, (), EMPTY_MAPPING, None)
"""A placeholder for the operation of remembered calls. If a run is observed, the observer records the real operation."""
NOT_REMEMBERED = Recipe(UNRECORDED, FAKE)
_REMEMBERED: dict[tuple[Any, ...], Recipe | None] = {}


class Result(NamedTuple):
    """A tensor that an operator returned: an argument, a view of an argument, or a new tensor.

    ``source`` is the index of the argument, or :data:`NEW_MEMORY` for a new tensor. ``attributes`` are the attributes of the fake tensor,
    without its mode. If the result is the argument itself, ``attributes`` is None, and the other fields are not set.
    """

    source: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    attributes: dict[str, Any] | None = None


class FakeResults:
    """The results of operators under a FakeTensorMode.

    The result of an operator on fake tensors depends only on the tensors' shapes, strides and dtypes, and on the operator's other
    arguments. So a FakeTensorMode, which takes 100 us or more, computes each result once for all modes.
    """

    def __init__(self, mode: Any) -> None:
        self.mode, self.fake = mode, fake_tensors()[0]

    def key_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Return a key of everything that a call's results depend on, and the call's tensors. The key is None if no key is enough."""
        tensors: list[Any] = []
        if func.namespace not in KNOWN or fake_mode() is not self.mode:
            return None, tensors

        def form_of(tensor: Any) -> Any:
            tensors.append(tensor)
            return self._form(tensor)

        try:
            return call_key((func, torch.get_default_dtype()), args, kwargs, form_of, {self.fake}), tensors
        except Unknown:
            return None, tensors

    def knows(self, key: Any) -> bool:
        """Return whether the results of calls with this key can be rebuilt."""
        return _REMEMBERED.get(key) is not None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a call's result: rebuilt from the cache, or computed by the operator."""
        key, tensors = self.key_of(func, args, kwargs)
        return _checked(func, args, kwargs) if key is None else self.of(key, func, args, kwargs, tensors)

    def of(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]) -> Any:
        """Return the result of a call with this key: rebuilt, or computed by the operator."""
        recipe = _REMEMBERED.get(key, NOT_REMEMBERED)
        if recipe is NOT_REMEMBERED:
            out = _checked(func, args, kwargs)
            if len(_REMEMBERED) >= MOST:
                _REMEMBERED.clear()
            recipe = _REMEMBERED[key] = None if OF_VALUES.intersection(func.tags) else self._results(out, tensors)
            if recipe is None:
                return out  # otherwise rebuild it: weak references to this result would keep a module from converting its parameters
        if recipe is None:
            return func(*args, **kwargs)
        with DisableTorchDispatch():
            views = dict[int, torch.Tensor]()
            results = [self._make(result, tensors, views) for result in recipe.forms]
        return results[0] if recipe.sequence is None else recipe.sequence(results)

    def _form(self, tensor: Any) -> Any:
        """Return the metadata of a fake tensor that determines results; None if results also depend on other state."""
        attributes = tensor.__dict__
        is_plain = (
            attributes["fake_mode"] is self.mode
            and attributes["constant"] is None
            and attributes.get("dispatch_keys") is None
        )
        if not is_plain or tensor.is_sparse or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            return None
        return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.fake_device

    def _results(self, out: Any, tensors: list[Any]) -> Recipe | None:
        """Return a recipe that rebuilds an operator's result; None if the operator must run each time."""
        sequence = type(out) if type(out) in (list, tuple) else None
        storages = {tensor.untyped_storage()._cdata: i for i, tensor in enumerate(tensors)}
        forms = [self._result(part, tensors, storages) for part in (out if sequence else [out])]
        return None if NotImplemented in forms else Recipe(UNRECORDED, FAKE, forms=forms, sequence=sequence)

    def _result(self, out: Any, tensors: list[Any], storages: dict[int, int]) -> Any:
        if out is None:
            return None
        for i, tensor in enumerate(tensors):
            if tensor is out:
                return Result(i)
        if type(out) is not self.fake or self._form(out) is None:
            return NotImplemented
        storage = out.untyped_storage()
        source = storages.setdefault(storage._cdata, NEW_MEMORY)
        attributes = {name: value for name, value in vars(out).items() if name != "fake_mode"}
        result = Result(source, out.shape, out.stride(), out.storage_offset(), out.dtype, out.fake_device, attributes)
        if source == NEW_MEMORY:
            storages[storage._cdata] = MEMORY_OF_RESULT
            with DisableTorchDispatch():
                is_whole = storage.nbytes() == self._make(result, tensors, {}).untyped_storage().nbytes()
            return result if is_whole and not result.offset else NotImplemented
        return result if source != MEMORY_OF_RESULT and tensors[source].dtype is out.dtype else NotImplemented

    def _make(self, result: Result | None, tensors: list[Any], views: dict[int, torch.Tensor]) -> Any:
        """Rebuild a tensor that the operator returned. ``views`` has the first meta view of each argument, by the argument's index."""
        if result is None:
            return None
        source, shape, strides, offset, dtype, device, result_attributes = result
        if result_attributes is None:
            return tensors[source]
        if source == NEW_MEMORY:
            meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        elif source in views:
            meta = views[source].as_strided(shape, strides, offset)
        else:
            views[source] = meta = torch.empty((), dtype=dtype, device="meta")
            meta.set_(tensors[source].untyped_storage(), offset, shape, strides)
        fake = make_subclass(self.fake, meta, False, dispatch_device=True, device_for_backend_keys=device)
        warn_of_address(fake)
        attributes = vars(fake)
        attributes.update(result_attributes)
        attributes["fake_mode"] = self.mode
        return fake


def _checked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operator's result; raise MixedDtypesError for mixed dtypes that fake tensors accept, but a real device refuses."""
    tensors = tensors_given((args, kwargs))
    dtypes = [tensor.dtype for tensor in tensors]
    if len({*dtypes}) > 1:
        check_dtypes(func, dtypes, BASE, tensors[0].device.type)
    return func(*args, **kwargs)
