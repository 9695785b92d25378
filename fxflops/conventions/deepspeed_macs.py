"""DeepSpeed's flops profiler: the MACs that it prints beside its flops (see :mod:`.deepspeed`).

Those of linear layers, convolutions, matmul, mm, bmm, addmm and baddbmm as functions or methods of torch; not those of
``x @ y``, scaled_dot_product_attention, einsum and RNNs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getdoc
from typing import Any

from ..records import Cost
from . import deepspeed
from ._convention import Convention, nothing


def macs_of(row: Callable[..., Cost]) -> Callable[..., Cost]:
    """The row that charges the macs of another."""

    @wraps(row)
    def macs(*args: Any, **kwargs: Any) -> Cost:
        return Cost(others=row(*args, **kwargs).macs)

    macs.__doc__ = (getdoc(row) or "").partition(": ")[0] + ": 1 per multiply-accumulate."
    return macs


CONVENTION = Convention(
    "deepspeed_macs",
    "DeepSpeed's flops profiler: the MACs it prints beside its flops",
    deepspeed.rows_of({function: macs_of(row) for function, row in deepspeed.REPLACED.items()}),
    of=nothing,
    integers=True,
    by_name=True,
)
