"""The results of operators on fake tensors: those of equal calls are found once, and made again without the operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..model.pytree import tensors_given
from ..ops._registry import BASE
from ..records import EMPTY_MAPPING, Operation
from ..torch_internals import DisableTorchDispatch, fake_mode, fake_tensors, make_subclass, warn_of_address
from .dtypes import check_dtypes
from .memo import Known, Unknown, call_key

OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
"""Tags of operators whose results depend on values, or that change a given tensor's shape."""
KNOWN = frozenset({"aten", "_c10d_functional", "fsdp"})
"""The namespaces of operators that do nothing but return their results, as far as fake tensors tell."""
NEW, SHARED = -1, -2
"""In place of a given tensor: a result has memory of its own, or shares it with another result."""
MOST = 50_000
"""So many kinds of calls are remembered at most."""
FAKE = "fake tensors"
"""The kind of results that are made anew for each FakeTensorMode."""
UNRECORDED = Operation("", None, (), EMPTY_MAPPING, None)
"""The operation of calls whose results are known here, and which an observer records, if there is one."""
NEVER_SEEN = Known(UNRECORDED, FAKE)
_REMEMBERED: dict[tuple[Any, ...], Known | None] = {}


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

    def key_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Return a key of all that a call's results depend on, None if there is none, and the tensors that it was given."""
        given: list[Any] = []
        if func.namespace not in KNOWN or fake_mode() is not self.mode:
            return None, given

        def form_of(tensor: Any) -> Any:
            given.append(tensor)
            return self._form(tensor)

        try:
            return call_key((func, torch.get_default_dtype()), args, kwargs, form_of, {self.fake}), given
        except Unknown:
            return None, given

    def knows(self, key: Any) -> bool:
        """Return whether the results of calls with this key can be made."""
        return _REMEMBERED.get(key) is not None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call returns, made as before if it is known."""
        key, given = self.key_of(func, args, kwargs)
        return _checked(func, args, kwargs) if key is None else self.of(key, func, args, kwargs, given)

    def of(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any]) -> Any:
        """Return what a call with this key returns: made as before, or by the operator."""
        known = _REMEMBERED.get(key, NEVER_SEEN)
        if known is NEVER_SEEN:
            out = _checked(func, args, kwargs)
            if len(_REMEMBERED) >= MOST:
                _REMEMBERED.clear()
            known = _REMEMBERED[key] = None if OF_VALUES.intersection(func.tags) else self._results(out, given)
            if known is None:
                return out  # else it is made again: weak references to this one keep a module from converting its parameters
        if known is None:
            return func(*args, **kwargs)
        with DisableTorchDispatch():
            views = dict[int, torch.Tensor]()
            made = [self._make(result, given, views) for result in known.forms]
        return made[0] if known.sequence is None else known.sequence(made)

    def _form(self, tensor: Any) -> Any:
        """Return what a result depends on of a fake tensor; None if there is more to it."""
        held = tensor.__dict__
        is_plain = held["fake_mode"] is self.mode and held["constant"] is None and held.get("dispatch_keys") is None
        if not is_plain or tensor.is_sparse or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            return None
        return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.fake_device

    def _results(self, out: Any, given: list[Any]) -> Known | None:
        """Return how to make what an operator returned; None if it is to be run each time."""
        sequence = type(out) if type(out) in (list, tuple) else None
        storages = {tensor.untyped_storage()._cdata: i for i, tensor in enumerate(given)}
        results = [self._result(each, given, storages) for each in (out if sequence else [out])]
        return None if NotImplemented in results else Known(UNRECORDED, FAKE, forms=results, sequence=sequence)

    def _result(self, out: Any, given: list[Any], storages: dict[int, int]) -> Any:
        if out is None:
            return None
        for i, tensor in enumerate(given):
            if tensor is out:
                return Result(i)
        if type(out) is not self.fake or self._form(out) is None:
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
