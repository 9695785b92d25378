"""Recurrent layers and cells: the matrix products of every step, layer and direction, their biases, and the gates.

The equations are those of https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html, of GRU and of RNN beside
it. A packed sequence has as many steps as its data has rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from ..records import Cost, Spec, spec_of, specs_in
from ._cost import contraction, first, summed, times
from ._registry import formula
from ._spellings import named

GATES = {
    "lstm": Cost(muls=3, adds=5, others=5),
    "gru": Cost(muls=3, adds=5, others=3),
    "rnn": Cost(adds=1, others=1),
}
"""Operations per step and hidden unit between the products with input and state and the new state: the sums of both, and
i, f, o = sigmoid, g = tanh, c = f*c + i*g, h = o*tanh(c);
r, z = sigmoid, n = tanh(x + r*h), h = (1-z)*n + z*h;
h = tanh or relu."""

GATES_OF = {"lstm": 4, "gru": 3, "rnn": 1}
"""The number of gates: a weight has a row for each gate of each hidden unit."""


@formula(nn.LSTM)
def lstm(module: nn.LSTM, input: Any, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: products with 4 gates' [h, i] and [h, h] (or a projection's) weights per step, and the gates."""
    return _layers("lstm", module, input)


@formula(nn.GRU)
def gru(module: nn.GRU, input: Any, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: products with 3 gates' [h, i] and [h, h] weights per step, and the gates."""
    return _layers("gru", module, input)


@formula(nn.RNN)
def rnn(module: nn.RNN, input: Any, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: products with [h, i] and [h, h] weights per step, their sum and its tanh or relu."""
    return _layers("rnn", module, input)


@formula(*named("lstm"), op="lstm")
def lstm_function(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], params -> out[*, h]: as nn.LSTM."""
    return _function("lstm", input, rest)


@formula(*named("gru"), op="gru")
def gru_function(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], params -> out[*, h]: as nn.GRU."""
    return _function("gru", input, rest)


@formula(*named("rnn_tanh", "rnn_relu"), op="rnn")
def rnn_function(input: Spec, *rest: Any, out: Any) -> Cost:
    """input[*, i], params -> out[*, h]: as nn.RNN."""
    return _function("rnn", input, rest)


@formula(nn.LSTMCell)
def lstm_cell(module: nn.LSTMCell, input: Spec, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: one step of an LSTM."""
    return _cell("lstm", module, input)


@formula(nn.GRUCell)
def gru_cell(module: nn.GRUCell, input: Spec, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: one step of a GRU."""
    return _cell("gru", module, input)


@formula(nn.RNNCell)
def rnn_cell(module: nn.RNNCell, input: Spec, hx: Any = None, *, out: Any) -> Cost:
    """input[*, i] -> out[*, h]: one step of an RNN."""
    return _cell("rnn", module, input)


@formula(*named("lstm_cell"), op="lstm_cell")
def lstm_cell_function(
    input: Spec, hx: Any, w_ih: Spec, w_hh: Spec, b_ih: Spec | None = None, b_hh: Spec | None = None, *, out: Any
) -> Cost:
    """input[*, i], w_ih[4h, i], w_hh[4h, h] -> out[*, h]: one step of an LSTM."""
    return steps_of("lstm", math.prod(input[:-1]), specs_in((w_ih, w_hh, b_ih, b_hh)), w_hh[-1])


@formula(*named("gru_cell"), op="gru_cell")
def gru_cell_function(
    input: Spec, hx: Spec, w_ih: Spec, w_hh: Spec, b_ih: Spec | None = None, b_hh: Spec | None = None, *, out: Any
) -> Cost:
    """input[*, i], w_ih[3h, i], w_hh[3h, h] -> out[*, h]: one step of a GRU."""
    return steps_of("gru", math.prod(input[:-1]), specs_in((w_ih, w_hh, b_ih, b_hh)), w_hh[-1])


@formula(*named("rnn_tanh_cell", "rnn_relu_cell"), op="rnn_cell")
def rnn_cell_function(
    input: Spec, hx: Spec, w_ih: Spec, w_hh: Spec, b_ih: Spec | None = None, b_hh: Spec | None = None, *, out: Any
) -> Cost:
    """input[*, i], w_ih[h, i], w_hh[h, h] -> out[*, h]: one step of an RNN."""
    return steps_of("rnn", math.prod(input[:-1]), specs_in((w_ih, w_hh, b_ih, b_hh)), w_hh[-1])


def _layers(kind: str, module: nn.RNNBase, input: Any) -> Cost:
    """The cost of a module, whose input may be a packed sequence."""
    ways = ("", "_reverse") if module.bidirectional else ("",)
    suffixes = [f"_l{layer}{way}" for layer in range(module.num_layers) for way in ways]
    names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ()))
    names += ("weight_hr",) if module.proj_size else ()
    weights = spec_of([getattr(module, name + suffix) for suffix in suffixes for name in names])
    return steps_of(kind, math.prod(first(input)[:-1]), specs_in(weights), len(suffixes) * module.hidden_size)


def _cell(kind: str, module: nn.RNNCellBase, input: Spec) -> Cost:
    weights = spec_of((module.weight_ih, module.weight_hh, module.bias_ih, module.bias_hh))
    return steps_of(kind, math.prod(input[:-1]), specs_in(weights), module.hidden_size)


def _function(kind: str, input: Spec, rest: tuple[Any, ...]) -> Cost:
    """The cost of torch.lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or of a
    packed one, torch.lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)."""
    at = max(
        position for position, value in enumerate(rest) if isinstance(value, tuple) and not isinstance(value, Spec)
    )
    params, _, num_layers, _, _, bidirectional = rest[at : at + 6]
    units = params[0][0] // GATES_OF[kind]
    return steps_of(kind, math.prod(input[:-1]), params, num_layers * (1 + bidirectional) * units)


def steps_of(kind: str, steps: int, weights: Iterable[Spec], units: int) -> Cost:
    """The cost of so many steps (times batch): a product with each matrix, an add of each bias, and the gates of all units."""
    products = (
        contraction(weight[1], steps * weight[0]) if weight.ndim == 2 else Cost(adds=steps * weight[0])
        for weight in weights
    )
    return summed(times(steps * units, GATES[kind]), *products)


def weights_of(kind: str, width: int, hidden: int, layers: int, directions: int, has_biases: bool) -> Iterator[Spec]:
    """The weights and biases of all layers; ``width`` is that of the first one's input."""
    rows = GATES_OF[kind] * hidden
    for layer in range(layers):
        for _ in range(directions):
            yield Spec((rows, hidden * directions if layer else width))
            yield Spec((rows, hidden))
            if has_biases:
                yield from (Spec((rows,)), Spec((rows,)))
