"""flops-profiler 0.1.2: the MACs that it prints beside its flops (see :mod:`.flops_profiler`).

They cover linear layers, convolutions, and matmul, mm, bmm, addmm and baddbmm as functions or methods of torch, but not
``x @ y``, scaled_dot_product_attention, einsum or RNNs.
"""

from __future__ import annotations

from ._convention import CONVENTIONS
from ._replaced import REPLACED, convention_of, macs_of

CONVENTION = convention_of("flops_profiler_macs", CONVENTIONS["flops_profiler_macs"], macs_of(REPLACED))
