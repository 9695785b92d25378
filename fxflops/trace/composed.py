"""Operators that torch composes from other operators, and functions that dispatch a single operator.

A composite below autograd is seen by a dispatch mode only as a whole. The temporaries of a composite, such as the factors of ``pinv`` or the absolute values of ``isinf``, are results of operators
inside it. To see these operators, the kernel of the composite is called directly, with the dispatch mode on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..ops._spellings import REACHED_AS
from ..records.tensors import ORDINARY, is_dense
from ..torch_internals import (
    OpOverloadPacket,
    composing_kernels,
    has_kernel_for_key,
    is_composite,
    len_torch_dispatch_stack,
    names_with_kernel_for_key,
)

NAMES = frozenset(
    """
    _chunk_cat _safe_softmax _trilinear _unsafe_masked_index _unsafe_masked_index_put_accumulate
    binary_cross_entropy_with_logits dist isinf ldexp.Tensor ldexp_ linalg_pinv.atol_rtol_tensor masked_scatter_backward
    mvlgamma mvlgamma_
    """.split()
)
"""Composite operators with temporaries. Most other composites have no temporaries, and are called whole, which is faster.
Convolutions are not listed: their kernel chooses other kernels by device, and would choose for meta instead of the device that
is counted for."""
PACKETS = frozenset(name.partition(".")[0] for name in NAMES)
NEVER_DISPATCHED = frozenset(name.partition(".")[0] for name in names_with_kernel_for_key("CompositeImplicitAutograd"))
"""The names, without overloads, of operators that a dispatch mode never sees: above autograd, torch replaces them by others."""
VALUED = frozenset({"aten::masked_scatter_backward"})
"""Composite operators with parts whose shapes depend on values (``masked_select``). Meta has a kernel only for the whole operator."""


def composing_kernel(func: Any, args: Any, kwargs: Any, device: torch.device | None) -> Callable[..., Any] | None:
    """Return a function that runs an operator as the operators that it is composed of; None if the operator must be called whole.

    ``device`` is the target device, if the tensors are on another device. Operators are called whole on subclasses
    and sparse tensors, which have their own kernels. They are also called whole if a user's mode is beneath ours, since that mode
    expects the whole operator.
    """
    kernel = _composing_kernel_of(func)
    if kernel is None or len_torch_dispatch_stack():
        return None
    tensors = tensors_given((args, kwargs))
    if not tensors or any(type(tensor) not in ORDINARY or not is_dense(tensor) for tensor in tensors):
        return None
    if tensors[0].is_meta and func.name() in VALUED:
        return None
    device = tensors[0].device if device is None else device
    key = "Meta" if device.type == "meta" else device.type.upper()
    return None if has_kernel_for_key(func.name(), key) else kernel


@cache
def _composing_kernel_of(func: Any) -> Callable[..., Any] | None:
    if is_composite(func):
        return func.decompose  # type: ignore[no-any-return]
    return composing_kernels(func) if func.name().removeprefix("aten::") in NAMES else None


@cache
def is_one_operator(func: Any) -> bool:
    """Return whether a function written in C dispatches the aten operator of its name, and this operator makes no tensor but its result."""
    func = REACHED_AS.get(func, func)
    if not isinstance(func, (BuiltinFunctionType, MethodDescriptorType)):
        return False
    name = func.__name__
    packet = getattr(torch.ops.aten, name, None)
    if (
        not isinstance(packet, OpOverloadPacket)
        or name in PACKETS
        or func not in (getattr(torch.Tensor, name, None), getattr(torch, name, None))
    ):
        return False
    return f"aten::{name}" not in NEVER_DISPATCHED
