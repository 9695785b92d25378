"""The dispatch mode of a simulated rank: operators on fake tensors, of which those that are called alike are computed once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ..torch_internals import (
    MESH_FILE,
    DisableTorchDispatch,
    DispatchMode,
    disable_current_modes,
    fake_mode,
    fake_tensors,
    forbid_data_ptr,
    make_subclass,
)
from ..trace.modes import has_own_dispatch
from ..trace.source import frame_in

PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
"""The types of arguments, beside tensors and lists, that say all of themselves."""
OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
"""Tags of operators whose results depend on values, or that change a given tensor's shape."""
KNOWN = {"aten", "_c10d_functional", "fsdp"}
"""The namespaces of operators that do nothing but return their results, as far as fake tensors tell."""
NEW, SHARED = -1, -2
"""In place of a given tensor: a result has memory of its own, or shares it with another result."""


class Result(NamedTuple):
    """A tensor that an operator returned: one that it was given, a view of that, or a new one.

    ``of`` is the place of the given tensor among all, :data:`NEW` for none. ``held`` are the attributes of a fake tensor; None for
    the given tensor itself, of which nothing else is kept.
    """

    of: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    held: dict[str, Any] | None = None


class Rank(DispatchMode):
    """A dispatch mode for a rank under a FakeTensorMode.

    The result of an operator on fake tensors depends on their shapes, strides and dtypes, and on its other arguments: the
    FakeTensorMode, which takes 100 us and more, finds it once. A DeviceMesh computes with the numbers it is made of. What a
    collective returned is waited for in its own memory, as on a device; the fake kernel makes a second tensor.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._fake = mode, fake_tensors()[0]
        self._known: dict[tuple[Any, ...], Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake, kwargs = self._fake, kwargs or {}
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        if func is torch.ops.prim.device.default and type(args[0]) is fake:
            return args[0].fake_device
        if any(cls is not fake and has_own_dispatch(cls) for cls in types):
            return NotImplemented
        if not types and frame_in(MESH_FILE) is not None:
            with disable_current_modes():
                return func(*args, **kwargs)
        if func.namespace == "profiler":
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        call, given = [func, torch.get_default_dtype(), *kwargs], list[Any]()
        if func.namespace not in KNOWN or fake_mode() is not self._mode:
            return func(*args, **kwargs)
        if not (self._describe(args, call, given) and self._describe(kwargs.values(), call, given)):
            return func(*args, **kwargs)
        key = tuple(call)
        results = self._known.get(key, self)
        if results is self:
            out = func(*args, **kwargs)
            self._known[key] = None if OF_VALUES.intersection(func.tags) else self._results(out, given)
            return out
        if results is None:
            return func(*args, **kwargs)
        several, each = results
        if several is None:
            return self._make(each, given)
        return several([self._make(one, given) for one in each])

    def _describe(self, values: Iterable[Any], call: list[Any], given: list[Any]) -> bool:
        """Add to ``call`` what an operator's result depends on, to ``given`` its tensors; return whether that is all."""
        fake, mode = self._fake, self._mode
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
        if type(out) is not self._fake or not self._describe([out], [], []):
            return NotImplemented
        storage = out.untyped_storage()
        of = storages.setdefault(storage._cdata, NEW)
        result = Result(of, out.shape, out.stride(), out.storage_offset(), out.dtype, out.fake_device, vars(out).copy())
        if of == NEW:
            storages[storage._cdata] = SHARED
            whole = storage.nbytes() == self._make(result, given).untyped_storage().nbytes()
            return result if whole and not result.offset else NotImplemented
        return result if of != SHARED and given[of].dtype is out.dtype else NotImplemented

    def _make(self, result: Result | None, given: list[Any]) -> Any:
        """Return a tensor as the operator did."""
        if result is None:
            return None
        of, shape, strides, offset, dtype, device, held = result
        if held is None:
            return given[of]
        with DisableTorchDispatch():
            if of == NEW:
                meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            else:
                meta = torch.empty((), dtype=dtype, device="meta")
                meta.set_(given[of].untyped_storage(), offset, shape, strides)
        fake = make_subclass(self._fake, meta, False, dispatch_device=True, device_for_backend_keys=device)
        forbid_data_ptr(fake)
        vars(fake).update(held)
        return fake
