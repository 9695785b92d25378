"""Replace a model's real tensors by meta tensors just before each call, so that no kernel computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn, strided

from ..errors import NeedsRealTensors
from ..model.hidden import hidden_from_modes
from ..model.pytree import stored, tensors_given, tensors_in
from ..model.snapshot import Snapshot
from ..ops._traits import RESHAPING
from ..records import Spec
from ..records.tensors import ORDINARY, SPARSE, is_dense, is_wrapper, spec_of
from ..torch_internals import DisableTorchFunction, disable_current_modes, len_torch_dispatch_stack
from .forms import META, OWN, REAL, Form
from .functions import writes
from .model_tensors import ModelTensors
from .source import in_function


def _copy_requires_grad(meta: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy ``requires_grad`` and gradient hooks to the meta tensor of ``tensor``."""
    with DisableTorchFunction(), disable_current_modes() if len_torch_dispatch_stack() else nullcontext():
        meta.requires_grad_(tensor.requires_grad)
        if meta.requires_grad and not (meta._backward_hooks or meta._post_accumulate_grad_hooks):
            _hook(meta, tensor)


def _empty_like(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.to("meta")
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=requires_grad
    )


def _is_on_meta(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on meta, or wraps only meta tensors. Such a wrapper itself reports the model's device."""
    if tensor.device.type == "meta":
        return True
    return type(tensor) not in ORDINARY and is_wrapper(tensor) and all(part.is_meta for part in stored(tensor))


def _view_like(tensor: torch.Tensor, base: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
    """Return a view of ``meta`` that matches ``tensor``, a view of ``base``; ``meta`` is the meta tensor of ``base``."""
    shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    with torch.enable_grad():  # as when the original view was made, even under no_grad
        if base.dtype == tensor.dtype:
            return meta.as_strided(shape, stride, offset - base.storage_offset())
        if base.is_complex():
            return torch.view_as_real(meta).as_strided(shape, stride, offset - 2 * base.storage_offset())
        strides = (*(2 * step for step in stride), 1)
        return torch.view_as_complex(meta.as_strided((*shape, 2), strides, 2 * offset - base.storage_offset()))


def _is_seen_as(base: torch.dtype, view: torch.dtype) -> bool:
    """Return whether a view has its base's dtype, views complex numbers as pairs of real numbers, or does the reverse."""
    return base == view or (base.is_complex != view.is_complex and base.to_complex() == view.to_complex())


def _hook(meta: torch.Tensor, tensor: torch.Tensor) -> None:
    """Register the user's gradient hooks of a tensor on its meta tensor."""
    for hook in (tensor._backward_hooks or {}).values():
        meta.register_hook(hook)
    for hook in (tensor._post_accumulate_grad_hooks or {}).values():
        meta.register_post_accumulate_grad_hook(hook)


FREEZING: frozenset[Any] = frozenset({torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__})  # type: ignore[attr-defined]
"""Functions that freeze or thaw a tensor."""
SMALL = 2**20
"""The most elements that a floating tensor with kept values may have: 4 MiB of float32. The model's own tensors keep no values."""
HOLDING = {torch.strided, torch.jagged, *SPARSE}
"""The layouts that sparse and nested tensors may have; their inner shapes depend on values. (A nested tensor may be strided.)"""
PACKING = frozenset("_pack_padded_sequence _pad_packed_sequence lstm gru rnn_tanh rnn_relu".split())
"""Functions and operators that take lengths, or batch sizes of packed sequences, always on the CPU."""
CUT = "the model writes to a tensor and passes it to an autograd.Function: on the meta device, this tensor would get no gradient"
GROWS = "the model passes an empty tensor as out=, and the new shape of this tensor is known only after the result has been computed"
RECAST = "the model writes to a view whose dtype differs from its base's: a meta tensor cannot be such a view"
HOLDS = "the shapes inside a sparse or nested tensor depend on values, and tensors on the meta device have no values"


class MetaMirror(ModelTensors):
    """The meta tensors of real tensors. Each real tensor has one meta tensor, as long as the real tensor lives.

    ``state`` has the tensors of the model and its inputs; ``snapshot`` saves and restores these and other tensors.
    ``on_mirrored(tensor, meta)`` is called for each new pair, ``on_stranger(tensor)`` for each tensor of unknown origin.

    ``missed_calls``: calls may have been missed, so the run must be repeated with a dispatch mode. It turns True when a call takes a tensor that
    is not in the state, was not returned by an observed call, and is not in the snapshot, such as a tensor in a closure, and when the kernel
    of an unobserved operator calls a function (``MetaWorld.called_unseen``). ``has_meta_tensors``: tensors of the state itself are on meta.
    ``meta_error`` is the text of the first error in any thread that a run on real tensors would not raise, or "". ``registered`` has
    references to the tensors of known origin, by id, with the forms that :meth:`form` has read so far.
    ``shared_form(shape, stride, dtype, place)`` returns the shared form of all tensors with this metadata.
    """

    @hidden_from_modes
    def __init__(
        self,
        state: Iterable[torch.Tensor],
        snapshot: Snapshot,
        shared_form: Callable[..., Form] | None = None,
    ) -> None:
        self.missed_calls = False
        self.meta_error = ""
        self.keeps_lengths = (
            False  # True only for a GPU, which runs a packed sequence in one kernel; a CPU runs it step by step
        )
        # The meta world sets these two functions, to update the run's live storages.
        self.on_mirrored: Callable[[torch.Tensor, torch.Tensor], None] = lambda *_: None
        self.on_stranger: Callable[[torch.Tensor], None] = lambda _: None
        self.snapshot = snapshot
        self._state = {id(tensor): tensor for tensor in state}
        self.has_meta_tensors = any(tensor.is_meta for tensor in self._state.values())
        self._weight_metas: set[int] = set()  # ids of the meta tensors of trainable parameters
        # For each real tensor, by id: a weak reference to the real tensor, and its meta tensor.
        self._pairs: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self.registered: dict[int, tuple[weakref.ref[torch.Tensor], Form | None]] = {}
        self.shared_form = shared_form or cache(Form)
        # From the id of each tensor in the model's state to the tensor's Form.
        self._own_forms: dict[int, Any] = {key: self.read(tensor) for key, tensor in self._state.items()}
        self._invalid: dict[int, Any] = {}
        if None in self._own_forms.values():
            self.register([t for key, t in self._state.items() if self._own_forms[key] is None and t.is_meta])
        self._own_forms[id(None)] = "absent"  # a module's missing bias is part of its key too

    def register(self, value: Any) -> None:
        """Register the tensors that an observed call returned."""
        for tensor in tensors_given(value):
            if tensor.device.type == "meta" and not is_dense(tensor) and tensor.layout in HOLDING:
                self._give_up(HOLDS)
            self.registered[id(tensor)] = weakref.ref(tensor), None

    def register_form(self, tensor: torch.Tensor, form: Form) -> None:
        """Note that a tensor's origin is known, and that it has this form."""
        self.registered[id(tensor)] = weakref.ref(tensor), form

    def note_error(self, error: str) -> None:
        """Note an error of a call on meta; only the first error counts."""
        self.meta_error = self.meta_error or error

    def _give_up(self, reason: str) -> NoReturn:
        """Raise NeedsRealTensors. Note the reason, since the model may catch the error."""
        self.note_error(reason)
        raise NeedsRealTensors(reason)

    def form(self, tensor: torch.Tensor) -> Form | None:
        """Return the form of a tensor; None if its origin is unknown, or :meth:`read` returns None for it."""
        key = id(tensor)
        form = self._own_forms.get(key)
        if form is None and (registered := self.registered.get(key)) is not None and registered[0]() is tensor:
            form = registered[1]
            if form is None:
                form = self.read(tensor)
                self.registered[key] = registered[0], form
        return None if form is not None and form.place is REAL and self._is_invalid(tensor) else form

    def spec(self, tensor: torch.Tensor) -> Spec:
        """Return the spec of a tensor; tensors of the same form share one spec."""
        form = self._own_forms.get(id(tensor)) or self.form(tensor)
        return spec_of(tensor) if form is None else form.spec

    def form_of_meta(self, tensor: torch.Tensor) -> Form | None:
        """Return the form of a tensor. A meta tensor of unknown origin has a form, too, since autograd makes such tensors."""
        return self.form(tensor) or (self.read(tensor) if tensor.is_meta else None)

    def read(self, tensor: torch.Tensor) -> Form | None:
        """Read the form of a tensor from its current metadata; None for a subclass, or for a tensor that is not plainly strided."""
        if type(tensor) not in ORDINARY or tensor.layout is not strided or tensor.is_nested or tensor.is_neg():
            return None
        dtype, place = tensor.dtype, META
        if dtype.is_complex and tensor.is_conj():  # lazily conjugated, which shape and strides do not show
            return None
        if not tensor.is_meta:
            is_own_or_large = id(tensor) in self._state or tensor.numel() > SMALL
            place = OWN if is_own_or_large and (dtype.is_floating_point or dtype.is_complex) else REAL
        return self.shared_form(tensor.shape, tensor.stride(), dtype, place)

    def forms_of_own(self, tensors: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
        """Return the forms of tensors of the model; None for a tensor that the model got after the run began."""
        return tuple(map(self._own_forms.get, map(id, tensors)))

    def forget(self, value: Any) -> None:
        """Drop the cached forms of tensors that a call wrote to: their shapes or strides may have changed."""
        for tensor in tensors_given(value):
            if id(tensor) in self.registered:
                self.registered[id(tensor)] = self.registered[id(tensor)][0], None
            if id(tensor) in self._own_forms:
                self._own_forms[id(tensor)] = self.read(tensor)

    def is_weight(self, meta: torch.Tensor) -> bool:
        """Return whether a meta tensor stands for a parameter that requires a gradient, or is such a parameter itself."""
        own = self._state.get(id(meta))
        return id(meta) in self._weight_metas or (isinstance(own, nn.Parameter) and own.requires_grad)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the meta tensor that stands for a tensor. A tensor on meta is returned itself.

        Raises NotImplementedError for a sparse or nested tensor.
        """
        if _is_on_meta(tensor):
            return tensor
        key = id(tensor)
        pair = self._pairs.get(key)
        if pair is None:
            if not is_dense(tensor) and tensor.layout in HOLDING:
                self._give_up(HOLDS)
            base = self._base_of(tensor)
            # Make the meta tensor outside inference mode: it may be used after the inference_mode block, when gradients flow through it.
            outside_inference_mode = (
                torch.inference_mode(tensor.is_inference()) if torch.is_inference_mode_enabled() else nullcontext()
            )
            with disable_current_modes() if len_torch_dispatch_stack() else nullcontext(), outside_inference_mode:
                # Weights keep requires_grad under no_grad, because some torch functions read requires_grad even then.
                keeps_requires_grad = key in self._state or torch.is_grad_enabled()
                if base is None:
                    meta = _empty_like(tensor, tensor.requires_grad and keeps_requires_grad)
                else:
                    meta = _view_like(tensor, *base)
                if meta.requires_grad:
                    _hook(meta, tensor)
            # The callback must not refer to self: self refers to the model, so that would make a reference cycle.
            pairs = self._pairs
            pair = pairs[key] = (weakref.ref(tensor, lambda _: pairs.pop(key, None)), meta)
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                self._weight_metas.add(id(meta))
            self.register(meta)
            self.on_mirrored(tensor, meta)
        elif tensor.requires_grad != pair[1].requires_grad and pair[1].is_leaf:
            if key in self._state:
                _copy_requires_grad(pair[1], tensor)  # the model has frozen or thawed the tensor since
            elif tensor.grad_fn is not None:  # an autograd.Function wrote to the tensor, and has returned it since
                self._give_up(CUT)
        return pair[1]

    def _base_of(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the base of a view that the model made, and the base's meta tensor; None for any other tensor.

        If a model writes into a table through a view, the table and its other views get a gradient function.
        """
        if id(tensor) in self._state or tensor.layout is not strided or not tensor._is_view():
            return None
        base = tensor._base
        if base is None or not is_dense(base) or not _is_seen_as(base.dtype, tensor.dtype):
            return None
        return base, self.of(base)

    def take_stand_in(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Forget a tensor that the model has replaced; return the tensor's meta tensor, or None if it has no meta tensor."""
        pair = self._pairs.pop(id(tensor), None)
        return None if pair is None else pair[1]

    def replace(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with all tensors replaced by meta tensors, or unchanged if the call is to compute values.

        The tensors are replaced if any of them is on meta, or if any floating or complex tensor is large or belongs to the state.
        A call whose tensors are all integers or booleans computes real values, since these are masks and positions. So does a call on
        small float tables that the model makes itself.
        """
        if not self._survey((args, kwargs)):
            return args, kwargs
        self._apply_to_real(func, args, kwargs)
        if self.keeps_lengths and getattr(func, "__name__", "").partition(".")[0] in PACKING:
            kept = [t for t in tensors_given((args, kwargs)) if t.dtype is torch.int64 and not t.is_meta]
            return self._replaced(args, kept), self._replaced(kwargs, kept)
        return self._replaced(args), self._replaced(kwargs)

    def _apply_to_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Apply to the real tensors what a call on meta changes: ``requires_grad``, and the shapes of the state's tensors.

        The values that the call changes stay as they are in the real tensors, so mark these values as old.
        """
        if func in FREEZING and id(args[0]) in self._state and not args[0].is_meta:
            with DisableTorchFunction():
                func(*args, **kwargs)  # for the real tensor, too: models and new meta tensors read its requires_grad
        for target in tensors_given(kwargs["out"]) if "out" in kwargs else ():
            self._invalidate(target)
            if not target.is_meta and not target.numel():
                self._give_up(GROWS)
        if args and "out" not in kwargs and writes(func, kwargs):
            self._invalidate(args[0])
            if func in RESHAPING and id(args[0]) in self._state and not args[0].is_meta:
                self.snapshot.remember_layouts(args[:1])  # before this call changes it
                with DisableTorchFunction(), disable_current_modes():
                    func(*args, **kwargs)  # for the real tensor, too: models read its shape
                self.forget(args)

    def holding_gradient(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a property access. If it reads or sets a gradient made on meta, pass the tensor's meta tensor.

        A backward pass that the model's own code runs leaves its gradients on the meta tensors.
        """
        pair = self._pairs.get(id(args[0]))
        if pair is None or pair[0]() is not args[0] or getattr(func.__self__, "__name__", "") != "grad":
            return args
        with DisableTorchFunction():
            meta = pair[1]
            if func.__name__ == "__get__":
                return args if meta.grad is None else (meta, *args[1:])
            if args[1] is None:
                meta.grad = None
                return args
            return (meta, *args[1:]) if _is_on_meta(args[1]) else args

    def _invalidate(self, target: Any) -> None:
        """Mark the storage of a tensor that a call on meta writes to, since the tensor's real values are no longer valid."""
        if isinstance(target, torch.Tensor) and is_dense(target) and target.device.type != "meta":
            base = target._base if target._is_view() and id(target) not in self._state else None
            if base is not None and self._base_of(target) is None:
                self._give_up(RECAST)
            storage, invalid = target.untyped_storage(), self._invalid
            key = storage._cdata  # another storage may get this address after this storage is freed
            invalid[key] = weakref.ref(storage, lambda _: invalid.pop(key, None))

    def _is_invalid(self, tensor: torch.Tensor) -> bool:
        return bool(self._invalid) and is_dense(tensor) and tensor.untyped_storage()._cdata in self._invalid

    def current_tensors_in(self, value: Any) -> list[torch.Tensor]:
        """Return the tensors in a value. A tensor that a call on meta wrote to is replaced by its meta tensor, since its values are old."""
        with DisableTorchFunction():
            return [self.of(t) if self._is_invalid(t) and not t.requires_grad else t for t in tensors_in(value)]

    def current(self, value: Any) -> Any:
        """Return a value; if it is a tensor that a call on meta wrote to, return its meta tensor instead, since its values are old."""
        return self.of(value) if isinstance(value, torch.Tensor) and self._is_invalid(value) else value

    @hidden_from_modes
    def note_missed_calls(self, value: Any) -> None:
        """Set ``missed_calls`` if the model returned a tensor of unknown origin."""
        self._survey(tensors_in(value))

    def _survey(self, value: Any) -> bool:
        """Return whether a call with these tensors must run on meta; set ``missed_calls`` if the origin of a tensor is unknown."""
        needs_meta = False
        for tensor in tensors_given(value):
            registered = self.registered.get(id(tensor))
            is_known = id(tensor) in self._state or (registered is not None and registered[0]() is tensor)
            if not is_known and not self.snapshot.saves(tensor):
                self.missed_calls = True
                self.on_stranger(tensor)
            if _is_on_meta(tensor):
                needs_meta = True
                continue
            is_invalid = self._is_invalid(tensor)
            if is_invalid and self.of(tensor).requires_grad and not torch.is_grad_enabled() and in_function():
                self._give_up(CUT)
            is_without_values = id(tensor) in self._state or tensor.numel() > SMALL or is_invalid
            needs_meta |= is_without_values and (tensor.is_floating_point() or tensor.is_complex())
        return needs_meta

    def _replaced(self, value: Any, kept: Sequence[torch.Tensor] = ()) -> Any:
        """Return a value with all tensors replaced by meta tensors, except the tensors in ``kept``."""
        if isinstance(value, torch.Tensor):
            return value if any(value is kept_tensor for kept_tensor in kept) else self.of(value)
        if isinstance(value, (tuple, list)) and any(isinstance(v, (torch.Tensor, tuple, list, dict)) for v in value):
            items = [self._replaced(item, kept) for item in value]
            return type(value)(items) if type(value) in (tuple, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self._replaced(item, kept) for key, item in value.items()}
        return value
