"""The MACs that DeepSpeed's flops profiler prints beside its flops. The convention ``deepspeed`` counts the flops.

The MACs cover linear layers, convolutions, scaled_dot_product_attention, ``x @ y``, matmul, mm, bmm, addmm and
torch.baddbmm. The MACs do not cover einsum or RNNs.
"""

from __future__ import annotations

from ._convention import CONVENTIONS
from ._replaced import convention_of, macs_of
from .deepspeed import REPLACED

CONVENTION = convention_of("deepspeed_macs", CONVENTIONS["deepspeed_macs"], macs_of(REPLACED))
