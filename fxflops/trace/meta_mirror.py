"""Running on the meta device: floating tensors lose their data just before a call, so that no kernel computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import torch
from torch import nn

from ..model.pytree import tensors_given, tensors_in
from ..ops._traits import RESHAPING
from ..records import ORDINARY, SPARSE, Spec, is_dense, spec_of
from ..torch_internals import DisableTorchFunction, disable_current_modes, len_torch_dispatch_stack
from .functions import in_function, writes


def _empty_like(tensor: torch.Tensor, learns: bool) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.to("meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=learns)


def _hook(twin: torch.Tensor, tensor: torch.Tensor) -> None:
    """Have the twin's gradient go through what the user has hooked onto the tensor's."""
    for hook in (tensor._backward_hooks or {}).values():
        twin.register_hook(hook)
    for hook in (tensor._post_accumulate_grad_hooks or {}).values():
        twin.register_post_accumulate_grad_hook(hook)


SMALL = 2**20
"""Elements of a table that is computed with values: 4 MiB of f32."""
HOLDING = {torch.strided, torch.jagged, *SPARSE}
CUT = "an autograd.Function is given a tensor that was written to on the meta device, and would not learn: it needs values"
GROWS = "out= is given an empty tensor, whose shape is known once values are computed"
HOLDS = "a sparse or nested tensor on the meta device does not know what it holds: it needs values"


META, OWN, REAL = "on meta", "the model's own, which computes without data", "with values"


class Form:
    """What there is to know of a tensor without its values: all tensors of one form are alike to a call that does not compute.

    ``kind`` is META, OWN or REAL. Those that are ``alike`` have equal specs.
    """

    __slots__ = ("alike", "dtype", "kind", "nbytes", "shape", "spec", "stride")

    def __init__(self, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.kind = kind
        self.nbytes = prod(shape) * dtype.itemsize
        self.spec = Spec(shape, dtype)
        self.alike = shape, dtype


class MetaMirror:
    """The meta tensors that stand for real ones, the same one each time, as long as the real one lives.

    ``moved`` is told of each real tensor and its twin.
    ``stranger`` tells that a call was given a tensor that neither belongs to the model nor was made by a call seen: a
    constant of the author's, or the result of something that only the dispatcher sees. ``was_there`` tells what is neither. ``before_write`` is told before one of the state changes.
    ``needs_values`` is what a call on meta raised for want of them, in whatever thread, "" where none did.
    ``seen`` are the tensors that are known, each with its form once somebody has asked for it.
    """

    def __init__(
        self,
        state: Iterable[torch.Tensor],
        was_there: Callable[[torch.Tensor], bool] = lambda tensor: False,
        before_write: Callable[[Any], None] = lambda value: None,
    ) -> None:
        self.stranger = False
        self.needs_values = ""
        self.moved: Callable[[torch.Tensor, torch.Tensor], None] = lambda *_: None
        self._was_there = was_there
        self._before_write = before_write
        self._state = {id(tensor): tensor for tensor in state}
        self._weights: set[int] = set()
        self._mirror: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self.seen: dict[int, tuple[weakref.ref[torch.Tensor], Form | None]] = {}
        self._forms: dict[Any, Form] = {}
        self._own: dict[int, Any] = {id(None): "absent"}
        self._lost: dict[int, Any] = {}
        for key, tensor in self._state.items():
            self._own[key] = form = self.read(tensor)
            if form is None and tensor.is_meta:
                self.saw(tensor)

    def saw(self, value: Any) -> None:
        """A call that was seen returned this."""
        if isinstance(value, torch.Tensor):
            if value.device.type == "meta" and not is_dense(value) and value.layout in HOLDING:
                raise NotImplementedError(HOLDS)
            self.seen[id(value)] = weakref.ref(value), None
        elif isinstance(value, (tuple, list)):
            for item in value:
                self.saw(item)
        elif isinstance(value, dict):
            for item in value.values():
                self.saw(item)

    def form(self, tensor: torch.Tensor) -> Form | None:
        """The form of a tensor; None where its metadata does not tell all, or nobody knows where it comes from."""
        key = id(tensor)
        seen = self.seen.get(key)
        if seen is None or seen[0]() is not tensor:
            form = self._own.get(key)
        else:
            form = seen[1]
            if form is None:
                form = self.read(tensor)
                self.seen[key] = seen[0], form
        return None if form is not None and form.kind is REAL and self._has_lost(tensor) else form

    def spec(self, tensor: torch.Tensor) -> Spec:
        """The spec of a tensor: the same for all of one form."""
        form = self.form(tensor)
        return spec_of(tensor) if form is None else form.spec

    def form_of_meta(self, tensor: torch.Tensor) -> Form | None:
        """The form of a tensor on meta, wherever it comes from: the backward pass has its own."""
        return self.form(tensor) or (self.read(tensor) if tensor.is_meta else None)

    def read(self, tensor: torch.Tensor) -> Form | None:
        """The form of a tensor as it lies now."""
        if type(tensor) not in ORDINARY or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_neg():
            return None
        shape, stride, dtype, kind = tensor.shape, tensor.stride(), tensor.dtype, META
        if dtype.is_complex and tensor.is_conj():
            return None
        if not tensor.is_meta:
            own = id(tensor) in self._state or tensor.numel() > SMALL
            kind = OWN if own and (dtype.is_floating_point or dtype.is_complex) else REAL
        return self.form_of(shape, stride, dtype, kind)

    def form_of(self, shape: Sequence[int], stride: tuple[int, ...], dtype: torch.dtype, kind: str = META) -> Form:
        """The form of all tensors that are such."""
        key = shape, stride, dtype, kind
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = Form(torch.Size(shape), stride, dtype, kind)
        return form

    def forms_of_own(self, tensors: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
        """The forms of tensors of the model; None for one that it has not had from the beginning."""
        return tuple(map(self._own.get, map(id, tensors)))

    def forget(self, value: Any) -> None:
        """These may lie otherwise from now on."""
        for tensor in tensors_given(value):
            if id(tensor) in self.seen:
                self.seen[id(tensor)] = self.seen[id(tensor)][0], None
            if id(tensor) in self._own:
                self._own[id(tensor)] = self.read(tensor)

    def is_weight(self, twin: torch.Tensor) -> bool:
        """Whether it stands for a parameter that is trained."""
        return id(twin) in self._weights

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The meta tensor that stands for this one."""
        if tensor.device.type == "meta":
            return tensor
        key = id(tensor)
        known = self._mirror.get(key)
        if known is None:
            if not is_dense(tensor) and tensor.layout in HOLDING:
                raise NotImplementedError(HOLDS)
            with disable_current_modes() if len_torch_dispatch_stack() else nullcontext():
                learning = key in self._state or torch.is_grad_enabled()  # torch asks weights without gradients too
                twin = _empty_like(tensor, tensor.requires_grad and learning)
                if twin.requires_grad:
                    _hook(twin, tensor)
            known = self._mirror[key] = (weakref.ref(tensor, lambda _: self._mirror.pop(key, None)), twin)
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                self._weights.add(id(twin))
            self.saw(twin)
            self.moved(tensor, twin)
        return known[1]

    def replace(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with each tensor replaced by its meta twin, where any is on meta or belongs to the model or its
        inputs and is floating or complex.

        Integers and booleans stay real as long as a call has no others, so that masks and positions keep their values; so do
        small tables of floats that the model makes for itself.
        """
        if not self._survey((args, kwargs)):
            return args, kwargs
        for target in tensors_given(kwargs["out"]) if "out" in kwargs else ():
            self._lose(target)
            if not target.is_meta and not target.numel():
                raise NotImplementedError(GROWS)
        if args and "out" not in kwargs and writes(func, kwargs):
            self._lose(args[0])
            if func in RESHAPING and id(args[0]) in self._state and not args[0].is_meta:
                self._before_write(())
                with DisableTorchFunction(), disable_current_modes():
                    func(*args, **kwargs)  # it is asked for its shape in its twin's stead
                self.forget(args)
        return self._replaced(args), self._replaced(kwargs)

    def _lose(self, target: Any) -> None:
        """A call that computes without data writes to this: what shares its storage has lost its values."""
        if isinstance(target, torch.Tensor) and is_dense(target) and target.device.type != "meta":
            storage = target.untyped_storage()
            self._lost[storage._cdata] = storage

    def _has_lost(self, tensor: torch.Tensor) -> bool:
        return bool(self._lost) and is_dense(tensor) and tensor.untyped_storage()._cdata in self._lost

    def written(self, value: Any) -> list[torch.Tensor]:
        """The tensors in a value; where a call that computed without data wrote to one, the twin that it wrote to."""
        with DisableTorchFunction():
            found = tensors_in(value)
            return [self.of(t) if self._has_lost(t) and not t.requires_grad else t for t in found]

    def meet(self, value: Any) -> None:
        """The model returned this: whether a call that was seen made it."""
        self._survey(tensors_in(value))

    def _survey(self, value: Any) -> bool:
        """Whether any tensor in the value computes without data."""
        if isinstance(value, torch.Tensor):
            known = self.seen.get(id(value))
            if (known is None or known[0]() is not value) and id(value) not in self._state:
                self.stranger |= not self._was_there(value)
            if value.device.type == "meta":
                return True
            lost = self._has_lost(value)
            if lost and self.of(value).requires_grad and not torch.is_grad_enabled() and in_function():
                raise NotImplementedError(CUT)
            own = id(value) in self._state or value.numel() > SMALL or lost
            return own and (value.is_floating_point() or value.is_complex())
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
        computes = False
        for item in items:
            computes |= self._survey(item)
        return computes

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if isinstance(value, (tuple, list)) and any(isinstance(v, (torch.Tensor, tuple, list, dict)) for v in value):
            items = [self._replaced(item) for item in value]
            return type(value)(items) if type(value) in (tuple, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self._replaced(item) for key, item in value.items()}
        return value
