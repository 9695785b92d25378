"""Operators that torch composes of others below autograd, where a dispatch mode sees the whole alone.

The tensors that one holds on its way, the factors of ``pinv`` or the absolute values of ``isinf``, are results of operators
inside it: it is called by its composing kernel, with the dispatch mode on.
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
"""Those that hold more than their result. Most others hold no more, and are called whole, which is faster; the composing
kernel of a convolution asks which device it is on, and meta is none that anybody counts for."""


def composing_kernel(func: Any, args: Any, kwargs: Any, device: torch.device | None) -> Callable[..., Any] | None:
    """Return what calls an operator by those that it is made of; None if it is better called whole.

    ``device`` is that which is counted for, if it is not that of the tensors. Other kinds of tensors have kernels of their
    own, and a mode of the user's beneath ours expects the whole operator.
    """
    kernels = _composing_kernels(func)
    if kernels is None or len_torch_dispatch_stack():
        return None
    tensors = tensors_given((args, kwargs))
    if not tensors or any(type(each) not in ORDINARY or not is_dense(each) for each in tensors):
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
