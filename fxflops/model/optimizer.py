"""Run a step of the user's optimizer on copies of the optimizer's tensors. The optimizer's own parameters and state do not change."""

from __future__ import annotations

import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import InputError
from ..records.containers import items_of, pairs_of
from ..records.tensors import ORDINARY, is_dense
from .hidden import hidden_from_modes
from .modules import parameters_of
from .pytree import NOTHING, value_at
from .reach import places_in, reached, set_at

OptimizerLike = Optimizer | Callable[[Iterable[torch.Tensor]], Optimizer]
"""An optimizer, or a function that makes an optimizer from parameters, e.g. ``torch.optim.AdamW`` or a ``functools.partial`` of AdamW."""
HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
INSTEAD = "count your own training step instead: with fxflops.profile(model, optimizer=optimizer) as p: ..."


def is_optimizer(value: Any) -> bool:
    """Return whether a value is an optimizer. A class or function that makes an optimizer is not an optimizer."""
    return isinstance(value, Optimizer) or callable(getattr(None if isinstance(value, type) else value, "step", None))


def checked_optimizer(optimizer: Any, backward: bool) -> OptimizerLike | None:
    """Return the optimizer. Raises InputError if the argument is not an optimizer, or if the optimizer needs more than one backward pass per step."""
    if optimizer is None:
        return None
    if not backward:
        raise InputError("optimizer= needs a backward pass", advice="backward before a step")
    if not is_optimizer(optimizer) and not callable(optimizer):
        several = "; to count several optimizers, count your training step: count(step, args)"
        raise InputError(
            "optimizer must be a torch.optim.Optimizer, or a function that makes an optimizer from parameters, such as "
            f"torch.optim.AdamW, not {type(optimizer).__name__}{several if isinstance(optimizer, (list, tuple)) else ''}"
        )
    closure = _closure_of(getattr(optimizer, "step", None))
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            "this optimizer runs the model again in each step, through a closure: use fxflops.profile around a training step"
        )
    return cast("OptimizerLike", optimizer)


def _closure_of(step: Any) -> inspect.Parameter | None:
    """Return the ``closure`` parameter of a step function; None if it has no such parameter, or if its signature cannot be read."""
    try:
        return inspect.signature(inspect.unwrap(step)).parameters.get("closure")
    except (TypeError, ValueError):  # not a function, or a C function
        return None


def optimizer_mismatch(optimizer: OptimizerLike | None, model: nn.Module) -> str:
    """Return an error text if the model has parameters but the optimizer has none of these parameters; otherwise return ""."""
    parameter_ids = {id(parameter) for parameter in parameters_of(model)} if is_optimizer(optimizer) else ()
    if not parameter_ids or any(id(each) in parameter_ids for _, each in reached(optimizer)):
        return ""
    return f"the optimizer ({type(optimizer).__name__}) has none of the model's parameters: make it from model.parameters()"


def made_optimizer(optimizer: OptimizerLike, parameters: Sequence[torch.Tensor]) -> Any:
    """Return the optimizer. If ``optimizer`` is a class or function, call it with these parameters and return the result.

    Raises InputError if the result is not an optimizer.
    """
    if is_optimizer(optimizer):
        return optimizer
    result = optimizer(parameters)  # type: ignore[operator]
    if not is_optimizer(result):
        raise InputError(f"optimizer(parameters) returned a {type(result).__name__}, not a torch.optim.Optimizer")
    return result


