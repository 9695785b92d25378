"""The MACs that ``profile`` of thop 0.1.1.post2209072238 returns (https://github.com/Lyken17/pytorch-OpCounter).

This release of 2022 is the last release by thop's author. ultralytics-thop, which is maintained and also imported as
``thop``, counts differently. In version 2.2.3, the differences are in nn.MultiheadAttention, nn.GroupNorm, pooling,
nn.Upsample and transposed convolutions. For torchvision's vit_b_16 on two images of 64 pixels, ultralytics-thop counts
2921698368, and this convention counts 1948207104.

thop hooks modules of certain classes (not their subclasses), in eval mode. The count of a module of any other class is
the sum over its children. Functions, operators and biases are free. The charge of a hooked module covers the module's
children, except for nn.Sequential. thop returns a float, but all its rules give whole numbers, so the count here is an
int.

For some modules the tool raises an error (nn.Softmax without a dim, a module with its input passed by name). The count here is then what
the tool's rules intend. If a module has two parents, thop hooks it twice and counts it under both parents. This convention does not count
the module twice. thop also leaves one of the two hooks on the module, so the model's next run raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import nn

from ..ops._extend import first
from ..records import Scope, specs_in
from ._convention import CONVENTIONS, NONE, Convention, nothing
from ._rows import each_input, each_output, given


def zero(scope: Scope) -> int:
    """x[*] -> out[*]: 0."""
    return 0


def convolution(scope: Scope) -> int:
    """x[n, c, *], weight[o, c/g, *k] -> out[*]: (c // g) prod(k) per output; c is the second size of x, batched or not."""
    per_output = given(scope)[1] // scope.settings["groups"] * math.prod(scope.settings["kernel_size"])
    return int(per_output) * first(scope.out).numel()


def linear(scope: Scope) -> int:
    """x[*, i], weight[o, i] -> out[*, o]: i per output."""
    return int(scope.settings["in_features"]) * first(scope.out).numel()


def normalization(scope: Scope) -> int:
    """x[*] -> out[*]: 2 per input, 4 with a weight and a bias."""
    settings = scope.settings
    return given(scope).numel() * (4 if settings.get("affine") or settings.get("elementwise_affine") else 2)


def softmax(scope: Scope) -> int:
    """x[*, k, *] -> out[*, k, *]: 3k - 1 for every k inputs along dim."""
    x, dim = given(scope), scope.settings["dim"]
    k = x[dim if dim is not None else 0 if x.ndim in (0, 1, 3) else 1]
    return x.numel() // k * (3 * k - 1)


def adaptive_avg_pool(scope: Scope) -> int:
    """x[n, c, *s] -> out[n, c, *m]: prod(s / m) + 1 per output, the total rounded down."""
    out = first(scope.out)
    window = math.prod((s / m for s, m in zip(given(scope)[2:], out[2:], strict=True)), start=1.0)
    return int((window + 1) * out.numel())


PER_UPSAMPLED = {"nearest": 1, "linear": 5, "bilinear": 11, "bicubic": 259}


def upsample(scope: Scope) -> int:
    """x[n, c, *] -> out[*]: 1 (nearest), 5 (linear), 11 (bilinear), 259 (bicubic) or 0 (any other mode) per output."""
    return first(scope.out).numel() * PER_UPSAMPLED.get(scope.settings["mode"], 0)


# For each hidden unit and step of an RNN: the number of gates, and the number of operations on the gates. Each gate adds two products.
GATES: dict[type, tuple[int, int]] = {
    **dict.fromkeys((nn.RNNCell, nn.RNN), (1, 0)),
    **dict.fromkeys((nn.GRUCell, nn.GRU), (3, 4)),
    **dict.fromkeys((nn.LSTMCell, nn.LSTM), (4, 4)),
}


def step(scope: Scope, inputs: int) -> int:
    """x[i], h[h] -> h[h]: g (i + h + 1) + e per hidden unit, 2g more with biases; (g, e) is (1, 0) for RNN, (3, 4) for GRU, (4, 4) for LSTM."""
    gates, extra = GATES[scope.cls]
    hidden: int = scope.settings["hidden_size"]
    return hidden * (gates * (inputs + hidden + (3 if scope.settings["bias"] else 1)) + extra)


def cell(scope: Scope) -> int:
    """x[n, i] -> h[n, h]: one step for each sample."""
    return given(scope)[0] * step(scope, scope.settings["input_size"])


def recurrent(scope: Scope) -> int:
    """x[t, n, i] -> out[t, n, h]: one step of all layers and directions, t*n times; in a packed batch, t is the longest length."""
    settings, directions = scope.settings, 2 if scope.settings["bidirectional"] else 1
    first_layer, another = step(scope, settings["input_size"]), step(scope, directions * settings["hidden_size"])
    return times(scope) * directions * (first_layer + int(settings["num_layers"] - 1) * another)


def times(scope: Scope) -> int:
    """Return the number of time steps of an RNN times the number of sequences. In a packed batch, every sequence counts with
    the length of the longest one."""
    data, *packed = specs_in(scope.args[0] if scope.args else scope.kwargs["input"])
    if not packed:
        return math.prod(data[:2])
    batch_sizes, hidden = packed[0], list(specs_in(scope.out))[-1]
    return batch_sizes[0] * hidden[-2]


RULES: Mapping[type, Callable[[Scope], int]] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm), normalization),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), normalization),
    nn.PReLU: each_input,
    nn.Softmax: softmax,
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Dropout, nn.PixelShuffle, nn.ZeroPad2d), zero),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), zero),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), zero),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), each_output),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), adaptive_avg_pool),
    nn.Linear: linear,
    **dict.fromkeys((nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d), upsample),
    **dict.fromkeys((nn.RNNCell, nn.GRUCell, nn.LSTMCell), cell),
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM), recurrent),
}

CONVENTION = Convention(
    "thop",
    CONVENTIONS["thop"],
    of=nothing,
    modules=RULES.get,
    operators=NONE,
    integers=True,
)
