"""The multiply-adds that pytorch-profiler, the ancestor of DeepSpeed's profiler, counts for calls of torch.nn.functional in modules.

pytorch-profiler is no longer available. The formulas here follow its documentation, whose example is a LeNet5 with
429.248 KMac. The tool replaced the functions of torch.nn.functional, so functions of ``torch`` and methods of tensors
are free. The tool collected charges only when a module without children returned. So calls made by a module with children are free too,
e.g. the softmax at the end of the documentation's LeNet5. For some calls the tool raised an error (one-dimensional convolutions, scale
factors, leaky_relu). The count here is then what the tool's rules intended. If a module was called several times, the tool kept only the
last call. Here all calls are counted.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import nn

from ..ops._extend import Cost, Spec, first
from ._convention import CONVENTIONS, NONE, Convention, nothing
from ._rows import per_input

POINTWISE = {1: 1, 3: 7, 4: 10}
"""The number of pointwise operations per hidden unit and step, by the number of gates: 1 (RNN), 3 (GRU) or 4 (LSTM)."""


def linear(input: Spec, weight: Spec, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: i per output, none for a bias."""
    return Cost(others=input.numel() * weight[0])


def conv(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: i*prod(k) per output, and 1 with a bias."""
    return Cost(others=out.numel() * (math.prod(weight[1:]) + (bias is not None)))


def conv_transpose(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[n, i, *s], weight[i, o, *k] -> out[n, g*o, *m]: o*prod(k) per input, plus 1 per output if there is a bias."""
    return Cost(others=input.numel() * math.prod(weight[1:]) + (out.numel() if bias is not None else 0))


def batch_norm(input: Spec, *, out: Any) -> Cost:
    """input[*] -> out[*]: 2 per input, affine or not."""
    return Cost(others=2 * input.numel())


def interpolate(input: Spec, size: Any = None, *, out: Spec) -> Cost:
    """input[n, c, *s] -> out[n, c, *m]: prod(size) per call, or ``size`` itself if it is an int; without ``size``, 1 per input element."""
    if size is None:
        return Cost(others=input.numel())
    return Cost(others=size if isinstance(size, int) else math.prod(size))


def recurrent(
    input: Any,
    *,
    weight_ih_l0: Spec,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool,
    bidirectional: bool,
    proj_size: int,
    out: Any,
) -> Cost:
    """input[a, b, i] -> out[a, b, h]: for each of a*b steps, 1 per weight and bias of each layer, plus the layer's pointwise operations.

    A bidirectional layer is charged twice as much.
    """
    directions, units = (2 if bidirectional else 1), proj_size or hidden_size
    widths = [input_size] + [units * directions] * (num_layers - 1)
    step = sum(cell(weight_ih_l0, width, hidden_size, units, bias) for width in widths)
    return Cost(others=directions * math.prod(first(input)[:-1]) * step)


def recurrent_cell(input: Spec, weight_ih: Spec, hidden_size: int, bias: bool, *, out: Any) -> Cost:
    """input[b, i] -> out[b, h]: for each of b samples, 1 per weight and bias of the cell, plus the cell's pointwise operations."""
    return Cost(others=input[0] * cell(weight_ih, input[1], hidden_size, hidden_size, bias))


def cell(weight_ih: Spec, inputs: int, hidden: int, outputs: int, bias: bool) -> int:
    """Return the charge of one step of a cell for one sample."""
    gates = weight_ih[0] // hidden
    return hidden * (gates * (inputs + outputs + 2 * bias) + POINTWISE[gates])


CONVENTION = Convention(
    "pytorch_profiler",
    CONVENTIONS["pytorch_profiler"],
    {
        nn.Linear: linear,
        F.linear: linear,
        **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d), conv),
        **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), conv_transpose),
        **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), conv_transpose),
        **dict.fromkeys((nn.ReLU, nn.PReLU, nn.ELU, nn.LeakyReLU, nn.Softmax, nn.Softmax2d), per_input),
        **dict.fromkeys((F.relu, F.prelu, F.elu, F.leaky_relu, F.relu6, F.softmax), per_input),
        **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, F.batch_norm), batch_norm),
        **dict.fromkeys(("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool"), per_input),
        **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), interpolate),
        **dict.fromkeys((F.interpolate, F.upsample), interpolate),
        **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM), recurrent),
        **dict.fromkeys((nn.RNNCell, nn.GRUCell, nn.LSTMCell), recurrent_cell),
    },
    of=nothing,
    operators=NONE,
    integers=True,
    childless=True,
)
