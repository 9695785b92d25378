"""Run composite functions on the meta device with the kernels that torch would choose on the target device.

On a real device ``scaled_dot_product_attention`` runs a fused kernel if a fused kernel supports its arguments, and an LSTM runs a
oneDNN or cuDNN kernel. On meta both functions run plain matrix products, with other intermediate and saved tensors than those kernels. On a GPU,
dropout saves a boolean mask, while the CPU and meta save the scaled mask in the input's dtype. On a GPU, RMS norm and an LSTM
cell each run a single kernel, and softmax reads half precision without a cast.
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
from .cuda_kernels import ON_GPU, is_packed, takes_plain_products, with_batch_sizes
from .memo import Unknown, call_key
from .modes import transformed
from .single_kernels import SINGLE_KERNELS, SINGLE_KERNELS_ON_GPUS

RECURRENT = [getattr(torch, name) for name in "lstm gru rnn_tanh rnn_relu".split()]
SDPA = F.scaled_dot_product_attention
DIFFERENT_ON_GPUS = frozenset(
    [F.dropout, torch.dropout]
    + [function for name in ("softmax", "log_softmax") for function in spelled(name, F, torch, torch.Tensor)]
    + [torch.lstm_cell]
)
"""Composite functions that run in the same way on meta and on the CPU, but in another way on a GPU."""
DEVICE_DEPENDENT = frozenset({SDPA, *RECURRENT, *DIFFERENT_ON_GPUS})
NAMESAKES = (
    SDPA,
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
    functions: dict[Any, Any] = {}
    for function in NAMESAKES:
        packet = getattr(torch.ops.aten, function.__name__)
        functions |= dict.fromkeys((packet, *(getattr(packet, name) for name in packet.overloads())), function)
    return functions


SPELLED_BY_OPERATOR = _spelled_by_name()
"""The function of the same name for each operator: ``torch.ops.aten.lstm(...)`` chooses kernels by device just like ``torch.lstm(...)``."""


def spellings_of(function: Any) -> list[Any]:
    """Return a function of NAMESAKES, and the operators and overloads with its name."""
    return [function, *(operator for operator, namesake in SPELLED_BY_OPERATOR.items() if namesake is function)]


NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class OperatorCall(NamedTuple):
    """One operator call of a decomposition. Tensors are numbered in order: first the composite's arguments, then each call's results.

    ``template`` has the arguments, with placeholders for the tensors, whose numbers are in ``tensors``. ``freed`` has the numbers
    of tensors that are freed before the next call.
    """

    operator: Any
    template: Any
    tensors: list[int]
    results: list[int]
    freed: list[int]


class Decomposition(NamedTuple):
    """The operators that a call dispatches, and its result, with placeholders for the tensors whose numbers are ``returned``."""

    calls: list[OperatorCall]
    result: Any
    returned: list[int]


class DeviceKernels:
    """Runs on meta the operators that a composite call dispatches on ``device``.

    To find these operators, the call runs once on fake tensors of that device. For an absent GPU torch cannot choose
    kernels, so ``cuda_kernels.py`` chooses them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._single_kernels = {**SINGLE_KERNELS, **SINGLE_KERNELS_ON_GPUS} if device.type == "cuda" else SINGLE_KERNELS
        self._decompositions: dict[Any, Decomposition | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a composite call on meta tensors; NotImplemented for any other call."""
        is_operator, func = func in SPELLED_BY_OPERATOR, SPELLED_BY_OPERATOR.get(func, func)
        single_kernel = self._single_kernels.get(func)
        # With gradients off, the results of functions come from shape rules instead. Operators have no rules here: meta decomposes them first.
        if single_kernel is not None and (torch.is_grad_enabled() or is_operator) and not transformed():
            return single_kernel(*args, **kwargs)
        if func not in DEVICE_DEPENDENT:
            return NotImplemented
        if func in DIFFERENT_ON_GPUS and self.device.type == "cpu":
            return NotImplemented
        if func is F.dropout and (kwargs.get("inplace") or args[3:] == (True,)):  # in place, dropout has no own kernel
            return NotImplemented
        if func in RECURRENT and is_packed(args):
            if self.device.type != "cuda" or args[1].is_meta:  # CPUs have no kernel for packed sequences
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
            decompose = self._attention if func is SDPA else self._decompose
            with outside_transforms():
                meta_tensors = [_meta_like(tensor) for tensor in tensors]
                self._decompositions[key] = decompose(func, template, meta_tensors)
        decomposition = self._decompositions[key]
        if decomposition is None:
            return NotImplemented
        values = dict(enumerate(tensors))
        for call in decomposition.calls:
            args, kwargs = fill(call.template, *(values[number] for number in call.tensors))
            out = call.operator(*args, **kwargs)
            values.update(zip(call.results, tensors_in(out), strict=True))
            del args, kwargs, out
            for number in call.freed:
                del values[number]
        return fill(decomposition.result, *(values[number] for number in decomposition.returned))

    def _attention(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Decomposition | None:
        """Return the decomposition of an attention call; None if it runs plain matrix products, as meta does anyway.

        For the CPU, torch itself reports the kernel for tensors with the same shapes, which need only a few bytes of memory.
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
        # torch first reshapes or converts such arguments, so it calls other operators before the fused operator below.
        if query.ndim != 4 or (mask is not None and (not mask.is_floating_point() or named.get("is_causal"))):
            return self._decompose(func, template, tensors)
        flash_template, passed_tensors = template_of(((), named))
        number_of = {id(tensor): number for number, tensor in enumerate(small)}
        numbers = [number_of[id(tensor)] for tensor in passed_tensors]
        out, logsumexp = len(small), len(small) + 1
        flash = OperatorCall(flash_attention_for_cpu.default, flash_template, numbers, [out, logsumexp], [logsumexp])
        return Decomposition([flash], template_of(query)[0], [out])

    def is_absent(self) -> bool:
        """Return whether the device is a GPU, but this machine has no GPU."""
        return self.device.type == "cuda" and not torch.cuda.is_available()

    def _decompose(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Decomposition | None:
        """Return the operators that a call like this dispatches on the device; None if they use a tensor from outside the call."""
        FakeTensor, FakeTensorMode = fake_tensors()
        with disable_current_modes():
            plain_tensors = [tensor.detach() for tensor in tensors]
        if self.is_absent() or (func in RECURRENT and is_packed(template[0])):
            func = ON_GPU.get(func, func)
        # Let autograd save nothing in this trial run, because the real call saves its own tensors.
        # A checkpoint around the call must not see the tensors of the trial run.
        unsaved = saved_tensors_hooks(lambda t: None, torch.Tensor)
        with disable_current_modes(), unsaved, fake_errors_unlogged(), FakeTensorMode() as mode:
            fakes = [
                FakeTensor(mode, plain, self.device).requires_grad_(tensor.requires_grad)
                for plain, tensor in zip(plain_tensors, tensors, strict=True)
            ]
            args, kwargs = fill(template, *fakes)
            with _RecordedCalls(fakes) as recorded:
                out = func(*args, **kwargs)
            if out is NotImplemented:
                return None
            # Copy the lists of freed tensors now. Tensors that are still alive are freed below, and would be added to the last call's list.
            calls = [call._replace(freed=[*call.freed]) for call in recorded.calls]
            result, returned = template_of(out)
            numbers = [recorded.numbers.get(id(tensor)) for tensor in returned]
        known_numbers = [number for number in numbers if number is not None]
        if not recorded.is_complete or len(known_numbers) < len(numbers):
            return None
        return Decomposition(
            _without_autograd_copies(calls, known_numbers) if torch.is_grad_enabled() else calls, result, known_numbers
        )


def _form(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new meta tensor with the same metadata; for a tensor under vmap, with one example's metadata."""
    with disable_current_modes(), torch.no_grad():
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return meta.requires_grad_(tensor.requires_grad)


def _without_autograd_copies(calls: list[OperatorCall], returned: list[int]) -> list[OperatorCall]:
    """Return the calls without the copies that autograd makes before an in-place write: a replay makes such copies again."""
    used_numbers, needed = {*returned}, list[OperatorCall]()
    for call in reversed(calls):
        if call.operator._schema.is_mutable or used_numbers.intersection(call.results):
            used_numbers.update(call.tensors)
            needed.append(call)
    numbers_made = {number for call in needed for number in call.results}
    return [
        call._replace(freed=[number for number in call.freed if number in numbers_made]) for call in reversed(needed)
    ]


class _RecordedCalls(DispatchMode):
    """Records the dispatched operators. ``numbers`` has the number of each live tensor by the tensor's id.

    ``is_complete`` becomes False if an operator takes a tensor that is neither in ``arguments`` nor the result of a recorded operator.
    """

    def __init__(self, arguments: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OperatorCall] = []
        self.is_complete = True
        self.numbers = {id(tensor): number for number, tensor in enumerate(arguments)}
        self._next = len(arguments)
        self._references: dict[int, weakref.ref[torch.Tensor]] = {}
        self._live_count = Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = tensors_in(out)
        if not results:  # a query, such as sym_size
            return out
        meta_device = {"device": torch.device("meta")} if kwargs and kwargs.get("device") is not None else {}
        template, tensors = template_of((args, {**(kwargs or {}), **meta_device}))
        numbers = [self.numbers.get(id(tensor), -1) for tensor in tensors]
        self.is_complete &= -1 not in numbers
        if func is torch.ops.aten.detach.default:  # autograd calls detach to return a view
            self._give_number(out, numbers[0])
            return out
        self.calls.append(OperatorCall(func, template, numbers, list(range(self._next, self._next + len(results))), []))
        for tensor in results:
            self._give_number(tensor, self._next)
            self._next += 1
        return out

    def _give_number(self, tensor: torch.Tensor, number: int) -> None:
        """Give the tensor this number until it is freed. A tensor that an operator wrote to gets a new number."""
        key = id(tensor)
        if key in self._references:
            self._drop_number(key)
        self.numbers[key] = number
        self._live_count[number] += 1
        self._references[key] = weakref.ref(tensor, lambda _: self._drop_number(key))

    def _drop_number(self, key: int) -> None:
        """Note that a tensor was freed, or got another number."""
        number = self.numbers.pop(key)
        del self._references[key]
        self._live_count[number] -= 1
        if not self._live_count[number]:
            self.calls[-1].freed.append(number)


def enabled_kernels() -> tuple[Any, ...]:
    """Return the settings that restrict which kernels torch may choose: of ``sdpa_kernel``, oneDNN and cuDNN."""
    names = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled")
    attention = [getattr(torch.backends.cuda, name)() for name in names]
    return *attention, torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
