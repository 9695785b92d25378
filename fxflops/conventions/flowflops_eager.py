"""The count of flowflops, OneFlow's counter, in mode "eager" (https://github.com/Oneflow-Inc/flow-OpCounter), for torch modules.

flowflops is based on ptflops: it hooks modules of certain classes (not their subclasses) and adds up their charges.
Functions are not counted. flowflops's documentation states a factor of 2 for convolutions, but the printed numbers do
not include this factor. ResNet-50 has 4121925096. The tool divides the sum by the batch size. This convention does not divide: its sum is
for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ..ops._extend import first
from ..records import Scope
from . import ptflops
from ._convention import CONVENTIONS, NONE, Convention, nothing
from ._rows import given


def linear(scope: Scope) -> int:
    """x[n, *, i], weight[o, i] -> out[n, *, o]: n times the cost of the whole batch, which is i per output plus o if there is a bias."""
    x, out = given(scope), first(scope.out)
    biases = out[-1] if scope.settings["bias"] is not None else 0
    return (x.numel() * out[-1] + biases) * x[0]


def instance_norm(scope: Scope) -> int:
    """x[n, c, *] -> out[n, c, *]: 1 per input and 10 per sample and channel, twice that with ``affine``."""
    x = given(scope)
    return (x.numel() + 10 * math.prod(x[:2])) * (2 if scope.settings["affine"] else 1)


SAME = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ReLU, nn.PReLU, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.GELU,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.Upsample,
    nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell,
)  # fmt: skip
HOOKS: dict[type, Callable[[Scope], int]] = {
    **{cls: ptflops.HOOKS[cls] for cls in SAME},
    nn.Linear: linear,
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), ptflops.convolution),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), instance_norm),
}

CONVENTION = Convention(
    "flowflops_eager",
    CONVENTIONS["flowflops_eager"],
    of=nothing,
    modules=HOOKS.get,
    operators=NONE,
    integers=True,
)
