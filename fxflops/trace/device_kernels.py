"""Composites on the meta device: attention and recurrent layers, by the kernels that torch would choose where the model's
tensors are.

``scaled_dot_product_attention`` takes a fused kernel where one takes its arguments, an LSTM that of oneDNN or cuDNN. On meta
they take none: what they make on the way, and keep for the backward pass, would be that of plain matrix products.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend

from ..model.pytree import fill, template_of, tensors_in
from ..ops._rules import SAVED
from ..records import spec_of
from ..torch_internals import (
    DisableTorchDispatch,
    TorchDispatchMode,
    disable_current_modes,
    fake_tensors,
    flash_attention_for_cpu,
    fused_sdp_choice,
)

RECURRENT = [getattr(torch, name) for name in "lstm gru rnn_tanh rnn_relu".split()]
COMPOSITES = frozenset(
    {F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default, *RECURRENT}
)

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Step(NamedTuple):
    """One operator: its arguments, with holes for the tensors ``given``, and the tensors that it made, by number. Those that
    are ``gone`` nobody holds any more once the next one runs."""

    operator: Any
    template: Any
    given: list[int]
    made: list[int]
    gone: list[int]


class Way(NamedTuple):
    """What a call dispatches: its steps, and its result, with holes for the tensors of these numbers."""

    steps: list[Step]
    result: Any
    returned: list[int]


class DeviceKernels:
    """Runs on meta what a call of a composite dispatches on ``device``, which is asked of torch: of fake tensors there.

    A model on meta has the kernels of the CPU; of its backward pass meta's own, which FlopCounterMode counts there. ``made`` is told
    of tensors that have grown since they were made.
    """

    def __init__(self, device: torch.device, made: Callable[[Any], Any]) -> None:
        self._on_meta = device.type == "meta"
        self._device = torch.device("cpu") if self._on_meta else device
        self._made = made
        self._known: dict[Any, Way | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of such a call; NotImplemented for any other."""
        if func not in COMPOSITES or (self._on_meta and torch.is_grad_enabled()):
            return NotImplemented
        template, tensors = template_of((args, kwargs))
        if not all(tensor.is_meta for tensor in tensors):
            return NotImplemented
        forms = tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in tensors)
        key = func, repr(template), forms, torch.is_grad_enabled(), _allowed()
        if key not in self._known:
            find = self._way_of if func in RECURRENT else self._attention
            self._known[key] = find(func, template, tensors)
        found = self._known[key]
        if found is None:
            return NotImplemented
        values = dict(enumerate(tensors))
        for step in found.steps:
            args, kwargs = fill(step.template, *(values[number] for number in step.given))
            saves = torch.is_grad_enabled() and step.operator.name() in SAVED
            with _Keeping(step.operator, self._made) if saves else nullcontext():
                out = step.operator(*args, **kwargs)
            values.update(zip(step.made, tensors_in(out), strict=True))
            del args, kwargs, out
            for number in step.gone:
                del values[number]
        return fill(found.result, *(values[number] for number in found.returned))

    def _attention(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Way | None:
        """The same of attention. On the CPU torch tells the kernel from tensors of a few bytes that lie alike: the fused one, or
        the plain products, which are the same on meta (None)."""
        if fused_sdp_choice is None or self._device.type != "cpu" or any(tensor.ndim < 2 for tensor in tensors):
            return self._way_of(func, template, tensors)
        with DisableTorchDispatch():
            small = [_alike(tensor) for tensor in tensors]
            args, kwargs = fill(template, *small)
            if fused_sdp_choice(*args, **kwargs) != SDPBackend.FLASH_ATTENTION.value:
                return None
        named = {**dict(zip(NAMES, args, strict=False)), **kwargs}
        named.pop("enable_gqa", None)
        mask, query = named.get("attn_mask"), named["query"]
        if query.ndim != 4 or (mask is not None and (not mask.is_floating_point() or named.get("is_causal"))):
            return self._way_of(func, template, tensors)
        called, given = template_of(((), named))
        numbers, first = [next(i for i, t in enumerate(small) if t is each) for each in given], len(small)
        step = Step(flash_attention_for_cpu.default, called, numbers, [first, first + 1], [first + 1])
        return Way([step], template_of(query)[0], [first])

    def _way_of(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Way | None:
        """The operators that such a call dispatches, and what it returns; None where that cannot be told."""
        FakeTensor, FakeTensorMode = fake_tensors()
        with disable_current_modes():
            plain = [tensor.detach() for tensor in tensors]
        # Hooks of who asked would be told of what is saved here: checkpoint counts it.
        with disable_current_modes(), saved_tensors_hooks(torch.Tensor.detach, lambda t: t), FakeTensorMode() as mode:
            fakes = [
                FakeTensor(mode, alone, self._device).requires_grad_(tensor.requires_grad)
                for alone, tensor in zip(plain, tensors, strict=True)
            ]
            args, kwargs = fill(template, *fakes)
            with _Steps(fakes) as seen:
                out = func(*args, **kwargs)
            steps = [step._replace(gone=[*step.gone]) for step in seen.steps]  # what is held now is let go of below
            result, returned = template_of(out)
            numbers = [seen.numbers.get(id(tensor)) for tensor in returned]
        known = [number for number in numbers if number is not None]
        if not seen.complete or len(known) < len(numbers):
            return None
        return Way(_called(steps, known) if torch.is_grad_enabled() else steps, result, known)


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with values of the same shape, that takes next to no memory."""
    strides = *[0] * (tensor.ndim - 1), int(tensor.stride()[-1] == 1)
    return (
        torch.zeros(tensor.shape[-1], dtype=tensor.dtype, device="cpu")
        .as_strided(tensor.shape, strides)
        .requires_grad_(tensor.requires_grad)
    )


def _called(steps: list[Step], returned: list[int]) -> list[Step]:
    """The steps without those that autograd took, to keep a copy of what is written to next: it will do so again."""
    used, called = {*returned}, list[Step]()
    for step in reversed(steps):
        if step.operator._schema.is_mutable or used.intersection(step.made):
            used.update(step.given)
            called.append(step)
    made = {number for step in called for number in step.made}
    return [step._replace(gone=[number for number in step.gone if number in made]) for step in reversed(called)]


class _Steps(TorchDispatchMode):
    """The operators dispatched meanwhile; ``numbers`` are those of the live tensors, by id. It is ``complete`` unless one took a
    tensor that nobody had seen before."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self.complete = True
        self.numbers = {id(tensor): number for number, tensor in enumerate(given)}
        self._next = len(given)
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}
        self._living = Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = tensors_in(out)
        if not made:  # a query
            return out
        there = {"device": torch.device("meta")} if kwargs and kwargs.get("device") is not None else {}
        template, tensors = template_of((args, {**(kwargs or {}), **there}))
        given = [self.numbers.get(id(tensor), -1) for tensor in tensors]
        self.complete &= -1 not in given
        if func is torch.ops.aten.detach.default:  # autograd's own way to return a view
            self._watch(out, given[0])
            return out
        self.steps.append(Step(func, template, given, list(range(self._next, self._next + len(made))), []))
        for tensor in made:
            self._watch(tensor, self._next)
            self._next += 1
        return out

    def _watch(self, tensor: torch.Tensor, number: int) -> None:
        """Know the tensor by this number as long as it lives; one that an operator wrote to has had another before."""
        key = id(tensor)
        if key in self._watched:
            self._let_go(key)
        self.numbers[key] = number
        self._living[number] += 1
        self._watched[key] = weakref.ref(tensor, lambda _: self._let_go(key))

    def _let_go(self, key: int) -> None:
        """Nobody holds this tensor any more."""
        number = self.numbers.pop(key)
        del self._watched[key]
        self._living[number] -= 1
        if not self._living[number]:
            self.steps[-1].gone.append(number)


class _Keeping(TorchDispatchMode):
    """Gives the last result, which meta leaves empty, the bytes that the kernel keeps there for the backward pass, before
    autograd saves it: checkpoint may stop there."""

    def __init__(self, operator: Any, made: Callable[[Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operator = operator
        self._made = made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is self._operator:
            out[-1].untyped_storage().resize_(SAVED[func.name()](*spec_of(args)))
            self._made(out[-1])
        return out


def _allowed() -> tuple[Any, ...]:
    """Which kernels torch may choose from: ``torch.nn.attention.sdpa_kernel``, ``torch.backends.mkldnn.flags``."""
    cuda: Any = torch.backends.cuda
    attention = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )
    return *attention, torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
