"""Recurrent layers against their published equations, step by step, on arrays of counting numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.oracle import Tally, cost_of, numbers, tallying

CELLS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}


def sigmoid(x):
    """1 operation, like any activation."""
    return np.exp(x)


def gate(x, h, size: int, bias: bool):
    return affine(x, size, bias) + affine(h, size, bias)


def affine(x, size: int, bias: bool):
    out = x @ numbers(x.shape[-1], size)
    return out + numbers(size) if bias else out


def lstm(x, h, size, bias, projection=0):
    i, f, o, g = (gate(x, h, size, bias) for _ in range(4))
    c = sigmoid(f) * numbers(*i.shape) + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h @ numbers(size, projection) if projection else h


def gru(x, h, size, bias):
    r, z = (sigmoid(gate(x, h, size, bias)) for _ in range(2))
    n = np.tanh(affine(x, size, bias) + r * affine(h, size, bias))
    return (1 - z) * n + z * h


def rnn(x, h, size, bias):
    return np.tanh(gate(x, h, size, bias))


def layers(step, rows, inputs, size, *, steps=1, count=1, directions=1, bias=True, projection=0) -> Tally:
    """The tally of ``steps`` steps of ``rows`` rows through all layers and directions."""
    kept = projection or size
    extra = {"projection": projection} if projection else {}
    with tallying() as tally:
        for layer in range(count):
            for _ in range(directions * steps):
                x = numbers(rows, directions * kept if layer else inputs)
                step(x, numbers(rows, kept), size, bias, **extra)
    return tally


@pytest.mark.parametrize(("step", "cls"), [(lstm, nn.LSTM), (gru, nn.GRU), (rnn, nn.RNN)])
class TestLayers:
    def test_one_layer(self, step, cls, torch_macs):
        module, x = cls(3, 4), torch.zeros(5, 2, 3)
        cost = cost_of(module, x)
        assert layers(step, 2, 3, 4, steps=5) == cost
        assert cost.macs == cost_of(module, x, None).macs == torch_macs(module, x)

    def test_layers_in_both_directions(self, step, cls):
        module = cls(3, 4, num_layers=2, bidirectional=True, batch_first=True, bias=False)
        expected = layers(step, 2, 3, 4, steps=5, count=2, directions=2, bias=False)
        assert expected == cost_of(module, torch.zeros(2, 5, 3))

    def test_unbatched(self, step, cls):
        assert layers(step, 1, 3, 4, steps=5) == cost_of(cls(3, 4), torch.zeros(5, 3))

    def test_packed_sequences_count_their_own_steps(self, step, cls):
        packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(5, 2, 3), [5, 2])
        assert layers(step, 1, 3, 4, steps=5 + 2) == cost_of(cls(3, 4), packed)

    @pytest.mark.parametrize("bias", [True, False])
    def test_cell(self, step, cls, bias):
        module = CELLS[cls](3, 4, bias)
        assert layers(step, 2, 3, 4, bias=bias) == cost_of(module, torch.zeros(2, 3))
        assert layers(step, 1, 3, 4, bias=bias) == cost_of(module, torch.zeros(3))

    def test_as_functions(self, step, cls):
        module, x = cls(3, 4, num_layers=2, bidirectional=True), torch.zeros(5, 2, 3)
        name = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[cls.__name__]
        state = torch.zeros(4, 2, 4)
        hx = (state, state) if step is lstm else state
        options = (True, 2, 0.0, False, True)
        expected = layers(step, 2, 3, 4, steps=5, count=2, directions=2)
        assert expected == cost_of(getattr(torch, name), x, hx, module._flat_weights, *options, False)
        packed = nn.utils.rnn.pack_padded_sequence(x, [5, 5])
        assert expected == cost_of(getattr(torch, name), packed[0], packed[1], hx, module._flat_weights, *options)

    def test_cells_as_functions(self, step, cls):
        module, x, state = CELLS[cls](3, 4), torch.zeros(2, 3), torch.zeros(2, 4)
        name = {"LSTM": "lstm_cell", "GRU": "gru_cell", "RNN": "rnn_relu_cell"}[cls.__name__]
        hx = (state, state) if step is lstm else state
        weights = module.weight_ih, module.weight_hh
        assert layers(step, 2, 3, 4) == cost_of(getattr(torch, name), x, hx, *weights, module.bias_ih, module.bias_hh)
        assert layers(step, 2, 3, 4, bias=False) == cost_of(getattr(torch, name), x, hx, *weights)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projected_lstm():
    module = nn.LSTM(3, 6, num_layers=2, proj_size=2)
    assert layers(lstm, 2, 3, 6, steps=5, count=2, projection=2) == cost_of(module, torch.zeros(5, 2, 3))


def test_initial_state_costs_nothing():
    module, x, state = nn.LSTM(3, 4), torch.zeros(5, 2, 3), torch.zeros(1, 2, 4)
    assert cost_of(module, x, (state, state)) == cost_of(module, x, hx=(state, state)) == cost_of(module, x)