class Storages(Protocol):
    """The live storages of a run."""

    def was_made_by_call(self, tensor: torch.Tensor) -> bool:
        """Return whether a call of the run created the storage of a tensor."""

    def share(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """If the tensor belongs to the model, treat the stand-in's storage as the tensor's storage."""


class StandIns:
    """Stand-ins: tensors that replace an optimizer's tensors during a run.

    ``pairs`` are the tensors of the model, each with its stand-in in the run. All other tensors are copied. If ``is_on_meta`` is True, the
    copies of tensors on the model's ``device`` are on meta, without values. Scalars, such as the number of steps, keep their values.
    Stand-ins of tensors that share memory also share memory. A tensor that the run itself allocated, e.g. per-example gradients in an
    attribute of a parameter, has no stand-in; ``storages`` records these tensors.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
        is_on_meta: bool,
        device: torch.device,
        storages: Storages,
    ) -> None:
        self._stand_ins = {id(tensor): (tensor, stand_in) for tensor, stand_in in pairs}
        self._is_on_meta = is_on_meta
        self._device = device
        self._live = storages
        self._storages: dict[int, Any] = {}
        self._bases: list[Any] = []  # original storages, kept alive so that no new storage reuses their addresses
        for tensor, stand_in in self._stand_ins.values():
            if _is_plain(tensor) and tensor.untyped_storage().nbytes() == stand_in.untyped_storage().nbytes():
                self._storages[tensor.untyped_storage()._cdata] = stand_in.untyped_storage()

    def put_into(self, holders: Iterable[Any]) -> None:
        """Replace all tensors directly inside these objects by their stand-ins, and drop step hooks."""
        for holder in holders:
            kind = type(holder)
            if issubclass(kind, dict):
                self._put_into_dict(holder)
            elif issubclass(kind, (list, deque, set)):
                base: Any = next(base for base in (list, deque, set) if issubclass(kind, base))
                items = items_of(holder)
                replaced = [*map(self.of, items)]
                if any(a is not b for a, b in zip(items, replaced, strict=True)):
                    base.clear(holder)
                    (base.update if base is set else base.extend)(holder, replaced)
            for place in places_in(holder):
                value = value_at(place, holder)
                if value is not NOTHING and (stand_in := self.of(value)) is not value:
                    set_at(place, holder, stand_in)
        for tensor, stand_in in [*self._stand_ins.values()]:
            if tensor is not stand_in:
                vars(stand_in).update(vars(tensor))  # attributes that users set on a parameter

    def _put_into_dict(self, holder: Any) -> None:
        base: Any = OrderedDict if issubclass(type(holder), OrderedDict) else dict
        pairs = pairs_of(holder)
        replaced = [
            (self._key(key), OrderedDict() if type(key) is str and key in HOOKS else self.of(item))
            for key, item in pairs
        ]
        both = zip(pairs, replaced, strict=True)
        if any(old_key is not key or old is not item for (old_key, old), (key, item) in both):
            base.clear(holder)
            for key, item in replaced:
                base.__setitem__(holder, key, item)

    def _key(self, key: Any) -> Any:
        """Return the dict key that replaces this key. Some optimizers use a parameter, or its ``id``, as key."""
        if type(key) is int and key in self._stand_ins:
            return id(self._stand_ins[key][1])
        return self.of(key)

    def of(self, value: Any) -> Any:
        """Return the replacement for a tensor. For a tuple, return a tuple with replacements for its tensors. Return any other value unchanged."""
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            if id(value) not in self._stand_ins:
                self._stand_ins[id(value)] = value, value if self._live.was_made_by_call(value) else self._copy(value)
                self._live.share(*self._stand_ins[id(value)])
            return self._stand_ins[id(value)][1]
        if issubclass(kind, tuple):
            items = items_of(value)
            replaced = [*map(self.of, items)]
            if any(a is not b for a, b in zip(items, replaced, strict=True)):
                return tuple.__new__(kind, replaced)
        return value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        is_empty = self._is_on_meta and tensor.ndim > 0 and tensor.device.type in (self._device.type, "meta")
        stand_in = tensor.detach()
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper, e.g. quantized state, which may not support clone()
            names, context = tensor.__tensor_flatten__()
            parts = {name: self.of(getattr(tensor, name)) for name in names}
            unflatten: Any = type(tensor)
            stand_in = unflatten.__tensor_unflatten__(parts, context, tensor.shape, tensor.stride())
        elif not _is_plain(tensor):
            stand_in = torch.empty_like(stand_in, device="meta") if is_empty else stand_in.clone()
        else:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self._bases.append(storage)
                blank = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta") if is_empty else None
                self._storages[storage._cdata] = storage.clone() if blank is None else blank.untyped_storage()
            new_storage = self._storages[storage._cdata]
            stand_in = torch.empty(0, dtype=tensor.dtype, device=new_storage.device).set_(
                new_storage, tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        stand_in.requires_grad_(tensor.requires_grad)
        return nn.Parameter(stand_in, tensor.requires_grad) if type(tensor) is nn.Parameter else stand_in


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is only a view of a storage. A wrapper is more than a view, and so is a quantized, sparse or lazily negated tensor."""
    return type(tensor) in ORDINARY and is_dense(tensor) and not (tensor.is_quantized or tensor.is_neg())


def states_of(optimizer: Any, parameters: Iterable[torch.Tensor] = ()) -> list[tuple[str, torch.Tensor]]:
    """Return an optimizer's state tensors with the names that the optimizer uses, such as "exp_avg".

    State tensors may be in mappings, lists or objects. Module parameters, and the tensors in ``parameters``, are not state.
    """
    excluded_ids = {*map(id, parameters)}
    return [
        (name, value)
        for name, value in reached(optimizer, into_modules=False)
        # Use isinstance, since only the attribute _is_param makes a fake tensor a parameter.
        if issubclass(type(value), torch.Tensor)
        and not isinstance(value, nn.Parameter)
        and id(value) not in excluded_ids
    ]


@contextmanager
def gradients_kept(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore the gradients and attributes of parameters after the block.

    Attributes may be per-example gradients, or a flag that a step removes. Attributes that the block adds, such as optimizer
    state, are not removed.
    """
    before = [(parameter, parameter.grad, dict(vars(parameter))) for parameter in parameters]
    tensors = [each for _, gradient, attributes in before for each in (gradient, *attributes.values())]
    tensor_attributes = [(vars(each), dict(vars(each))) for each in tensors if issubclass(type(each), torch.Tensor)]
    try:
        yield
    finally:
        for parameter, gradient, attributes in before:
            parameter.grad = gradient
            vars(parameter).update(attributes)
        for attributes_now, attributes_before in tensor_attributes:  # opacus flags the gradients that a step has used
            attributes_now.clear()
            attributes_now.update(attributes_before)


def zero_gradients(optimizer: Any, parameters: Iterable[torch.Tensor]) -> None:
    """Drop the gradients, then call the optimizer's ``zero_grad``. ``zero_grad`` then finds no gradients to set to zero, but it may drop
    other tensors."""
    for parameter in parameters:
        parameter.grad = None
    if callable(zero := getattr(optimizer, "zero_grad", None)):
        zero()


def objects_of_optimizer(optimizer: OptimizerLike | None) -> list[Any]:
    """Return the objects that a step of the optimizer may change; [] if ``optimizer`` is a class or function that makes an optimizer."""
    return [each for _, each in reached(optimizer)] if is_optimizer(optimizer) else []


@hidden_from_modes
def optimizer_in_hooks(parameters: Iterable[Any]) -> Optimizer | None:
    """Return an optimizer that is reachable from the hooks of parameters, or None. Hooks of parameters may step the optimizer in a backward pass."""
    hook_groups = [(vars(p), p._post_accumulate_grad_hooks, p._backward_hooks) for p in parameters]
    hooked = [each for group in hook_groups for each in group if each]
    objects = reached(hooked, into_modules=False) if hooked else ()
    return next((each for _, each in objects if issubclass(type(each), Optimizer)), None)


def gradients_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return the gradients of the parameters that have a gradient, with the parameters' names."""
    return [(name, p.grad) for name, p in parameters if p.grad is not None]
