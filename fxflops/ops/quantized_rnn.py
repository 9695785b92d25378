"""Recurrent layers and cells with quantized weights: counted as those of rnn.py.

What quantization adds to the products of a step is not counted; the products are the same.
"""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, Spec
from ._registry import formula
from ._spellings import named
from .packed import unpacked
from .rnn import gru_cell_function, lstm_cell_function, rnn_cell_function, steps_of, weights_of


@formula(*named("quantized_lstm"), op="lstm")
def quantized_lstm(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], packed params -> out[*, h]: as nn.LSTM."""
    return _packed_layers("lstm", input, rest, out)


@formula(*named("quantized_gru"), op="gru")
def quantized_gru(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], packed params -> out[*, h]: as nn.GRU."""
    return _packed_layers("gru", input, rest, out)


formula(*named("quantized_lstm_cell"), op="lstm_cell")(lstm_cell_function)
formula(*named("quantized_gru_cell"), op="gru_cell")(gru_cell_function)
formula(*named("quantized_rnn_relu_cell", "quantized_rnn_tanh_cell"), op="rnn_cell")(rnn_cell_function)


@formula("quantized::quantized_lstm_cell_dynamic", op="lstm_cell")
def lstm_cell_packed(input: Spec, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of an LSTM."""
    return lstm_cell_function(input, hx, unpacked(w_ih)["weight"], unpacked(w_hh)["weight"], b_ih, b_hh, out=out)


@formula("quantized::quantized_gru_cell_dynamic", op="gru_cell")
def gru_cell_packed(input: Spec, hx: Spec, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of a GRU."""
    return gru_cell_function(input, hx, unpacked(w_ih)["weight"], unpacked(w_hh)["weight"], b_ih, b_hh, out=out)


@formula("quantized::quantized_rnn_tanh_cell_dynamic", "quantized::quantized_rnn_relu_cell_dynamic", op="rnn_cell")
def rnn_cell_packed(input: Spec, hx: Spec, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of an RNN."""
    return rnn_cell_function(input, hx, unpacked(w_ih)["weight"], unpacked(w_hh)["weight"], b_ih, b_hh, out=out)


def _packed_layers(kind: str, input: Spec, rest: tuple[Any, ...], out: Any) -> Cost:
    """The cost of torch.quantized_lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first),
    or of a packed one, whose batch sizes come before hx: the params' shapes follow from the results'."""
    at = next(position for position, value in enumerate(rest) if isinstance(value, bool))
    has_biases, num_layers, _, _, bidirectional = rest[at : at + 5]
    directions, hidden = 1 + bidirectional, out[1][-1]
    weights = weights_of(kind, input[-1], hidden, num_layers, directions, has_biases)
    return steps_of(kind, math.prod(input[:-1]), weights, num_layers * directions * hidden)
