"""DeepSpeed's flops profiler: the MACs that it prints beside its flops (see :mod:`.deepspeed`).

They cover linear layers, convolutions, scaled_dot_product_attention, ``x @ y``, matmul, mm, bmm, addmm and torch.baddbmm,
but not einsum or RNNs.
"""

from __future__ import annotations

from ._convention import CONVENTIONS
from ._replaced import convention_of, macs_of
from .deepspeed import REPLACED

CONVENTION = convention_of("deepspeed_macs", CONVENTIONS["deepspeed_macs"], macs_of(REPLACED))
