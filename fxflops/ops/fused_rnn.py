"""Recurrent layers and cells in one call of a library's kernel, fused or quantized: counted as those of rnn.py.

What quantization adds to the products of a step is not counted; the products are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from ..records import Cost, Spec, specs_in
from ..torch_internals import disable_current_modes
from ._cost import times
from ._registry import formula
from ._rules import keeps
from ._spellings import named
from .packed import unpacked
from .rnn import GATES, GATES_OF, gru_cell_function, lstm_cell_function, rnn_cell_function, steps_of

KINDS = ("rnn", "rnn", "lstm", "gru")
"""By the number of their mode in cuDNN, MIOpen and oneDNN: relu, tanh, LSTM, GRU."""
PAGE, CACHE_LINE, FLOAT = 4096, 64, 4
"""In bytes."""


@formula(*named("_thnn_fused_lstm_cell"), op="lstm_cell")
def lstm_gates(
    input_gates: Spec, hidden_gates: Spec, cx: Spec, input_bias: Any = None, hidden_bias: Any = None, *, out: Any
) -> Cost:
    """input_gates[b, 4h], hidden_gates[b, 4h], cx[b, h] -> hy[b, h], cy[b, h]: the gates of one step, the biases' adds."""
    return _gates("lstm", cx, input_gates, input_bias, hidden_bias)


@formula(*named("_thnn_fused_gru_cell"), op="gru_cell")
def gru_gates(
    input_gates: Spec, hidden_gates: Spec, hx: Spec, input_bias: Any = None, hidden_bias: Any = None, *, out: Any
) -> Cost:
    """input_gates[b, 3h], hidden_gates[b, 3h], hx[b, h] -> hy[b, h]: the gates of one step, the biases' adds."""
    return _gates("gru", hx, input_gates, input_bias, hidden_bias)


@formula("aten::_cudnn_rnn", op="rnn")
def cudnn_rnn(
    input: Spec,
    weight: Any,
    weight_stride0: int,
    weight_buf: Any,
    hx: Spec,
    cx: Any,
    mode: int,
    hidden_size: int,
    *,
    out: Any,
) -> Cost:
    """input[*, i], weights -> out[*, h]: as nn.RNN, nn.LSTM or nn.GRU by the mode; hx counts layers and directions."""
    return steps_of(KINDS[mode], math.prod(input[:-1]), specs_in(weight), hx[0] * hidden_size)


@formula("aten::miopen_rnn", op="rnn")
def miopen_rnn(
    input: Spec, weight: Any, weight_stride0: int, hx: Spec, cx: Any, mode: int, hidden_size: int, *, out: Any
) -> Cost:
    """input[*, i], weights -> out[*, h]: as _cudnn_rnn."""
    return cudnn_rnn(input, weight, weight_stride0, None, hx, cx, mode, hidden_size, out=out)


@formula("aten::_lstm_mps", op="lstm")
def lstm_mps(input: Spec, hx: Any, params: Any, *, out: Any) -> Cost:
    """input[*, i], params -> out[*, h]: as nn.LSTM."""
    return steps_of("lstm", math.prod(input[:-1]), specs_in(params), hx[0][0] * hx[0][-1])


@formula("aten::mkldnn_rnn_layer", op="rnn")
def mkldnn_rnn_layer(
    input: Spec,
    weight0: Spec,
    weight1: Spec,
    weight2: Spec,
    weight3: Spec,
    hx: Spec,
    cx: Spec,
    reverse: bool,
    batch_sizes: Any,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *,
    out: Any,
) -> Cost:
    """input[t, b, i], 2 weights and 2 biases -> out[t, b, h]: one layer in one direction, as nn.LSTM or nn.GRU by the mode."""
    weights = weights_of(KINDS[mode], input[-1], hidden_size, 1, 1, has_biases)
    return steps_of(KINDS[mode], math.prod(input[:-1]), weights, hidden_size)


@formula(*named("quantized_lstm"), op="lstm")
def quantized_lstm(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], packed params -> out[*, h]: as nn.LSTM."""
    return _packed_layers("lstm", input, rest, out)


@formula(*named("quantized_gru"), op="gru")
def quantized_gru(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], packed params -> out[*, h]: as nn.GRU."""
    return _packed_layers("gru", input, rest, out)


