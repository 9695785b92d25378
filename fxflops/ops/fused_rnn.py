"""Recurrent layers and cells that run in one fused kernel of a library, counted step by step like in rnn.py.

The backward pass goes back through time. Each step takes the derivatives of the gates, and the products of the gates' gradients with
each transposed weight matrix. The gradient of a matrix is one contraction over all steps, and the gradient of a bias is a sum over the
steps. In a bidirectional layer, the input's gradients from both directions are added. The gates and tanh(c) are assumed to be saved by
the forward; a kernel that recomputes them counts the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ._extend import Cost, Spec, contraction, formula, named, specs_in, summed, times, when
from .rnn import GATES, GATES_OF, steps_of

KINDS = ("rnn", "rnn", "lstm", "gru")
"""The kind of layer for each mode number of cuDNN, MIOpen and oneDNN: relu, tanh, LSTM, GRU."""
BY_MODE = ("relu", "tanh", *KINDS[2:])
GATE_GRADIENTS = {
    "lstm": Cost(muls=16, adds=6),
    "gru": Cost(muls=11, adds=4),
    "tanh": Cost(muls=2, adds=1),
    "relu": Cost(others=1),
}
"""Per step and hidden unit, from the state's gradient to the gradients of the gates before their sigmoid or tanh:
do = dh*t, dc += dh*o*(1-t*t), where the forward saved t = tanh(c); di = dc*g, dg = dc*i, df = dc*c', dc' = dc*f; times i*(1-i), f*(1-f), o*(1-o), 1-g*g;
dz = dh*(h'-n), dn = dh*(1-z), dh' = dh*z; times z*(1-z), 1-n*n; dr = dn*hn, dhn = dn*r; times r*(1-r);
dh * (1-h*h); dh where h > 0."""
STATE_GRADIENTS = {"lstm": 1, "gru": 2, "tanh": 1, "relu": 1}
"""Adds per step and hidden unit into the state's gradient: the output's gradient, and for a GRU dh*z."""


@formula(*named("_thnn_fused_lstm_cell"), op="lstm_cell")
def lstm_gates(
    input_gates: Spec, hidden_gates: Spec, cx: Spec, input_bias: Any = None, hidden_bias: Any = None, *, out: Any
) -> Cost:
    """input_gates[b, 4h], hidden_gates[b, 4h], cx[b, h] -> hy[b, h], cy[b, h]: the gates of one step, plus 4h adds per row for each bias."""
    return _gates("lstm", cx, input_gates, input_bias, hidden_bias)


@lstm_gates.backward(
    *named("_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_lstm_cell_backward"), op="lstm_cell_backward"
)
def lstm_gates_backward(*, cx: Spec, has_bias: bool, out: Any) -> Cost:
    """grad_hy[b, h], cx[b, h] -> out[b, 4h], out_cx[b, h], out_bias[4h]: the gradients of the gates of one step, plus b-1 adds per bias element."""
    return times(cx.numel(), GATE_GRADIENTS["lstm"]).plus(Cost(adds=4 * max(cx[0] - 1, 0) * cx[-1] * has_bias))


@formula(*named("_thnn_fused_gru_cell"), op="gru_cell")
def gru_gates(
    input_gates: Spec, hidden_gates: Spec, hx: Spec, input_bias: Any = None, hidden_bias: Any = None, *, out: Any
) -> Cost:
    """input_gates[b, 3h], hidden_gates[b, 3h], hx[b, h] -> hy[b, h]: the gates of one step, plus 3h adds per row for each bias."""
    return _gates("gru", hx, input_gates, input_bias, hidden_bias)


@gru_gates.backward(*named("_thnn_fused_gru_cell_backward"), op="gru_cell_backward")
def gru_gates_backward(grad_hy: Spec, *, has_bias: bool, out: Any) -> Cost:
    """grad_hy[b, h] -> out[b, 3h], out_hidden[b, 3h], out_hx[b, h], out_biases[3h]: the gradients of the gates of one step, plus b-1 adds per bias element."""
    return times(grad_hy.numel(), GATE_GRADIENTS["gru"]).plus(
        Cost(adds=2 * 3 * max(grad_hy[0] - 1, 0) * grad_hy[-1] * has_bias)
    )


@formula("aten::_cudnn_rnn", "aten::miopen_rnn", op="rnn")
def cudnn_rnn(
    input: Spec, weight: Any, weight_stride0: int, *, hx: Spec, mode: int, hidden_size: int, out: Any
) -> Cost:
    """input[*, i], weights -> out[*, h]: counted like nn.RNN, nn.LSTM or nn.GRU, depending on ``mode``; hx has one row per layer and direction."""
    weights = itertools.chain(*unflattened(weight, weight_stride0, KINDS[mode], hidden_size))
    return steps_of(KINDS[mode], math.prod(input[:-1]), weights, hx[0] * hidden_size)


@cudnn_rnn.backward(*named("_cudnn_rnn_backward", "miopen_rnn_backward"), op="rnn_backward")
def cudnn_rnn_backward(
    input: Spec,
    weight: Any,
    weight_stride0: int,
    *,
    hx: Spec,
    mode: int,
    hidden_size: int,
    bidirectional: bool,
    output_mask: Sequence[bool],
    out: Any,
) -> Cost:
    """x[*, i], weights, grad[*, h] -> out[*, i], out_hx, out_cx, out_weights: per step and layer, the gradients of the gates, and 2 products per weight matrix."""
    to = To(input=output_mask[0], state=output_mask[1], weights=output_mask[3])  # output_mask[2] is for the cell state
    layers = unflattened(weight, weight_stride0, KINDS[mode], hidden_size)
    return layers_backward(BY_MODE[mode], input, layers, hidden_size, hx, 1 + bidirectional, to)


@formula("aten::_lstm_mps", op="lstm")
def lstm_mps(input: Spec, hx: Any, params: Any, *, out: Any) -> Cost:
    """input[*, i], params -> out[*, h]: counted like nn.LSTM."""
    return steps_of("lstm", math.prod(input[:-1]), specs_in(params), hx[0][0] * hx[0][-1])


@lstm_mps.backward(*named("lstm_mps_backward"), op="rnn_backward")
def lstm_mps_backward(*, input: Spec, hx: Any, params: Any, has_biases: bool, bidirectional: bool, out: Any) -> Cost:
    """grad[*, h], x[*, i], params -> out[*, i], out_params, out_hx: counted like _cudnn_rnn_backward of an LSTM."""
    layers = chunked(params, 4 if has_biases else 2)
    return layers_backward("lstm", input, layers, hx[0][-1], hx[0], 1 + bidirectional, To(True, True, True))


def _gates(kind: str, state: Spec, gates: Spec, *biases: Spec | None) -> Cost:
    return times(state.numel(), GATES[kind]).plus(Cost(adds=gates.numel() * sum(bias is not None for bias in biases)))


def chunked(weights: Any, each: int) -> list[list[Spec]]:
    """Return a list of weights per layer and direction: for the input, for the state, two biases, and a projection."""
    every = list(specs_in(weights))
    return [every[at : at + each] for at in range(0, len(every), each)]


def unflattened(weights: Any, each: int, kind: str, hidden: int) -> list[list[Spec]]:
    """Return a list of weights per layer and direction, in the module's own shapes.

    Under autocast, cuDNN gets half-precision copies of weights and biases, each reshaped to one column.
    """
    rows, has_biases, has_projection = GATES_OF[kind] * hidden, each >= 4, each % 2 == 1
    layers = []
    for layer in chunked(weights, each):
        shapes = [Spec((rows, matrix.numel() // rows)) for matrix in layer[:2]]
        shapes += [Spec((rows,))] * 2 * has_biases
        shapes += [Spec((layer[-1].numel() // hidden, hidden))] * has_projection
        layers.append(shapes)
    return layers


class To(NamedTuple):
    """The gradients that are requested."""

    input: bool
    state: bool
    weights: bool


def layers_backward(
    kind: str, input: Spec, layers: Sequence[Iterable[Spec]], hidden: int, state: Spec, directions: int, to: To
) -> Cost:
    """Return the cost of the backward pass of all layers.

    If the gradient of the initial ``state`` [*, b, h] is not requested, the first step takes no product for the state's gradient.
    """
    steps = math.prod(input[:-1])
    back = steps if to.state else steps - math.prod(state[-2:-1])
    # The initial state is an input, not the output of a cell: its gradient is computed only if it is requested.
    into_states = steps + (STATE_GRADIENTS[kind] - 1) * back
    unasked = (steps - back) * (kind == "lstm")
    of_gates = times(steps * hidden, GATE_GRADIENTS[kind])
    of_gates = of_gates.plus(Cost(muls=-unasked * hidden, adds=into_states * hidden))
    total = times(len(layers), of_gates)
    for position, (of_input, *others) in enumerate(layers):
        joined = Cost(adds=steps * of_input[1] * (position % directions))
        to_weights = (
            contraction(steps, weight.numel()) if weight.ndim == 2 else Cost(adds=max(steps - 1, 0) * weight[0])
            for weight in (of_input, *others)
        )
        total = summed(
            total,
            when(to.input or position >= directions, contraction(of_input[0], steps * of_input[1]).plus(joined)),
            *(contraction(weight[0], back * weight[1]) for weight in others if weight.ndim == 2),
            when(to.weights, summed(*to_weights)),
        )
    return total
