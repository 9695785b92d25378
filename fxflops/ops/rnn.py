"""Recurrent layers and cells: the matrix products of every step, layer and direction, their biases, and the gates.

Equations: https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html, and torch's pages of GRU and RNN. A packed
sequence has one step per row of its data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from ..records.tensors import spec_of
from ._extend import Cost, Spec, contraction, first, formula, named, specs_in, summed, times

GATES = {"lstm": Cost(muls=3, adds=5, others=5), "gru": Cost(muls=3, adds=5, others=3), "rnn": Cost(adds=1, others=1)}
"""Operations per step and hidden unit, besides the products with input and state: adding both products, and
i, f, o = sigmoid, g = tanh, c = f*c + i*g, h = o*tanh(c);
r, z = sigmoid, n = tanh(x + r*h), h = (1-z)*n + z*h;
h = tanh or relu."""

GATES_OF = {"lstm": 4, "gru": 3, "rnn": 1}
"""The number of gates: a weight has one row per gate and hidden unit."""
KIND_OF = {gates: kind for kind, gates in GATES_OF.items()}


@formula(nn.LSTM, op="lstm")
@formula(nn.GRU, op="gru")
@formula(nn.RNN, op="rnn")
def layers(module: nn.RNNBase, input: Any, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: per step, products with weights [g*h, i], [g*h, h] and of a projection, and g gates; LSTM: g = 4, GRU: 3, RNN: 1."""
    kind, hidden, directions = module.mode.lower().partition("_")[0], module.hidden_size, 1 + module.bidirectional
    weights = weights_of(kind, module.input_size, hidden, module.num_layers, directions, module.bias, module.proj_size)
    return steps_of(kind, math.prod(first(input)[:-1]), weights, module.num_layers * directions * hidden)


@formula(*named("lstm"), op="lstm")
@formula(*named("gru"), op="gru")
@formula(*named("rnn_tanh", "rnn_relu"), op="rnn")
def layers_function(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], params -> out[*, h]: counted like nn.LSTM, nn.GRU or nn.RNN.

    The call is torch.lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or for a
    packed sequence torch.lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional).
    """
    at = max(
        position for position, value in enumerate(rest) if isinstance(value, tuple) and not isinstance(value, Spec)
    )
    hx, params, _, num_layers, _, _, bidirectional = rest[at - 1 : at + 6]
    *_, state = specs_in(hx)
    kind, units = KIND_OF[params[0][0] // state[-1]], num_layers * (1 + bidirectional) * state[-1]
    return steps_of(kind, math.prod(input[:-1]), params, units)


@formula(nn.LSTMCell, op="lstm_cell")
@formula(nn.GRUCell, op="gru_cell")
@formula(nn.RNNCell, op="rnn_cell")
def cell(module: nn.RNNCellBase, input: Spec, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: one step of an LSTM, a GRU or an RNN."""
    weights = spec_of((module.weight_ih, module.weight_hh, module.bias_ih, module.bias_hh))
    return cell_function(input, hx, *weights, out=out)


@formula(*named("lstm_cell"), op="lstm_cell")
@formula(*named("gru_cell"), op="gru_cell")
@formula(*named("rnn_tanh_cell", "rnn_relu_cell"), op="rnn_cell")
def cell_function(
    input: Spec, hx: Any, w_ih: Spec, w_hh: Spec, b_ih: Spec | None = None, b_hh: Spec | None = None, *, out: Any
) -> Cost:
    """input[*, i], w_ih[g*h, i], w_hh[g*h, h] -> out[*, h]: one step of an LSTM (g = 4), a GRU (g = 3) or an RNN (g = 1)."""
    kind = KIND_OF[w_hh[0] // w_hh[-1]]
    return steps_of(kind, math.prod(input[:-1]), specs_in((w_ih, w_hh, b_ih, b_hh)), w_hh[-1])


def steps_of(kind: str, steps: int, weights: Iterable[Spec], units: int) -> Cost:
    """Return the cost of ``steps`` (time steps times batch size): per step, a product with each matrix, an add of each bias, and all gates."""
    products = (
        contraction(weight[1], steps * weight[0]) if weight.ndim == 2 else Cost(adds=steps * weight[0])
        for weight in weights
    )
    return summed(times(steps * units, GATES[kind]), *products)


def weights_of(
    kind: str, width: int, hidden: int, layers: int, directions: int, has_biases: bool, projection: int = 0
) -> Iterator[Spec]:
    """Yield the weights and biases of all layers; ``width`` is the first layer's input size."""
    rows, state = GATES_OF[kind] * hidden, projection or hidden
    for layer in range(layers):
        for _ in range(directions):
            yield Spec((rows, state * directions if layer else width))
            yield Spec((rows, state))
            if has_biases:
                yield from (Spec((rows,)), Spec((rows,)))
            if projection:
                yield Spec((projection, hidden))
