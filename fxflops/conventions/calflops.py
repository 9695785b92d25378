"""The FLOPs of calflops 0.3.2 (https://github.com/MrYxJ/calculate-flops.pytorch).

calflops counts like flops-profiler (the convention ``flops_profiler``), with three differences. torch.mm, torch.bmm,
their tensor methods and Tensor.baddbmm are free. An RNN step costs 2 per weight, less 1 per row of each weight matrix.
``padding="same"``, transposed convolutions and nn.Upsample do not raise an error. The tool charges F.upsample twice,
because F.upsample calls F.interpolate; here F.upsample is charged once. After an error in the model, the tool does not restore the torch
functions that it has replaced.
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
