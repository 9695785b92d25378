"""Recurrent layers and cells with quantized weights, counted like in rnn.py.

The matrix products count the same. The work that quantization adds to a step is not counted.
"""

from __future__ import annotations

import math
from typing import Any

from ._extend import Cost, Spec, formula, named
from .packed import unpacked
from .rnn import cell_function, steps_of, weights_of


@formula(*named("quantized_lstm"), op="lstm")
@formula(*named("quantized_gru"), op="gru")
def quantized_layers(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], packed params -> out[*, h]: counted like nn.LSTM or nn.GRU.

    The call is torch.quantized_lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first).
    For a packed sequence, the batch sizes come before hx. The shapes of the params are derived from the result's shape.
    """
    at = next(position for position, value in enumerate(rest) if isinstance(value, bool))
    has_biases, num_layers, _, _, bidirectional = rest[at : at + 5]
    kind = "gru" if isinstance(rest[at - 2], Spec) else "lstm"  # hx is one state for a GRU, two for an LSTM
    directions, hidden = 1 + bidirectional, out[1][-1]
    weights = weights_of(kind, input[-1], hidden, num_layers, directions, has_biases)
    return steps_of(kind, math.prod(input[:-1]), weights, num_layers * directions * hidden)


formula(*named("quantized_lstm_cell"), op="lstm_cell")(cell_function)
formula(*named("quantized_gru_cell"), op="gru_cell")(cell_function)
formula(*named("quantized_rnn_relu_cell", "quantized_rnn_tanh_cell"), op="rnn_cell")(cell_function)


@formula("quantized::quantized_lstm_cell_dynamic", op="lstm_cell")
@formula("quantized::quantized_gru_cell_dynamic", op="gru_cell")
@formula("quantized::quantized_rnn_tanh_cell_dynamic", "quantized::quantized_rnn_relu_cell_dynamic", op="rnn_cell")
def cell_packed(input: Spec, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *, out: Any) -> Cost:
    """input[*, i], packed weights -> out[*, h]: one step of an LSTM, a GRU or an RNN."""
    return cell_function(input, hx, unpacked(w_ih)["weight"], unpacked(w_hh)["weight"], b_ih, b_hh, out=out)
