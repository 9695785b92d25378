"""Detect calls with mixed dtypes that the kernels of a real device refuse, although meta kernels accept them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ops._registry import FormulaRegistry
from ..records.facts import ATTENTION

SAME_DTYPE = frozenset(
    "linear matmul addmm addbmm baddbmm addmv conv conv_transpose bilinear lstm_cell gru_cell rnn_cell".split()
)
"""Operations whose tensors must all be of one dtype."""
SAME_FLOAT_DTYPE = frozenset(
    "grid_sample embedding_bag binary_cross_entropy nll_loss index_put index_add index_copy cross".split()
)
"""Operations whose floating tensors must all be of one dtype; their other tensors are indices."""
NORMS = frozenset("batch_norm layer_norm group_norm instance_norm".split())
"""Operations whose weights may also be float32 if the input has half precision."""
SAME_DTYPE_ON_GPUS = frozenset("layer_norm group_norm".split())
"""Norms whose GPU kernels read the weights in the input's dtype, so that they refuse float32 weights for a half-precision input."""
HALF = (torch.float16, torch.bfloat16)
CHECKED = SAME_DTYPE | SAME_FLOAT_DTYPE | NORMS | {ATTENTION}  # attention also takes a float32 or bool mask


class MixedDtypesError(RuntimeError):
    """Raised for a call on meta or fake tensors that would raise on the real device. There, torch raises a RuntimeError."""

    def __init__(self, op: str, dtypes: Sequence[torch.dtype]) -> None:
        names = ", ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in dtypes))
        super().__init__(
            f"the tensors of {op} do not have the same dtype ({names}); the real device does not accept this"
        )


def are_refused(op: str, dtypes: Sequence[torch.dtype], device: str) -> bool:
    """Return whether an operation refuses tensors of these dtypes on this type of device."""
    if op not in CHECKED:
        return False
    if op not in SAME_DTYPE:
        dtypes = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    first = next(iter(dtypes), None)
    different = {dtype for dtype in dtypes if dtype is not first}
    takes_single = NORMS - SAME_DTYPE_ON_GPUS if device == "cuda" else NORMS
    may_be_single = op == ATTENTION or (op in takes_single and first in HALF)
    return bool(different) and not (may_be_single and different == {torch.float32})


def check_dtypes(func: Any, dtypes: Sequence[torch.dtype], registry: FormulaRegistry, device: str) -> None:
    """Raise MixedDtypesError if ``func`` refuses tensors of these dtypes on this type of device."""
    if len({*dtypes}) > 1:
        formula = registry.find(func)
        if formula is not None and are_refused(formula.op, dtypes, device):
            raise MixedDtypesError(formula.op, dtypes)
