"""calflops 0.3.2 (https://github.com/MrYxJ/calculate-flops.pytorch): its FLOPs.

It is DeepSpeed's profiler (:mod:`.deepspeed`) but for what stands here: torch.mm, torch.bmm and their methods are free, a
step of an RNN is 2 per weight less 1 per gate and matrix, and ``padding="same"``, transposed convolutions and nn.Upsample
do not raise. F.upsample, which calls F.interpolate, it charges twice, and here once. When the model raises it leaves its
replacements in torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..ops.shapes import each
from ..records import Cost, Scope, Spec
from . import deepspeed
from ._convention import Convention, nothing
from ._rows import POINTWISE


def conv(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    *,
    out: Spec,
) -> Cost:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: 2 i prod(k) per output, and 1 with a bias.

    padding="same" it takes for as much on both sides: 1 output less in a dim where the kernel needs an odd number.
    """
    n, o, *sizes = out
    if padding == "same" and padding_mode == "zeros":
        dilations = each(dilation, len(sizes))
        sizes = [m - d * (k - 1) % 2 for m, k, d in zip(sizes, weight[2:], dilations, strict=True)]
    return deepspeed.conv(input, weight, bias, out=Spec((n, o, *sizes)))


def recurrent(scope: Scope) -> int:
    """x[a, b, i] -> out[a, b, h]: as DeepSpeed's, of a weight[g, i] 2gi - g."""
    return deepspeed.recurrent(scope, lambda weight: 2 * weight.numel() - weight[0])


UNSEEN = (torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm, torch.Tensor.baddbmm)
CONVENTION = Convention(
    "calflops",
    "calflops: as deepspeed, but for mm and bmm, which are free, and the steps of RNNs",
    deepspeed.rows_of(
        {
            **{function: row for function, row in deepspeed.REPLACED.items() if function not in UNSEEN},
            **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), conv),
        }
    ),
    of=nothing,
    modules=dict.fromkeys(POINTWISE, recurrent).get,
    integers=True,
    by_name=True,
)
