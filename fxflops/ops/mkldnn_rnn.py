"""oneDNN's recurrent layer, counted like in rnn.py, and the size of the workspace that it keeps for the backward pass."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from ..torch_internals import disable_current_modes
from ._extend import Cost, Spec, formula, named, stores
from .fused_rnn import BY_MODE, KINDS, To, layers_backward
from .rnn import steps_of, weights_of

PAGE, CACHE_LINE, FLOAT = 4096, 64, 4
"""Sizes in bytes."""


@formula("aten::mkldnn_rnn_layer", op="rnn")
def mkldnn_rnn_layer(input: Spec, *, mode: int, hidden_size: int, has_biases: bool, out: Any) -> Cost:
    """input[t, b, i], 2 weights and 2 biases -> out[t, b, h]: one layer in one direction, counted like nn.RNN, nn.LSTM or nn.GRU, depending on ``mode``."""
    weights = weights_of(KINDS[mode], input[-1], hidden_size, 1, 1, has_biases)
    return steps_of(KINDS[mode], math.prod(input[:-1]), weights, hidden_size)


@mkldnn_rnn_layer.backward(*named("mkldnn_rnn_layer_backward"), op="rnn_backward")
def mkldnn_rnn_layer_backward(
    input: Spec, *, hx_: Spec, mode: int, hidden_size: int, has_biases: bool, out: Any
) -> Cost:
    """x[t, b, i], weights, grad[t, b, h] -> out[t, b, i], out_weights, out_hx, out_cx: one layer in one direction, counted like _cudnn_rnn_backward.

    The kernel computes all gradients; only requested gradients are counted.
    """
    layer = list(weights_of(KINDS[mode], input[-1], hidden_size, 1, 1, has_biases))
    to = To(input.facts.get("requires_grad", True), hx_.facts.get("requires_grad", True), True)
    return layers_backward(BY_MODE[mode], input, [layer], hidden_size, hx_, 1, to)


@stores("aten::mkldnn_rnn_layer", saved=True)
def mkldnn_rnn_workspace(
    input: Spec, weight0: Spec, weight1: Spec, weight2: Spec, weight3: Spec, hx: Spec, *rest: Any
) -> int:
    """input[t, b, i], hx[*, h] -> bytes: the gates, outputs and states of every step, and space for their gradients.

    See set_conf and set_offsets in https://github.com/uxlfoundation/oneDNN/blob/main/src/cpu/rnn/rnn_utils.hpp. Each part
    begins on a new page.
    """
    t, b, i = input
    h, size = hx[-1], input.dtype.itemsize
    states = 2 * (t + 1) * b
    parts = [
        t * b * _padded(weight0[0], size) * size,
        t * b * _padded(h, size) * size,
        *[states * _padded(max(i, h), size) * size] * (_parts_of_the_smallest() - 6),
        states * h * size,
        *[states * _padded(max(i, h), FLOAT) * FLOAT] * 2,
        states * h * FLOAT,
    ]
    return sum(-(-part // PAGE) * PAGE for part in parts)


@cache
def _parts_of_the_smallest() -> int:
    """Return a workspace's number of parts, measured with a tiny layer: there each part is one page.

    oneDNN 3.7 has two more parts for states than oneDNN 3.12.
    """
    sizes = (1, 1, 1), (4, 1), (4, 1), (4,), (4,), (1, 1, 1), (1, 1, 1)
    with disable_current_modes():
        given = [torch.ones(shape, dtype=torch.float32, device="cpu") for shape in sizes]
        *_, kept = torch.ops.aten.mkldnn_rnn_layer(*given, False, [], 2, 1, 1, True, False, False, True)
    return int(kept.nbytes) // PAGE


def _padded(width: int, size: int) -> int:
    """Return the row stride in elements of ``size`` bytes: whole cache lines, but not a multiple of 256 elements."""
    line = CACHE_LINE // size
    rows = -(-width // line) * line
    return rows + line if rows % 256 == 0 else rows
