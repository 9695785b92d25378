"""The MACs that flops-profiler 0.1.2 prints beside its flops. The convention ``flops_profiler`` counts the flops.

The MACs cover linear layers, convolutions, and matmul, mm, bmm, addmm and baddbmm (called as torch functions or as
tensor methods). The MACs do not cover ``x @ y``, scaled_dot_product_attention, einsum or RNNs.
"""

from __future__ import annotations

from ._convention import CONVENTIONS
from ._replaced import REPLACED, convention_of, macs_of

CONVENTION = convention_of("flops_profiler_macs", CONVENTIONS["flops_profiler_macs"], macs_of(REPLACED))
