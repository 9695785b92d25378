"""calflops 0.3.2 (https://github.com/MrYxJ/calculate-flops.pytorch): its FLOPs.

It counts as flops-profiler (:mod:`.flops_profiler`) with these differences: torch.mm, torch.bmm and their methods are free,
an RNN step costs 2 per weight, less 1 per gate and matrix, and ``padding="same"``, transposed convolutions and nn.Upsample
do not raise. The tool charges F.upsample, which calls F.interpolate, twice; here it is charged once. If the model raises,
the tool leaves its replacements in torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._convention import CONVENTIONS
from ._replaced import REPLACED, convention_of
from ._rows import POINTWISE, conv_padded_alike, recurrent_with_sums

UNSEEN = (torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm, torch.Tensor.baddbmm)
CONVENTION = convention_of(
    "calflops",
    CONVENTIONS["calflops"],
    {
        **{function: row for function, row in REPLACED.items() if function not in UNSEEN},
        **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), conv_padded_alike),
    },
    dict.fromkeys(POINTWISE, recurrent_with_sums),
)