formula(*named("quantized_lstm_cell"))(lstm_cell_function)
formula(*named("quantized_gru_cell"))(gru_cell_function)
formula(*named("quantized_rnn_relu_cell", "quantized_rnn_tanh_cell"))(rnn_cell_function)


@formula("quantized::quantized_lstm_cell_dynamic", op="lstm_cell")
def lstm_cell_packed(input: Spec, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of an LSTM."""
    return lstm_cell_function(input, hx, unpacked(w_ih)[0], unpacked(w_hh)[0], b_ih, b_hh, out=out)


@formula("quantized::quantized_gru_cell_dynamic", op="gru_cell")
def gru_cell_packed(input: Spec, hx: Spec, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of a GRU."""
    return gru_cell_function(input, hx, unpacked(w_ih)[0], unpacked(w_hh)[0], b_ih, b_hh, out=out)


@formula("quantized::quantized_rnn_tanh_cell_dynamic", "quantized::quantized_rnn_relu_cell_dynamic", op="rnn_cell")
def rnn_cell_packed(input: Spec, hx: Spec, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of an RNN."""
    return rnn_cell_function(input, hx, unpacked(w_ih)[0], unpacked(w_hh)[0], b_ih, b_hh, out=out)


def _gates(kind: str, state: Spec, gates: Spec, *biases: Spec | None) -> Cost:
    return times(state.numel(), GATES[kind]).plus(Cost(adds=gates.numel() * sum(bias is not None for bias in biases)))


def _packed_layers(kind: str, input: Spec, rest: tuple[Any, ...], out: Any) -> Cost:
    """Of torch.quantized_lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or
    of a packed one, whose batch sizes come before hx: the params' shapes follow from the results'."""
    at = next(position for position, value in enumerate(rest) if isinstance(value, bool))
    has_biases, num_layers, _, _, bidirectional = rest[at : at + 5]
    directions, hidden = 1 + bidirectional, out[1][-1]
    weights = weights_of(kind, input[-1], hidden, num_layers, directions, has_biases)
    return steps_of(kind, math.prod(input[:-1]), weights, num_layers * directions * hidden)


def weights_of(kind: str, width: int, hidden: int, layers: int, directions: int, has_biases: bool) -> Iterator[Spec]:
    """The weights and biases of all layers; ``width`` is that of the first one's input."""
    rows = GATES_OF[kind] * hidden
    for layer in range(layers):
        for _ in range(directions):
            yield Spec((rows, hidden * directions if layer else width))
            yield Spec((rows, hidden))
            if has_biases:
                yield from (Spec((rows,)), Spec((rows,)))


@keeps("aten::mkldnn_rnn_layer")
def mkldnn_rnn_workspace(
    input: Spec, weight0: Spec, weight1: Spec, weight2: Spec, weight3: Spec, hx: Spec, *rest: Any
) -> int:
    """input[t, b, i], hx[*, h] -> bytes: the gates, outputs and states of every step, and room for the gradients of those.

    https://github.com/uxlfoundation/oneDNN/blob/main/src/cpu/rnn/rnn_utils.hpp, set_conf and set_offsets. Each of its parts
    begins on a page.
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
    """The parts of a workspace: as many as pages where each is shorter than one. oneDNN 3.7 has two more than 3.12, for states."""
    sizes = (1, 1, 1), (4, 1), (4, 1), (4,), (4,), (1, 1, 1), (1, 1, 1)
    with disable_current_modes():
        given = [torch.ones(shape, dtype=torch.float32, device="cpu") for shape in sizes]
        *_, kept = torch.ops.aten.mkldnn_rnn_layer(*given, False, [], 2, 1, 1, True, False, False, True)
    return int(kept.nbytes) // PAGE


def _padded(width: int, size: int) -> int:
    """The elements of so many bytes from one row to the next: whole cache lines, but no multiple of 256."""
    line = CACHE_LINE // size
    rows = -(-width // line) * line
    return rows + line if rows % 256 == 0 else rows
