"""Run composites on the meta device with the kernels that torch would choose on the device that is counted for.

On a real device ``scaled_dot_product_attention`` runs a fused kernel if one supports its arguments, and an LSTM runs a
oneDNN or cuDNN kernel. On meta both fall back to plain matrix products, whose intermediate and saved tensors differ. On a GPU,
dropout saves a boolean mask, while the CPU and meta save the scaled mask in the input's dtype; RMS norm and LSTM cells are one
kernel each; softmax reads half precision without a cast.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend

from ..model.pytree import fill, template_of, tensors_in
from ..ops._rules import spelled
from ..ops.attention_steps import few_bytes
from ..torch_internals import (
    DisableTorchDispatch,
    DispatchMode,
    disable_current_modes,
    fake_errors_unlogged,
    fake_tensors,
    flash_attention_for_cpu,
    fused_sdp_choice,
    outside_transforms,
)
from .cuda_kernels import STAND_INS, is_packed, takes_plain_products, with_batch_sizes
from .memo import Unknown, call_key
from .modes import transformed
from .whole_kernels import WHOLE, WHOLE_ON_GPUS

RECURRENT = [getattr(torch, name) for name in "lstm gru rnn_tanh rnn_relu".split()]
ATTENTION = F.scaled_dot_product_attention
ON_GPUS = frozenset(
    [F.dropout, torch.dropout]
    + [function for name in ("softmax", "log_softmax") for function in spelled(name, F, torch, torch.Tensor)]
    + [torch.lstm_cell]
)
"""Composites that meta runs as the CPU does, but a GPU does not."""
COMPOSITES = frozenset({ATTENTION, *RECURRENT, *ON_GPUS})
NAMESAKES = (
    ATTENTION,
    *RECURRENT,
    torch.dropout,
    torch.softmax,
    torch.log_softmax,
    torch.lstm_cell,
    torch.rms_norm,
    F.mish,
)


def _spelled_by_name() -> dict[Any, Any]:
    """Return, for each operator and overload, the function of NAMESAKES with the same name and arguments."""
    found: dict[Any, Any] = {}
    for function in NAMESAKES:
        packet = getattr(torch.ops.aten, function.__name__)
        found |= dict.fromkeys((packet, *(getattr(packet, name) for name in packet.overloads())), function)
    return found


SPELLED_BY_OPERATOR = _spelled_by_name()
"""The function for each operator: ``torch.ops.aten.lstm(...)`` chooses its kernel by device just as ``torch.lstm(...)`` does."""

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Step(NamedTuple):
    """One operator of a decomposition. Tensors are numbered: first the call's arguments, then the steps' results, in order.

    ``template`` has the arguments, with holes for the tensors ``given``. The tensors ``freed`` are freed before the next
    step runs.
    """

    operator: Any
    template: Any
    given: list[int]
    made: list[int]
    freed: list[int]


class Decomposition(NamedTuple):
    """The operators that a call dispatches, and its result, with holes for the tensors ``returned``."""

    steps: list[Step]
    result: Any
    returned: list[int]


class DeviceKernels:
    """Runs on meta the operators that a composite call dispatches on ``device``.

    They are found by running the call once on fake tensors of that device. For an absent GPU torch cannot choose
    kernels: ``cuda_kernels.py`` does.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._whole = {**WHOLE, **WHOLE_ON_GPUS} if device.type == "cuda" else WHOLE
        self._decompositions: dict[Any, Decomposition | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a composite call on meta tensors; NotImplemented for any other call."""
        is_operator, func = func in SPELLED_BY_OPERATOR, SPELLED_BY_OPERATOR.get(func, func)
        whole = self._whole.get(func)
        # With grad off, functions use their shape rule instead. Operators never reach it, because meta decomposes them first.
        if whole is not None and (torch.is_grad_enabled() or is_operator) and not transformed():
            return whole(*args, **kwargs)
        if func not in COMPOSITES:
            return NotImplemented
        if func in ON_GPUS and self.device.type == "cpu":
            return NotImplemented
        if func is F.dropout and (kwargs.get("inplace") or args[3:] == (True,)):  # no kernel of its own on any device
            return NotImplemented
        if func in RECURRENT and is_packed(args):
            if self.device.type != "cuda" or args[1].is_meta:  # CPUs have no kernel for it
                return NotImplemented
            args = with_batch_sizes(args)
        template, tensors = template_of((args, kwargs))
        if not all(tensor.is_meta for tensor in tensors):
            return NotImplemented
        try:
            key: Any = call_key((func, torch.is_grad_enabled(), *enabled_kernels()), args, kwargs, _form)
        except Unknown:
            key = None
        if key is None or key not in self._decompositions:
            find = self._attention if func is ATTENTION else self._decompose
            with outside_transforms():
                alone = [_alike(tensor) for tensor in tensors]
                self._decompositions[key] = find(func, template, alone)
        found = self._decompositions[key]
        if found is None:
            return NotImplemented
        values = dict(enumerate(tensors))
        for step in found.steps:
            args, kwargs = fill(step.template, *(values[number] for number in step.given))
            out = step.operator(*args, **kwargs)
            values.update(zip(step.made, tensors_in(out), strict=True))
            del args, kwargs, out
            for number in step.freed:
                del values[number]
        return fill(found.result, *(values[number] for number in found.returned))

    def _attention(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Decomposition | None:
        """Return the decomposition of a call of attention; None for plain matrix products, which meta runs itself.

        On the CPU torch itself names the kernel, when asked with tensors of a few bytes and the same shapes.
        """
        if self.is_absent():
            args, kwargs = fill(template, *tensors)
            return None if takes_plain_products(*args, **kwargs) else self._decompose(func, template, tensors)
        if fused_sdp_choice is None or self.device.type != "cpu" or any(tensor.ndim < 2 for tensor in tensors):
            return self._decompose(func, template, tensors)
        with DisableTorchDispatch():
            small = [few_bytes(t.shape, t.stride(), t.dtype).requires_grad_(t.requires_grad) for t in tensors]
            args, kwargs = fill(template, *small)
            if fused_sdp_choice(*args, **kwargs) != SDPBackend.FLASH_ATTENTION.value:
                return None
        named = {**dict(zip(NAMES, args, strict=False)), **kwargs}
        named.pop("enable_gqa", None)  # the fused operator has no such parameter
        mask, query = named.get("attn_mask"), named["query"]
        # torch reshapes or converts these before the fused operator: more steps than the one below.
        if query.ndim != 4 or (mask is not None and (not mask.is_floating_point() or named.get("is_causal"))):
            return self._decompose(func, template, tensors)
        called, given = template_of(((), named))
        numbers, first = [next(i for i, t in enumerate(small) if t is each) for each in given], len(small)
        step = Step(flash_attention_for_cpu.default, called, numbers, [first, first + 1], [first + 1])
        return Decomposition([step], template_of(query)[0], [first])

    def is_absent(self) -> bool:
        """Return whether the device is a GPU, and this machine has none."""
        return self.device.type == "cuda" and not torch.cuda.is_available()

    def _decompose(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Decomposition | None:
        """Return the operators that such a call dispatches on the device; None if they use a tensor from outside the call."""
        FakeTensor, FakeTensorMode = fake_tensors()
        with disable_current_modes():
            plain = [tensor.detach() for tensor in tensors]
        if self.is_absent() or (func in RECURRENT and is_packed(template[0])):
            func = STAND_INS.get(func, func)
        # Save nothing for a backward pass in this trial run: the real call saves its own tensors, and the hooks of a
        # checkpoint around it must not see these.
        unsaved = saved_tensors_hooks(lambda t: None, torch.Tensor)
        with disable_current_modes(), unsaved, fake_errors_unlogged(), FakeTensorMode() as mode:
            fakes = [
                FakeTensor(mode, alone, self.device).requires_grad_(tensor.requires_grad)
                for alone, tensor in zip(plain, tensors, strict=True)
            ]
            args, kwargs = fill(template, *fakes)
            with _RecordedSteps(fakes) as recorded:
                out = func(*args, **kwargs)
            if out is NotImplemented:
                return None
            # Copy now: the tensors still alive are freed below, which would add them to the last step's list.
            steps = [step._replace(freed=[*step.freed]) for step in recorded.steps]
            result, returned = template_of(out)
            numbers = [recorded.numbers.get(id(tensor)) for tensor in returned]
        known = [number for number in numbers if number is not None]
        if not recorded.complete or len(known) < len(numbers):
            return None
        return Decomposition(
            _without_autograd_copies(steps, known) if torch.is_grad_enabled() else steps, result, known
        )


def _form(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new meta tensor with the same metadata; for a tensor under vmap, with one example's metadata."""
    with disable_current_modes(), torch.no_grad():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return made.requires_grad_(tensor.requires_grad)


def _without_autograd_copies(steps: list[Step], returned: list[int]) -> list[Step]:
    """Return the steps without the copies that autograd makes before an in-place write: a replay makes them anew."""
    used, called = {*returned}, list[Step]()
    for step in reversed(steps):
        if step.operator._schema.is_mutable or used.intersection(step.made):
            used.update(step.given)
            called.append(step)
    made = {number for step in called for number in step.made}
    return [step._replace(freed=[number for number in step.freed if number in made]) for step in reversed(called)]


class _RecordedSteps(DispatchMode):
    """Records the operators dispatched. ``numbers`` has the number of each live tensor by its id.

    ``complete`` becomes False when an operator takes a tensor that is neither ``given`` nor a recorded operator's result.
    """

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
        if not made:  # a query, such as sym_size
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
        """Give the tensor this number until it is freed. A tensor that an operator wrote to gets a new number."""
        key = id(tensor)
        if key in self._watched:
            self._let_go(key)
        self.numbers[key] = number
        self._living[number] += 1
        self._watched[key] = weakref.ref(tensor, lambda _: self._let_go(key))

    def _let_go(self, key: int) -> None:
        """Note that a tensor was freed, or got another number."""
        number = self.numbers.pop(key)
        del self._watched[key]
        self._living[number] -= 1
        if not self._living[number]:
            self.steps[-1].freed.append(number)


def enabled_kernels() -> tuple[Any, ...]:
    """Return the settings of ``sdpa_kernel``, oneDNN and cuDNN that restrict which kernels torch may choose."""
    names = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled")
    attention = [getattr(torch.backends.cuda, name)() for name in names]
    return *attention, torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
