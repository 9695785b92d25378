"""Operators that torch composes from others below autograd, where a dispatch mode sees only the composite.

Its temporaries, such as the factors of ``pinv`` or the absolute values of ``isinf``, are results of operators inside it. To see
these, its composing kernel is called directly, with the dispatch mode on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..records.tensors import ORDINARY, is_dense
from ..torch_internals import (
    composing_kernels,
    has_kernel_for_key,
    is_composite,
    len_torch_dispatch_stack,
)

NAMES = frozenset(
    """
    _chunk_cat _safe_softmax _trilinear _unsafe_masked_index _unsafe_masked_index_put_accumulate
    binary_cross_entropy_with_logits dist isinf ldexp.Tensor ldexp_ linalg_pinv.atol_rtol_tensor masked_scatter_backward
    mvlgamma mvlgamma_
    """.split()
)
"""Composites with temporaries. Most others have none, and are called whole, which is faster. Convolutions are not
listed: their composing kernel chooses by device, and would choose for meta instead of the device that is counted for."""
VALUED = frozenset({"aten::masked_scatter_backward"})
"""Composites with parts whose shapes depend on values (``masked_select``). Meta has only the whole."""


def composing_kernel(func: Any, args: Any, kwargs: Any, device: torch.device | None) -> Callable[..., Any] | None:
    """Return a function that runs an operator as the operators it is composed of; None to call it whole.

    ``device`` is the device that is counted for, if the tensors are on another. Operators are called whole on subclasses and
    sparse tensors, which have their own kernels, and if a user's mode is beneath ours, which expects the whole operator.
    """
    kernels = _composing_kernels(func)
    if kernels is None or len_torch_dispatch_stack():
        return None
    tensors = tensors_given((args, kwargs))
    if not tensors or any(type(each) not in ORDINARY or not is_dense(each) for each in tensors):
        return None
    if tensors[0].is_meta and func.name() in VALUED:
        return None
    device = tensors[0].device if device is None else device
    return (
        None if has_kernel_for_key(func.name(), "Meta" if device.type == "meta" else device.type.upper()) else kernels
    )


@cache
def _composing_kernels(func: Any) -> Callable[..., Any] | None:
    if is_composite(func):
        return func.decompose  # type: ignore[no-any-return]
    return composing_kernels(func) if func.name().removeprefix("aten::") in NAMES else None
